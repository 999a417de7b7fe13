"""The option in training, as a user starts it: in processes of its own."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from nocap.checks.trial import CheckError, SkippedError, Trial, expect, kill, rows, wait_for
from nocap.config.compose import compose
from nocap.store.record import Row, read_json
from nocap.store.tracking import NO_MIRROR

RELATIVE = 1e-5  # of a loss, between one rank and two
NOISE = ("clock/", "perf/", "memory/")


def learns(trial: Trial) -> str:
    """A short run ends below where it began, every loss finite."""
    if isinstance(trial.first_run, CheckError):
        raise trial.first_run
    found, steps = rows(trial.first_run), trial.run.trainer.steps
    finite = all(row.get(key, 0.0) is not None for row in found for key in ("train/loss", "val/loss", "train/grad_norm"))
    expect(finite, "a loss or a gradient is not finite")
    losses = [row["val/loss"] for row in found if "val/loss" in row]
    expect(losses[-1] < losses[0], f"validation loss {losses[0]:.4f} at the start, {losses[-1]:.4f} after {steps} steps")
    return f"validation loss {losses[0]:.4f} → {losses[-1]:.4f} in {steps} steps"


def resumes(trial: Trial) -> str:
    """Killed past a checkpoint and started again, it ends as the run that was not disturbed, bit for bit."""
    clean = trial.clean

    def past_a_checkpoint() -> bool:
        saved = [int(path.name[5:]) for path in (trial.folder / "killed").glob("runs/*/checkpoints/step-*")]
        there = rows(trial.run_dir("killed")) if saved else []
        return bool(there) and int(there[-1]["step"]) > max(saved)

    with trial.started("killed") as process:
        if not wait_for(process, past_a_checkpoint):
            raise SkippedError("the run was over before it could be killed: give trainer.steps and trainer.checkpoint_every")
        kill(process)
    again = trial.train("killed")
    resumed = [line for line in (again / "train.log").read_text().splitlines() if "resuming from step" in line]
    expect(resumed, "started again, it did not go on from its checkpoint")
    _same_bits(clean, again)
    return f"{resumed[0][resumed[0].index('resuming') :]}; weights, optimizer and {len(rows(again))} rows are equal"


def _same_bits(clean: Path, other: Path) -> None:
    expected, got = _steady_rows(clean), _steady_rows(other)
    for a, b in zip(expected, got, strict=False):
        key = next((key for key in sorted({*a, *b}) if a.get(key) != b.get(key)), "")
        expect(not key, f"step {a['step']}: {key} is {b.get(key)}, and undisturbed {a.get(key)}")
    expect(len(expected) == len(got), f"{len(got)} rows, and undisturbed {len(expected)}")
    hashes, others = _hashes(clean), _hashes(other)
    for name in sorted({*hashes, *others}):
        expect(hashes.get(name) == others.get(name), f"the last {name} differs from the undisturbed run's")


def _steady_rows(run_dir: Path) -> list[Row]:
    return [{key: value for key, value in row.items() if not key.startswith(NOISE)} for row in rows(run_dir)]


def _hashes(run_dir: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(run_dir.glob("checkpoints/*/*.safetensors"))}


def ranks(trial: Trial) -> str:
    """Two ranks, each with half of a step's micro-batches, give what one gives."""
    clean = trial.clean
    try:
        compose(trial.overrides("trainer.devices=2"))
    except ValueError as error:
        raise SkippedError(str(error)) from None
    expected, got = rows(clean), rows(trial.train("ranks", "trainer.devices=2"))
    worst = 0.0
    for a, b in zip(expected, got, strict=True):
        for key in a.keys() & {"val/loss", "train/loss"}:
            apart = abs(a[key] - b[key]) / max(abs(a[key]), 1e-9)
            expect(apart <= RELATIVE, f"step {a['step']}: {key} is {b[key]:.6f} on two ranks and {a[key]:.6f} on one")
            worst = max(worst, apart)
    return f"losses of {len(expected)} rows are {'equal' if worst == 0 else f'within {worst:.0e}'}"


def mirrored(trial: Trial) -> str:
    """A whole run, and a tracker that does not fail on the way."""
    n = len(rows(trial.clean))
    failure = (trial.folder / "first.err").read_text().partition(NO_MIRROR)[2]
    expect(not failure, failure.partition("\n")[0])
    return f"{n} rows and a finish"


def grid(trial: Trial) -> str:
    """Two cells of four steps."""
    cells = ("--multirun", "seed=0,1", "trainer.steps=4", "trainer.val_every=0", "trainer.checkpoint_every=0")
    with trial.started("grid", *cells) as process:
        code = process.wait()
    expect(code == 0, f"the grid ended with code {code}: {trial.reason('grid')}")
    ended = [read_json(path) or {} for path in (trial.folder / "grid").glob("runs/*/summary.json")]
    finished = sum(summary.get("status") == "finished" and math.isfinite(summary["val_loss"]) for summary in ended)
    expect(finished == 2, f"{finished} of 2 cells finished")
    return "2 cells finished"
