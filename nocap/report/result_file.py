"""A result's file: a comparison with its question and its records, which judges itself again. The
records are those of the runs, cut to what the judge reads and a reader asks for. No name of a
machine is in it, nor what a run printed. Here it is written and read, and nowhere else.

A digest shows an edit. Somebody who recomputes all of it is caught only by who has the runs:
`summary.sha256` of each is in its folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nocap import __version__
from nocap.config.keys import flat, require
from nocap.config.outgoing_text import redact
from nocap.config.untrusted_files import parse_json
from nocap.display import plural, shorten
from nocap.judge.compare import ask
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import Result, Schema, to_json
from nocap.judge.interval import ROUNDING
from nocap.judge.question import Question
from nocap.report.table import one_line
from nocap.store import times
from nocap.store.checkout import git_state
from nocap.store.grid_timing import Timing
from nocap.store.json_shapes import check_shape
from nocap.store.record import Curve, Record
from nocap.store.record_files import ENDED, MANIFEST, SEAL, SHAPES, SUMMARY, read_json
from nocap.store.runs import Found

KIND = "comparison"
ALIKE = ROUNDING**2  # beside 0, as a spread of equal losses is on another machine
# of a manifest; `imported` says that it is of another trainer's log
RECORD_KEYS = ("options", "measured", "git", "versions", "imported")
NAMED_PARTS = ("source", "versions")  # whose keys are names
IDENTITY = re.compile(r"[\w-]+")
EDITED = "its digest does not match: somebody changed, added or removed a part"
VALUE_LENGTH = 80  # characters of a value in a line


class QuestionJson(Schema, frozen=True, kw_only=True):
    """The question that was asked of the records."""

    baseline: str  # the identity of one of its runs
    target: float | None  # nats per token
    allow: list[str]  # differences that were declared
    against: str  # baseline, or previous: each arm is compared with the one before it
    cautious: bool  # whether losses have the cautious interval


class RecordJson(Schema, frozen=True, kw_only=True):
    """A run: its config, hashes of code and data, environment, summary with the record's digests,
    curve."""

    folder: str  # its name
    identity: str
    name: str
    arm: str
    seed: int
    status: str
    started: str
    config: dict[str, object]  # flat, without the seed
    parts: dict[str, object]
    manifest: dict[str, object]
    summary: dict[str, object]
    curve: Curve
    length_of: str | None = None


class ReadingJson(Schema, frozen=True, kw_only=True):
    """The notes that were made when the runs were read."""

    problems: list[str]  # lines for people
    unreadable: dict[str, str]  # a run's folder, and why


class DigestsJson(Schema, frozen=True, kw_only=True):
    """A digest of each input."""

    question: str
    records: str
    timings: str
    reading: str


class ResultFile(Result, frozen=True, kw_only=True):
    """A comparison, with what it follows from and when it was made."""

    question: QuestionJson
    records: list[RecordJson]
    timings: list[Timing]  # the arms timed in turns (--time), the newest first
    reading: ReadingJson
    kind: str
    judge: str  # the nocap that judged: its version and commit
    date: str
    command: str  # that wrote it
    sha256: DigestsJson


INPUTS = DigestsJson.__struct_fields__  # what a comparison follows from


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedFile:
    """A file, and the comparison that its records give today."""

    path: Path
    question: Question
    comparison: Comparison  # worked out of the records; `edits` are among its problems
    edits: list[str]  # a line for each part that is not what its digest says
    changes: list[
        str
    ]  # a line for each arm, and for whatever else, of which the file says something else
    judge: str

    def follows(self) -> list[str]:
        """Say whether what the file says follows from its records: a line, or one for each
        difference."""
        lines = [*self.edits, *self.changes]
        if not lines:
            rows = plural(len(self.comparison.records), "row")
            return [f"{self.path}: the verdicts follow from its {rows}"]
        if self.judge != judge():
            lines.append(f"{_show(self.judge)} judged the file, and {judge()} judged it again now")
        return [f"{self.path}: {line}" for line in lines]


# --- records --------------------------------------------------------------------------------------


def bare(comparison: Comparison) -> Comparison:
    """Return the same comparison, of records as a file has them: no word of it names a machine."""
    records = [_record(_row(record)) for record in comparison.records]
    return ask(replace(comparison.found, records=records), Question().over(comparison.question))


def _row(record: Record) -> RecordJson:
    """Return a record as a file has it."""
    manifest = record.manifest
    parts = {
        key: part for key, part in record.parts.items() if key != "config"
    }  # it is there, flat
    facts = {key: manifest[key] for key in RECORD_KEYS if manifest[key]}
    ended = {key: value for key, value in record.summary.items() if key not in ("error", "tracker")}
    hardware = {key: value for key, value in record.hardware.items() if key != "host"}
    row = RecordJson(
        folder=record.folder.name,
        identity=record.identity,
        name=record.name,
        arm=record.arm,
        seed=record.seed,
        status=record.status,
        started=record.started,
        config=record.config,
        parts=_tame(parts),
        manifest={
            **_tame(facts),
            "data": {split: _cut(manifest["data"][split], SEAL) for split in ("train", "val")},
            "attempts": _cut(manifest["attempts"], "started", "swept", "asked"),
        },
        summary={**ended, "hardware": hardware},
        curve=record.curve,
        length_of=record.length_of,
    )
    return msgspec.convert(_plain(redact(to_json(row))), RecordJson)


def _cut(rows: Sequence[Mapping[str, object]], *keys: str) -> list[dict[str, object]]:
    """Return the rows with these keys alone."""
    cut = []
    for row in rows:
        cut.append({key: row.get(key) for key in keys})
    return cut


def _tame(facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts whose names of modules and packages have no secret either: somebody else named
    them."""
    tamed = dict(facts)
    for key in NAMED_PARTS:
        named = facts.get(key)
        if isinstance(named, Mapping) and named:
            names = redact(list(named))
            tamed[key] = dict(zip(names, named.values(), strict=True))
    return tamed


def _record(row: RecordJson) -> Record:
    """Return what a row of a file is of.

    Errors:
        ValueError: its curve is none.
    """
    curve = row.curve
    columns = (curve.step, curve.tokens, curve.train_s, curve.val_loss, curve.val_bpb)
    sizes = {len(column) for column in columns}
    require(
        len(sizes) == 1, f"the curve of {row.identity}", "have columns of the same length", sizes
    )
    return Record(**{**msgspec.structs.asdict(row), "folder": Path(row.folder)})


# --- written --------------------------------------------------------------------------------------


def content(comparison: Comparison, *, command: str) -> dict[str, object]:
    """Return what a file has of a comparison of `bare` records."""
    question = comparison.question
    question_json = QuestionJson(
        baseline=question.baseline or "",
        target=question.target,
        allow=list(question.allow or ()),
        against=comparison.against,
        cautious=comparison.cautious,
    )
    found = comparison.found
    inputs = {
        "question": question_json,
        "records": [_row(record) for record in comparison.records],
        "timings": found.timings,
        "reading": ReadingJson(problems=found.problems, unreadable=found.unreadable),
    }
    written = _plain(redact(msgspec.to_builtins(inputs)))
    return {
        "kind": KIND,
        "judge": judge(),
        "date": times.now(),
        "command": command,
        **to_json(result_of(comparison)),
        **written,
        "sha256": {part: _sha256(written[part]) for part in INPUTS},
    }


def schema() -> dict[str, object]:
    """Return the JSON Schema of a file. `comparison.schema.json` beside this file has it, too."""
    return msgspec.json.schema(ResultFile, schema_hook=_anything)


def _anything(kind: type) -> dict[str, object]:
    """Return the schema of a value of any type, such as the value of a config's key."""
    assert kind is object, kind
    return {"description": "any value"}


def judge() -> str:
    """Return the nocap that judges here. A + says that its code has uncommitted changes."""
    git = git_state() or {}
    changed = "+" if git.get("diff_sha256") else ""
    return f"nocap {__version__} ({git.get('commit') or 'no commit'}{changed})"


def _plain(value: object) -> dict[str, object]:
    """Return an object in JSON's types, as who reads its file has it."""
    plain: dict[str, object] = parse_json(json.dumps(value))
    return plain


def _sha256(part: object) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


# --- read -----------------------------------------------------------------------------------------


def read(path: Path) -> JudgedFile:
    """Read a file, and judge its records anew. Nothing in it runs, and no other file is read.

    Errors:
        ValueError: it is no such file, or of a newer nocap, or its records cannot be judged; it is
            named.
    """
    stored = read_json(path, dict) or {}
    rule = (
        "be a comparison that nocap.compare --json wrote (if an older version of nocap "
        "wrote it, compare the runs again)"
    )
    kind = stored.get("kind", "none")
    require(kind == KIND, str(path), rule, f"the kind {_show(kind)}")
    try:
        file = _typed(stored, path)
        question = Question(**msgspec.structs.asdict(file.question))
        edits = [part for part in INPUTS if _sha256(stored[part]) != getattr(file.sha256, part)]
        lines = [f"{part}: {EDITED}" for part in edits]
        # whoever writes what is made of these records says it too
        edited = [f"{path}: {line}" for line in lines]
        comparison = ask(_found(file, edited), Question().over(question))
        changes = list(_changes(file, edited, result_of(comparison)))
    except ValueError as error:
        raise ValueError(f"{path} must {rule}, got other content ({error})") from error
    return JudgedFile(
        path=path,
        question=question,
        comparison=comparison,
        edits=lines,
        changes=changes,
        judge=file.judge,
    )


def _typed(stored: Mapping[str, object], path: Path) -> ResultFile:
    """Return a file whose values are of the types that the judge reads."""
    file = msgspec.convert(stored, ResultFile)
    for number, record in enumerate(file.records):
        check_shape(record.manifest, SHAPES[MANIFEST], path, f"records[{number}].manifest")
        check_shape(record.summary, SHAPES[SUMMARY], path, f"records[{number}].summary")
    return file


def _found(file: ResultFile, edited: Sequence[str]) -> Found:
    """Return the runs of a file. `edited`: what is to be said of it."""
    records = {_identity(row): _record(row) for row in file.records}
    count = f"{len(file.records)} records of {len(records)} runs"
    require(len(records) == len(file.records), "records", "hold each run only once", count)
    base = file.question.baseline
    ended = [name for name, record in records.items() if record.status in ENDED]
    require(base in ended, "question.baseline", "be the identity of a run that has ended", base)
    return Found(
        records=[*records.values()],
        problems=[*file.reading.problems, *edited],
        unreadable=file.reading.unreadable,
        timings=file.timings,
    )


def _identity(row: RecordJson) -> str:
    """Return the identity in a row, which is no path and no pattern: such are looked for on the
    disk."""
    known = IDENTITY.fullmatch(row.identity) is not None
    require(known, "the identity of a run", "be letters and digits", repr(row.identity))
    return row.identity


def _changes(file: ResultFile, edited: Sequence[str], again: Result) -> Iterator[str]:
    """Say for each arm and run, and for what else there is, what the file says otherwise."""
    stored = Result(**{name: getattr(file, name) for name in Result.__struct_fields__})
    before = _parts(stored)
    after = _parts(again)
    for part in {**after, **before}:
        was = before.get(part, NOTHING)
        now = after.get(part, NOTHING)
        differ = sorted(_differ(was.values, now.values), key=_rank)
        if differ:
            yield f"{_show(was.label or now.label)}: {shorten(differ)}"
    yield from _doubts("problems", [*edited, *stored.problems], again.problems)
    yield from _doubts("not_compared", stored.not_compared, again.not_compared)


def _doubts(key: str, stored: Sequence[object], again: Sequence[object]) -> Iterator[str]:
    """Say which lines the file leaves out, and which its rows do not say."""
    for each in again:
        if each not in stored:
            yield f"{key}: the file lacks {_show(msgspec.to_builtins(each))}"
    for each in stored:
        if each not in again:
            yield f"{key}: the file says {_show(msgspec.to_builtins(each))}, but its rows do not"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPart:
    """The values of an arm or of a run, or all other values."""

    label: str
    values: Mapping[str, object]


NOTHING = ResultPart(label="", values={})


def _rank(line: str) -> bool:
    """Put the word first."""
    return not line.startswith("difference.verdict")


def _parts(of: Result) -> dict[tuple[str, str], ResultPart]:
    """Return the arms by their ids, the runs by their identities, and all else but the doubts."""
    parts = {("arm", arm.arm): ResultPart(label=arm.label, values=to_json(arm)) for arm in of.arms}
    parts |= {
        ("run", run.identity): ResultPart(label=run.name, values=to_json(run)) for run in of.runs
    }
    rest = to_json(msgspec.structs.replace(of, arms=[], runs=[], problems=[], not_compared=[]))
    rest["arms"] = [arm.arm for arm in of.arms]
    rest["runs"] = [run.identity for run in of.runs]
    return parts | {("", ""): ResultPart(label=KIND, values=rest)}


def _differ(stored: Mapping[str, object], again: Mapping[str, object]) -> Iterator[str]:
    """Say what is another, but for rounding, by its key."""
    before = dict(flat(stored))
    after = dict(flat(again))
    for key in {**after, **before}:
        was = before.get(key)
        now = after.get(key)
        if not _same(was, now):
            yield (
                f"{_show(key)} is {_show(json.dumps(was))} in the file, but its rows give "
                f"{_show(json.dumps(now))}"
            )


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
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"
