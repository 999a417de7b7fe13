"""A study's log: what was registered, what came out, what was said of it. A file in the study's own folder,
committed with its results, to which lines are only added.

Each line names the digests of those before it that no other names: of one, or after a merge of one for each
branch. So a line that was edited, moved, put in or taken out is noticed, but at the end: what was cut off
there only git knows. What stands is a fold over the lines (`nocap.study.registration`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nocap.config.bounded import parse_json, read_text
from nocap.config.outward import redact
from nocap.store.files import not_elsewhere
from nocap.store.metrics import now
from nocap.store.record import Whole, check_shape

FILE = "log.jsonl"
Line = Mapping[str, Any]

_COMMON: dict[str, Any] = {"event": str, "at": str, "machine": str, "scale": str, "previous": [str]}
# Event → its keys beside those of all lines.
EVENTS: dict[str, dict[str, Any]] = {
    "head": {"v1": str},  # the digest of the last line of a log in the form before this
    "registration": {"claim": str, "hash": str, "subject": str},
    "run": {
        "arm": str,
        "content": str,
        "seed": int,
        "short": int,
        "identity": str,
        "status": str,
        "started": str,
        "val_loss": float,
    },
    "session": {
        "place": str,
        "number": int,
        "key": str,
        "contents": {...: str},
        "started": str,
        "measured": {...: float},
    },
    "analysis": {"claim": str, "hash": str, "number": int, "n": int, "word": str, "exploratory": str},
    "rules": {"rules": str},
    "proposal": {"arm": str, "overrides": [str], "number": int},
    "pair": {"arm": str, "against": str, "seed": int, "loss": float, "baseline": float},
    "answer": {"arm": str, "number": int, "word": str, "pairs": int, "gain": float, "diverged": bool},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Of a study that was never carried out, an empty one."""

    lines: Sequence[Line] = ()
    broken: Sequence[int] = ()  # the numbers of lines that do not follow what is before them
    heads: Sequence[str] = field(default=(), repr=False)  # digests that the next line names
    # of each line, the registrations that it follows, by their index
    after: Sequence[frozenset[int]] = field(default=(), repr=False)

    def of(self, *events: str, **keys: object) -> list[Line]:
        """The lines of such events with these keys."""
        return [
            line
            for line in self.lines
            if line["event"] in events and all(line[key] == value for key, value in keys.items())
        ]


def read(path: Path) -> Log:
    """The log of a file, or an empty one. A line follows the one before it; a line of another machine, which
    a merge put there, names any line above it, and is not dated before that one.

    Errors:
        ValueError: a line is damaged; its number is named.
    """
    text = read_text(path) if os.path.lexists(path) else ""
    lines = [
        _parsed(line, path, number) for number, line in enumerate(text.splitlines(keepends=True), start=1)
    ]
    places, broken, named, after = dict[str, int](), list[int](), set[str](), list[frozenset[int]]()
    for i, (line, raw) in enumerate(zip(lines, text.splitlines(), strict=True)):
        previous = [places[earlier] for earlier in line["previous"] if earlier in places]
        merged = i > 0 and line["machine"] != lines[i - 1]["machine"]
        whole = len(previous) == len(line["previous"]) and (bool(previous) or i == 0)
        dated = all(_at(line) >= _at(lines[earlier]) for earlier in previous)
        if not whole or not dated or not (i == 0 or i - 1 in previous or merged):
            broken.append(i + 1)
        own = {earlier for earlier in previous if lines[earlier]["event"] == "registration"}
        after.append(frozenset(own).union(*(after[earlier] for earlier in previous)))
        named.update(line["previous"])
        places[_digest(raw)] = i
    return Log(
        lines=lines, broken=broken, heads=[earlier for earlier in places if earlier not in named], after=after
    )


def _at(line: Line) -> datetime:
    return datetime.fromisoformat(line["at"])


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode()).hexdigest()[:16]


def _parsed(raw: str, path: Path, number: int) -> Line:
    rule = (
        "be whole, as it was written (git has it; a last one that a crash cut off may go: "
        "the next command writes what it said)"
    )
    try:
        line: Line = parse_json(raw)
        shape = _COMMON | EVENTS[line["event"]]
        times = [datetime.fromisoformat(line[key]) for key in ("at", "started") if line.get(key)]
        ok = raw.endswith("\n") and all(time.tzinfo is not None for time in times)
    except (ValueError, KeyError, TypeError):
        ok = False
    if not ok:
        raise ValueError(f"{path}: line {number} must {rule}, got {raw[:80]!r}")
    check_shape(line, Whole(shape), path, f"line {number}")
    return line


def append(
    path: Path, lines: Sequence[Line], common: Line, *, once: Sequence[str] = (), says: Sequence[str] = ()
) -> None:
    """Add lines. With `once`, no line whose event with the same of these keys is there already, and last said
    the same in the keys `says`. Nobody else adds in between, and each line is on the disk before this
    returns.

    Errors:
        ValueError: as for `read`.
        OSError: it cannot be written.
    """
    if not lines:
        return
    with open(path, "a", encoding="utf-8", opener=not_elsewhere) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file
        log = read(path)
        heads, at = list(log.heads), now()
        for line in ({**common, **line} for line in lines):
            there = log.of(line["event"], **{key: line[key] for key in once})[-1:] if once else []
            if any(logged[key] != line[key] for logged in there for key in says) or not there:
                raw = json.dumps(
                    redact({"event": line["event"], "at": at, **line, "previous": heads}), allow_nan=False
                )
                file.write(raw + "\n")
                file.flush()
                os.fsync(file.fileno())
                heads = [_digest(raw)]


def writable(path: Path) -> bool:
    there = path if path.exists() else path.parent
    return there.exists() and os.access(there, os.W_OK)
