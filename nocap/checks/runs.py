"""The option in training, as a user starts it: in processes of its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.checks.trial import FailedError, SkippedError, Trial, kill, rows, wait_for
from nocap.config.compose import compose
from nocap.store.record import read_json

RELATIVE = 1e-5  # of a loss, between one rank and two
QUIET = "no mirror of this run from here on: "  # what `nocap.store.tracking` says of a tracker that failed
NOISE = ("clock/", "perf/", "memory/")


def learns(trial: Trial) -> str:
    """A short run ends below where it began, every loss a number."""
    found = rows(trial.undisturbed)
    losses = [row["val/loss"] for row in found if "val/loss" in row]
    if any(row.get(key, 0.0) is None for row in found for key in ("train/loss", "val/loss", "train/grad_norm")):
        raise FailedError("a loss or a gradient is no number")
    if not losses[-1] < losses[0]:
        raise FailedError(f"validation loss {losses[0]:.4f} at the start, {losses[-1]:.4f} after {trial.run.trainer.steps} steps")
    return f"validation loss {losses[0]:.4f} → {losses[-1]:.4f} in {trial.run.trainer.steps} steps"


def resumes(trial: Trial) -> str:
    """Killed past a checkpoint and started again, it ends as the run that nobody disturbed, bit for bit."""
    whole = trial.whole

    def past_a_checkpoint() -> bool:
        saved = [int(path.name[5:]) for path in (trial.room / "killed").glob("runs/*/checkpoints/step-*")]
        there = rows(trial.run_dir("killed")) if saved else []
        return bool(there) and int(there[-1]["step"]) > max(saved)

    with trial.started("killed") as process:
        if not wait_for(process, past_a_checkpoint):
            raise SkippedError("the run was over before it could be killed: give trainer.steps and trainer.checkpoint_every")
        kill(process)
    again = trial.train("killed")
    log = (again / "train.log").read_text()
    resumed = [line for line in log.splitlines() if "resuming from step" in line]
    if not resumed:
        raise FailedError("started again, it did not go on from its checkpoint")
    _same_bits(whole, again)
    return f"{resumed[0][resumed[0].index('resuming') :]}; weights, optimizer and {len(rows(again))} rows are equal"


def _same_bits(first: Path, second: Path) -> None:
    hashes = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("checkpoints/*/*.safetensors"))}
        for folder in (first, second)
    ]
    ours, theirs = ([_steady(row) for row in rows(folder)] for folder in (first, second))
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            key = next(key for key in sorted({*a, *b}) if a.get(key) != b.get(key))
            raise FailedError(f"step {a['step']}: {key} is {b.get(key)}, and undisturbed {a.get(key)}")
    if len(ours) != len(theirs):
        raise FailedError(f"{len(theirs)} rows, and undisturbed {len(ours)}")
    if hashes[0] != hashes[1]:
        name = next(name for name in sorted({*hashes[0], *hashes[1]}) if hashes[0].get(name) != hashes[1].get(name))
        raise FailedError(f"the last {name} differs from the undisturbed run's")


def _steady(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(NOISE)}


def ranks(trial: Trial) -> str:
    """Two ranks, each with half of a step's micro-batches, give what one gives."""
    whole = trial.whole
    try:
        compose(trial.words("trainer.devices=2"))
    except ValueError as error:
        raise SkippedError(str(error)) from None
    ours, theirs = rows(whole), rows(trial.train("ranks", "trainer.devices=2"))
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        for key in [key for key in a if key in ("val/loss", "train/loss")]:
            apart = abs(a[key] - b[key]) / max(abs(a[key]), 1e-9)
            if not apart <= RELATIVE:
                raise FailedError(f"step {a['step']}: {key} is {b[key]:.6f} on two ranks and {a[key]:.6f} on one")
            worst = max(worst, apart)
    return f"losses of {len(ours)} rows are {'equal' if worst == 0 else f'within {worst:.0e}'}"


# --- trackers and launchers --------------------------------------------------------------------------------------------------------


def mirrors_a_run(trial: Trial) -> str:
    """A whole run, and a tracker that does not go quiet on the way."""
    folder = trial.whole
    said = [line for line in (trial.room / "whole.err").read_text().splitlines() if QUIET in line]
    if said:
        raise FailedError(said[0].partition(QUIET)[2])
    return f"{len(rows(folder))} rows and a finish"


def trains_a_grid(trial: Trial) -> str:
    """Two cells of four steps."""
    words = ("--multirun", "seed=0,1", "trainer.steps=4", "trainer.val_every=0", "trainer.checkpoint_every=0")
    with trial.started("grid", *words) as process:
        code = process.wait()
    if code:
        raise FailedError(f"the grid ended with code {code}: {trial.told('grid')}")
    ended = [read_json(path) or {} for path in (trial.room / "grid").glob("runs/*/summary.json")]
    finished = sum(summary.get("status") == "finished" and math.isfinite(summary["val_loss"]) for summary in ended)
    if finished != 2:
        raise FailedError(f"{finished} of 2 cells finished")
    return "2 cells finished"
