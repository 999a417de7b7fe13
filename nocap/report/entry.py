"""An entry: a comparison that others can check, as one JSON file and a page in Markdown. Its rows are the
records, cut to what the judge reads and a reader asks for; whoever has the file judges them anew. No name of
a machine is in it, nor what a run printed.

    judge       the nocap that judged: its version and commit
    command     that wrote it
    date
    question    the baseline (one of its runs' identities), the target, what was declared; what each arm
                is compared with; whether losses have the cautious interval
    runs        one object a record: config, hashes of code and data, environment, summary with the record's
                digests, curve
    comparison  `Comparison.json()` of these runs, without its own `runs`
    sha256      digests of `runs` and of the page

A digest shows an edit. Somebody who recomputes all of it is caught only by who has the runs: `summary.sha256`
of each is in its folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nocap import __version__
from nocap.config.bounded import parse_json, read_text
from nocap.config.keys import flat, require
from nocap.config.outward import redact
from nocap.judge.compare import BASELINE, PREVIOUS, Comparison, compare
from nocap.judge.interval import ROUNDING
from nocap.report import arms
from nocap.report.table import one_line, tame
from nocap.store.files import write_text
from nocap.store.formats import shorten
from nocap.store.identity import git_state
from nocap.store.metrics import now as today
from nocap.store.record import (
    MANIFEST,
    SEAL,
    SHAPES,
    SUMMARY,
    Json,
    Whole,
    check_shape,
    read_json,
    write_json,
)
from nocap.store.runs import Curve, Found, Record

FILE, PAGE = "entry.json", "entry.md"
ALIKE = ROUNDING**2  # beside 0, as a spread of equal losses is on another machine
# of a manifest; the last says that it is of another trainer's log
KEPT = ("options", "git", "versions", "imported")
DOUBTS = ("problems", "not_compared")

_CURVE = {"step": [int], "tokens": [int], "train_s": [float], "val_loss": [float], "val_bpb": [float]}
_ROW = Whole(
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
SHAPE = Whole(
    {
        "judge": str,
        "question": Whole({"baseline": str, "target": float, "allow": [str]}),
        "runs": [_ROW],
        "comparison": Whole(
            {"arms": [Whole({"arm": str, "label": str})], "problems": [str], "not_compared": [dict]}
        ),
        "sha256": Whole({"runs": str, PAGE: str}),
    }
)


# --- rows ---------------------------------------------------------------------------------------------------


def bare(loaded: Found) -> Found:
    """The same records, as an entry has them."""
    return replace(loaded, records=[_record(_row(record)) for record in loaded.records])


def _row(record: Record) -> Json:
    manifest, summary = record.manifest, record.summary
    shards = {
        split: [{SEAL: shard.get(SEAL)} for shard in manifest["data"][split]] for split in ("train", "val")
    }
    attempts = [
        {key: attempt.get(key) for key in ("started", "swept", "asked")} for attempt in manifest["attempts"]
    ]
    row = {
        **asdict(record),
        "folder": record.folder.name,
        "parts": {key: part for key, part in record.parts.items() if key != "config"},  # it is there, flat
        "manifest": {key: manifest[key] for key in KEPT if manifest[key]}
        | {"data": shards, "attempts": attempts},
        "summary": {key: value for key, value in summary.items() if key not in ("error", "tracker")}
        | {"hardware": {key: value for key, value in record.hardware.items() if key != "host"}},
    }
    cut: Json = parse_json(json.dumps(redact(row)))
    return cut


def _record(row: Json) -> Record:
    """
    Errors:
        ValueError, TypeError: it is no row.
    """
    require(type(row["seed"]) is int, "seed", "be an integer", row["seed"])
    sizes = {len(column) for column in row["curve"].values()}
    require(len(sizes) == 1, f"the curve of {row['identity']}", "have columns of one length", sizes)
    return Record(**{**row, "folder": Path(row["folder"]), "curve": Curve(**row["curve"])})


def _said(comparison: Comparison) -> Json:
    """What the judge says of the rows, as JSON has it."""
    said: Json = parse_json(json.dumps(comparison.json()))
    return {key: value for key, value in said.items() if key != "runs"}


def _sha256(content: str | list[Json]) -> str:
    return hashlib.sha256(
        (content if isinstance(content, str) else json.dumps(content, sort_keys=True)).encode()
    ).hexdigest()


# --- written ------------------------------------------------------------------------------------------------


def write(comparison: Comparison, folder: Path, *, allow: Sequence[str], command: str) -> None:
    """The two files, each whole or not at all. `comparison`: of `bare` records; `allow`: what was declared
    for it."""
    rows = [_row(record) for record in comparison.records]
    page = redact(_page(comparison, command=command, folder=folder))
    write_text(folder / PAGE, page)
    content = {
        "kind": "entry",
        "date": today(),
        "command": command,
        "judge": _judge(),
        "question": {
            "baseline": comparison.baseline.arm.all[0].identity,
            "target": comparison.target,
            "allow": list(allow),
            "against": comparison.against,
            "cautious": comparison.cautious,
        },
        "comparison": _said(comparison),
        "runs": rows,
        "sha256": {"runs": _sha256(rows), PAGE: _sha256(page)},
    }
    write_json(folder / FILE, content)


def _page(comparison: Comparison, *, command: str, folder: Path) -> str:
    lines = [
        f"# {one_line(arms.headline(comparison))}",
        "",
        *(f"* {line}" for line in arms.compared(comparison)),
        *([f"* {more}"] if (more := arms.next_step(comparison)) else []),
        "",
    ]
    for table in arms.all_tables(comparison):
        lines += [f"## {table.title}", "", *table.markdown(), "", *(f"{note}\n" for note in table.notes)]
    doubts = [
        *comparison.problems,
        *(f"not compared: {name} ({status})" for name, status in comparison.not_compared),
    ]
    lines += [
        "## What should be doubted",
        "",
        *(f"* {one_line(doubt)}" for doubt in doubts or ["nothing that the judge noticed"]),
        "",
    ]
    verify = f"python -m nocap.compare --verify {shlex.quote(str(folder))}"
    lines += [
        f"## How it was judged: {_judge()}",
        "",
        "Exploratory: nothing of it was registered before.",
        "",
    ]
    return tame(
        "\n".join(
            [*lines, "```sh", one_line(command), f"{one_line(verify)}    # judges the rows anew", "```", ""]
        )
    )


def _judge() -> str:
    """The nocap that judges here. A + says that its code has uncommitted changes."""
    git = git_state() or {}
    return f"nocap {__version__} ({git.get('commit') or 'no commit'}{'+' if git.get('diff_sha256') else ''})"


# --- judged anew --------------------------------------------------------------------------------------------


def verify(folder: Path) -> tuple[Comparison, list[str]]:
    """What the entry's rows make, and a line for each arm, and for whatever else, of which the entry says
    something else. Nothing in it runs, and no file is read but the entry's.

    Errors:
        ValueError: it is no entry, or of a newer nocap, or its rows cannot be judged; the file is named.
    """
    path = folder / FILE
    content = read_json(path) or {}
    require(
        content.get("kind") == "entry",
        str(path),
        "be an entry that nocap.export wrote",
        content.get("kind") or "none",
    )
    check_shape(content, SHAPE, path)
    try:
        comparison = _judged(content["question"], content["runs"])
        lines = [*_edits(content, folder), *_changes(content["comparison"], _said(comparison))]
        arms.render(comparison)  # what cannot be shown is none either
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} must be an entry that nocap.export wrote, got {why}") from error
    if lines and content["judge"] != _judge():
        lines.append(f"judged by {_show(content['judge'])}, now by {_judge()}")
    return comparison, lines


def _judged(question: Json, rows: Sequence[Json]) -> Comparison:
    records = {row["identity"]: _record(row) for row in rows}
    require(
        len(records) == len(rows), "runs", "be there once each", f"{len(rows)} of {len(records)} identities"
    )
    base = question["baseline"]
    # which is not looked for on the disk
    require(base in records, "question.baseline", "be the identity of a run", base)
    against = question.get("against") or BASELINE
    return compare(
        Found(records=[*records.values()]),
        baseline=None if against == PREVIOUS else base,
        target_loss=question["target"],
        allow=question["allow"],
        against=against,
        cautious=question.get("cautious") is True,
    )


def _edits(content: Json, folder: Path) -> Iterator[str]:
    if _sha256(content["runs"]) != content["sha256"]["runs"]:
        yield "runs: not what their digest says: a row was changed, added or taken out"
    if (folder / PAGE).exists() and _sha256(read_text(folder / PAGE)) != content["sha256"][PAGE]:
        yield f"{PAGE}: not what its digest says"


def _changes(told: Json, again: Json) -> Iterator[str]:
    """A line an arm, and for what else there is. An entry may have more doubts than its rows give, not
    fewer."""
    before, after = _parts(told), _parts(again)
    for part in {**after, **before}:
        label = (before.get(part) or after[part]).get("label", "comparison")
        if differ := sorted(
            _differ(before.get(part, {}), after.get(part, {})),
            key=lambda line: not line.startswith("difference.verdict"),
        ):
            yield f"{_show(label)}: {shorten(differ)}"
    for key in DOUBTS:
        yield from (
            f"{key}: the entry leaves out {_show(item)}" for item in again[key] if item not in told[key]
        )


def _parts(said: Json) -> dict[str, Json]:
    """The arms by their ids, and all else but the doubts."""
    rest = {key: value for key, value in said.items() if key not in DOUBTS}
    return {arm["arm"]: arm for arm in said["arms"]} | {
        "": {**rest, "arms": [arm["arm"] for arm in said["arms"]]}
    }


def _differ(told: Json, again: Json) -> Iterator[str]:
    """What is another, but for rounding, by its key."""
    before, after = (dict(flat(side)) for side in (told, again))
    for key in {**after, **before}:
        was, now = before.get(key), after.get(key)
        if not _same(was, now):
            yield f"{_show(key)} is {_show(json.dumps(was))}, by its rows {_show(json.dumps(now))}"


def _same(was: object, now: object) -> bool:
    """Whether two values are equal but for rounding, those in lists and objects too."""
    if isinstance(was, int | float) and isinstance(now, int | float):
        return math.isclose(was, now, rel_tol=ROUNDING, abs_tol=ALIKE)
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_same, was, now))
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(_same(item, now[key]) for key, item in was.items())
    return was == now


def _show(value: object) -> str:
    """On one line, of a length that a person reads."""
    text = one_line(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
