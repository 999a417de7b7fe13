"""The option in training, as a user starts it: in processes of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from nocap.checks.trial import SkippedError, Trial, expect, rows
from nocap.config.compose import compose
from nocap.store.checkpoints import newest_first
from nocap.store.record import Row, read_json

RELATIVE = 1e-5  # of a loss, between one rank and two
NOISE = ("clock/", "perf/", "memory/")


def learns(trial: Trial) -> str:
    """A short run ends below where it began, every loss finite, its tracker without a failure."""
    found, steps = rows(trial.clean), trial.run.trainer.steps
    finite = all(row.get(key, 0.0) is not None for row in found for key in ("train/loss", "val/loss", "train/grad_norm"))
    expect(finite, "a loss or a gradient is not finite")
    losses = [row["val/loss"] for row in found if "val/loss" in row]
    expect(losses[-1] < losses[0], f"validation loss {losses[0]:.4f} at the start, {losses[-1]:.4f} after {steps} steps")
    return f"validation loss {losses[0]:.4f} → {losses[-1]:.4f} in {steps} steps"


def resumes(trial: Trial) -> str:
    """With what a kill past its first checkpoint leaves, it ends as the run that was not disturbed, bit for bit."""
    left = shutil.copytree(trial.clean, trial.folder / "killed" / "runs" / trial.clean.name)
    *later, first = newest_first(left / "checkpoints")
    for path in later:
        shutil.rmtree(path)
    (left / "summary.json").unlink()
    trial.train("killed")
    went_on = f"resuming from step {int(first.name[5:])}"
    expect(went_on in (left / "train.log").read_text(), "started again, it did not go on from its checkpoint")
    for a, b in zip(_steady_rows(trial.clean), _steady_rows(left), strict=True):
        key = next((key for key in sorted({*a, *b}) if a.get(key) != b.get(key)), "")
        expect(not key, f"step {a['step']}: {key} is {b.get(key)}, and undisturbed {a.get(key)}")
    expected, got = map(_sums, (trial.clean, left))
    for name in expected:
        expect(got[name] == expected[name], f"the last {name} differs from the undisturbed run's")
    return f"{went_on}; weights, optimizer and {len(rows(left))} rows are equal"


def _steady_rows(run_dir: Path) -> list[Row]:
    return [{key: value for key, value in row.items() if not key.startswith(NOISE)} for row in rows(run_dir)]


def _sums(run_dir: Path) -> dict[str, str]:
    """The last checkpoint's tensors by their checksums."""
    sums = read_json(newest_first(run_dir / "checkpoints")[0] / "manifest.json") or {}
    return {name: text for name, text in sums.items() if name.endswith(".safetensors")}


def ranks(trial: Trial) -> str:
    """Two ranks, each with half of a step's micro-batches, give what one gives."""
    try:
        compose(trial.overrides("trainer.devices=2"))
    except ValueError as error:
        raise SkippedError(str(error)) from None
    expected, worst = rows(trial.clean), 0.0
    for a, b in zip(expected, rows(trial.train("ranks", "trainer.devices=2")[0]), strict=True):
        for key in a.keys() & {"val/loss", "train/loss"}:
            apart = abs(a[key] - b[key]) / max(abs(a[key]), 1e-9)
            expect(apart <= RELATIVE, f"step {a['step']}: {key} is {b[key]:.6f} on two ranks and {a[key]:.6f} on one")
            worst = max(worst, apart)
    return f"losses of {len(expected)} rows are {'equal' if worst == 0 else f'within {worst:.0e}'}"


def grid(trial: Trial) -> str:
    """Two cells of four steps."""
    words = ("trainer.steps=4", "trainer.keep_steps=[]", "trainer.val_every=0", "trainer.checkpoint_every=0")
    cells = trial.train("grid", "--multirun", "seed=0,1", *words)
    finished = sum((read_json(cell / "summary.json") or {}).get("status") == "finished" for cell in cells)
    expect(finished == 2, f"{finished} of 2 cells finished")
    return "2 cells finished"
