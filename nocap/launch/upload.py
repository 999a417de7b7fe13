"""Send a record or a grid's comparison to a tracker's server after its training, as `nocap.runs
sync` and a grid's end do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nocap import outside
from nocap.config.compose import composed
from nocap.config.keys import require
from nocap.config.paths import shown
from nocap.config.plain import dataclass_from, to_plain
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.display import plural
from nocap.launch.grid import REPORT
from nocap.launch.plan import Plan
from nocap.launch.run_facts import run_facts
from nocap.options.tracker import RunFacts, Tracker, TrackerSession
from nocap.store import lease
from nocap.store.record import Record, read_record
from nocap.store.record_files import CONFIG, ROWS, digest
from nocap.store.rows_file import RowsFile
from nocap.store.runs import load_runs
from nocap.store.tracking import ComparisonFacts, has_unsent, send, send_comparison

if TYPE_CHECKING:
    from nocap.judge.comparison import Comparison


def send_run(folder: Path, tracker: Tracker | None = None) -> TrackerSession:
    """Send what the server lacks of a run, as this tracker or its own has it. Nobody trains it
    meanwhile.

    Errors:
        HeldError: another process trains it.
        NoLoginError: there is no login.
        OSError: the server does not answer.
        ValueError: it does not take the run, or the record cannot be read.
    """
    with _lease_of(folder):
        record = read_record(folder, rows=False)
        config = config_of(record)
        rows = RowsFile(folder / ROWS).rows()
        facts = run_facts(config, folder, record.manifest, params=record.summary["params"])
        return send(tracker or tracker_of(config), facts, rows=rows, summary=record.summary)


def _lease_of(folder: Path) -> lease.Lease:
    """Take a run's lease.

    Errors:
        HeldError: another process has it.
        ValueError: its folder cannot be written.
    """
    try:
        return lease.acquire(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from error


def config_of(record: Record) -> dict[str, Any]:
    """Return the config of a record, as plain data.

    Errors:
        ValueError: it cannot be read.
    """
    path = record.folder / CONFIG
    try:
        config = parse_yaml(read_text(path))
        return {**config, "seed": record.seed}
    except (OSError, TypeError) as error:
        raise ValueError(f"{path} must be a run's config: {error}") from error


def tracker_of(config: Mapping[str, Any]) -> Tracker:
    """Return the tracker of a run's config, where it uploads; else the default one, W&B, as
    this command's environment has it."""
    own = dict(config.get("tracker") or {})
    schema = outside.options("tracker").get(str(own.get("kind")))
    if schema is not None and cast(type[Tracker], schema).uploads:
        defaults = to_plain(composed([f"tracker={own['kind']}"]).run)["tracker"]
        values = {f.name: own.get(f.name, defaults[f.name]) for f in fields(schema)}
        return cast(Tracker, dataclass_from(schema, values, "tracker."))
    return composed([]).run.tracker


def send_left(plans: Sequence[Plan], grid: Path) -> str | None:
    """Send what the server lacks of a grid's runs, and return a line about what is left of them and
    of the comparison; None: nothing. A server that fails once is not asked again."""
    if not plans:
        return None
    tracker = plans[0].run.tracker
    waiting = [plan.run_dir for plan in plans if has_unsent(plan.run.tracker, plan.run_dir)]
    if waiting and tracker.would_send():
        waiting = _send_runs(waiting)
    lacking = list[str]()
    if waiting:
        lacking.append(f"{len(waiting)} of {plural(len(plans), 'run')}")
    if has_unsent(tracker, grid):
        lacking.append("the comparison")
    if not lacking:
        return None
    command = f"python -m nocap.runs sync {shlex.quote(shown(grid))}"
    return f"nocap did not upload {' and '.join(lacking)}; send the rest with {command}"


def _send_runs(folders: Sequence[Path]) -> list[Path]:
    """Send these runs, and return those that the server does not have then."""
    left = list[Path]()
    answers = True
    for folder in folders:
        is_sent = False
        if answers:
            try:
                is_sent = send_run(folder).complete
                answers = is_sent
            except OSError:
                answers = False
            except ValueError:  # of this run alone
                is_sent = False
        if not is_sent:
            left.append(folder)
    return left


# --- a grid's comparison --------------------------------------------------------------------------


def send_grid(folder: Path) -> TrackerSession | None:
    """Send a grid's comparison, unless the server says that it has it. None: there is none.

    Errors:
        NoLoginError: there is no login.
        OSError: the server does not answer.
        ValueError: it does not take the comparison, or the grid's runs cannot be read.
    """
    from nocap.judge.compare import compare

    if not (folder / REPORT).is_file():
        return None
    found = load_runs([folder])
    require(bool(found.records), str(folder), "hold at least one run that nocap can read", "none")
    tracker = tracker_of(config_of(found.records[0]))
    return send_comparison(tracker, comparison_facts(folder, compare(found)))


def comparison_facts(folder: Path, comparison: Comparison) -> ComparisonFacts:
    """Return what a tracker gets of the comparison of the grid in a folder."""
    from nocap.report.flat_rows import tables_of

    facts = RunFacts(
        identity=digest({"grid": folder.name}),
        name=folder.name,
        arm="comparison",
        seed=0,
        run_dir=folder,
        config={"grid": folder.name},
        group=folder.name,
        tags=("comparison",),
        born=min(record.started for record in comparison.records),
    )
    summary = {"arms": len(comparison.arms), "runs": len(comparison.runs)}
    return ComparisonFacts(
        facts=facts, tables=tables_of(comparison), report=folder / REPORT, summary=summary
    )
