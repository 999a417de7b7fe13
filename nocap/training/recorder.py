"""Writes a run's record as it trains: rows, checkpoints, loss spikes, totals at the end. It changes
no number of the training."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nocap.config import hardware
from nocap.model.attention_facts import kernel_name
from nocap.model.build import count_parameters
from nocap.model.flops import flops_per_token
from nocap.row_keys import (
    GRAD_NORM,
    LOGGED,
    MFU,
    PEAK_MIB,
    SPIKE,
    STEP_LINES,
    STEP_MS,
    TOKEN_US,
    TOKENS_PER_S,
    TRAIN,
    TRAIN_LOSS,
    VAL_BPB,
    VAL_LOSS,
    WALL,
    clock_key,
)
from nocap.store.checkpoints import FOLDER, step_of
from nocap.store.record_files import ROWS, RunStatus
from nocap.store.rows_file import Row, RowsFile
from nocap.training import memory
from nocap.training.build import Trainee
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.saving import CheckpointWriter, prune
from nocap.training.spikes import SIGMAS, WINDOW, above
from nocap.training.step import Update, settle
from nocap.training.summary import Totals

SHORT_S = 60.0  # of wall clock, that a run may lose to a kill in its last validation


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Say how training ended."""

    status: RunStatus  # finished, preempted or diverged
    step: int
    ledger: Ledger
    totals: Totals


class Recorder:
    """Keep the record of one attempt, which goes on from the clock and the losses of the attempts
    before."""

    def __init__(
        self, job: Job, trainee: Trainee, *, clock_s: Mapping[str, float], losses: Iterable[float]
    ) -> None:
        self.job = job
        self.trainee = trainee
        self.flops, self.flops_basis = flops_per_token(job.run, vocab_size=job.vocab_size)
        before = {"teacher": job.teacher_s + trainee.scores.earlier_s, **clock_s}
        lost_s = max(0.0, job.spent_s - sum(before.values()))
        self.ledger = Ledger(started=job.started, before=before, lost_s=lost_s)
        if not clock_s:  # scores are a teacher's work, which counts as training
            self.ledger.move(trainee.scores.now_s, source="startup", target="teacher")
        self.metrics = RowsFile(job.run_dir / ROWS, stage=job.stage)
        self.on_gpu = job.world.device.type == "cuda"
        self.checkpoints = CheckpointWriter(
            job.run_dir / FOLDER,
            background=self.on_gpu,
            always=job.run.trainer.keep_steps,
            stage=job.stage,
        )
        # a checkpoint keeps them: a resumed run must see the same spikes
        self.losses = deque(losses, maxlen=WINDOW)
        self.paces = list[float]()  # µs a token of each step since the last row
        self.busy_s = 0.0
        # known once the warm-up is over
        self.saved_mib = 0.0
        self.unseen_mib = 0.0  # of a CUDA graph, in no peak of the allocator's

    def started(self, *, saved_mib: float) -> None:
        """Begin to measure: the warm-up is over, and has found what a forward saves. A GPU's peak
        is measured from here on, without what compiling takes."""
        self.saved_mib = saved_mib
        if self.trainee.graph:
            self.unseen_mib = self.trainee.graph.unseen_mib
        memory.reset_peak(self.job.world.device)
        self.ledger.started_up()
        self.busy_s = self._busy_s()

    def _busy_s(self) -> float:
        """Return the seconds of training so far: on a CPU in CPU time, not by the clock."""
        seconds = self.ledger.seconds() if self.on_gpu else self.ledger.cpu_seconds()
        return sum(seconds[line] for line in STEP_LINES)

    def save(self, *, step: int, last: bool = False) -> None:
        """Write the checkpoint of `step`, in rank 0; the rows before it reach the disk first.

        Errors:
            OSError: the `last` one of this process cannot be written. An earlier one that fails is
                logged, and training goes on.
        """
        settle(self.job, self.trainee, self.ledger)
        if not self.job.world.is_main:
            return
        t = self.job.run.trainer
        with self.ledger.charge("checkpoint"):
            self.metrics.sync()
            clock_s = self.ledger.seconds()
            clock_s.pop(WALL)
            state = {
                "run": self.job.run_dir.name,
                "clock_s": clock_s,
                "losses": list(self.losses),
            }
            problems = self.checkpoints.save(
                step=step,
                model=self.trainee.model,
                optimizers=self.trainee.optimizers,
                state=state,
                rows=self.metrics.content,
                keep=1 if step == t.steps else t.keep_checkpoints,
                must=last,
            )
        self._log(problems)

    def save_end(self) -> None:
        """Save the weights of the last step, unless they do not stay and the run can be trained
        again in a minute."""
        if self.job.keeps_last or self.ledger.seconds()[WALL] > SHORT_S:
            self.save(step=self.job.run.trainer.steps, last=True)

    def restore_rows(self, checkpoint: Path | None) -> list[Row]:
        """Cut the rows back to the run's own checkpoint that it goes on from, and return them; none
        without one."""
        t = self.job.run.trainer
        # killed after its last save: perhaps before it had deleted the older ones
        if checkpoint and step_of(checkpoint) == t.steps:
            prune(checkpoint.parent, keep=1, always=t.keep_steps)
        content = b""
        if checkpoint:
            content = (checkpoint / ROWS).read_bytes()
        self._log(self.metrics.put_back(content, source=str(checkpoint)))
        return self.metrics.rows()

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.job.log(line)

    def val_row(self, loss: float) -> Row:
        """Return the validation loss and, where the text's bytes are known, bits per byte; `null`
        where the loss is not finite."""
        row: Row = {VAL_LOSS: _finite(loss)}
        if self.job.val_bytes is not None and math.isfinite(loss):
            nats = loss * self.job.run.trainer.val_tokens
            row[VAL_BPB] = nats / (math.log(2) * self.job.val_bytes)
        return row

    def train_row(self, update: Update, *, step: int) -> Row:
        """Return the row of a step, `null` where a value is not finite. `train/loss` is the
        next-token loss, whatever else is minimised."""
        t = self.job.run.trainer
        before_s = self.busy_s
        self.busy_s = self._busy_s()
        self.paces.append(1e6 * (self.busy_s - before_s) / t.batch_tokens)
        tokens_per_s = t.batch_tokens / (update.step_ms / 1e3)
        flops_per_s: float | None = None
        if self.flops is not None:
            flops_per_s = tokens_per_s * self.flops
        world_size = self.job.world.size
        row: Row = {TRAIN_LOSS: _finite(update.parts.get("next_token", update.loss))}
        for name, loss in update.parts.items():
            if name != "next_token":
                row[f"{TRAIN_LOSS}_{name}"] = _finite(loss)
        for name, value in update.logged.items():
            row[f"{LOGGED}{name}"] = _finite(value)
        row[GRAD_NORM] = _finite(update.grad_norm)
        for name, lr in update.lrs.items():
            row[f"{TRAIN}{name}"] = lr
        row[STEP_MS] = update.step_ms
        row[TOKENS_PER_S] = tokens_per_s
        row[MFU] = hardware.utilization(flops_per_s, t.device, t.precision, world_size)
        row |= self._spike(update, step=step)
        return row

    def _spike(self, update: Update, *, step: int) -> Row:
        """Report a spike of the loss. It is never skipped: a skipped batch would be another
        experiment."""
        if not update.finite:
            return {}
        sigmas = above(self.losses, update.loss)
        self.losses.append(update.loss)
        if sigmas <= SIGMAS:
            return {}
        self.job.log(
            f"spike at step {step}: loss {update.loss:.4f}, {sigmas:.1f} standard deviations "
            f"above normal: {self._batch(step)}"
        )
        return {SPIKE: sigmas}

    def write(self, row: Row) -> None:
        """Append the row, with the memory's peak and the clock so far."""
        if not self.job.world.is_main:
            return
        if self.paces:
            row[TOKEN_US] = median(self.paces)
            self.paces.clear()
        row[PEAK_MIB] = self.peak_mib()
        for line, seconds in self.ledger.seconds().items():
            row[clock_key(line)] = seconds
        self.metrics.append(row)
        self.job.on_row(row)

    def peak_mib(self) -> float:
        """Return the most memory that this process has taken at once."""
        return memory.peak_mib(self.job.world.device) + self.unseen_mib

    def _batch(self, step: int) -> dict[str, Any]:
        """Return the sequences of the data order that a step read."""
        run = self.job.run
        first = run.tokens_before(step) // run.model.seq_len
        end = run.tokens_before(step + 1) // run.model.seq_len
        return {"sequences": [first, end]}

    def diverged(self, update: Update, *, step: int) -> dict[str, Any]:
        """Log where and how the run diverged, and return it for the summary."""
        divergence = {
            "step": step,
            "loss": repr(update.loss),
            "grad_norm": repr(update.grad_norm),
            **self._batch(step),
        }
        self.job.log(f"diverged: {divergence}")
        return divergence

    def close(
        self, *, status: RunStatus, step: int, diverged: Mapping[str, object] | None = None
    ) -> Outcome:
        """Wait for the last checkpoint; return the run's sizes, work, and memory in parts.
        `diverged`: where and how it did."""
        with self.ledger.charge("checkpoint"):
            self._log(self.checkpoints.settle())
            if self.job.world.is_main:
                self._log(self.metrics.put_back(self.metrics.content, source="this process"))
        t = self.job.run.trainer
        kernels = {
            "train": kernel_name(self.job.run, t.precision),
            "val": kernel_name(self.job.run, t.val_precision),
        }
        totals = Totals(
            params=count_parameters(self.trainee.model),
            flops_per_token=self.flops,
            flops_basis=self.flops_basis,
            memory_mib=self._memory_mib(),
            memory_notes=self._memory_notes(),
            kernel=kernels,
            n_windows=self.trainee.train.n,
            diverged=diverged,
        )
        return Outcome(status=status, step=step, ledger=self.ledger, totals=totals)

    def _memory_mib(self) -> dict[str, float]:
        """Return the memory in parts."""
        peak = self.peak_mib()
        model = self.trainee.model
        parts = memory.parts_mib(model.parameters(), self.trainee.optimizers, model.kept_around())
        parts["activations"] = self.saved_mib
        model_mib = sum(parts.values())
        if self.on_gpu:
            model_mib = peak
        return {"peak": peak, "model": model_mib, **parts}

    def _memory_notes(self) -> dict[str, str]:
        """Say what the parts of the memory are."""
        counted = "counted: parameters, gradients, optimizer and activations"
        notes = {"peak": "resident, all libraries included", "model": counted}
        if self.on_gpu:
            notes = {"peak": "allocated on the GPU after warm-up", "model": "the peak"}
        notes["activations"] = "kept by one micro-batch's forward for its backward"
        return notes


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
