"""A result: a comparison as one JSON file that judges itself again. Its records are those of the runs, cut to
what the judge reads and a reader asks for. No name of a machine is in it, nor what a run printed. Here it is
written and read, and nowhere else.

    kind        comparison
    judge       the nocap that judged: its version and commit
    command     that wrote it
    date
    question    the baseline (one of its runs' identities), the target, what was declared; what each arm
                is compared with; whether losses have the cautious interval
    records     one object a run: config, hashes of code and data, environment, summary with the record's
                digests, curve
    timings     the arms timed in turns (--time), the newest first
    reading     what was said when the runs were read: `problems` for people, and `unreadable`, by run
    sha256      digests of question, records, timings and reading
    and all of `Comparison.json()`, judged from these

A digest shows an edit. Somebody who recomputes all of it is caught only by who has the runs: `summary.sha256`
of each is in its folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nocap import __version__
from nocap.config.bounded import parse_json
from nocap.config.keys import flat, require
from nocap.config.outward import redact
from nocap.judge.compare import Comparison, ask
from nocap.judge.interval import ROUNDING
from nocap.judge.question import Question
from nocap.report import arms
from nocap.report.table import one_line
from nocap.store.formats import plural, shorten
from nocap.store.identity import git_state
from nocap.store.metrics import now as today
from nocap.store.record import ENDED, MANIFEST, SEAL, SHAPES, SUMMARY, Json, Whole, check_shape, read_json
from nocap.store.runs import Curve, Found, Record
from nocap.store.timing import Timing

KIND = "comparison"
ALIKE = ROUNDING**2  # beside 0, as a spread of equal losses is on another machine
# of a manifest; `imported` says that it is of another trainer's log
KEPT = ("options", "measured", "git", "versions", "imported")
INPUTS = ("question", "records", "timings", "reading")  # from which all else follows
BESIDE = ("kind", "judge", "date", "command", *INPUTS, "sha256")  # what the comparison itself does not say
DOUBTS = ("problems", "not_compared")
NAMES = ("source", "versions")  # whose keys are names
IDENTITY = re.compile(r"[\w-]+")
SHOWN = 80  # characters of a value in a line

_CURVE = {"step": [int], "tokens": [int], "train_s": [float], "val_loss": [float], "val_bpb": [float]}
_RECORD = Whole(
    dict.fromkeys(("folder", "identity", "name", "arm", "status", "started"), str)
    | {
        "seed": int,
        "config": dict,
        "parts": SHAPES[MANIFEST]["parts"],
        "manifest": SHAPES[MANIFEST],
        "summary": SHAPES[SUMMARY],
    }
    | {"curve": Whole(_CURVE)}
)
_TIMING = Whole(
    dict.fromkeys(("started", "machine", "machine_name", "clock"), str)
    | {"seconds": {...: [float]}, "left_out": {...: str}}
)
SHAPE = Whole(
    {
        "judge": str,
        "question": Whole(
            {"baseline": str, "target": float, "allow": [str], "against": str, "cautious": bool}
        ),
        "records": [_RECORD],
        "timings": [_TIMING],
        "reading": Whole({"problems": [str], "unreadable": {...: str}}),
        "arms": [Whole({"arm": str, "label": str})],
        "runs": [Whole({"identity": str, "name": str})],
        "problems": [str],
        "not_compared": [dict],
        "sha256": Whole(dict.fromkeys(INPUTS, str)),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a file says, and what its records make of its question."""

    path: Path
    question: Question
    comparison: Comparison  # worked out of the records; `edits` are among its problems
    edits: list[str]  # a line for each part that is not what its digest says
    changes: list[str]  # a line for each arm, and for whatever else, of which the file says something else
    judge: str

    def follows(self) -> list[str]:
        """Say whether what the file says follows from its records: a line, or one for each difference."""
        lines = [*self.edits, *self.changes]
        if not lines:
            rows = plural(len(self.comparison.records), "row")
            return [f"{self.path}: what it says follows from its {rows}"]
        if self.judge != judge():
            lines.append(f"judged by {_show(self.judge)}, now by {judge()}")
        return [f"{self.path}: {line}" for line in lines]


# --- records ------------------------------------------------------------------------------------------------


def bare(comparison: Comparison) -> Comparison:
    """Return the same comparison, of records as a file has them: no word of it names a machine."""
    records = [_record(_row(record)) for record in comparison.records]
    return ask(replace(comparison.found, records=records), Question().over(comparison.question))


def _row(record: Record) -> Json:
    """Return a record as a file has it."""
    manifest = record.manifest
    parts = {key: part for key, part in record.parts.items() if key != "config"}  # it is there, flat
    kept = {key: manifest[key] for key in KEPT if manifest[key]}
    ended = {key: value for key, value in record.summary.items() if key not in ("error", "tracker")}
    hardware = {key: value for key, value in record.hardware.items() if key != "host"}
    row = {
        **_plainly(record),
        "folder": record.folder.name,
        "curve": _plainly(record.curve),
        "parts": _tame(parts),
        "manifest": {
            **_tame(kept),
            "data": {split: _cut(manifest["data"][split], SEAL) for split in ("train", "val")},
            "attempts": _cut(manifest["attempts"], "started", "swept", "asked"),
        },
        "summary": {**ended, "hardware": hardware},
    }
    cut: Json = _plain(redact(row))
    return cut


def _plainly(of: Record | Curve) -> Json:
    """Return the fields as they are: `asdict` copies every number of a curve."""
    return {field.name: getattr(of, field.name) for field in fields(of)}


def _cut(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[Json]:
    """Return the rows with these keys alone."""
    cut = []
    for row in rows:
        cut.append({key: row.get(key) for key in keys})
    return cut


def _tame(facts: Mapping[str, Any]) -> Json:
    """Return facts whose names of modules and packages have no secret either: somebody else named them."""
    tamed = dict(facts)
    for key in NAMES:
        if facts.get(key):
            names = redact(list(facts[key]))
            tamed[key] = dict(zip(names, facts[key].values(), strict=True))
    return tamed


def _record(row: Json) -> Record:
    """Return what a row of a file is of.

    Errors:
        ValueError, TypeError: it is no row.
    """
    require(type(row["seed"]) is int, "seed", "be an integer", row["seed"])
    sizes = {len(column) for column in row["curve"].values()}
    require(len(sizes) == 1, f"the curve of {row['identity']}", "have columns of one length", sizes)
    return Record(**{**row, "folder": Path(row["folder"]), "curve": Curve(**row["curve"])})


# --- written ------------------------------------------------------------------------------------------------


def content(comparison: Comparison, *, command: str) -> Json:
    """Return what a file has of a comparison of `bare` records."""
    question = comparison.question
    asked = {
        "question": asdict(question),
        "records": [_row(record) for record in comparison.records],
        "timings": [asdict(timing) for timing in comparison.found.timings],
        "reading": {
            "problems": comparison.found.problems,
            "unreadable": comparison.found.unreadable,
        },
    }
    inputs = _plain(redact(asked))
    return {
        "kind": KIND,
        "judge": judge(),
        "date": today(),
        "command": command,
        **comparison.json(),
        **inputs,
        "sha256": {part: _sha256(inputs[part]) for part in INPUTS},
    }


def judge() -> str:
    """Return the nocap that judges here. A + says that its code has uncommitted changes."""
    git = git_state() or {}
    changed = "+" if git.get("diff_sha256") else ""
    return f"nocap {__version__} ({git.get('commit') or 'no commit'}{changed})"


def _plain(value: Any) -> Any:
    """Return a value in JSON's types, as who reads its file has it."""
    return parse_json(json.dumps(value))


def _sha256(part: object) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


# --- read ---------------------------------------------------------------------------------------------------


def read(path: Path) -> Result:
    """Read a file, and judge its records anew. Nothing in it runs, and no other file is read.

    Errors:
        ValueError: it is no such file, or of a newer nocap, or its records cannot be judged; it is named.
    """
    told = read_json(path, dict) or {}
    rule = "be a comparison that nocap.compare --json wrote, with its records"
    kind = told.get("kind", "none")
    require(kind == KIND, str(path), rule, f"the kind {_show(kind)}")
    check_shape(told, SHAPE, path)
    try:
        question = Question(**told["question"])
        edits = list(_edits(told))
        # whoever writes what is made of these records says it too
        edited = [f"{path}: {line}" for line in edits]
        comparison = ask(_found(told, edited), Question().over(question))
        heard = {**told, "problems": [*edited, *told["problems"]]}
        changes = list(_changes(heard, _plain(comparison.json())))
        arms.render(comparison)  # what cannot be shown is none either
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        why = f"{what}{error}"
        raise ValueError(f"{path} must {rule}, got {why}") from error
    return Result(
        path=path,
        question=question,
        comparison=comparison,
        edits=edits,
        changes=changes,
        judge=told["judge"],
    )


def _found(told: Json, edited: Sequence[str]) -> Found:
    """Return the runs of a file. `edited`: what is to be said of it."""
    rows = told["records"]
    records = {_identity(row): _record(row) for row in rows}
    count = f"{len(rows)} of {len(records)} identities"
    require(len(records) == len(rows), "records", "be there once each", count)
    base = told["question"]["baseline"]
    ended = [name for name, record in records.items() if record.status in ENDED]
    require(base in ended, "question.baseline", "be the identity of a run that has ended", base)
    return Found(
        records=[*records.values()],
        problems=[*told["reading"]["problems"], *edited],
        unreadable=told["reading"]["unreadable"],
        timings=[Timing(**timing) for timing in told["timings"]],
    )


def _identity(row: Json) -> str:
    """Return the identity in a row, which is no path and no pattern: such are looked for on the disk."""
    identity: str = row["identity"]
    require(IDENTITY.fullmatch(identity) is not None, "an identity", "be letters and digits", repr(identity))
    return identity


def _edits(told: Json) -> Iterator[str]:
    """Say which parts are not what their digests say."""
    for part in INPUTS:
        if _sha256(told[part]) != told["sha256"][part]:
            yield f"{part}: its digest is of something else: a part of it was changed, added or taken out"


def _changes(told: Json, again: Json) -> Iterator[str]:
    """Say for each arm and run, and for what else there is, what the file says otherwise."""
    said = {key: value for key, value in told.items() if key not in BESIDE}
    before = _parts(said)
    after = _parts(again)
    for part in {**after, **before}:
        was = before.get(part, NOTHING)
        now = after.get(part, NOTHING)
        differ = sorted(_differ(was.said, now.said), key=_rank)
        if differ:
            yield f"{_show(was.label or now.label)}: {shorten(differ)}"
    for key in DOUBTS:
        lost = [each for each in again[key] if each not in said[key]]
        more = [each for each in said[key] if each not in again[key]]
        yield from (f"{key}: the file leaves out {_show(each)}" for each in lost)
        yield from (f"{key}: its rows do not say {_show(each)}" for each in more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What is said of an arm or of a run, or all else that is said."""

    label: str
    said: Mapping[str, Any]


NOTHING = Part(label="", said={})


def _rank(line: str) -> bool:
    """Put the word first."""
    return not line.startswith("difference.verdict")


def _parts(said: Json) -> dict[tuple[str, str], Part]:
    """Return the arms by their ids, the runs by their identities, and all else but the doubts."""
    parts = {("arm", arm["arm"]): Part(label=arm["label"], said=arm) for arm in said["arms"]}
    parts |= {("run", run["identity"]): Part(label=run["name"], said=run) for run in said["runs"]}
    rest = {key: value for key, value in said.items() if key not in DOUBTS}
    rest |= {"arms": [arm["arm"] for arm in said["arms"]], "runs": [run["identity"] for run in said["runs"]]}
    return parts | {("", ""): Part(label=KIND, said=rest)}


def _differ(told: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """Say what is another, but for rounding, by its key."""
    before = dict(flat(told))
    after = dict(flat(again))
    for key in {**after, **before}:
        was = before.get(key)
        now = after.get(key)
        if not _same(was, now):
            yield f"{_show(key)} is {_show(json.dumps(was))}, by its rows {_show(json.dumps(now))}"


def _same(was: object, now: object) -> bool:
    """Say whether two values are equal but for rounding, those in lists and objects too."""
    if isinstance(was, int | float) and isinstance(now, int | float):
        return math.isclose(was, now, rel_tol=ROUNDING, abs_tol=ALIKE)
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_same, was, now))
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(_same(item, now[key]) for key, item in was.items())
    return was == now


def _show(value: object) -> str:
    """Return a value on one line, of a length that a person reads."""
    text = one_line(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
