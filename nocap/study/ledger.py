"""A study's ledger: what was registered, run, timed, looked at, repeated and deleted. A file in the study's own folder, committed with its
results, to which lines are only added.

Each line names the digests of those before it that no other names: of one, or after a merge of one for each branch. So a line that was
edited, moved, put in or taken out is noticed, but at the end: what was cut off there only git knows.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nocap.config.bounded import JSON_BYTES, parse_json, read_text
from nocap.config.outward import redact
from nocap.store.files import not_elsewhere
from nocap.store.measurement import now
from nocap.store.record import Whole, check_shape

FILE = "ledger.jsonl"
ENDED = ("finished", "diverged")  # how a run with a result ended
Line = Mapping[str, Any]

_RUN = {"arm": str, "seed": int, "short": int, "identity": str}
_SESSION = {"what": str, "seed": int, "repeat": int, "key": str, "arms": [str]}
_COMMON: dict[str, Any] = {"event": str, "at": str, "machine": str, "folder": str, "scale": str, "previous": [str]}
# Event → its keys beside those of all lines. `short`: the steps of a shorter schedule, else 0. `folder`: which output_dir, as a digest.
EVENTS: dict[str, dict[str, Any]] = {
    "registration": {"claim": str, "hash": str},
    "budget": {"budget_h": float, "steps": int},
    "run": _RUN | {"status": str, "started": str, "step": int, "val_loss": float},  # begun, then how it ended
    "session": _SESSION | {"started": str, "measured": {...: float}},
    "repeat": {"was": dict},  # the keys `of` a run or session that was measured again, and what was there before
    "deletion": {},
    "rules": {"rules": str},
    "proposal": {"arm": str, "overrides": [str], "number": int},
    "pair": {"arm": str, "against": str, "seed": int, "loss": float, "baseline": float},
    "answer": {"arm": str, "number": int, "word": str, "pairs": int, "gain": float, "diverged": bool},
    "look": {"claim": str, "hash": str, "look": int, "n": int, "word": str},
}


OF: dict[str, dict[str, Any]] = {"run": _RUN, "session": _SESSION}  # what a repeat and a deletion name


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Of a study that was never carried out, an empty one."""

    lines: Sequence[Line] = ()
    broken: Sequence[int] = ()  # the numbers of lines that do not follow what is before them
    heads: Sequence[str] = field(default=(), repr=False)  # digests that the next line names

    def of(self, *events: str, **keys: object) -> list[Line]:
        """The lines of such events with these keys."""
        return [line for line in self.lines if line["event"] in events and all(line[key] == value for key, value in keys.items())]


def read(path: Path) -> Ledger:
    """The ledger of a file, or an empty one.

    Errors:
        ValueError: a line is damaged; its number is named.
    """
    text = read_text(path, JSON_BYTES) if os.path.lexists(path) else ""
    lines = [_parsed(line, path, number) for number, line in enumerate(text.splitlines(keepends=True), start=1)]
    digests, broken, named = list[str](), list[int](), set[str]()
    for number, (line, raw) in enumerate(zip(lines, text.splitlines(), strict=True), start=1):
        previous = line["previous"]
        merged = number > 1 and line["machine"] != lines[number - 2]["machine"]
        follows = not digests or digests[-1] in previous or merged
        if not follows or any(one not in digests for one in previous):
            broken.append(number)
        named.update(previous)
        digests.append(_digest(raw))
    return Ledger(lines=lines, broken=broken, heads=[one for one in digests if one not in named])


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode()).hexdigest()[:16]


def _parsed(raw: str, path: Path, number: int) -> Line:
    rule = "be whole, as it was written (git has it; a last one that a crash cut off may go: the next command writes what it said)"
    try:
        line = parse_json(raw)
        shape = _COMMON | EVENTS[line["event"]] | ({} if "was" not in line and line["event"] != "deletion" else OF[line["of"]])
        times = [datetime.fromisoformat(line[key]) for key in ("at", "started") if line.get(key)]
        ok = raw.endswith("\n") and all(time.tzinfo is not None for time in times)
    except (ValueError, KeyError, TypeError):
        shape, ok = {}, False
    if not ok:
        raise ValueError(f"{path}: line {number} must {rule}, got {raw[:80]!r}")
    check_shape(line, Whole(shape), path, f"line {number}")
    found: Line = line
    return found


def append(path: Path, find: Callable[[Ledger], Sequence[Line]], common: Line) -> None:
    """Add what `find` makes of the ledger as it is. Nobody else adds in between, and each line is on the disk before this returns.

    Errors:
        ValueError: as for `read`.
        OSError: it cannot be written.
    """
    if not os.path.lexists(path) and not find(Ledger()):
        return
    with open(path, "a", encoding="utf-8", opener=not_elsewhere) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file
        ledger = read(path)
        heads = list(ledger.heads)
        for line in find(ledger):
            content = redact({"event": line["event"], "at": now(), **common, **line, "previous": heads})
            raw = json.dumps(content, allow_nan=False)
            file.write(raw + "\n")
            file.flush()
            os.fsync(file.fileno())
            heads = [_digest(raw)]


def writable(path: Path) -> bool:
    there = path if path.exists() else path.parent
    return there.exists() and os.access(there, os.W_OK)
