"""What refers to a run: grids and searches, studies by their logs, and runs that began from it or learn from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nocap.store.find import GRID
from nocap.store.record import read_json
from nocap.store.runs import dig
from nocap.study import log


def references(runs: Iterable[Path], *, outputs: Path, studies: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Identity → what refers to it, for people; and a line for each file that cannot be read. `runs`: all run folders."""
    found, problems = dict[str, list[str]](), list[str]()
    readers = [
        *((path, _of_grid) for path in sorted((outputs / "grids").glob(f"*/{GRID}"))),
        *((path, _of_study) for path in sorted(studies.glob(f"*/{log.FILE}"))),
        *((folder / "manifest.json", _of_run) for folder in runs),
    ]
    for path, read in readers:
        try:
            for identity, name in read(path):
                if name not in (names := found.setdefault(identity, [])):
                    names.append(name)
        except ValueError as error:
            problems.append(f"what it refers to is not known: {error}")
    return found, problems


def _of_grid(path: Path) -> Iterator[tuple[str, str]]:
    cells = (read_json(path) or {}).get("cells") or ()
    yield from ((str(cell["identity"]), f"grid {path.parent.name}") for cell in cells if cell and cell.get("identity"))


def _of_study(path: Path) -> Iterator[tuple[str, str]]:
    yield from ((str(line["identity"]), f"study {path.parent.name}") for line in log.read(path).of("run"))


def _of_run(path: Path) -> Iterator[tuple[str, str]]:
    manifest = read_json(path) or {}
    if identity := dig(manifest, "init", "identity"):
        yield str(identity), f"branch {path.parent.name}"
    for teacher in (manifest.get("teachers") or {}).values():
        if identity := dig(teacher, "identity"):
            yield str(identity), f"student {path.parent.name}"
