"""A study's log: its registrations, results and verdicts. It is a file in the study's own folder,
committed with its results. Lines are only added; git shows if one was edited or taken out.
`nocap.study.standing` says from the lines where a claim stands."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from nocap.config.outgoing_text import redact
from nocap.config.untrusted_files import parse_json, read_text
from nocap.store.file_writing import open_without_link
from nocap.store.times import now

FILE = "log.jsonl"


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """A line. `append` fills in what all lines have."""

    at: str = ""  # when it was written, ISO 8601
    machine: str = ""  # fingerprint
    scale: str = ""


class RegistrationLine(LogLine, frozen=True, kw_only=True, tag="registration"):
    """The registration of a claim (`nocap.study.registration.Registration`)."""

    claim: str
    hash: str
    subject: str


class RunLine(LogLine, frozen=True, kw_only=True, tag="run"):
    """A run that ended."""

    arm: str
    content: str  # digest of what was trained
    seed: int
    short: int  # the steps of a schedule of another length; 0: it has the arm's own
    identity: str
    status: str
    started: str
    val_loss: float | None


class SessionLine(LogLine, frozen=True, kw_only=True, tag="session"):
    """A session of timing."""

    place: str
    number: int
    key: str
    contents: dict[str, str]  # arm → digest of what was timed
    started: str
    measured: dict[str, float | None]  # arm → one figure


class AnalysisLine(LogLine, frozen=True, kw_only=True, tag="analysis"):
    """A verdict on a claim."""

    claim: str
    hash: str
    number: int
    n: int
    word: str
    exploratory: str  # why it is; empty: it is not


class RulesLine(LogLine, frozen=True, kw_only=True, tag="rules"):
    """The rules that a program's first proposal fixed."""

    rules: str


class ProposalLine(LogLine, frozen=True, kw_only=True, tag="proposal"):
    """A program's proposal."""

    arm: str  # digest of what it trains
    overrides: list[str]
    number: int


class PairLine(LogLine, frozen=True, kw_only=True, tag="pair"):
    """The losses of a proposal and of the baseline with one seed; null where a run diverged."""

    arm: str  # digest of what the proposal trains
    against: str  # of what the baseline trains
    seed: int
    loss: float | None
    baseline: float | None


class AnswerLine(LogLine, frozen=True, kw_only=True, tag="answer"):
    """The answer to a proposal."""

    arm: str  # digest of what it trains
    number: int
    word: str
    pairs: int
    gain: float | None
    diverged: bool


class HeadLine(LogLine, frozen=True, kw_only=True, tag="head"):
    """The end of a log in an older form."""

    v1: str


AnyLine = (
    RegistrationLine
    | RunLine
    | SessionLine
    | AnalysisLine
    | RulesLine
    | ProposalLine
    | PairLine
    | AnswerLine
    | HeadLine
)
Kind = TypeVar("Kind", bound=LogLine)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyLog:
    """The lines of a file; of a study that was never carried out, none."""

    lines: Sequence[AnyLine] = ()

    def of(self, kind: type[Kind], **keys: object) -> list[Kind]:
        """List the lines of a kind with these keys."""
        return [line for line in self.lines if isinstance(line, kind) and _has(line, keys)]


def _has(line: LogLine, keys: dict[str, object]) -> bool:
    return all(getattr(line, key) == value for key, value in keys.items())


def read_log(path: Path) -> StudyLog:
    """Read the log of a file, or an empty one where there is none.

    Errors:
        ValueError: a line is damaged; its number is named.
    """
    text = read_text(path) if os.path.lexists(path) else ""
    lines = list[AnyLine]()
    for number, raw in enumerate(text.splitlines(keepends=True), start=1):
        lines.append(_parse(raw, path, number))
    return StudyLog(lines=lines)


def _parse(raw: str, path: Path, number: int) -> AnyLine:
    try:
        line: AnyLine = msgspec.convert(parse_json(raw), AnyLine)
        times = [line.at]
        if isinstance(line, RunLine | SessionLine):
            times.append(line.started)
        moments = [datetime.fromisoformat(time) for time in times if time]
        is_sound = (
            raw.endswith("\n")
            and bool(line.at)
            and all(moment.tzinfo is not None for moment in moments)
        )
    except (ValueError, TypeError):
        is_sound = False
    if not is_sound:
        raise ValueError(
            f"{path}: line {number} must be as nocap wrote it, got {raw[:80]!r}: take the line "
            "from git, or delete it if it is the last line and a crash cut it off"
        )
    return line


def append(
    path: Path,
    lines: Sequence[LogLine],
    *,
    machine: str,
    scale: str,
    once: Sequence[str] = (),
    says: Sequence[str] = (),
) -> None:
    """Add lines. With `once`, leave out a line where the last one of its kind with the same values
    of these keys has the same values of the keys `says` too. Nobody else adds in between, and each
    line is on the disk before this returns.

    Errors:
        ValueError: as for `read_log`.
        OSError: it cannot be written.
    """
    if not lines:
        return
    with open(path, "a", encoding="utf-8", opener=open_without_link) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file
        log = read_log(path)
        at = now()
        for line in lines:
            full = msgspec.structs.replace(line, at=at, machine=machine, scale=scale)
            if not once or not _is_repeat(log, full, once, says):
                file.write(json.dumps(redact(msgspec.to_builtins(full)), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _is_repeat(log: StudyLog, line: LogLine, once: Sequence[str], says: Sequence[str]) -> bool:
    """Say whether the last line of the same says the same."""
    alike = log.of(type(line), **{key: getattr(line, key) for key in once})
    return bool(alike) and all(getattr(alike[-1], key) == getattr(line, key) for key in says)


def writable(path: Path) -> bool:
    """Say whether a log can be written, or made."""
    target = path if path.exists() else path.parent
    return target.exists() and os.access(target, os.W_OK)
