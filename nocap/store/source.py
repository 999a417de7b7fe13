"""The source code that computes a run's numbers: a hash for each module.

These are the modules of the step and of the run's options, and what they import. Two rules leave out what computes no number. `QUIET`
lists modules: how a run is configured, stored, shown and measured. In the other modules these do not count: comments, docstrings, code
for the type checker, texts of errors (what is raised, the message of an assert, all of `require` but its condition, a text that is
assigned to `rule`), what is printed (`print`, and `log` of a text), and `recorder.probe`, which leaves everything as it was.

What an option from outside imports counts, too: an installed package by its version, any other module by its content, and what that one
imports. Python's own modules do not, nor does torch, whose version is in the environment.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from nocap import outside
from nocap.config.keys import InputError
from nocap.config.run import Run

# Name and file of a module of torch, of Triton's making, or of Python.
_KNOWN = rf"torch[. ]|\S+ (.*/\.triton|{re.escape(os.path.dirname(os.__file__))})/(?!(?:site|dist)-packages/)"
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
    "nocap.training.probe": "tries a copy",
    "nocap.training.recorder": "rows, checkpoints and totals of what has happened",
    "nocap.store.identity": "what is the same run",
    "nocap.store.record": "files of rows",
    "nocap.store.source": "hashes of code",
    "nocap.store.verify": "checks records",
    "nocap.training.state": "saves and restores, bit for bit by its tests",
}
# Groups whose options compute no number but the tokens, whose content is hashed. The code that makes tokens
# is in the key by which `nocap.data.made` keeps them.
HASHED_OTHERWISE = ("data", "tokenizer", "tracker")


def source_hashes(run: Run, *, of: str = "identity") -> dict[str, str]:
    """`hashes` of what computes this run's numbers, or with `of="step"` of what a step's time depends on."""
    return hashes([*STEP, *_of_options(run, of)])


def hashes(modules: Iterable[str]) -> dict[str, str]:
    """Module → hash of its code, for each of these and of those that they import, without what computes no number; installed package →
    version, for those that code from outside imports."""
    return dict(sorted((name, text) for name, (text, _) in _closure(modules).items()))


def check_source(run: Run, source: dict[str, str]) -> None:
    """In the process that trains, once all of its code has been used: refuse what is not in `source`, the one of its manifest.

    Errors:
        InputError: code has changed since the command began, or a module counts for no identity: it came from a file, after the first
            option from outside, and by no import statement of theirs.
    """
    now, counted = source_hashes(run), {path for _, path in _closure(file.module for file in outside.files()).values()}
    rules = {name: "be what this command began with" for name in {**source, **now} if source.get(name) != now.get(name)}
    loaded = {name: Path(str(getattr(sys.modules[name], "__file__", None))) for name in sys.modules.keys() - outside.LOADED}
    rules |= {
        f"{name} ({path})": "be an installed package, or in an import statement: by those nocap finds what makes a run"
        for name, path in sorted(loaded.items())
        if path.is_file() and path not in counted and not (_package(path) or _is_known(name, path) or path.is_relative_to(_NOCAP))
    }
    if rules:
        raise InputError("; ".join(f"the module {name}, which an option from outside uses, must {rule}" for name, rule in rules.items()))


def _closure(modules: Iterable[str]) -> dict[str, tuple[str, Path]]:
    """Module → hash, installed package → version, each with its file."""
    closure, reached = dict[str, tuple[str, Path]](), {""}
    waiting = [(module, _NOCAP) for module in modules]  # each with the folder of the file that imports it
    while waiting:
        module, beside = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting += [] if module.startswith("nocap.") else [(module.rpartition(".")[0], beside)]  # importing a module runs its packages
        if _quiet(module) or (path := module_path(module, beside)) is None:
            continue
        entries, imports = _read(module, path, path.stat().st_mtime_ns)
        closure |= {name: (text, path) for name, text in entries.items()}
        parts = [*module.split("."), *["__init__"] * (path.stem == "__init__")]
        names = (".".join([*parts[:-level], name]).rstrip(".") for level, name in imports)
        waiting += [(name, path.parent) for name in names if name.startswith("nocap.") or not path.is_relative_to(_NOCAP)]
    return closure


def _of_options(run: Run, of: str) -> list[str]:
    without = {*HASHED_OTHERWISE, *(f.name for f in fields(Run) if f.metadata.get(of) is False)}
    chosen = [option for name, option in run.options() if name.partition(".")[0] not in without]
    return [cls.__module__ for option in chosen for cls in type(option).__mro__ if cls is not object]


def _quiet(module: str) -> bool:
    return module in QUIET or module.startswith("nocap.config.")


def module_path(module: str, beside: Path = _NOCAP) -> Path | None:
    """The file of a module, looked for in `beside` and the folder above, too. None for Python's own, torch's, and those without a file."""
    if file := next((file for file in outside.files() if file.module == module), None):
        return file.path
    root, *rest = module.split(".")
    spec = (
        getattr(sys.modules.get(root), "__spec__", None)
        or next((spec for finder in sys.meta_path if (spec := finder.find_spec(root, None))), None)
        or PathFinder.find_spec(root, [str(beside), str(beside.parent)])
    )
    paths = [
        path
        for folder in (spec and spec.submodule_search_locations) or ()
        for base in [Path(folder).joinpath(*rest)]
        for path in (base / "__init__.py", *base.parent.glob(f"{base.name}.*so"), base.with_suffix(".py"))
    ]
    paths += [Path(spec.origin)] if spec and spec.origin and spec.has_location and not rest else []
    return next((path for path in paths if path.is_file() and not _is_known(module, path)), None)


def _is_known(module: str, path: Path) -> bool:
    """Of Python itself or of torch, or written by torch's compilers."""
    return bool(re.match(_KNOWN, f"{module} {path}")) or path.is_relative_to(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull))


def _package(path: Path) -> str | None:
    """The name below `site-packages` of an installed package's file; None for nocap's and those that options come from."""
    match = re.match(r".*/(?:site|dist)-packages/([^/.]+)", str(path))
    return match[1] if match and not any(f"{folder}/".startswith(f"{match[0]}/") for folder in (_NOCAP, *outside.folders())) else None


_distributions = cache(packages_distributions)


@cache
def _read(module: str, path: Path, changed_ns: int) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """What a module's file counts by, and what it imports, as dots and names. A package that was installed from a folder counts by content:
    that can change at the same version."""
    packages = map(distribution, _distributions().get(_package(path) or "", ()))
    if versions := {each.name: each.version for each in packages if '"dir_info"' not in (each.read_text("direct_url.json") or "")}:
        return versions, []
    content = path.read_bytes()
    try:
        tree = what_counts(content)
    except (SyntaxError, ValueError):  # compiled
        return {module: hashlib.sha256(content).hexdigest()[:12]}, []
    return {module: digest(tree)}, _imports(tree)


def digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def _imports(tree: ast.Module) -> list[tuple[int, str]]:
    """Dots and names; those that are no module are dropped later."""
    names = [(0, alias.name) for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            members = ["", *(f".{alias.name}" for alias in node.names)]
            names += [(node.level, f"{node.module or ''}{member}".lstrip(".")) for member in members]
    return names


def what_counts(source: str | bytes) -> ast.Module:
    """A module's source without what computes no number; see the top of this file."""
    tree = ast.parse(source)
    _WhatCounts().visit(tree)
    return tree


def _is_text(node: ast.expr) -> bool:
    """`"resuming"`, `f"step {step}"`, or one of two such texts by a condition."""
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _WhatCounts(ast.NodeTransformer):
    """Expressions hold no statements: they are left as they are. A block that is empty then does nothing."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        match node:
            case ast.expr():
                return node
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]) | ast.Expr(value=ast.Constant()):
                return None
            case ast.Raise(exc=ast.Call(func=kind)) | ast.Raise(exc=kind):
                return ast.Raise(exc=kind, cause=None)
            case ast.Assert():
                return ast.Assert(test=node.test, msg=None)
            case ast.Assign(targets=[ast.Name(id="rule")], value=value) if _is_text(value):
                return None
            case ast.Expr(value=ast.Call(func=ast.Name(id="print") | ast.Attribute(attr="print"))):
                return None
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="recorder"), attr="probe"))):
                return None
            case ast.Expr(value=ast.Call(func=ast.Name(id="log") | ast.Attribute(attr="log"), args=[said], keywords=[])) if _is_text(said):
                return None
            case ast.Expr(value=ast.Call(func=(ast.Name(id="require") | ast.Attribute(attr="require")) as func, args=args)):
                return ast.Expr(ast.Call(func=func, args=args[:1], keywords=[]))
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.With | ast.If | ast.ExceptHandler) and not node.body:
            node.body = [ast.Pass()]
        return node
