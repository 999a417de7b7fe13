"""What a person reads of a planned run before it begins, or where there is nothing to train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nocap.config import hardware
from nocap.config.defaults import other_precision, reasons
from nocap.config.run import Run
from nocap.config.trainer import Device, Precision
from nocap.display import plural
from nocap.launch.plan import Plan
from nocap.store.checkpoints import saved_steps
from nocap.store.record_files import RunStatus


def nothing_to_train(plan: Plan, summary: Mapping[str, Any]) -> str:
    """Return a line about a run that has come to its end."""
    if summary["status"] == RunStatus.finished:
        line = "the run has already finished, so there is nothing to train"
        gone = sorted({*plan.run.trainer.keep_steps} - {*saved_steps(plan.run_dir)})
        if gone:
            line = f"{line}; the run kept no checkpoint of trainer.keep_steps={gone}"
        return line
    return (
        "the run has already diverged, and would diverge again; delete its folder to train it again"
    )


def overruled(run: Run) -> list[str]:
    """Say that a variable of the environment does not count where the config has another number of
    threads: the threads are a part of the run's identity."""
    t = run.trainer
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if t.device is not Device.cpu or wanted in ("", str(t.threads)):
        return []
    return [f"nocap ignores OMP_NUM_THREADS={wanted}; trainer.threads={t.threads} sets the threads"]


def headline(plan: Plan) -> str:
    """Return what a person reads before a run begins: notices; what it trains where; precision,
    compilation and on a GPU micro-batch and CUDA graphs, with the reason, or with what the default
    would be; and what may be faster."""
    t = plan.run.trainer
    where = f"{t.devices} × {hardware.device_name(t.device)}"
    if t.device is Device.cpu:
        where += f" with {plural(t.threads, 'thread')}, memory {t.malloc.value}"
    notes = [f"note: {notice}" for notice in (*plan.notices, *overruled(plan.run))]
    what = f"{plan.run_dir.name}: {t.steps:,} steps of {t.batch_tokens:,} tokens on {where}"
    why = reasons(plan.run)
    precision_line = _chosen("precision", t.precision.value, why["precision"])
    compile_line = _chosen("compile", t.compile.value, why["compile"])
    lines = [*notes, what, precision_line, *_to_try(plan.run), compile_line]
    if t.device is Device.cuda:
        lines.append(_chosen("micro_batch", str(t.micro_batch), why["micro_batch"]))
        lines.append(_chosen("cuda_graphs", str(t.cuda_graphs).lower(), why["cuda_graphs"]))
    return "\n".join(lines)


def _chosen(key: str, value: str, default: str) -> str:
    """Say what a run has of a key, beside the default and its reason, as in "fp32: this CPU has no
    AMX"."""
    if default.startswith(f"{value}: "):
        return f"{key} {default}"
    return f"{key} {value} (by default {default})"


def _to_try(run: Run) -> list[str]:
    """Say which precision may be faster than the run's, and give the command that measures it."""
    m = run.model
    other = other_precision(run.trainer.device, m)
    if other in (None, run.trainer.precision):
        return []
    shape = f"model.n_layer={m.n_layer} model.n_head={m.n_head} model.d_model={m.d_model}"
    arms = " ".join(f"--arm trainer.precision={each.value}" for each in Precision)
    return [
        f"  trainer.precision={other.value} may be faster here; this measures it:",
        f"  python -m nocap.bench {shape} model.seq_len={m.seq_len} {arms}",
    ]
