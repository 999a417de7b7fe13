"""The source code that computes a run's numbers: a hash for each module.

These are the modules of the step and of the run's options, and what they import. Two rules leave out what computes no number. `QUIET`
lists modules: how a run is configured, stored, shown and measured. In the other modules these do not count: comments, docstrings, code
for the type checker, texts of errors (what is raised, the message of an assert, all of `require` but its condition, what is assigned to
`rule`), and what is printed (`print`, and `log` of a text).
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from nocap import outside
from nocap.config.run import Run

_NOCAP = Path(__file__).resolve().parents[1]
STEP = ("nocap.training.loop", "nocap.training.step")
QUIET = {
    "nocap": "a version",
    "nocap.config": "declarations and rules; what was chosen is in the config",
    "nocap.data.shards": "makes and checks shards, whose content is in the data's hash",
    "nocap.store.checkpoints": "names of files",
    "nocap.store.files": "writes files",
    "nocap.store.lease": "who may write",
    "nocap.config.hardware": "names and peaks",
    "nocap.model.flops": "FLOPs",
    "nocap.options": "a folder",
    "nocap.outside": "finds files, each hashed by itself",
    "nocap.config.paths": "places of files",
    "nocap.store": "a folder",
    "nocap.training": "a folder",
    "nocap.training.checkpoint": "saves and restores, bit for bit by its tests",
    "nocap.training.ledger": "seconds",
    "nocap.training.memory": "bytes",
    "nocap.training.optimizer_trial": "tries a copy",
    "nocap.training.recorder": "rows, checkpoints and totals of what has happened",
    "nocap.store.record": "files of rows",
    "nocap.training.spikes": "reports losses",
    "nocap.training.state": "saves and restores, bit for bit by its tests",
}
# Groups whose options compute no number but the tokens, whose content is hashed.
HASHED_OTHERWISE = ("data", "tokenizer", "tracker")


def source_hashes(run: Run, *, of: str = "identity") -> dict[str, str]:
    """Module → hash of its code, for each that computes a number of this run, or with `of="step"` of a training step's time."""
    found, seen = dict[str, str](), set[str]()
    waiting = [*STEP, *_of_options(run, of)]
    while waiting:
        if (module := waiting.pop()) in seen:
            continue
        seen.add(module)
        if _quiet(module) or (path := module_path(module)) is None:
            continue
        found[module], imported = _read(path, path.stat().st_mtime_ns)
        waiting += imported
    return dict(sorted(found.items()))


def _of_options(run: Run, of: str) -> list[str]:
    without = {*HASHED_OTHERWISE, *(f.name for f in fields(Run) if f.metadata.get(of) is False)}
    chosen = [option for name, option in run.options() if name.partition(".")[0] not in without]
    return [cls.__module__ for option in chosen for cls in type(option).__mro__ if cls is not object]


def _quiet(module: str) -> bool:
    return module in QUIET or module.startswith("nocap.config.")


def module_path(module: str) -> Path | None:
    """The file of a module of nocap, or from outside; None for others, and where there is no such module."""
    if found := next((file for file in outside.files() if file.module == module), None):
        return found.path
    root = module.partition(".")[0]
    if root == "nocap":
        base = _NOCAP.joinpath(*module.split(".")[1:])
    elif root in (packages := _packages_from_outside()):
        base = packages[root].joinpath(*module.split(".")[1:])
    else:
        return None
    paths = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    return paths[0] if paths else None


def _packages_from_outside() -> dict[str, Path]:
    """The installed packages that options come from: their own imports count too."""
    found: dict[str, Path] = {}
    for folder in outside.folders():
        while (folder.parent / "__init__.py").is_file():
            folder = folder.parent
        if (folder / "__init__.py").is_file() and find_spec(folder.name) is not None:
            found[folder.name] = folder
    return found


@cache
def _read(path: Path, changed_ns: int) -> tuple[str, list[str]]:
    counts = _WhatCounts()
    return _hash(counts.visit(ast.parse(path.read_text()))), counts.imports


def digest(source: str) -> str:
    """Twelve hex digits of a module's source, without what does not count."""
    return _hash(_WhatCounts().visit(ast.parse(source)))


def _hash(tree: ast.Module) -> str:
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def _is_text(node: ast.expr) -> bool:
    """`"resuming"`, `f"step {step}"`, or one of two such texts by a condition."""
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _WhatCounts(ast.NodeTransformer):
    """Removes what computes no number; see the top of this file. Expressions hold no statements: those are left as they are."""

    def __init__(self) -> None:
        self.imports: list[str] = []  # names in what is left; those that are no module are dropped later

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self.imports += [alias.name for alias in node.names]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module:
            self.imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=kind, cause=None)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Assert(test=node.test, msg=None)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        text = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "rule"
        return None if text else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        if isinstance(call, ast.Constant):
            return None  # a docstring
        if isinstance(call, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
            if name == "print" or (name == "log" and len(call.args) == 1 and not call.keywords and _is_text(call.args[0])):
                return None
            if name == "require":
                return ast.Expr(ast.Call(func=call.func, args=call.args[:1], keywords=[]))
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """As its parent does; a block that is empty then does nothing."""
        if isinstance(node, ast.expr):
            return node
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.With | ast.If | ast.ExceptHandler) and not node.body:
            node.body = [ast.Pass()]
        return node
