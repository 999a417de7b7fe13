"""Hash the source of what computes a run's numbers.

The source is a hash for each module: those of the step and of the run's options, and those that
their import statements name. It is of the file without docstrings and comments. The modules in
`QUIET` compute no number, and do not count: how a run is configured, stored, shown and measured.

What an option from outside imports counts, too: an installed package by its version, any other
module by its content, and what that one imports. Python's own modules do not, nor does torch, whose
version is in the environment.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from nocap import outside
from nocap.config.keys import InputError
from nocap.config.paths import PACKAGE
from nocap.config.run import Run

# Name and file of a module of torch, of Triton's making, or of Python.
_KNOWN = (
    rf"torch[. ]|\S+ "
    rf"(.*/\.triton|{re.escape(os.path.dirname(os.__file__))})/(?!(?:site|dist)-packages/)"
)
STEP = ("nocap.training.loop", "nocap.training.step")
# Modules that compute no number.
QUIET = (
    "nocap",
    "nocap.command_line",
    "nocap.display",
    "nocap.metrics",
    "nocap.options",  # the package, not its modules
    "nocap.outside",
    "nocap.row_keys",
    "nocap.config*",
    "nocap.store*",
    "nocap.data.shards",  # its content is in the data's hash
    "nocap.model.attention_facts",
    "nocap.model.counted_flops",
    "nocap.model.flops",
    "nocap.training",  # the package; below it, what saves, measures and reports
    "nocap.training.ledger",
    "nocap.training.loading",
    "nocap.training.memory",
    "nocap.training.memory_limit",
    "nocap.training.probe",
    "nocap.training.recorder",
    "nocap.training.saving",
    "nocap.training.spikes",
    "nocap.training.state",
)
# Groups whose options compute no number but the tokens, whose content is hashed. The code that
# makes tokens is in the key by which `nocap.data.shard_cache` keeps them.
HASHED_OTHERWISE = ("data", "tokenizer", "tracker")


def source_hashes(run: Run, *, of: str = "identity") -> dict[str, str]:
    """Return `hashes` of what computes this run's numbers, or with `of="step"` of what a step's
    time depends on."""
    return hashes([*STEP, *_of_options(run, of)])


def hashes(modules: Iterable[str]) -> dict[str, str]:
    """Return module → hash of its code, for each of these and of those that they import, without
    what computes no number; installed package → version, for those that code from outside
    imports."""
    closure = _closure(modules)
    return {name: closure[name].fingerprint for name in sorted(closure)}


def check_source(run: Run, source: dict[str, str]) -> None:
    """Refuse what is not in `source`, the one of a run's manifest, in the process that trains it,
    once all of its code has been used.

    Errors:
        InputError: code has changed since the command began, or a module counts for no identity: it
            came from a file, after the first option from outside, and by no import statement of
                theirs.
    """
    now = source_hashes(run)
    rules = dict[str, str]()
    for name in {**source, **now}:
        if source.get(name) != now.get(name):
            rules[name] = "stay as this command found it"
    for name, path in _uncounted():
        rules[f"{name} ({path})"] = (
            "be an installed package, or in an import statement: by those nocap finds what makes "
            "a run"
        )
    if rules:
        lines = [
            f"the module {name}, which an option from outside uses, must {rule}"
            for name, rule in rules.items()
        ]
        raise InputError("; ".join(lines))


def _uncounted() -> Iterator[tuple[str, Path]]:
    """Yield name and file of each module that came from a file, after the first option from
    outside, and counts for no identity."""
    closure = _closure(file.module for file in _loaded())
    counted = {source.path for source in closure.values()}
    for name in sorted(sys.modules.keys() - outside.LOADED):
        path = Path(str(getattr(sys.modules[name], "__file__", None)))
        is_counted = path in counted or path.is_relative_to(PACKAGE)
        if is_counted or not path.is_file():
            continue
        is_installed = _package(path) is not None
        if not is_installed and not _is_known(name, path):
            yield name, path


def _loaded() -> list[outside.File]:
    """List the files from outside that this process runs: a command may have chosen more, for other
    runs."""
    return [file for file in outside.files() if file.module in sys.modules]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file that counts for an identity."""

    path: Path
    fingerprint: str  # hash of a module's code, or the version of an installed package


def _closure(modules: Iterable[str]) -> dict[str, SourceFile]:
    """Return these modules and all that they import, by the names of modules and of installed
    packages."""
    closure = dict[str, SourceFile]()
    visited = {""}
    # each with the folder of the file that imports it
    to_visit = [(module, PACKAGE) for module in modules]
    while to_visit:
        module, beside = to_visit.pop()
        if module in visited:
            continue
        visited.add(module)
        if not module.startswith("nocap."):
            package = module.rpartition(".")[0]
            to_visit.append((package, beside))  # importing a module runs its packages
        if is_quiet(module):
            continue
        path = module_path(module, beside)
        if path is None:
            continue
        fingerprints, imports = _read(module, path, path.stat().st_mtime_ns)
        for name, fingerprint in fingerprints.items():
            closure[name] = SourceFile(path=path, fingerprint=fingerprint)
        for name in _absolute(module, path, imports):
            if name.startswith("nocap.") or not path.is_relative_to(PACKAGE):
                to_visit.append((name, path.parent))
    return closure


def _absolute(module: str, path: Path, imports: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the names that a module imports, without the dots before them."""
    parts = module.split(".")
    if path.stem == "__init__":
        parts.append("__init__")
    for level, name in imports:
        yield ".".join([*parts[:-level], name]).rstrip(".")


def _of_options(run: Run, what: str) -> list[str]:
    """List the modules that define the options that count for `what`, and their parents."""
    uncounted = [f.name for f in fields(Run) if f.metadata.get(what) is False]
    modules = list[str]()
    for name, option in run.options():
        group = name.partition(".")[0]
        if group in HASHED_OTHERWISE or group in uncounted:
            continue
        parents = type(option).__mro__
        modules += [cls.__module__ for cls in parents if cls is not object]
    return modules


@cache
def is_quiet(module: str) -> bool:
    """Say whether a module computes no number."""
    return any(fnmatchcase(module, pattern) for pattern in QUIET)


def module_path(module: str, beside: Path = PACKAGE) -> Path | None:
    """Return the file of a module, looked for in `beside` and the folder above, too. None for
    Python's own, torch's, and those without a file."""
    path = outside.path_of(module)
    if path is not None:
        return path
    if module.startswith("nocap."):
        return _own_path(module)
    return _found(module, beside)


@cache  # nocap's own modules stay where they are, and each cell of a grid looks for all of them
def _own_path(module: str) -> Path | None:
    return _found(module, PACKAGE)


def _found(module: str, beside: Path) -> Path | None:
    """Find the file of a module where Python would."""
    root, *rest = module.split(".")
    spec = _spec(root, beside)
    if spec is None:
        return None
    for path in _candidates(spec, rest):
        if path.is_file() and not _is_known(module, path):
            return path
    return None


def _candidates(spec: ModuleSpec, rest: Sequence[str]) -> Iterator[Path]:
    """Yield the files that may hold the module `rest` of a package, or the module of `spec` itself,
    in the order in which Python looks for them."""
    for folder in spec.submodule_search_locations or ():
        base = Path(folder).joinpath(*rest)
        yield base / "__init__.py"
        for suffix in EXTENSION_SUFFIXES:
            yield base.with_name(base.name + suffix)
        yield base.with_suffix(".py")
    if spec.origin and spec.has_location and not rest:
        yield Path(spec.origin)


def _spec(root: str, beside: Path) -> ModuleSpec | None:
    """Find a module or package of the top, as this process has or would import it, or beside a
    file."""
    spec = getattr(sys.modules.get(root), "__spec__", None)
    for finder in sys.meta_path:
        spec = spec or finder.find_spec(root, None)
    return spec or PathFinder.find_spec(root, [str(beside), str(beside.parent)])


def _is_known(module: str, path: Path) -> bool:
    """Say whether a file is of Python itself or of torch, or written by torch's compilers."""
    compiled_folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull)
    is_of_python_or_torch = re.match(_KNOWN, f"{module} {path}") is not None
    return is_of_python_or_torch or path.is_relative_to(compiled_folder)


def _package(path: Path) -> str | None:
    """Return the name below `site-packages` of an installed package's file; None for nocap's and
    those that options come from."""
    match = re.match(r".*/(?:site|dist)-packages/([^/.]+)", str(path))
    if match is None:
        return None
    for folder in (PACKAGE, *outside.folders()):
        if f"{folder}/".startswith(f"{match[0]}/"):
            return None
    return match[1]


_distributions = cache(packages_distributions)


@cache
def _read(module: str, path: Path, changed_ns: int) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Return what a module's file counts by, and what it imports, as dots and names. A package that
    was installed from a folder counts by content: that can change at the same version."""
    versions = _versions(path)
    if versions:
        return versions, []
    content = path.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # compiled
        return {module: hashlib.sha256(content).hexdigest()[:12]}, []
    imports = list(_imports(tree))
    return {module: code_digest(tree)}, imports


def _versions(path: Path) -> dict[str, str]:
    """Return distribution → version of the installed package that a file is of; of others,
    nothing."""
    package = _package(path)
    if package is None:
        return {}
    versions = dict[str, str]()
    for name in _distributions().get(package, ()):  # which reads the lists of all that is installed
        each = distribution(name)
        from_folder = '"dir_info"' in (each.read_text("direct_url.json") or "")
        if not from_folder:
            versions[each.name] = each.version
    return versions


BLOCKS = ("body", "cases", "handlers", "orelse", "finalbody")  # of statements, in their order


def code_digest(tree: ast.Module) -> str:
    """Hash a source without docstrings and comments."""
    for node in _statements(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements, in the order of `ast.walk`, which looks at expressions
    too: they are nine of ten nodes."""
    waiting = deque[ast.AST]([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for block in BLOCKS:
            waiting.extend(getattr(node, block, ()))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield dots and names of a file's import statements; those that are no module are dropped
    later."""
    for node in _statements(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield 0, alias.name
            case ast.ImportFrom(names=names):
                package = node.module or ""
                yield node.level, package
                for alias in names:
                    yield node.level, f"{package}.{alias.name}".lstrip(".")
