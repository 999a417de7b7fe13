"""Options from outside the package: folders like `conf/`, whose groups hold a Python file beside each yaml.

They come from the command's `--config-dir DIR`, or from the entry points `nocap.options` of installed packages, each naming a package that
is such a folder. A record or a study never brings one along. The environment variable `NOCAP_OUTSIDE` lists the folders and each file's
SHA-256, so that every process that a command starts, on whatever machine, loads the same bytes or refuses.

A file `DIR/GROUP/NAME.py` is the module `nocap.outside.GROUP.NAME`, found by `_Finder`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from nocap.config.bounded import read_bytes
from nocap.config.keys import InputError
from nocap.config.paths import expanded

ENTRY_POINTS = "nocap.options"
PLACES = {"launcher": "hydra/launcher"}  # of groups whose folder Hydra names otherwise
VARIABLE = "NOCAP_OUTSIDE"
FLAGS = ("--config-dir", "-cd")  # Hydra's own names
LOADED = set(sys.modules)  # before any option from outside
__path__: list[str] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """One option's Python file."""

    group: str
    name: str
    path: Path
    sha256: str

    @property
    def module(self) -> str:
        return f"{__name__}.{self.group}.{self.name}"

    def source(self) -> bytes:
        """The file's bytes.

        Errors:
            InputError: it is gone, or has changed since the command began.
        """
        source = _bytes(self.path)
        found = hashlib.sha256(source).hexdigest()
        if found != self.sha256:
            raise InputError(f"{self.path} must be what this command began with, sha256 {self.sha256[:12]}…, got {found[:12]}…")
        return source

    def load(self) -> ModuleType:
        """Import it.

        Errors:
            InputError: it cannot be imported; one line with the file and the reason.
        """
        try:
            return importlib.import_module(self.module)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # the file may raise anything
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)]
            where = f" (line {lines[-1]})" if lines else ""  # a SyntaxError's text has its own
            line = f"{self.path} cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"{line}{where}") from error


# --- what is in use ----------------------------------------------------------------------------------------------------------------


def state() -> str:
    """The folders and files in use, as JSON. At first those of installed packages."""
    if VARIABLE not in os.environ:
        _set(_installed())
    return os.environ[VARIABLE]


def folders() -> list[Path]:
    return [Path(folder) for folder in json.loads(os.environ.get(VARIABLE, '{"folders": []}'))["folders"]]


def files() -> list[File]:
    return [File(**{**row, "path": Path(row["path"])}) for row in json.loads(state())["files"]]


def used(modules: Iterable[str]) -> list[File]:
    """The files that are among these modules."""
    return [file for file in files() if file.module in modules]


def use(more: Iterable[str | Path]) -> None:
    """Add folders to those in use, and hash their files.

    Errors:
        ValueError: no such folder, or one that holds an option by a name that is taken.
    """
    state()
    added = [expanded(folder).absolute() for folder in more]
    for folder in added:
        if not folder.is_dir():
            raise ValueError(f"--config-dir must be a folder, got {folder}")
    _set([*folders(), *(folder for folder in added if folder not in folders())])


def _installed() -> list[Path]:
    found = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        spec = importlib.util.find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"the entry point {entry.name} of {ENTRY_POINTS} must name a package with options, got {entry.value}")
        found.append(Path(next(iter(spec.submodule_search_locations))))
    return found


def _set(used: Sequence[Path]) -> None:
    """Put these folders in use, and nothing else: hash their files, forget the modules of before."""
    from nocap.config.paths import conf_dir
    from nocap.config.registry import groups, options_of

    rows: dict[tuple[str, str], dict[str, str]] = {}
    seen = {(group, path.name): path for group in groups() for path in (conf_dir() / place(group)).glob("*.yaml")}
    for folder in used:
        for group in groups():
            for path in sorted([*(folder / place(group)).glob("*.yaml"), *(folder / place(group)).glob("[!_.]*.py")]):
                if (taken := seen.setdefault((group, path.name), path)) != path:
                    raise ValueError(f"{path} must have another name: {taken} is {group}={path.stem} already")
                if path.suffix == ".py":
                    if not path.stem.isidentifier():
                        raise ValueError(f"{path} must be named as a Python module is, in letters, digits and _")
                    sha256 = hashlib.sha256(_bytes(path)).hexdigest()
                    rows[group, path.stem] = {"group": group, "name": path.stem, "path": str(path), "sha256": sha256}
    os.environ[VARIABLE] = json.dumps({"folders": [str(folder) for folder in used], "files": list(rows.values())})
    options_of.cache_clear()
    for name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[name]


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be there and readable ({error})") from error


def place(group: str) -> str:
    """A group's folder."""
    return PLACES.get(group, group)


def choice(group: str, name: str) -> str:
    """The override that chooses an option; of ideas, also several: "x0,smear"."""
    return f"{place(group)}={f'[{name}]' if group == 'ideas' else name}"


def arguments(argv: Sequence[str] | None) -> list[str]:
    """A command line, the process's own unless given, without its `--config-dir`s. Their folders are in use from now on.

    An invalid folder ends the process with exit code 2.
    """
    rest, found, waiting = list[str](), list[str](), list(sys.argv[1:] if argv is None else argv)
    try:
        while waiting:
            argument = waiting.pop(0)
            flag, equals, value = argument.partition("=")
            if flag not in FLAGS:
                rest.append(argument)
            elif equals or waiting:
                found.append(value if equals else waiting.pop(0))
            else:
                raise ValueError(f"{flag} must be given a folder")
        use(found)
    except ValueError as error:
        print(f"nocap: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return rest


def document(parser: argparse.ArgumentParser) -> None:
    """Name the flag in a command's help."""
    parser.add_argument("--config-dir", metavar="DIR", action="append", help="options from outside: docs/add-an-idea.md; can be repeated")


# --- importing ---------------------------------------------------------------------------------------------------------------------


class _Finder(MetaPathFinder):
    """Finds `nocap.outside.GROUP` and `nocap.outside.GROUP.NAME`."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        found = {file.module: file for file in files()}
        if fullname in found:
            return importlib.util.spec_from_file_location(fullname, found[fullname].path, loader=_Loader(found[fullname]))
        if any(name.startswith(f"{fullname}.") for name in found):
            return ModuleSpec(fullname, _Loader(None), is_package=True)
        return None


class _Loader(Loader):
    """Runs the very bytes whose hash was checked."""

    def __init__(self, file: File | None) -> None:
        self.file = file

    def exec_module(self, module: ModuleType) -> None:
        if self.file is not None:
            exec(compile(self.file.source(), str(self.file.path), "exec", dont_inherit=True), vars(module))


sys.meta_path.append(_Finder())
