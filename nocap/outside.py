"""What there is to choose: a group's options are the files of its folder, nocap's own and those
from outside.

A group is a folder of `nocap/options`, its interface the folder's `__init__`. Every dataclass of a
file that extends the interface and has a `kind` of its own is an option, which the `kind` of a yaml
names.

Options from outside lie in folders like `conf/`, whose groups hold a Python file beside each yaml.
They come from the command's `--config-dir DIR`, or from the entry points `nocap.options` of
installed packages, each naming a package that is such a folder, or, with `--allow-code`, from the
`config_dir` of a study. A record never brings one along.

An option is found by name when it is chosen: by its yaml, with the file beside that, or by its
`kind`, which is the name of a file or stands in its source. The rest of a folder is not imported,
hashed or refused. A file `DIR/GROUP/NAME.py` is the module `nocap.outside.GROUP.NAME`, found by
`_Finder`. The environment variable `NOCAP_OUTSIDE` lists the folders, and each file that was chosen
with its SHA-256 and kinds, so that every process that a command starts, on whatever machine, loads
the same bytes or refuses.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import pkgutil
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from nocap.config.errors import refusals
from nocap.config.keys import InputError, require
from nocap.config.option import Option
from nocap.config.paths import STDOUT, conf_dir, expanded
from nocap.config.untrusted_files import read_bytes, read_yaml

PACKAGE = "nocap.options"  # and the entry points' name
PLACES = {"launcher": "hydra/launcher"}  # of groups whose folder Hydra names otherwise
VARIABLE = "NOCAP_OUTSIDE"
COPIES = "options"  # a record's copies of the options that it used, as a folder for --config-dir
WIDTH = 100  # characters of a line of every command's help
LOADED = set(sys.modules)  # before any option from outside
_uses = itertools.count(1)
__path__: list[str] = []


class ChangedError(InputError):
    """A file has changed since the command chose it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """The Python file of an option that was chosen, or of what such a file imports."""

    group: str
    name: str
    path: Path
    sha256: str
    kinds: tuple[str, ...]  # of the options that it defines

    @property
    def module(self) -> str:
        return f"{__name__}.{self.group}.{self.name}"


# --- groups and their options ---------------------------------------------------------------------


@cache
def groups() -> tuple[str, ...]:
    """Return the names of the groups, which are those of Hydra's folders."""
    modules = pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)
    return tuple(module.name for module in modules if module.ispkg)


def place(group: str) -> str:
    """Return a group's folder."""
    return PLACES.get(group, group)


def choice(group: str, name: str) -> str:
    """Return the override that chooses an option; of ideas, also several: "x0,smear"."""
    value = f"[{name}]" if group == "ideas" else name
    return f"{place(group)}={value}"


def yamls(group: str) -> dict[str, Path]:
    """Return the yamls of a group, or of the experiments, by name: what Hydra can choose. Hidden
    files and folders, as an editor's, hold none."""
    by_name = dict[str, Path]()
    for folder in (conf_dir(), *folders()):
        for path in (folder / place(group)).rglob("*.yaml"):
            name = path.relative_to(folder / place(group)).with_suffix("").as_posix()
            if not re.search(r"(^|/)\.", name):
                by_name[name] = path
    return dict(sorted(by_name.items()))


def yaml_of(group: str, name: str) -> Path | None:
    """Return the one yaml of this name, or None.

    Errors:
        ValueError: there are several, of which Hydra would take the first in silence.
    """
    paths = [folder / place(group) / f"{name}.yaml" for folder in (conf_dir(), *folders())]
    return _only(paths, f"{group}={name}")


def option(group: str, place: str, plain: Any) -> type[Option]:
    """Choose the option that the `kind` of its plain form names, and return it.

    Errors:
        ValueError: there is none, or its file cannot be used.
    """
    require(isinstance(plain, dict), place, f"be one option, as in {place}=NAME", plain)
    kind = plain.get("kind")
    found = find(group, kind) if isinstance(kind, str) else None
    if found is not None:
        return found
    rule = (
        f"be one of {', '.join(options(group))}, or an option from the folder of --config-dir "
        "(nocap.generate and nocap.export use the copy in the run's folder with --allow-code)"
    )
    unread = ", ".join(str(path) for path in _sources(group) if _kinds_in(path) is None)
    if unread:
        rule += f"; nocap cannot parse these option files: {unread}"
    raise InputError(f"{place}.kind must {rule}, got {kind!r}")


def find(group: str, kind: str) -> type[Option] | None:
    """Choose the option of this kind, and return it; None where there is none.

    Errors:
        ValueError: its file cannot be used.
    """
    for names in _holding(group, kind):
        if kind in options(group):
            break
        for name in names:
            _load(group, name)
    return options(group).get(kind)


def _holding(group: str, kind: str) -> Iterator[list[str]]:
    """Yield the files that may define this kind, the likeliest first: the chosen files that define
    it, the file of that name, the files whose source has it."""
    yield [file.name for file in files() if file.group == group and kind in file.kinds]
    yield [kind] if any(path.stem == kind for path in _sources(group)) else []
    yield [path.stem for path in _sources(group) if kind in (_kinds_in(path) or ())]


def choose(group: str, name: str) -> None:
    """Have the file beside a yaml from outside define its options, if there is one.

    Errors:
        ValueError: it cannot be used.
    """
    if any(path.stem == name for path in _sources(group)):
        _load(group, name)


def read(group: str, name: str) -> tuple[dict[str, Any], type[Option]]:
    """Read a yaml of a group, choose its option, and return both.

    Errors:
        OSError, ValueError: it cannot be read, or there is none.
    """
    path = yaml_of(group, name)
    assert path is not None, "one of `yamls`"
    choose(group, name)
    plain = read_yaml(path)
    return plain, option(group, f"{group}/{name}", plain)


@cache
def interface(group: str) -> type[Option]:
    """Return the class that every option of the group extends: the one that the group's `__init__`
    defines directly on `Option`."""
    options = _classes(importlib.import_module(f"{PACKAGE}.{group}"), Option)
    (base,) = [cls for cls in options if cls.__bases__ == (Option,)]
    return base


def options(group: str) -> dict[str, type[Option]]:
    """Map kind to option: nocap's own, then those from outside that this process has chosen."""
    by_kind = dict(_own(group))
    for file in files():
        module = sys.modules.get(file.module)
        if file.group == group and module is not None:
            for kind, cls in _by_kind(module, group).items():
                by_kind.setdefault(kind, cls)
    return by_kind


def all_options(group: str) -> dict[str, type[Option]]:
    """Map kind to option for all files of the group, for a command that lists or checks them.

    Errors:
        ValueError: a file from outside cannot be used.
    """
    for path in _sources(group):
        _load(group, path.stem)
    return options(group)


@cache
def _own(group: str) -> dict[str, type[Option]]:
    package = importlib.import_module(f"{PACKAGE}.{group}")
    by_kind = dict[str, type[Option]]()
    for row in pkgutil.iter_modules(package.__path__):
        by_kind |= _by_kind(importlib.import_module(f"{PACKAGE}.{group}.{row.name}"), group)
    return by_kind


def _by_kind(module: ModuleType, group: str) -> dict[str, type[Option]]:
    """Map kind to option for those that a module defines."""
    by_kind = dict[str, type[Option]]()
    for cls in _options_in(module, group):
        kind = cls.__dataclass_fields__["kind"].default
        if isinstance(kind, str) and "__dataclass_fields__" in vars(cls):
            by_kind[kind] = cls
    return by_kind


def _options_in(module: ModuleType, group: str) -> list[type[Option]]:
    return [cls for cls in _classes(module, interface(group)) if not cls.__name__.startswith("_")]


def _classes(module: ModuleType, base: type[Option]) -> list[type[Option]]:
    """Return the options that the module itself defines, in its order."""
    options = []
    for cls in vars(module).values():
        is_option = isinstance(cls, type) and issubclass(cls, base)
        if is_option and cls.__module__ == module.__name__:
            options.append(cls)
    return options


# --- files ----------------------------------------------------------------------------------------


def _sources(group: str) -> list[Path]:
    """List the Python files of a group in the folders from outside."""
    paths = list[Path]()
    for folder in folders():
        paths += sorted((folder / place(group)).glob("[!_.]*.py"))
    return [path for path in paths if path.is_file()]


def _kinds_in(path: Path) -> list[str] | None:
    """List the kinds of the options in a source, without running it; None where it cannot be
    parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(read_bytes(path))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    kinds = list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id="kind"), value=ast.Constant(value=str(kind))):
                kinds.append(kind)
    return kinds


def path_of(module: str) -> Path | None:
    """Return the file of a module `nocap.outside.GROUP.NAME`; None for any other.

    Errors:
        ValueError: several folders have one.
    """
    group, _, name = module.removeprefix(f"{__name__}.").partition(".")
    if not module.startswith(f"{__name__}.") or group not in groups():
        return None
    for file in used([module]):
        return file.path
    return _only([path for path in _sources(group) if path.stem == name], f"{group}={name}")


def _only(paths: Iterable[Path], choice: str) -> Path | None:
    """Return the one of these files that is there, or None."""
    existing = [path for path in paths if path.is_file()]
    if not existing:
        return None
    first, *others = existing
    for path in others:
        raise InputError(
            f"{path} must have another name, because {first} already defines {choice}, got "
            f"{path.name}"
        )
    return first


def _load(group: str, name: str) -> None:
    """Choose a file: import it, and check the options that it defines.

    Errors:
        ValueError: it cannot be imported, has changed since the command began, or holds no option,
            or one whose kind is taken; one line with the file and the reason.
    """
    path = path_of(f"{__name__}.{group}.{name}")
    assert path is not None, "one of `_sources`"
    rule = "have a name of letters, digits and _ that does not begin with a digit"
    require(name.isidentifier(), str(path), rule, path.name)
    own = _options_in(_imported(f"{__name__}.{group}.{name}", path), group)
    known = options(group)
    no_option = f"no dataclass that extends {interface(group).__name__}"
    require(bool(own), str(path), "define an option", no_option)
    for cls in own:
        named = f"{path}: {cls.__name__}"
        is_dataclass = "__dataclass_fields__" in vars(cls)
        require(
            is_dataclass,
            named,
            "have the decorator @dataclass",
            "a class without it, whose keys nocap cannot see",
        )
        kind: Any = cls.__dataclass_fields__["kind"].default
        rule = f"set kind to a name that no other option has, as in kind: str = {name!r}"
        require(known.get(kind) is cls, named, rule, repr(kind))


def _imported(module: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ChangedError:
        raise
    except (Exception, SystemExit) as error:  # the file may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = f"{path} cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
        if lines:  # a SyntaxError's text has its own
            line += f" (line {lines[-1]})"
        raise InputError(line) from error


# --- what is in use -------------------------------------------------------------------------------


def state() -> str:
    """Return the folders in use and the chosen files as JSON. At first the folders of installed
    packages are in use."""
    if VARIABLE not in os.environ:
        _set(_installed())
    return os.environ[VARIABLE]


def in_use() -> str:
    """Return the folders in use as a text that differs after each `use`: then all modules are
    new."""
    parts = json.loads(state())
    return json.dumps([parts["use"], parts["folders"]])


def folders() -> list[Path]:
    return [Path(folder) for folder in json.loads(state())["folders"]]


def config_dirs() -> list[Path]:
    """List the folders that --config-dir names, without those of installed packages."""
    return [folder for folder in folders() if folder not in _installed()]


def files() -> list[File]:
    """List the files that were chosen, in their order."""
    chosen = []
    for row in json.loads(state())["files"]:
        row["path"] = Path(row["path"])
        row["kinds"] = tuple(row["kinds"])
        chosen.append(File(**row))
    return chosen


def used(modules: Iterable[str]) -> list[File]:
    """Return the files that are among these modules."""
    return [file for file in files() if file.module in modules]


def use(more: Iterable[str | Path]) -> None:
    """Add folders to those in use. If there are any, no file is chosen any more.

    Errors:
        OSError, ValueError: no such folder.
    """
    before = folders()
    added = [expanded(folder).absolute() for folder in more]
    for folder in added:
        require(folder.is_dir(), "--config-dir", "be a folder that exists", folder)
    if added:
        _set(dict.fromkeys([*before, *added]))


def use_copies(run_dir: Path) -> None:
    """Run the options from outside of which a run's record holds copies, if it does. It is
    somebody's code: a person has to allow it."""
    if (run_dir / COPIES).is_dir():
        use([run_dir / COPIES])


@cache  # which reads the lists of all that is installed
def _installed() -> tuple[Path, ...]:
    """List the folders of options that installed packages bring."""
    places = list[Path]()
    for entry in sorted(entry_points(group=PACKAGE), key=lambda entry: entry.name):
        spec = importlib.util.find_spec(entry.value)
        locations = spec.submodule_search_locations if spec else None
        place = next(iter(locations or ()), None)
        key = f"the entry point {entry.name} of {PACKAGE}"
        require(
            place is not None,
            key,
            "name an installed Python package (a folder) that has options",
            entry.value,
        )
        places.append(Path(str(place)))
    return tuple(places)


def _set(used: Iterable[Path]) -> None:
    """Put these folders in use, and nothing else, and forget the modules of before."""
    parts: dict[str, Any] = {"use": 0, "folders": [str(folder) for folder in used], "files": []}
    if parts["folders"]:  # else no module is forgotten, and what was composed before holds
        parts["use"] = next(_uses)
    os.environ[VARIABLE] = json.dumps(parts)
    for name in list(sys.modules):
        if name.startswith(f"{__name__}."):
            del sys.modules[name]


def arguments(argv: Sequence[str] | None) -> list[str]:
    """Return a command line, the process's own unless given, without its `--config-dir`s. Their
    folders are in use from now on.

    An invalid folder ends the process with exit code 2.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", action="append", default=[])
    flags, rest = parser.parse_known_args(argv)
    with refusals():
        use(flags.config_dir)
    return rest


def document(parser: argparse.ArgumentParser, *, answer: str = "") -> None:
    """Add what every command's parser has in common: the flag in its help, its width, and, where it
    has an `answer`, `--json` for that. A flag has one spelling: a race looks for `--pairs` in its
    words, and would miss `--pair`."""
    parser.allow_abbrev = False
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        action="append",
        help="use options of your own (docs/custom.md); it can be repeated",
    )
    if answer:
        about = f"write {answer} as JSON; without FILE to stdout, and all other lines to stderr"
        parser.add_argument(
            "--json", type=Path, nargs="?", const=STDOUT, metavar="FILE", help=about
        )
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
    parser.description = _filled(parser.description or "")
    parser.epilog = _filled(parser.epilog or "")


def _filled(text: str) -> str:
    """Return a text in lines of the help's width, but for those that are indented, such as
    examples."""
    filled = list[str]()
    parts = itertools.groupby(text.splitlines(), key=lambda line: line[:2].isspace() or not line)
    for stays, lines in parts:
        if stays:
            filled += lines
        else:
            filled.append(textwrap.fill(" ".join(lines), WIDTH))
    return "\n".join(filled)


# --- importing ------------------------------------------------------------------------------------


class _Finder(MetaPathFinder, Loader):
    """A finder of `nocap.outside.GROUP` and `nocap.outside.GROUP.NAME`, which it chooses. It
    runs the very bytes that were hashed."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        file = path_of(fullname)
        if file is not None:
            return importlib.util.spec_from_file_location(fullname, file, loader=self)
        if fullname in [f"{__name__}.{group}" for group in groups()]:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = path_of(module.__name__)
        if path is None:  # a group
            return
        source = read_bytes(path)
        sha256 = hashlib.sha256(source).hexdigest()
        chosen = used([module.__name__])
        for file in chosen:
            if sha256 != file.sha256:
                rule = (
                    "not change while a command uses it (to use the new file, type the "
                    f"command again): its sha256 was {file.sha256[:12]}…"
                )
                raise ChangedError(f"{path} must {rule}, got {sha256[:12]}…")
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
        if not chosen:
            _note(module, path, sha256)


def _note(module: ModuleType, path: Path, sha256: str) -> None:
    """Record a chosen file for this process and those that follow."""
    group, name = module.__name__.removeprefix(f"{__name__}.").split(".")
    row = {"group": group, "name": name, "path": str(path), "sha256": sha256}
    parts = json.loads(state())
    parts["files"].append({**row, "kinds": [*_by_kind(module, group)]})
    os.environ[VARIABLE] = json.dumps(parts)


sys.meta_path.append(_Finder())
