"""What a grid or a study would run and cost, from a step of each arm that is measured here: before anything is trained."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from nocap.config.compose import Composed
from nocap.config.defaults import COLD_S
from nocap.config.trainer import Compile
from nocap.judge.claim import Claim
from nocap.judge.interval import POWER, analysis_of, minimum_detectable
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import outcome
from nocap.report.table import aligned
from nocap.store.formats import BYTES, NONE, duration, size, three_digits
from nocap.study.conduct import Timings, seeds_of, up_to
from nocap.study.evidence import Evidence, bound
from nocap.study.plan import StudyPlan, shorter
from nocap.study.results import sigma
from nocap.study.tasks import Session, Trainings, trainings
from nocap.study.words import allowed, expected

OVERHEAD = 1.15  # validation and checkpoints beside the steps


def of_grid(grid: Grid) -> str:
    """A line an arm, and the sum.

    Errors:
        nocap.study.tasks.FailedError: the first arm cannot be timed.
    """
    arms = dict[str, list[Cell]]()
    for cell in grid.cells:
        arms.setdefault(cell.plan.arm, []).append(cell)
    todo = {arm: [cell for cell in cells if outcome(cell.plan) is None] for arm, cells in arms.items()}
    first = {arm: cells[0] for arm, cells in todo.items() if cells}
    measured = _measured(grid, first) if first else {}
    start_s = _imports_s() if first else 0.0
    run_s = {arm: _run_s(cell, measured[arm], start_s) for arm, cell in first.items()}
    kept = {arm: len(todo[arm]) * _checkpoints(cell, measured[arm]) for arm, cell in first.items()}
    rows = []
    for arm, cells in arms.items():
        step_ms = measured.get(arm, {}).get("step_ms")
        costs = [
            NONE if step_ms is None else f"{three_digits(step_ms)} ms",
            duration(run_s.get(arm)),
            size(kept[arm]) if arm in kept else NONE,
        ]
        label = " ".join(word for word in cells[0].label.split() if not word.startswith("seed=")) or arm
        rows.append([label, str(len(cells)), str(len(cells) - len(todo[arm])), *costs])
    n = sum(map(len, todo.values()))
    lines = [
        f"grid {grid.name}: {len(grid.cells)} cells, {len(grid.cells) - n} done, {n} to train",
        aligned(["arm", "cells", "done", "a step", "a run", "checkpoints"], rows),
    ]
    if n:
        runs = grid.cells[0].plan.run_dir.parent
        free = shutil.disk_usage(next(part for part in (runs, *runs.parents) if part.exists())).free
        untimed = [arm for arm, seconds in run_s.items() if seconds is None]
        lines += [
            f"together {duration(sum(len(todo[arm]) * (seconds or 0.0) for arm, seconds in run_s.items()))}, one cell after the other",
            f"checkpoints {size(sum(kept.values()))} at most, free {size(free)}{': not enough' if sum(kept.values()) > free else ''}",
            *([f"not in it, for its step could not be timed: {', '.join(untimed)}"] if untimed else []),
            "measured: a step of each arm on this machine; nothing was trained",
        ]
    return "\n".join(lines)


def _measured(grid: Grid, first: dict[str, Cell]) -> dict[str, dict[str, Any]]:
    arms = {arm: Composed(overrides=cell.overrides, run=cell.plan.run, choices={}) for arm, cell in first.items()}
    session = Session(place="plan", kind="steps", number=1, arms=arms, how={"rounds": 1})
    rows: dict[str, dict[str, Any]] = session.run(grid.folder.parents[1] / "plans" / grid.name)["measured"]["arms"]
    return rows


def _run_s(cell: Cell, measured: dict[str, Any], imports_s: float) -> float | None:
    """With its start: a process that imports torch, and a guess at what compilation takes."""
    run, speed = cell.plan.run, measured.get("tokens_per_s")
    start_s = imports_s + (0.0 if run.trainer.compile is Compile.off else COLD_S)
    return run.tokens_before(run.trainer.steps) / speed * OVERHEAD + start_s if speed else None


def _imports_s() -> float:
    began = time.monotonic()
    command = [sys.executable, "-c", "import nocap.launch.worker"]
    subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - began


def _checkpoints(cell: Cell, measured: dict[str, Any]) -> float:
    """Bytes of weights and the optimizer's state, as often as they are kept."""
    mib, t = measured.get("memory_mib") or {}, cell.plan.run.trainer
    return sum(mib.get(part) or 0.0 for part in ("parameters", "optimizer")) * BYTES["M"] * (t.keep_checkpoints + len(t.keep_steps))


# --- a study -------------------------------------------------------------------------------------------------------------------------


def render(plan: StudyPlan) -> str:
    """
    Errors:
        nocap.study.tasks.FailedError: the first arm cannot be timed.
    """
    last = analysis_of(len(plan.study.seeds))
    part = up_to(plan, {claim.id: 1 for claim in plan.study.claims})
    needed = seeds_of(part, list(plan.train))
    group = Trainings(trainings(plan.train, needed), label=plan.study.name) if needed else None
    lines = [f"{plan.study.name}, scale {plan.scale}: {plan.study.question}", *([of_grid(group.grid), ""] if group else [])]
    if rows := list(_beside(part)):
        lines.append(aligned(["beside it", "of", "count", "done"], rows))
    if last > 1:
        lines.append(f"{len(part.study.claims[0].seeds)} pairs in analysis 1; claims that it does not decide go on, to {last} analyses")
    return "\n".join([*lines, "", *_power(plan, group)])


def _beside(plan: StudyPlan) -> Iterator[list[str]]:
    """What is run besides the runs of whole length."""
    tune, racing = plan.study.tune, plan.study.racing
    if racing:
        n = sum(len(shorter(plan, plan.train[arm])) for arm in racing) * len(plan.study.claims[0].seeds)
        yield ["shorter schedules", f"{', '.join(racing)} at {plan.at.lengths} of the steps", str(n), ""]
    if tune is not None and plan.train:
        n = sum(len(trials) for trials in tune.trials.values()) * len(tune.seeds)
        yield ["tuning", f"{len(tune.trials)} arms, seeds {tune.seeds}", str(n), ""]
    sessions: dict[tuple[str, str], list[bool]] = {}
    for session, path in Timings(plan, plan.train).wanted():
        sessions.setdefault((session.name, ", ".join(session.arms)), []).append(path.exists())
    for (name, arms), done in sessions.items():
        apart = f", {plan.at.apart_min:g} min apart" if len(done) > 1 else ""
        yield [f"{name} sessions", f"{arms}{apart}", str(len(done)), str(sum(done))]


def _power(plan: StudyPlan, group: Trainings | None) -> Iterator[str]:
    """What each claim about a loss can see with its seeds, and what the others expect."""
    noise = sigma({(run.arm, run.seed): record for run, record in group.records([])}) if group else None
    yield f"sigma of one run's final loss: {f'{noise:.4f}, measured' if noise else 'not known yet'}"
    for claim in plan.study.claims:
        limit = bound(claim, plan.study, Evidence())
        line = f"{claim.id}: {claim.metric} of {claim.arm}, expected {expected(_json(claim))}"
        line += f", n={len(claim.seeds)}" if claim.metrics[0].made_by == "train" else ""  # sessions are in the table
        line += "" if limit is None else f", arithmetic allows {allowed({**_json(claim), 'bound': limit})}"
        if noise and any(metric.name == "val_loss" for metric in claim.metrics):
            visible = minimum_detectable(noise * 2**0.5, len(claim.seeds), declared=plan.at.noise.get("val_loss"))
            line += f"; a loss difference of {visible:.4f} is shown with a power of {POWER:g}"
        yield line


def _json(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "scale": claim.scale.value}
