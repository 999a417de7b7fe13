"""What there is to choose: a group's options are the files of its folder, nocap's own and those from outside.

A group is a folder of `nocap/options`, its interface the folder's `__init__`. Every dataclass of a file that
extends the interface and has a `kind` of its own is an option, which the `kind` of a yaml names.

Options from outside lie in folders like `conf/`, whose groups hold a Python file beside each yaml. They come
from the command's `--config-dir DIR`, or from the entry points `nocap.options` of installed packages, each
naming a package that is such a folder. A record or a study never brings one along. The environment variable
`NOCAP_OUTSIDE` lists the folders and each file's SHA-256, so that every process that a command starts, on
whatever machine, loads the same bytes or refuses. A file `DIR/GROUP/NAME.py` is the module
`nocap.outside.GROUP.NAME`, found by `_Finder`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from nocap.config.bounded import read_bytes, read_yaml
from nocap.config.errors import refusals
from nocap.config.keys import InputError, require
from nocap.config.option import Option
from nocap.config.paths import STDOUT, conf_dir, expanded

PACKAGE = "nocap.options"  # and the entry points' name
PLACES = {"launcher": "hydra/launcher"}  # of groups whose folder Hydra names otherwise
VARIABLE = "NOCAP_OUTSIDE"
WIDTH = 100  # characters of a line of every command's help
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

    def load(self) -> ModuleType:
        """Import it.

        Errors:
            InputError: it cannot be imported, or has changed since the command began; one line with the file
                and the reason.
        """
        try:
            return importlib.import_module(self.module)
        except (Exception, SystemExit) as error:  # the file may raise anything
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(self.path)
            ]
            where = f" (line {lines[-1]})" if lines else ""  # a SyntaxError's text has its own
            line = f"{self.path} cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"{line}{where}") from error


# --- groups and their options -------------------------------------------------------------------------------


@cache
def groups() -> tuple[str, ...]:
    """The names of the groups, which are those of Hydra's folders."""
    return tuple(
        module.name
        for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)
        if module.ispkg
    )


def place(group: str) -> str:
    """A group's folder."""
    return PLACES.get(group, group)


def choice(group: str, name: str) -> str:
    """The override that chooses an option; of ideas, also several: "x0,smear"."""
    return f"{place(group)}={f'[{name}]' if group == 'ideas' else name}"


def yamls(group: str) -> dict[str, Path]:
    """The yamls of a group, or of the experiments, by name: what Hydra can choose."""
    places = [folder / place(group) for folder in (conf_dir(), *folders())]
    by_name = {
        path.relative_to(place).with_suffix("").as_posix(): path
        for place in places
        for path in place.rglob("*.yaml")
    }
    return dict(sorted(by_name.items()))


def option(group: str, place: str, plain: Any) -> type[Option]:
    """The option that the `kind` of its plain form names.

    Errors:
        ValueError: there is none.
    """
    require(isinstance(plain, dict), place, f"be one option, as in {place}=NAME", plain)
    rows, kind = options(group), plain.get("kind")
    known = (
        f"{', '.join(rows)}, or of an option that --config-dir brings (--allow-code takes "
        "the record's own copy)"
    )
    require(isinstance(kind, str) and kind in rows, f"{place}.kind", f"be one of {known}", repr(kind))
    return rows[kind]


def read(group: str, name: str) -> tuple[dict[str, Any], type[Option]]:
    """A yaml of a group, and its option.

    Errors:
        OSError, ValueError: it cannot be read, or there is none.
    """
    plain = read_yaml(yamls(group)[name])
    return plain, option(group, f"{group}/{name}", plain)


@cache
def interface(group: str) -> type[Option]:
    """The class that every option of the group extends: the one that the group's `__init__` defines directly
    on `Option`."""
    (base,) = [
        cls
        for cls in _classes(importlib.import_module(f"{PACKAGE}.{group}"), Option)
        if cls.__bases__ == (Option,)
    ]
    return base


def options(group: str) -> dict[str, type[Option]]:
    """Kind → option, nocap's own first.

    Errors:
        ValueError: a file from outside cannot be imported, holds no option, or one whose kind is taken.
    """
    return _options(group, state())


@cache
def _options(group: str, state: str) -> dict[str, type[Option]]:
    package, by_kind = importlib.import_module(f"{PACKAGE}.{group}"), dict[str, type[Option]]()
    modules = [
        importlib.import_module(f"{PACKAGE}.{group}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    for module in (*modules, *(file.load() for file in files() if file.group == group)):
        own = [cls for cls in _classes(module, interface(group)) if not cls.__name__.startswith("_")]
        require(
            bool(own) or module in modules,
            str(module.__file__),
            "define an option",
            f"no dataclass of {interface(group).__name__}",
        )
        for cls in own:
            named = f"{module.__file__}: {cls.__name__}"
            require(
                "__dataclass_fields__" in vars(cls),
                named,
                "be decorated as a dataclass",
                "keys that would not be seen",
            )
            kind, name = cls.__dataclass_fields__["kind"].default, module.__name__.rpartition(".")[2]
            ok = isinstance(kind, str) and kind not in by_kind
            require(ok, named, f"have a kind of its own, as in kind: str = {name!r}", repr(kind))
            by_kind[str(kind)] = cls
    return by_kind


def _classes(module: ModuleType, base: type[Option]) -> list[type[Option]]:
    """The options that the module itself defines, in its order."""
    return [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, base) and cls.__module__ == module.__name__
    ]


# --- what is in use -----------------------------------------------------------------------------------------


def state() -> str:
    """The folders and files in use, as JSON. At first those of installed packages."""
    if VARIABLE not in os.environ:
        _set(_installed())
    return os.environ[VARIABLE]


def folders() -> list[Path]:
    return [Path(folder) for folder in json.loads(state())["folders"]]


def files() -> list[File]:
    return [File(**{**row, "path": Path(row["path"])}) for row in json.loads(state())["files"]]


def used(modules: Iterable[str]) -> list[File]:
    """The files that are among these modules."""
    return [file for file in files() if file.module in modules]


def use(more: Iterable[str | Path]) -> None:
    """Add folders to those in use, and hash their files.

    Errors:
        OSError, ValueError: no such folder, or one that holds an option by a name that is taken.
    """
    added = [expanded(folder).absolute() for folder in more]
    for folder in added:
        require(folder.is_dir(), "--config-dir", "be a folder", folder)
    _set(dict.fromkeys([*folders(), *added]))


def _installed() -> Iterator[Path]:
    for entry in sorted(entry_points(group=PACKAGE), key=lambda entry: entry.name):
        spec = importlib.util.find_spec(entry.value)
        place = next(iter(spec.submodule_search_locations or ()), None) if spec else None
        require(
            place is not None,
            f"the entry point {entry.name} of {PACKAGE}",
            "name a package with options",
            entry.value,
        )
        yield Path(str(place))


def _set(used: Iterable[Path]) -> None:
    """Put these folders in use, and nothing else: hash their files, forget the modules of before."""
    used, rows, paths_by_name = [*used], list[dict[str, str]](), dict[tuple[str, str], Path]()
    for folder, group in ((folder, group) for folder in (conf_dir(), *used) for group in groups()):
        for path in sorted(
            [*(folder / place(group)).glob("*.yaml"), *(folder / place(group)).glob("[!_.]*.py")]
        ):
            taken = paths_by_name.setdefault((group, path.name), path)
            require(
                taken == path,
                str(path),
                f"have another name: {taken} is {group}={path.stem} already",
                path.name,
            )
            if path.suffix == ".py":
                require(
                    path.stem.isidentifier(),
                    str(path),
                    "be named as a Python module is, in letters, digits and _",
                    path.name,
                )
                sha256 = hashlib.sha256(read_bytes(path)).hexdigest()
                rows.append({"group": group, "name": path.stem, "path": str(path), "sha256": sha256})
    os.environ[VARIABLE] = json.dumps({"folders": [str(folder) for folder in used], "files": rows})
    _options.cache_clear()
    for name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[name]


def arguments(argv: Sequence[str] | None) -> list[str]:
    """A command line, the process's own unless given, without its `--config-dir`s. Their folders are in use
    from now on.

    An invalid folder ends the process with exit code 2.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", action="append", default=[])
    flags, rest = parser.parse_known_args(argv)
    with refusals():
        use(flags.config_dir)
    return rest


def document(parser: argparse.ArgumentParser, *, answer: str = "") -> None:
    """What every command's parser has in common: the flag in its help, its width, and, where it has an
    `answer`, `--json` for that."""
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        action="append",
        help="options from outside: docs/add-an-idea.md; can be repeated",
    )
    if answer:
        about = f"{answer} as JSON; without FILE, or as -, on stdout and all else on stderr"
        parser.add_argument("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE", help=about)
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
    parser.description, parser.epilog = (_filled(text or "") for text in (parser.description, parser.epilog))


def _filled(text: str) -> str:
    """In lines of the help's width, but for those that are indented, such as examples."""
    parts = groupby(text.splitlines(), key=lambda line: line[:2].isspace() or not line)
    return "\n".join(
        "\n".join(lines) if kept else textwrap.fill(" ".join(lines), WIDTH) for kept, lines in parts
    )


# --- importing ----------------------------------------------------------------------------------------------


class _Finder(MetaPathFinder, Loader):
    """Finds `nocap.outside.GROUP` and `nocap.outside.GROUP.NAME`, and runs the very bytes whose hash was
    checked."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        for file in used([fullname]):
            return importlib.util.spec_from_file_location(fullname, file.path, loader=self)
        return (
            ModuleSpec(fullname, self, is_package=True) if fullname.rpartition(".")[2] in groups() else None
        )

    def exec_module(self, module: ModuleType) -> None:
        for file in used([module.__name__]):
            source = read_bytes(file.path)
            sha256 = hashlib.sha256(source).hexdigest()
            require(
                sha256 == file.sha256,
                str(file.path),
                f"be what this command began with, sha256 {file.sha256[:12]}…",
                f"{sha256[:12]}…",
            )
            exec(compile(source, str(file.path), "exec", dont_inherit=True), vars(module))


sys.meta_path.append(_Finder())
