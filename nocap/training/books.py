"""What a run writes down as it goes: rows, checkpoints, spikes, the account at its end. No number of the training comes from here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nocap.config import hardware
from nocap.model.flops import flops_per_token
from nocap.model.gpt import count_parameters
from nocap.store.record import Metrics, Row
from nocap.training import checkpoint, memory
from nocap.training.ledger import Ledger
from nocap.training.spikes import Spikes
from nocap.training.step import Job, Trainee, Update, bits_per_byte


@dataclass(kw_only=True)
class Outcome:
    """How training ended and what it measured once."""

    status: str  # finished, preempted or diverged
    step: int
    ledger: Ledger
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Books:
    """A run's record while it is being made."""

    job: Job
    ledger: Ledger
    metrics: Metrics
    checkpoints: checkpoint.Writer
    spikes: Spikes
    flops: float  # a token
    flops_basis: str

    def save(self, trainee: Trainee, *, step: int, last: bool = False) -> None:
        """Rank 0 writes the checkpoint of `step`; the rows before it reach the disk first.

        Errors:
            OSError: the `last` one of this process cannot be written. Before that, a full disk is a line, and training goes on.
        """
        if not self.job.world.is_main:
            return
        t = self.job.run.trainer
        with self.ledger.charge("checkpoint"):
            self.metrics.sync()
            clock = {line: s for line, s in self.ledger.seconds().items() if line != "wall"}
            lines = self.checkpoints.save(
                step=step,
                model=trainee.model,
                optimizers=trainee.optimizers,
                state={"clock_s": clock, "losses": self.spikes.state()},
                keep=1 if step == t.steps else t.keep_checkpoints,
                must=last,
            )
        tell(self.job, lines)

    def scored(self, loss: float) -> Row:
        """Validation loss and, where the text's bytes are known, bits per byte; `null` where the loss is no number."""
        row: Row = {"val/loss": loss if math.isfinite(loss) else None}
        if self.job.val_bytes is not None and math.isfinite(loss):
            row["val/bpb"] = bits_per_byte(loss, tokens=self.job.run.trainer.val_tokens, n_bytes=self.job.val_bytes)
        return row

    def describe(self, update: Update) -> Row:
        """The row of a step: `null` where the value is no number. `train/loss` is the next-token loss, whatever else is minimised."""
        t = self.job.run.trainer
        tokens_per_s = t.batch_tokens / (update.step_ms / 1e3)
        losses = {"loss": update.parts.get("next_token", update.loss)}
        losses |= {f"loss_{name}": loss for name, loss in update.parts.items() if name != "next_token"}
        return {
            **{f"train/{name}": loss if math.isfinite(loss) else None for name, loss in losses.items()},
            "train/grad_norm": update.grad_norm if math.isfinite(update.grad_norm) else None,
            **{f"train/{name}": lr for name, lr in update.lrs.items()},
            "perf/step_ms": update.step_ms,
            "perf/tokens_per_s": tokens_per_s,
            "perf/mfu": hardware.utilization(tokens_per_s * self.flops, t.device, t.precision, self.job.world.size),
        }

    def spike(self, update: Update, *, step: int) -> Row:
        """A loss that jumps, said and written into the step's row."""
        sigmas = self.spikes.see(update.loss) if update.finite else None
        if sigmas is None:
            return {}
        self.job.say(f"spike at step {step}: loss {update.loss:.4f}, {sigmas:.1f} standard deviations up: {self.batch(step)}")
        return {"train/spike": sigmas}

    def log(self, row: Row) -> None:
        """Write the row, with the memory's peak and the clock so far."""
        if self.job.world.is_main:
            row["memory/peak_mib"] = memory.peak_mib(self.job.world.device)
            row |= {f"clock/{line}_s": seconds for line, seconds in self.ledger.seconds().items()}
            self.metrics.append(row)
            self.job.on_row(row)

    def batch(self, step: int) -> dict[str, Any]:
        """Which sequences of the data order a step read."""
        n = self.job.run.trainer.batch_tokens // self.job.run.model.seq_len
        return {"sequences": [step * n, (step + 1) * n]}

    def diverged(self, update: Update, *, step: int) -> dict[str, Any]:
        """Where and how, said and returned for the summary."""
        where = {"step": step, "loss": repr(update.loss), "grad_norm": repr(update.grad_norm), **self.batch(step)}
        self.job.say(f"diverged: {where}")
        return where

    def close(self, trainee: Trainee, *, status: str, step: int, saved_mib: float, **facts: Any) -> Outcome:
        """What is true of the whole run: sizes, work, memory in parts."""
        with self.ledger.charge("checkpoint"):
            tell(self.job, self.checkpoints.settle())
        device = self.job.world.device
        parts = memory.parts_mib(trainee.model.parameters(), trainee.optimizers)
        account = {
            "params": count_parameters(trainee.model),
            "flops_per_token": self.flops,
            "flops_basis": self.flops_basis,
            "memory_mib": {"peak": memory.peak_mib(device), **parts, "activations": saved_mib},
            "memory_notes": {
                "peak": "allocated on the GPU" if device.type == "cuda" else "resident, torch's libraries included",
                "activations": "kept by one micro-batch's forward for its backward",
            },
            "train_windows": trainee.train.n,
        }
        return Outcome(status=status, step=step, ledger=self.ledger, facts={**account, **facts})


def open_books(job: Job, *, before: dict[str, float], losses: list[float]) -> Books:
    """The books of this attempt, which goes on from those of the attempts before."""
    flops, basis = flops_per_token(job.run, vocab_size=job.vocab_size)
    lost_s = max(0.0, job.spent_s - sum(before.values()))
    root, on_gpu = job.run_dir / "checkpoints", job.world.device.type == "cuda"
    return Books(
        job=job,
        ledger=Ledger(started=job.started, before=before, lost_s=lost_s),
        metrics=Metrics(job.run_dir / "metrics.jsonl"),
        checkpoints=checkpoint.Writer(root, background=on_gpu, always=job.run.trainer.keep_steps),
        spikes=Spikes(losses),
        flops=flops,
        flops_basis=basis,
    )


def tell(job: Job, lines: list[str]) -> None:
    for line in lines:
        job.say(line)
