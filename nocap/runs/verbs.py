"""What `python -m nocap.runs` does: a function a verb."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nocap.config.untrusted_files import read_text
from nocap.display import NONE, plural, shorten, size
from nocap.judge.comparison_schema import to_json
from nocap.launch.run_table import table
from nocap.launch.upload import send_grid, send_run
from nocap.options.tracker import NoLoginError, TrackerSession
from nocap.report.run_differences import render, why
from nocap.report.table import Column, Table
from nocap.runs.list_columns import (
    COLUMNS,
    FILTER,
    RunColumn,
    age,
    age_s,
    column,
    matching,
    size_of,
)
from nocap.store import lease
from nocap.store.checkpoints import FOLDER, is_folder, saved_steps
from nocap.store.file_writing import delete
from nocap.store.grid_file import GRID
from nocap.store.record import Record, dig, read_record
from nocap.store.record_files import MANIFEST
from nocap.store.runs import find_one, load_runs, run_folders
from nocap.study import log

USED_BY = Column(title="used by", keep=True)


def list_runs(options: argparse.Namespace) -> int:
    """Print the runs of these names and filters, a row each. Return the exit code."""
    chosen = _chosen(options.words, options.output_dir)
    columns = [column(name, chosen.named) for name in options.columns.split(",")]
    runs = sorted(chosen.runs, key=column(options.sort, chosen.named).sorts)
    if runs:
        print(_rows(columns, runs))
    print(plural(len(runs), "run"))
    if options.json:  # a size is walked for again
        values = [_values(columns, run) for run in runs]
        options.answer({"runs": values, "problems": chosen.problems})
    _tell(chosen.problems)
    return 0


def _rows(columns: Sequence[RunColumn], runs: Sequence[Record]) -> str:
    """Return the runs as a table."""
    rows = list[list[str]]()
    for run in runs:
        rows.append([each.text(run) for each in columns])
    return str(Table(title="", columns=[Column(title=each.name) for each in columns], rows=rows))


def _values(columns: Sequence[RunColumn], run: Record) -> dict[str, Any]:
    """Return a run's values by the columns' names."""
    return {each.name: each.of(run) for each in columns}


def explain(options: argparse.Namespace) -> int:
    """Print what makes two runs differ. Return the exit code."""
    answer = why(*(find_one(name, outputs=options.output_dir) for name in options.words))
    print(render(answer))
    options.answer(to_json(answer))
    return 0


def sync(options: argparse.Namespace) -> int:
    """Send to a tracker's server what it lacks of these runs, and of the comparisons of the grids
    that list them. Return the exit code.

    Errors:
        NoLoginError: there is no login.
    """
    chosen = _chosen(options.words, options.output_dir)
    grids = _grids_of(chosen.runs)
    problems = list(chosen.problems)
    runs = list[TrackerSession]()
    comparisons = list[TrackerSession]()
    try:
        for run in chosen.runs:
            runs += _sent(run.folder.name, partial(send_run, run.folder), problems)
        for folder in grids:
            comparisons += _sent(f"comparison {folder.name}", partial(send_grid, folder), problems)
    except OSError as error:  # a server that fails is not asked for each run
        problems.append(str(error))
    n_complete = sum(session.complete for session in runs)
    n_rows = sum(session.sent for session in runs)
    total = plural(len(chosen.runs), "run")
    print(f"the server has {n_complete} of {total}; nocap sent {plural(n_rows, 'row')} now")
    _tell(problems)
    has_runs = n_complete == len(chosen.runs)
    has_comparisons = all(session.complete for session in comparisons)
    if has_runs and has_comparisons and not problems:
        return 0
    return 1


def _grids_of(runs: Sequence[Record]) -> list[Path]:
    """List the folders of the grids that have these runs as cells."""
    roots = {run.folder.absolute().parents[1] for run in runs}
    paths = list[Path]()
    for root in roots:
        paths += root.glob(f"grids/[!.]*/{GRID}")
    folders_by_identity = _naming(sorted(paths))
    folders = set[str]()
    for run in runs:
        folders.update(folders_by_identity.get(run.identity, ()))
    return [Path(folder) for folder in sorted(folders)]


def _sent(
    name: str, send: Callable[[], TrackerSession | None], problems: list[str]
) -> Iterator[TrackerSession]:
    """Send a run or a comparison, say so, and yield its session. What is wrong with it alone
    becomes one of the problems.

    Errors:
        NoLoginError: there is no login.
        OSError: the server does not answer.
    """
    try:
        session = send()
    except NoLoginError:
        raise
    except lease.HeldError:
        problems.append(f"not sent: {name} is still training, and sends its rows itself")
    except ValueError as error:
        problems.append(f"not sent: {name}: {error}")
    else:
        if session is not None:
            print(f"{name}: {plural(session.sent, 'row')} sent: {session.url_or_hint}", flush=True)
            yield session


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The runs that a command's words choose."""

    runs: list[Record]  # of these names that meet all filters
    named: list[Record]  # of these names
    problems: list[str]  # a line for each that cannot be read or was changed


def _chosen(words: Sequence[str], outputs: Path) -> Chosen:
    """Find the runs of these names and filters.

    Errors:
        ValueError: a name stands for no run, or a filter is none.
    """
    filters = [word for word in words if FILTER.fullmatch(word)]
    names = [word for word in words if word not in filters]
    if not names:
        names = [str(folder) for folder in run_folders(outputs / "runs")]
    loaded = load_runs(names, outputs=outputs, rows=False)
    runs = loaded.records
    for word in filters:
        runs = matching(word, runs, named=loaded.records)
    unreadable = [f"{name}: {why}" for name, why in loaded.unreadable.items()]
    return Chosen(runs=runs, named=loaded.records, problems=[*unreadable, *loaded.problems])


def _tell(lines: Iterable[str]) -> None:
    """Print these lines to stderr."""
    for line in lines:
        print(f"nocap: {line}", file=sys.stderr)


# --- show -----------------------------------------------------------------------------------------


def show(options: argparse.Namespace) -> int:
    """Print all that is known of a run. Return the exit code."""
    run = read_record(find_one(options.words, outputs=options.output_dir), rows=False)
    used_by = _used_by(options).get(run.identity, [])
    if "status" in run.summary:  # it has its objects, though empty, before there is one
        print(table(run.summary, run_dir=run.folder))
    else:
        print(f"  {'run':<11} {run.name}  {run.status}\n  {'record':<11} {run.folder}")
    for label, text in _facts(run, used_by).items():
        if text:
            print(f"  {label:<11} {text}")
    answer = {"folder": str(run.folder), "used_by": used_by}
    options.answer({**answer, "manifest": run.manifest, "summary": run.summary})
    return 0


def _facts(run: Record, used_by: Sequence[str]) -> dict[str, str]:
    """Return what the record says of a run beside its result, by labels; empty where it says
    nothing."""
    attempts = plural(len(run.attempts), "attempt")
    host = run.attempt.get("host") or "?"
    last = f"{attempts}, the last {age(age_s(run))} ago on {host}"
    code = {"commit": run.commit, **run.versions}
    versions = [f"{name} {code[name]}" for name in ("commit", "nocap", "torch") if code.get(name)]
    teachers = [str(dig(teacher, "path")) for teacher in run.manifest["teachers"].values()]
    return {
        "identity": run.identity,
        "arm": run.arm,
        "started": f"{run.started}, {last}",
        "machine": run.machine_name,
        "code": ", ".join(versions),
        "disk": _disk(run),
        "begins from": str(run.manifest["init"].get("path") or ""),
        "learns from": ", ".join(teachers),
        "used by": shorten(used_by, most=8),
    }


def _disk(run: Record) -> str:
    """Say what a run takes on the disk, and how much of it is in checkpoints."""
    text = size(size_of(run.folder))
    steps = [str(step) for step in sorted(saved_steps(run.folder))]
    if not steps:
        return text
    in_checkpoints = size(size_of(run.folder / FOLDER))
    return f"{text}, of that {in_checkpoints} in checkpoints of steps {shorten(steps, most=8)}"


def _used_by(options: argparse.Namespace) -> dict[str, list[str]]:
    """Map an identity to the folders of grids and searches, of studies by their logs, and of runs
    that began from it or learn from it."""
    runs = options.output_dir / "runs"
    paths = [
        *options.output_dir.glob(f"grids/*/{GRID}"),
        *options.studies.glob(f"*/{log.FILE}"),
        *runs.glob(f"[!.]*/{MANIFEST}"),
    ]
    return _naming(sorted(paths))


def _naming(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Map an identity to the folders of those files that name it, for people. A line for each file
    that cannot be read."""
    used_by = dict[str, list[str]]()
    for path in paths:
        try:
            identities = {*re.findall(r'"identity": "([0-9a-f]{12})"', read_text(path))}
        except (OSError, ValueError) as error:
            _tell([f"nocap cannot read a file that may refer to a run: {error}"])
            continue
        for identity in identities:
            if not path.parent.name.endswith(identity):  # the run itself
                used_by.setdefault(identity, []).append(str(path.parent))
    return used_by


# --- rm: never a run that a process is training, nor through a link, nor outside outputs/runs -----


def remove(options: argparse.Namespace) -> int:
    """Print what would go, how much that frees, and what refers to it; with --yes remove it. Return
    the exit code."""
    if not options.words:
        raise ValueError("rm needs runs or filters, as in rm status=failed")
    root = options.output_dir / "runs"
    chosen = _chosen(options.words, options.output_dir)
    runs = sorted(chosen.runs, key=COLUMNS["started"].sorts)
    sizes = {run.folder: size_of(run.folder) for run in runs}
    if runs:
        print(_what_goes(runs, sizes, used_by=_used_by(options)))
    if not options.yes:
        print(f"{_total(runs, sizes)}: nocap removed nothing; add --yes to remove")
        _tell(chosen.problems)
        return 0
    reasons_to_stay = {run.folder: remove_run(run, root=root) for run in runs}
    _delete_removed(root)
    problems = list(chosen.problems)
    for folder, reason in reasons_to_stay.items():
        if reason is not None:
            problems.append(f"not removed: {folder.name}: {reason}")
    removed = [run for run in runs if reasons_to_stay[run.folder] is None]
    print(f"removed: {_total(removed, sizes)}")
    _tell(problems)
    return 1 if problems else 0


def _total(runs: Sequence[Record], sizes: Mapping[Path, int]) -> str:
    """Say how many runs these are, and what they take on the disk together."""
    n_bytes = sum(sizes[run.folder] for run in runs)
    return f"{plural(len(runs), 'run')}, {size(n_bytes)}"


def _what_goes(
    runs: Sequence[Record], sizes: Mapping[Path, int], *, used_by: Mapping[str, Sequence[str]]
) -> str:
    """Return a table of the runs that would go. `sizes`: bytes, by their folders. `used_by`: what
    refers to them, by their identities."""
    shown = [COLUMNS[name] for name in ("run", "status", "steps", "val_loss", "age")]
    rows = list[list[str]]()
    for run in runs:
        values = [each.text(run) for each in shown]
        refers = shorten(used_by.get(run.identity) or [NONE], most=3)
        rows.append([*values, size(sizes[run.folder]), refers])
    columns = [*(Column(title=each.name) for each in shown), Column(title="frees"), USED_BY]
    return str(Table(title="", columns=columns, rows=rows))


def _delete_removed(root: Path) -> None:
    """Delete the folders that were set aside, also by removals that were killed."""
    delete(folder for folder in root.glob(".*.removed") if is_folder(folder))


def remove_run(run: Record, *, root: Path) -> str | None:
    """Set its folder aside, while nobody else can begin to train it. Return why it stays, else
    None."""
    folder = run.folder
    if folder.is_symlink() or folder.absolute().parent.resolve() != root.resolve():
        return f"its folder is not directly in {root}"
    try:
        with lease.acquire(folder):
            now = read_record(folder, rows=False)
            if now.manifest != run.manifest or now.summary != run.summary:
                return "the run has continued since it was listed"
            # deleted after the lease, whose file is open
            folder.rename(folder.with_name(f".{folder.name}.removed"))
    # held by another process, another user's, or no folder of leases
    except (OSError, ValueError) as error:
        return str(error)
    return None
