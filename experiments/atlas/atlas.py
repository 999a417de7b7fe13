"""The atlas: what each idea of arms.yaml is worth on the tuned baseline, in phases that go on where
they stopped, on any machine.

    python experiments/atlas/atlas.py run PHASE  # trains what runs.jsonl lacks, a run a core
    python experiments/atlas/atlas.py steps      # what a step of each arm costs here: steps.json
    python experiments/atlas/atlas.py tell       # the table of README.md

A run's line in runs.jsonl is its evidence: loss, training curve, config, identity, times, machine.
Losses are compared within a block, which is a machine with a seed and a length: an arm meets the
baseline of its own block, so that lines of several machines may lie in one file. Times are compared
within one bench only.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import jobs
from worth import ADDED, Blocks, Steps, added, put, stages, tell

from nocap.config import hardware
from nocap.config.arm_defaults import as_in
from nocap.config.compose import Composed, composed
from nocap.config.errors import EXIT_CODES, StoppedError, refusals
from nocap.config.keys import InputError, flat, require
from nocap.config.plain import to_plain
from nocap.config.trainer import Device
from nocap.launch.grid import Cell
from nocap.report.table import markdown
from nocap.store.record import Record, read_record
from nocap.store.record_files import read_json, write_json
from nocap.study.study_plan import more
from nocap.study.tasks import Training, train, trainings

POINTS = 16  # of a training curve
TAUGHT = "{taught}"  # in an arm's overrides: the folder of the teacher's run, on this machine
TEACHER: jobs.Job = (jobs.TUNED_ON, jobs.SCREEN, jobs.BASELINE)


@cache
def of_arm(arm: str, output_dir: str) -> Composed:
    words = [
        *jobs.SCALE,
        f"output_dir={output_dir}",
        *(with_teacher(word, output_dir) for word in jobs.words_of(arm)),
    ]
    return (
        composed(words) if arm == jobs.BASELINE else as_in(of_arm(jobs.BASELINE, output_dir), words)
    )


def with_teacher(words: str, output_dir: str) -> str:
    """Overrides as they are here."""
    return (
        words.replace(TAUGHT, str(teacher(output_dir).plan.run_dir)) if TAUGHT in words else words
    )


@cache
def teacher(output_dir: str) -> Training:
    return wanted(TEACHER, output_dir)


def teach(asked: Iterable[str], output_dir: str) -> None:
    """Train the run that some overrides name, if it is missing."""
    if any(TAUGHT in words for words in asked):
        train([teacher(output_dir)], "atlas")


def wanted(job: jobs.Job, output_dir: str) -> Training:
    seed, share, arm = job
    whole = of_arm(arm, output_dir)
    short = share != jobs.WHOLE
    made = (
        more(whole, f"trainer.steps={round(whole.run.trainer.steps * share)}") if short else whole
    )
    return trainings({arm: made}, {seed: [arm]}, of_other_length=short)[0]


def run_phase(phase: str, output_dir: str) -> int:
    """What one seed shows decides what the next is trained on."""
    asked: list[jobs.Job] = []
    while (more_ := jobs.phases()[phase]) != asked:
        asked = more_
        if code := run(phase, asked, output_dir):
            return code
    return 0


def run(what: str, asked: Sequence[jobs.Job], output_dir: str) -> int:
    """Train what is missing of the jobs.

    Errors:
        ValueError: an arm does not compose.
        StoppedError: somebody asked to stop.
    """
    here = str(hardware.describe(Device.cpu, 1)["fingerprint"])
    todo = jobs.missing(asked, here=here)
    print(f"{what}: {len(todo)} runs are missing", flush=True)
    teach((word for _, _, arm in todo for word in jobs.words_of(arm)), output_dir)
    failed = 0
    for share in dict.fromkeys(share for _, share, _ in todo):
        alike = [job for job in todo if job[1] == share]

        runs = [wanted(job, output_dir) for job in alike]
        by_identity = {run.plan.identity: run for run in runs}

        def watch(
            cell: Cell,
            event: str,
            share: float = share,
            by_identity: Mapping[str, Training] = by_identity,
        ) -> None:
            if event in ("finished", "diverged"):
                add(
                    compact(
                        by_identity[cell.plan.identity], read_record(cell.plan.run_dir), share=share
                    )
                )

        written = {(training["identity"], training["machine"]) for training in jobs.known()}
        for training in runs:  # trained before, and killed before its line
            if (record := training.record()) is not None and (record.identity, here) not in written:
                add(compact(training, record, share=share))
        failed += sum(
            result.status == "failed" for result in train(runs, "atlas", watch=watch).values()
        )
    return 1 if failed else 0


def add(line: Mapping[str, Any]) -> None:
    with jobs.RUNS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{line['arm']:20} seed {line['seed']} × {line['share']}: {line['status']}, "
        f"{line['val_loss']}, {line['train_s']:.0f} s",
        flush=True,
    )


def compact(run: Training, record: Record, *, share: float) -> dict[str, Any]:
    return {
        "arm": run.arm,
        "seed": run.seed,
        "share": share,
        "status": record.status,
        "val_loss": record.val_loss,
        "train_loss": [round(loss, 4) for loss in curve(record)],
        "tokens": record.number("tokens"),
        "steps": record.number("steps"),
        "train_s": record.train_s,
        "clock_s": record.summary["clock_s"],
        "step_ms": record.value("step_ms"),
        "params": record.value("params"),
        "memory_mib": record.value("memory_mib"),
        "started": record.started,
        "machine": record.machine[0],
        "torch": record.parts["environment"]["torch"],
        "commit": (record.manifest.get("git") or {}).get("commit"),
        "identity": record.identity,
        "with": jobs.words_of(run.arm),
        "config": {
            key: value
            for key, value in record.config.items()
            if value != baseline_config().get(key) and not key.endswith(".run")
        },
    }


def curve(record: Record) -> Iterator[float]:
    """Means of the training loss over so many equal stretches of the steps."""
    rows = map(json.loads, (record.folder / "metrics.jsonl").read_text().splitlines())
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    for low, high in pairwise(round(i * len(losses) / POINTS) for i in range(POINTS + 1)):
        if high > low:
            yield mean(losses[low:high])


@cache
def baseline_config() -> dict[str, Any]:
    return dict(flat(to_plain(of_arm(jobs.BASELINE, "outputs").run)))


# --- steps ----------------------------------------------------------------------------------------

# of one in a bench
KEPT = ("status", "reason", "speed", "speed_by_flops", "step_ms", "flops_per_token", "params")
TOGETHER = 11  # in one interleaved bench, each beside the baseline's
# from the beginning of a session to the next: between two times of a step, whose order is the same
APART = timedelta(minutes=10)


def steps(sessions: int, rounds: int, output_dir: str) -> int:
    """Time what fewer sessions have than asked for, in sessions that lie apart: what one says of a
    shared machine need not hold an hour later. Each bench is a process of its own, and is written
    as it ends.

    Errors:
        ValueError: steps.json is of another machine.
    """
    kept = (read_json(jobs.STEPS) or {"sessions": []})["sessions"]
    here = hardware.describe(Device.cpu, 1)
    machines = {timing["hardware"]["fingerprint"] for timing in kept}
    require(
        machines <= {here["fingerprint"]},
        str(jobs.STEPS),
        "be of this machine, whose steps alone can be compared",
        machines,
    )
    asked = [words for arm in jobs.runnable() for _, words in stages(jobs.arms()[arm])]
    asked += [shlex.join(jobs.words_of(arm)) for arm in jobs.together()]
    teach(asked, output_dir)
    while left := [
        words
        for words in dict.fromkeys(asked)
        if words and sum(words in timing["steps"] for timing in kept) < sessions
    ]:
        if kept:
            wait_until(datetime.fromisoformat(kept[-1]["started"]) + APART)
        print(f"session {len(kept) + 1}: {len(left)} steps", flush=True)
        kept.append({"hardware": here, "rounds": rounds, "steps": {}})
        for few in (left[i : i + TOGETHER] for i in range(0, len(left), TOGETHER)):
            result = timed_together(few, rounds, output_dir)
            rows = zip(few, result["arms"][1:], strict=True)
            kept[-1]["steps"] |= {
                words: {key: timing.get(key) for key in KEPT} for words, timing in rows
            }
            kept[-1] = {"started": result["started"], **kept[-1], "ended": result["ended"]}
            write_json(jobs.STEPS, {"sessions": kept})
    return 0


def wait_until(when: datetime) -> None:
    left_s = (when - datetime.now(when.tzinfo)).total_seconds()
    if left_s > 0:
        print(f"the next session begins in {left_s / 60:.0f} minutes", flush=True)
        time.sleep(left_s)


def timed_together(words: Sequence[str], rounds: int, output_dir: str) -> dict[str, Any]:
    """A bench's result: the baseline's step, then these.

    Errors:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        arms = [
            part
            for overrides in ("", *words)
            for part in ("--arm", with_teacher(overrides, output_dir))
        ]
        command = [
            sys.executable,
            "-m",
            "nocap.bench",
            *jobs.SCALE,
            *arms,
            "--rounds",
            str(rounds),
            "--json",
            str(out),
        ]
        print(shlex.join(command), flush=True)
        code = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
        ).returncode
        bench_result = read_json(out)
    if bench_result is None:
        raise RuntimeError(f"the bench ended with exit code {code}")
    return bench_result


def files_of(arm: str) -> set[str]:
    """Of the classes of its options."""
    run = of_arm(arm, "outputs").run
    options = [getattr(run, field.name) for field in fields(run)]
    chosen = [type(option) for option in [*options, *run.ideas.values()]]
    return {
        inspect.getfile(cls)
        for cls in chosen
        if cls.__module__.startswith(("nocap.options", "nocap.outside"))
    }


def lines_of(arm: str) -> int:
    """Return the lines of the files that it needs and the baseline does not."""
    gone = jobs.arms()[arm].get("gone")
    if gone is not None:
        return int(gone)
    return sum(
        len(Path(file).read_text().splitlines()) for file in files_of(arm) - files_of(jobs.BASELINE)
    )


def told() -> int:
    """All that follows from the lines: README.md's tables, and the figure."""
    tell(jobs.known(), jobs.arms(), timed(), {arm: lines_of(arm) for arm in jobs.arms()})
    for mark, rows in of_recipe().items():
        put(mark, rows)
    return 0


def of_recipe() -> dict[str, list[str]]:
    """Tables by their marks: what its parts are worth, and what the stack is worth at the larger
    size."""
    steps, words = timed(), {arm: shlex.join(jobs.words_of(arm)) for arm in jobs.together()}
    fresh = [line for line in jobs.known() if line["seed"] != jobs.TUNED_ON]
    parts, larger = Blocks(jobs.RACED, fresh), Blocks(jobs.SHORT, fresh)
    rows = [
        [part, *added(parts, jobs.recipe(), without, words, steps)]
        for part, without in jobs.left_out().items()
    ]
    over = added(
        larger, jobs.large(*jobs.stack()), jobs.large(), words, steps, jobs.large(), jobs.LARGES
    )
    return {
        "the parts": markdown(("part", *ADDED), rows),
        "the larger size": markdown(ADDED, [over]),
    }


def timed() -> Steps:
    """steps.json.

    Errors:
        ValueError: it is not there.
    """
    timings = read_json(jobs.STEPS)
    if timings is None:
        raise InputError(f"{jobs.STEPS} must be there (atlas.py steps), got none")
    return Steps(timings["sessions"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "steps", "tell"))
    parser.add_argument("phase", nargs="?", choices=jobs.phases())
    parser.add_argument(
        "--sessions",
        type=int,
        default=3,
        metavar="N",
        help="of timing, ten minutes apart or more (default: 3)",
    )
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="of each bench (default: 10)"
    )
    parser.add_argument(
        "--output-dir", default="outputs", metavar="DIR", help="of the runs (default: outputs)"
    )
    options = parser.parse_args()
    with refusals():
        require(
            (options.phase is None) is (options.what != "run"),
            "PHASE",
            "be given to run, and to nothing else",
            options.phase,
        )
        try:
            if options.what == "run":
                return run_phase(options.phase, options.output_dir)
            if options.what == "steps":
                return steps(options.sessions, options.rounds, options.output_dir)
            return told()
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            return EXIT_CODES["preempted"]


if __name__ == "__main__":
    sys.exit(main())
