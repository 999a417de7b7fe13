"""A made-up grid as `nocap.compare` compares it: known effects, and every kind of verdict that
there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.store.record import Curve, Record
from nocap.store.runs import Found

EVIL = "</script><img src=x onerror=alert(1)>"

# What each option does to the final loss, to the seconds of a step, and to the parameters.
ATTENTION = {
    "flash": (0.0, 1.0, 0.0),
    "mha": (0.0008, 1.31, 0.0),
    "gqa": (0.011, 0.955, -0.4e6),
    "sliding": (0.024, 0.93, 0.0),
}
MLP = {"gelu4x": (0.0, 1.0, 0.0), "gelu3x": (0.017, 0.9, -0.9e6), "swiglu": (-0.021, 1.04, 0.01e6)}
CONFIG = {  # mha brings another kernel along, unasked
    "flash": {"attention.kind": "global", "attention.n_kv_heads": 6},
    "mha": {"attention.kind": "global", "attention.n_kv_heads": 5},
    "gqa": {"attention.kind": "global", "attention.n_kv_heads": 2},
    "sliding": {"attention.kind": "sliding", "attention.window": 64},
    "gelu4x": {"mlp.activation": "gelu", "mlp.expansion": 4.0},
    "gelu3x": {"mlp.activation": "gelu", "mlp.expansion": 3.0},
    "swiglu": {"mlp.activation": "swiglu", "mlp.expansion": 4.0},
}
MEMORY_MIB = {"mha": 1910.0, "flash": 1240.0, "gqa": 1150.0, "sliding": 1265.0}

Change = Callable[[Record], Record]


def record_of(attention: str, mlp: str, seed: int, *, status: str = "finished") -> Record:
    """One made-up run: a power law with a little noise, measured at forty validations."""
    rng = random.Random(f"{attention} {mlp} {seed}")
    noise = rng.gauss(0, 0.0004)
    shift = ATTENTION[attention][0] + MLP[mlp][0] + noise
    slower = ATTENTION[attention][1] * MLP[mlp][1] * rng.gauss(1, 0.002)
    step = [50 * i for i in range(41)]
    train_s = [0.0301 * slower * s for s in step]
    val_loss = [1.31 + shift + 4.25 / (1 + s / 30) ** 0.75 + rng.gauss(0, 0.0006) for s in step]
    val_bpb: list[float | None] = [v / math.log(2) for v in val_loss]
    clock = {"train": train_s[-1] - 0.4, "compile": 0.0, "val": 6.1, "checkpoint": 0.7, "data": 0.4}
    clock |= {"startup": 3.2 + rng.random(), "other": 0.3}
    total = 10.6e6 + ATTENTION[attention][2] + MLP[mlp][2]
    if attention == "mha":
        kernel = "math"
    else:
        kernel = "flash"
    name = f"{attention}-{mlp}-s{seed}"
    summary = {
        "status": status,
        "steps": 2000,
        "tokens": 2000 * 4096,
        "val_loss": val_loss[-1],
        "val_bpb": val_bpb[-1],
        "tokens_per_s": 2000 * 4096 / train_s[-1],
        "step_ms": {"median": train_s[-1] / 2},
        "token_us": 1e6 * train_s[-1] / (2000 * 4096),
        "memory_mib": {"peak": MEMORY_MIB[attention]},
        "params": {"total": total, "non_embedding": total - 0.2e6},
        "flops_per_token": 6 * total,
        "kernel": {"train": kernel, "val": kernel},
        "clock_s": clock,
        "hardware": {"name": "AMD EPYC 9B14", "fingerprint": "0a1b2c"},
    }
    tokens: list[int | None] = [4096 * s for s in step]
    curve = Curve(step=step, tokens=tokens, train_s=[*train_s], val_loss=val_loss, val_bpb=val_bpb)
    config = {**CONFIG[attention], **CONFIG[mlp]}
    return Record(
        folder=Path(name),
        identity=name,
        name=name,
        arm=f"{attention}-{mlp}",
        seed=seed,
        status=status,
        started="",
        config=config,
        parts={},
        manifest={},
        summary=summary,
        curve=curve,
    )


def made(seeds: int, change: Change = lambda record: record, *, broken: bool = True) -> Comparison:
    """A grid of 4 attentions × 3 MLPs × `seeds`, of which all runs but one of the last arm failed,
    if `broken`."""
    records = []
    for attention, mlp, seed in itertools.product(ATTENTION, MLP, range(seeds)):
        fails = broken and (attention, mlp) == ("sliding", "swiglu") and seed > 0
        records.append(record_of(attention, mlp, seed, status="failed" if fails else "finished"))
    problems = ["flash-gelu3x-s1/metrics.jsonl: 1 corrupt line skipped (line 17)"]
    noisy = [change(record) for record in records]
    return compare(Found(records=noisy, problems=problems), target_loss=1.49)


def with_summary(record: Record, **values: Any) -> Record:
    return replace(record, summary={**record.summary, **values})


def poisoned() -> Comparison:
    """Markup in everything that people name."""

    def poison(record: Record) -> Record:
        tame = record.arm == "sliding-gelu3x"
        folder = Path(EVIL) / record.name
        record = replace(record, name=f"{'tame' if tame else EVIL}-{record.name}", folder=folder)
        if record.arm == "flash-gelu3x":
            record = with_summary(record, kernel={"train": EVIL, "val": EVIL})
            config = {**record.config, EVIL: EVIL}
            record = replace(record, config=config)
        if record.arm == "flash-swiglu":
            record = with_summary(record, hardware={"name": EVIL, "fingerprint": EVIL})
        if record.status == "failed":
            return replace(record, status=EVIL)
        return record

    return replace(made(2, poison), problems=[EVIL])
