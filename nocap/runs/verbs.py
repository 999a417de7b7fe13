"""What `python -m nocap.runs` does: a function a verb."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.report.table import aligned
from nocap.report.why import render, why
from nocap.runs.columns import COLUMNS, FILTER, age, age_s, column, matching, size_of, status
from nocap.store import lease
from nocap.store.checkpoints import FOLDER, delete, is_folder, saved_steps
from nocap.store.formats import NONE, plural, shorten, size
from nocap.store.record import ENDED, MANIFEST
from nocap.store.runs import GRID, Record, dig, find_one, load, read, run_folders
from nocap.store.tracking import offline
from nocap.study import log
from nocap.training.terminal import table


def list_runs(options: argparse.Namespace) -> int:
    chosen = _chosen(options.words, options.output_dir)
    columns = [column(name, chosen.named) for name in options.columns.split(",")]
    runs = sorted(chosen.runs, key=column(options.sort, chosen.named).sorts)
    if runs:
        print(
            aligned([each.name for each in columns], [[each.text(run) for each in columns] for run in runs])
        )
    print(plural(len(runs), "run"))
    if options.json:  # a size is walked for again
        options.answer(
            {
                "runs": [{each.name: each.of(run) for each in columns} for run in runs],
                "problems": chosen.problems,
            }
        )
    _tell(chosen.problems)
    return 0


def explain(options: argparse.Namespace) -> int:
    answer = why(*(find_one(name, outputs=options.output_dir) for name in options.words))
    print(render(answer))
    options.answer(answer)
    return 0


def sync(options: argparse.Namespace) -> int:
    """Upload what trackers left offline of runs that have ended, and of the grids that list them."""
    chosen = _chosen(options.words, options.output_dir)
    unfinished = {run.folder: status(run) for run in chosen.runs if run.status not in ENDED}
    runs = [run for run in chosen.runs if run.folder not in unfinished]
    grids = _naming(sorted(options.output_dir.glob(f"grids/[!.]*/{GRID}")))
    listing = {folder for run in runs for folder in grids.get(run.identity, ())}
    folders = [*(run.folder for run in runs), *map(Path, sorted(listing))]
    waiting = offline(None, folders)
    for uploader, places in waiting.items():
        _upload(uploader, places)
    left = offline(None, folders)
    before = sum(map(len, waiting.values()))
    after = sum(map(len, left.values()))
    print(f"uploaded: {before - after} of {before} offline, of {plural(len(runs), 'run')}")
    problems = list(chosen.problems)
    for folder, state in unfinished.items():
        for places in offline(None, [folder]).values():
            # W&B takes what is uploaded again for more rows
            problems += [f"not uploaded: {place}: its run is {state}, and may go on" for place in places]
    for uploader, places in left.items():
        problems += [f"{uploader} did not upload {place}" for place in places]
    _tell(problems)
    return 1 if problems else 0


def _upload(uploader: str, places: Sequence[Path]) -> None:
    """Run a tracker's own command on these folders. It lies beside this Python, or on the PATH.

    Errors:
        ValueError: it is not installed.
    """
    program, *words = shlex.split(uploader)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(program, path=path)
    rule = "be a program beside this Python, or on the PATH"
    require(found is not None, uploader, rule, f"no {program}")
    command = [str(found), *words, *(str(place.absolute()) for place in places)]
    subprocess.run(command, env={**os.environ, "PATH": path}, check=False)


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
    names = [word for word in words if word not in filters] or [
        str(folder) for folder in run_folders(outputs / "runs")
    ]
    loaded = load(names, outputs=outputs, rows=False)
    runs = loaded.records
    for word in filters:
        runs = matching(word, runs, named=loaded.records)
    unreadable = [f"{name}: {why}" for name, why in loaded.unreadable.items()]
    return Chosen(runs=runs, named=loaded.records, problems=[*unreadable, *loaded.problems])


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"nocap: {line}", file=sys.stderr)


# --- show ---------------------------------------------------------------------------------------------------


def show(options: argparse.Namespace) -> int:
    run = read(find_one(options.words, outputs=options.output_dir), rows=False)
    result = f"  {'run':<11} {run.name}  {run.status}\n  {'record':<11} {run.folder}"
    used_by = _used_by(options).get(run.identity, [])
    facts = [f"  {label:<11} {text}" for label, text in _facts(run, used_by) if text]
    ended = "status" in run.summary  # it has its objects, though empty, before there is one
    print("\n".join([table(run.summary, run_dir=run.folder) if ended else result, *facts]))
    options.answer(
        {"folder": str(run.folder), "used_by": used_by, "manifest": run.manifest, "summary": run.summary}
    )
    return 0


def _facts(run: Record, used_by: Sequence[str]) -> list[tuple[str, str]]:
    last = (
        f"{plural(len(run.manifest['attempts']), 'attempt')}, the last {age(age_s(run))} ago "
        f"on {run.attempt.get('host') or '?'}"
    )
    code = {"commit": str(run.manifest["git"].get("commit") or "")[:12], **run.manifest["versions"]}
    steps = [str(step) for step in sorted(saved_steps(run.folder))]
    kept = (
        f", of that {size(size_of(run.folder / FOLDER))} in checkpoints of steps {shorten(steps, most=8)}"
        if steps
        else ""
    )
    return [
        ("identity", run.identity),
        ("arm", run.arm),
        ("started", f"{run.started}, {last}"),
        ("machine", run.machine_name),
        (
            "code",
            ", ".join(f"{name} {code[name]}" for name in ("commit", "nocap", "torch") if code.get(name)),
        ),
        ("disk", f"{size(size_of(run.folder))}{kept}"),
        ("begins from", str(run.manifest["init"].get("path") or "")),
        (
            "learns from",
            ", ".join(str(dig(teacher, "path")) for teacher in run.manifest["teachers"].values()),
        ),
        ("used by", shorten(used_by, most=8) if used_by else ""),
    ]


def _used_by(options: argparse.Namespace) -> dict[str, list[str]]:
    """Map an identity to the folders of grids and searches, of studies by their logs, and of runs that began
    from it or learn from it."""
    runs = options.output_dir / "runs"
    paths = [
        *options.output_dir.glob(f"grids/*/{GRID}"),
        *options.studies.glob(f"*/{log.FILE}"),
        *runs.glob(f"[!.]*/{MANIFEST}"),
    ]
    return _naming(sorted(paths))


def _naming(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Map an identity to the folders of those files that name it, for people. A line for each file that
    cannot be read."""
    used_by = dict[str, list[str]]()
    for path in paths:
        try:
            identities = {*re.findall(r'"identity": "([0-9a-f]{12})"', read_text(path))}
        except (OSError, ValueError) as error:
            _tell([f"what refers to a run is not all known: {error}"])
            continue
        for identity in identities:
            if not path.parent.name.endswith(identity):  # the run itself
                used_by.setdefault(identity, []).append(str(path.parent))
    return used_by


# --- rm and gc: never a run that a process is training, never through a link, nothing outside `outputs/runs`


def remove(options: argparse.Namespace) -> int:
    checkpoints, root = options.verb == "gc", options.output_dir / "runs"
    require(
        checkpoints or bool(options.words), "rm", "be given runs or filters, as in rm status=failed", "none"
    )
    chosen = _chosen(options.words, options.output_dir)
    runs = sorted(chosen.runs, key=COLUMNS["started"].sorts)
    if checkpoints:
        runs = [run for run in runs if run.status in ENDED and is_folder(run.folder / FOLDER)]
    frees = {run.folder: size_of(run.folder / FOLDER if checkpoints else run.folder) for run in runs}
    used_by = _used_by(options)
    shown = [COLUMNS[name] for name in ("run", "status", "steps", "val_loss", "age")]
    rows = [
        [
            *(each.text(run) for each in shown),
            size(frees[run.folder]),
            shorten(used_by.get(run.identity) or [NONE], most=3),
        ]
        for run in runs
    ]
    if rows:
        print(aligned([*(each.name for each in shown), "frees", "used by"], rows))
    what, stayed = "checkpoints of " if checkpoints else "", list[str]()
    if options.yes:
        kept = {run.folder: remove_run(run, root=root, checkpoints=checkpoints) for run in runs}
        # what killed removals left, too
        delete(folder for folder in root.glob(".*.removed") if is_folder(folder))
        stayed = [
            f"not removed: {folder.name}: {reason}" for folder, reason in kept.items() if reason is not None
        ]
        runs = [run for run in runs if kept[run.folder] is None]
    total = f"{what}{plural(len(runs), 'run')}, {size(sum(frees[run.folder] for run in runs))}"
    print(f"removed: {total}" if options.yes else f"{total}: nothing was removed; --yes removes")
    _tell([*chosen.problems, *stayed])
    return 1 if stayed or (options.yes and chosen.problems and options.words) else 0


def remove_run(run: Record, *, root: Path, checkpoints: bool) -> str | None:
    """Remove it, while nobody else can begin to train it. Why it stays, else None."""
    folder = run.folder
    if folder.is_symlink() or folder.absolute().parent.resolve() != root.resolve():
        return f"it is no folder of its own right in {root}"
    try:
        with lease.acquire(folder):
            now = read(folder, rows=False)
            if (now.manifest, now.summary) != (run.manifest, run.summary):
                return "it has gone on since it was listed"
            if checkpoints:
                shutil.rmtree(folder / FOLDER)  # links in it are removed, and not followed
            else:
                # deleted after the lease, whose file is open
                folder.rename(folder.with_name(f".{folder.name}.removed"))
    except (OSError, ValueError) as error:  # held by another process, another user's, or no folder of leases
        return str(error)
    return None
