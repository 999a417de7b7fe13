"""What a grid would train and cost, from a step of each arm that is measured here: before anything is trained."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from nocap.config.compose import Composed
from nocap.config.defaults import COLD_S
from nocap.config.trainer import Compile
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import outcome
from nocap.report.table import aligned
from nocap.store.formats import BYTES, NONE, duration, plural, size, three_digits
from nocap.study.tasks import Session

OVERHEAD = 1.15  # validation, checkpoints and startup beside the steps


def render(grid: Grid) -> str:
    """A line an arm, and the sum.

    Errors:
        nocap.study.tasks.FailedError: the first arm cannot be timed.
    """
    arms = dict[str, list[Cell]]()
    for cell in grid.cells:
        arms.setdefault(cell.plan.arm, []).append(cell)
    todo = {arm: [cell for cell in cells if outcome(cell.plan) is None] for arm, cells in arms.items()}
    first = {arm: cells[0] for arm, cells in todo.items() if cells}
    runs = grid.cells[0].plan.run_dir.parent
    seen = _measured(grid, first)
    start = {arm: _startup_s(cell) for arm, cell in first.items()}
    each = {arm: _run_s(cell, seen[arm], start[arm]) for arm, cell in first.items()}
    disk = {arm: _checkpoints(cell, seen[arm]) for arm, cell in first.items()}
    rows = []
    for arm, cells in arms.items():
        costs = [NONE] * 3
        if arm in first:
            costs = [
                f"{three_digits(ms)} ms" if (ms := seen[arm].get("step_ms")) is not None else NONE,
                duration(each[arm]),
                size(len(todo[arm]) * disk[arm]),
            ]
        rows.append([_label(cells[0]), str(len(cells)), str(len(cells) - len(todo[arm])), *costs])
    n = sum(map(len, todo.values()))
    lines = [
        f"grid {grid.name}: {len(grid.cells)} cells, {len(grid.cells) - n} done, {n} to train",
        aligned(["arm", "cells", "done", "a step", "a run", "checkpoints"], rows),
    ]
    if n == 0:
        return "\n".join(lines)
    unknown = [arm for arm in first if not seen[arm].get("tokens_per_s")]
    total = sum(len(todo[arm]) * (each[arm] or 0.0) for arm in first)
    needs = sum(len(todo[arm]) * disk[arm] for arm in first)
    free = shutil.disk_usage(next(part for part in (runs, *runs.parents) if part.exists())).free
    lines += [
        f"together {duration(total)}, one cell after the other; in it {duration(max(start.values()))} for each run's start",
        f"checkpoints {size(needs)} at most, free {size(free)}{': not enough' if needs > free else ''}",
        *([f"not in it: {plural(len(unknown), 'arm')} whose step could not be timed"] if unknown else []),
        "measured: a step of each arm on this machine; nothing was trained",
    ]
    return "\n".join(lines)


def _measured(grid: Grid, first: Mapping[str, Cell]) -> Mapping[str, Mapping[str, Any]]:
    if not first:
        return {}
    arms = {arm: Composed(overrides=cell.overrides, run=cell.plan.run, choices={}) for arm, cell in first.items()}
    folder = grid.folder.parents[1] / "plans" / grid.name
    found = Session(place="plan", kind="steps", number=1, arms=arms, how={"rounds": 1}).run(folder)["measured"]["arms"]
    return {arm: found[arm] for arm in arms}


def _run_s(cell: Cell, seen: Mapping[str, Any], start_s: float) -> float | None:
    run, speed = cell.plan.run, seen.get("tokens_per_s")
    return run.tokens_before(run.trainer.steps) / speed * OVERHEAD + start_s if speed else None


def _startup_s(cell: Cell) -> float:
    """Before the first step: a process that imports torch, and a guess at what compilation takes."""
    return imports_s() + (0.0 if cell.plan.run.trainer.compile is Compile.off else COLD_S)


@cache
def imports_s() -> float:
    began = time.monotonic()
    command = [sys.executable, "-c", "import nocap.launch.worker"]
    subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - began


def _checkpoints(cell: Cell, seen: Mapping[str, Any]) -> float:
    """Bytes of weights and the optimizer's state, as often as they are kept."""
    held, t = seen.get("memory_mib") or {}, cell.plan.run.trainer
    return sum(held.get(part) or 0.0 for part in ("parameters", "optimizer")) * BYTES["M"] * (t.keep_checkpoints + len(t.keep_steps))


def _label(cell: Cell) -> str:
    words: Sequence[str] = [word for word in cell.label.split() if not word.startswith("seed=")]
    return " ".join(words) or cell.plan.arm
