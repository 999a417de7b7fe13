"""Find the logs below some paths: which files are logs, in which format, and which of them are
pieces of one run. A format knows its logs by what is in them."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.display import plural, shorten
from nocap.sources import formats
from nocap.sources.log_reading import Row, Sample, sample

BUILT_IN = sorted(module.name for module in pkgutil.iter_modules(formats.__path__))
MOST_SEEN = 4  # files that a refusal names
ENDING = re.compile(r"\.[A-Za-z]\w{0,5}")  # of a name; .1 of lr0.1 is none
PRINTED = (".log", ".txt", ".out")


@dataclass(frozen=True, kw_only=True)
class Format:
    """What a format defines: one of nocap's own, or somebody's Python file."""

    name: str
    patterns: Sequence[str]
    read: Callable[..., Iterable[Row]]
    recognises: Callable[[Sample], bool] | None
    run_of: Callable[[Path], str]
    is_general: bool
    is_sure: bool  # by its name
    is_remote: bool

    def takes(self, path: Path) -> bool:
        """Say whether a file has a name of such logs."""
        return any(path.match(pattern) for pattern in self.patterns)


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log: a file, or several that are pieces of one run; for a server's runs only a name."""

    pieces: Sequence[Path]
    origin: Path  # what names the run: the file, or what its pieces are of
    format: str
    read: Callable[..., Iterable[Row]]
    is_argument: bool  # itself, and not a folder that it lies in

    @property
    def path(self) -> Path:
        return self.pieces[0]

    @property
    def folder(self) -> Path:
        return self.origin if self.origin.is_dir() else self.origin.parent

    @property
    def folders(self) -> list[str]:
        """List the names of the folders from the root on."""
        return [part for part in self.folder.parts if part != os.sep]

    @property
    def stem(self) -> str:
        """Return its name without what ends say of its form; nothing, where it is a folder."""
        if self.origin.is_dir():
            return ""
        name = self.origin.name.removesuffix(".gz")
        is_form = ENDING.fullmatch(Path(name).suffix) and not name.endswith(".wandb")
        return Path(name).stem if is_form else name

    @property
    def title(self) -> str:
        path = self.path
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

    def rows(self) -> Iterable[Row]:
        return self.read(*self.pieces)


def of_paths(paths: Sequence[str], format_name: str | None) -> tuple[list[LogFile], list[str]]:
    """Return the logs of these paths, each once, and lines about paths that hold none.

    Errors:
        ValueError: there is nothing of that name, no path holds a log, or one holds logs of several
            formats.
    """
    format_names = [format_name] if format_name else BUILT_IN
    forms = list(map(_format, format_names))
    pieces = dict[tuple[str, str], list[Path]]()
    by_key = dict[tuple[str, str], tuple[Format, bool]]()
    without = list[str]()
    for path in paths:
        pairs = _logs(path, forms, is_chosen=format_name is not None)
        if not pairs:
            without.append(path)
        for file, form in pairs:
            key = form.name, form.run_of(file)
            by_key.setdefault(key, (form, not Path(expanded(path)).is_dir()))
            members = pieces.setdefault(key, [])
            members += [file] if file not in members else []
    if not pieces:
        kind = (
            f"logs of {format_name}"
            if format_name
            else "runs of nocap, or logs that nocap can read"
        )
        raise ValueError(f"{shorten(paths)} must hold {kind}, got {'; '.join(map(_seen, paths))}")
    logs = list[LogFile]()
    for key, (form, is_argument) in by_key.items():
        origin = Path(key[1])
        logs.append(
            LogFile(
                pieces=pieces[key],
                origin=origin,
                format=form.name,
                read=form.read,
                is_argument=is_argument,
            )
        )
    return logs, [f"{path}: left out, because it holds no log" for path in without]


def _format(name: str) -> Format:
    """Return nocap's format of this name, or the one that a Python file defines.

    Errors:
        ValueError: there is none of that name, or the file defines none.
    """
    if name in BUILT_IN:
        return _make_format(name, vars(importlib.import_module(f"{formats.__name__}.{name}")))
    path = expanded(name)
    is_file = path.suffix == ".py" and path.is_file()
    require(
        is_file, "--format", f"be one of {', '.join(BUILT_IN)}, or the path of a Python file", name
    )
    try:
        content = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:  # the file may raise anything
        raise ValueError(
            f"--format {path} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    ok = callable(content.get("read")) and isinstance(content.get("PATTERN"), str)
    require(
        ok,
        f"--format {path}",
        "define the function read(path) and the text PATTERN, such as '*.txt'",
        "something else",
    )
    return _make_format(path.name, content)


def _make_format(name: str, content: dict[str, Any]) -> Format:
    return Format(
        name=name,
        patterns=content["PATTERN"].split(),
        read=content["read"],
        recognises=content.get("recognises"),
        run_of=content.get("run_of", str),
        is_general=bool(content.get("GENERAL")),
        is_sure=bool(content.get("SURE")),
        is_remote=bool(content.get("REMOTE")),
    )


def _logs(path: str, forms: Sequence[Format], *, is_chosen: bool) -> list[tuple[Path, Format]]:
    """List the logs at or below a path, each with its format.

    Errors:
        ValueError: there is nothing of that name, or logs of several formats.
    """
    origin = Path(os.path.abspath(expanded(path)))
    if not origin.exists():
        remote = [form for form in forms if is_chosen and form.is_remote]
        require(bool(remote), path, "be a file or a folder of logs", "nothing of that name")
        return [(Path(path), remote[0])]
    if origin.is_file() and is_chosen:
        return [(origin, forms[0])]
    pairs = [
        (file, form)
        for file in _files(origin)
        if (form := _format_of(file, forms, is_argument=file == origin))
    ]
    pairs = _without_shadowed(pairs)
    names = dict.fromkeys(form.name for _, form in pairs)
    rule = "hold logs of one format, or be read with --format NAME"
    require(len(names) < 2, path, rule, " and ".join(names))
    return pairs


def _files(origin: Path) -> Iterator[Path]:
    """List a file, or all files below a folder but for hidden ones."""
    if origin.is_file():
        yield origin
        return
    for folder, folders, files in os.walk(origin):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _format_of(file: Path, forms: Sequence[Format], *, is_argument: bool) -> Format | None:
    """Return the format that knows a file, one that is not general first.

    In a folder a general one reads what is called so, or was printed. What is called so, and nobody
    knows, is its own too: it is named with what is wrong.
    """
    by_name = [form for form in forms if form.takes(file)]
    try:
        content = sample(file)
    except OSError:
        content = Sample(path=file, head=b"")
    for form in sorted(forms, key=lambda form: form.is_general):
        is_there = is_argument or form in by_name or not form.is_general or file.suffix in PRINTED
        if is_there and form.recognises and form.recognises(content):
            return form
    return next((form for form in by_name if form.is_sure or not form.recognises), None)


def _without_shadowed(pairs: Sequence[tuple[Path, Format]]) -> list[tuple[Path, Format]]:
    """Leave out what W&B keeps beside the file of a run: copies of what was printed, and its own
    logs."""
    homes = {file.parent for file, form in pairs if form.name == "wandb"}
    homes |= {home.parent for home in homes if home.parent.name == "wandb"}
    return [
        (file, form) for file, form in pairs if form.name == "wandb" or not homes & {*file.parents}
    ]


def _seen(path: str) -> str:
    """Say which files a path holds, and which format would take them."""
    files = [*_files(Path(os.path.abspath(expanded(path))))]
    if not files:
        return "no file"
    names = shorten((file.name for file in files), most=MOST_SEEN)
    built_in = list(map(_format, BUILT_IN))
    formats = dict[str, None]()
    for file in files:
        form = _format_of(file, built_in, is_argument=False)
        if form:
            formats[form.name] = None
    readers = (
        "none in a format that nocap knows; write a CSV file with the columns "
        "arm,seed,step,val_loss, or add --format FILE.py"
    )
    if formats:
        readers = f"which nocap reads with --format {' or '.join(formats)}"
    return f"{plural(len(files), 'file')} ({names}), {readers}"
