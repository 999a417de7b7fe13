"""A made-up grid as `nocap.compare` tells it: known effects, and every kind of verdict that there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any

from nocap.judge import stats

EVIL = "</script><img src=x onerror=alert(1)>"

# What each option does to the final loss, to the seconds of a step, and to the parameters.
ATTENTION = {"flash": (0.0, 1.0, 0.0), "mha": (0.0008, 1.31, 0.0), "gqa": (0.011, 0.955, -0.4e6), "sliding": (0.024, 0.93, 0.0)}
MLP = {"gelu4x": (0.0, 1.0, 0.0), "gelu3x": (0.017, 0.9, -0.9e6), "swiglu": (-0.021, 1.04, 0.01e6)}


def run_of(attention: str, mlp: str, seed: int) -> dict[str, Any]:
    """One made-up run: a power law with a little noise, measured at forty validations."""
    rng = random.Random(f"{attention} {mlp} {seed}")
    shift, slower = (
        ATTENTION[attention][0] + MLP[mlp][0] + rng.gauss(0, 0.0004),
        ATTENTION[attention][1] * MLP[mlp][1] * rng.gauss(1, 0.002),
    )
    step = [50 * i for i in range(41)]
    train_s = [0.0301 * slower * s for s in step]
    val_loss = [1.31 + shift + 4.25 / (1 + s / 30) ** 0.75 + rng.gauss(0, 0.0006) for s in step]
    clock = {
        "train": train_s[-1] - 0.4,
        "compile": 0.0,
        "val": 6.1,
        "checkpoint": 0.7,
        "data": 0.4,
        "startup": 3.2 + rng.random(),
        "other": 0.3,
    }
    return {
        "identity": f"{attention}-{mlp}-{seed}",
        "name": f"{attention}-{mlp}-s{seed}",
        "arm": f"{attention}-{mlp}",
        "label": f"{attention} {mlp}",
        "seed": seed,
        "status": "finished",
        "steps": 2000,
        "val_loss": val_loss[-1],
        "val_bpb": val_loss[-1] / math.log(2),
        "tokens_per_s": 2000 * 4096 / train_s[-1],
        "train_s": train_s[-1],
        "curve": {
            "step": step,
            "tokens": [4096 * s for s in step],
            "train_s": train_s,
            "val_loss": val_loss,
            "val_bpb": [v / math.log(2) for v in val_loss],
        },
        "clock_s": clock,
        "hardware": {"name": "AMD EPYC 9B14", "fingerprint": "0a1b2c"},
    }


def estimate(values: Sequence[float]) -> dict[str, Any]:
    if len(values) == 1:
        return {"mean": values[0], "low": None, "high": None, "sd": None, "p": None}
    found = stats.interval(values)
    return {"mean": found.mean, "low": found.low, "high": found.high, "sd": stdev(values), "p": found.p}


def difference(mine: list[dict[str, Any]], base: list[dict[str, Any]], confounded: bool) -> dict[str, Any]:
    found = estimate([a["val_loss"] - b["val_loss"] for a, b in zip(mine, base, strict=False)])
    p_holm = None if len(mine) < 3 or confounded else min(1.0, 8 * found["p"])
    verdict = f"no verdict (n={len(mine)})"
    if confounded:
        verdict = "confounded: kernel"
    elif p_holm is not None:
        verdict = "no difference shown" if p_holm >= 0.05 else "better" if found["mean"] < 0 else "worse"
    return {**found, "p_holm": p_holm, "method": "t, paired by seed", "verdict": verdict}


def timed(mine: list[float], base: list[float] | None) -> dict[str, Any]:
    if base is None:
        return {"mean": fmean(mine), "ratio": None, "refused": None}
    logs = estimate([math.log(a / b) for a, b in zip(mine, base, strict=False)])
    return {"mean": fmean(mine), "ratio": {key: logs[key] and math.exp(logs[key]) for key in ("mean", "low", "high")}, "refused": None}


def to_target(runs: list[dict[str, Any]], goal: float, per_step: float) -> dict[str, Any]:
    curves = [run["curve"] for run in runs]
    found = [next((s * per_step for s, v in zip(c["step"], c["val_loss"], strict=True) if v <= goal), None) for c in curves]
    reached = [time for time in found if time is not None]
    middle = median(reached) if len(reached) == len(found) else None
    return {
        "median": middle,
        "censored": len(found) - len(reached),
        "n": len(found),
        "budget": 2000 * per_step,
        "ratio": None,
        "refused": None,
    }


def arm_of(attention: str, mlp: str, runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    own = runs is base
    total = 10.6e6 + ATTENTION[attention][2] + MLP[mlp][2]
    kernel = "math" if attention == "mha" else "flash"
    memory = {"mha": 1910.0, "flash": 1240.0, "gqa": 1150.0, "sliding": 1265.0}[attention]
    changed = {"attention.name": (attention, "flash"), "attention.kernel": (kernel, "flash"), "mlp.name": (mlp, "gelu4x")}

    def times(key: str, scale: float = 1.0) -> dict[str, Any]:
        return timed([scale * run[key] for run in runs], None if own else [scale * run[key] for run in base])

    return {
        "arm": f"{attention}-{mlp}",
        "label": f"{attention} {mlp}",
        "changes": {key: value for key, (value, usual) in changed.items() if value != usual},
        "n": len(runs),
        "seeds": [run["seed"] for run in runs],
        "val_loss": estimate([run["val_loss"] for run in runs]),
        "val_bpb": estimate([run["val_bpb"] for run in runs]),
        "difference": None if own else difference(runs, base, attention == "mha"),
        "tokens_per_s": times("tokens_per_s"),
        "step_ms": times("train_s", 1 / 2),
        "memory_mib": timed([memory], None),
        "train_s": times("train_s"),
        "params": {"total": total, "non_embedding": total - 0.2e6},
        "flops_per_token": 6 * total,
        "tokens": 2000 * 4096,
        "kernel": {"train": kernel, "val": kernel},
        "hardware": ["0a1b2c"],
        "to_target": {"steps": to_target(runs, 1.49, 1.0), "train_s": to_target(runs, 1.49, runs[0]["train_s"] / 2000)},
        "pareto": attention in ("gqa", "sliding") or mlp == "swiglu",
        "pareto_tied": attention == "flash",
        "clock_s": {line: fmean(run["clock_s"][line] for run in runs) for line in runs[0]["clock_s"]},
        "runs": [run["identity"] for run in runs],
    }


def effect(term: str, mean: float, half: float, verdict: str) -> dict[str, Any]:
    return {"term": term, "mean": mean, "low": mean - half, "high": mean + half, "p": 0.001, "p_holm": 0.004, "verdict": verdict}


def made(seeds: int) -> dict[str, Any]:
    """A grid of 4 attentions × 3 MLPs × `seeds`, of which all runs but one of the last arm failed."""
    cells = {
        (a, m): [run_of(a, m, seed) for seed in range(1 if (a, m) == ("sliding", "swiglu") else seeds)]
        for a, m in itertools.product(ATTENTION, MLP)
    }
    return {
        "schema_version": 1,
        "baseline": "flash-gelu4x",
        "confidence": 0.95,
        "alpha": 0.05,
        "least_seeds": 3,
        "target": 1.49,
        "swept": ["attention.name", "attention.kernel", "mlp.name"],
        "arms": [arm_of(a, m, runs, cells["flash", "gelu4x"]) for (a, m), runs in cells.items()],
        "runs": [run for runs in cells.values() for run in runs],
        "effects": {
            "main_effects": [effect("gqa (for flash)", 0.0112, 0.0007, "higher"), effect("swiglu (for gelu4x)", -0.0209, 0.0006, "lower")],
            "interactions": [effect("gqa (for flash) × swiglu (for gelu4x)", 0.0002, 0.0008, "no effect shown")],
            "main_effects_on_log_tokens_per_s": [effect("gqa (for flash)", 0.046, 0.002, "higher")],
        },
        "problems": ["flash-gelu3x-s1/metrics.jsonl: 1 corrupt line skipped (line 17)"],
        "not_compared": [{"name": f"sliding-swiglu-s{seed}", "status": "failed"} for seed in range(1, seeds)],
    }


def poisoned(comparison: dict[str, Any]) -> dict[str, Any]:
    """Markup in everything that people name."""
    for thing in (*comparison["arms"], *comparison["runs"]):
        thing["label"] = f"{EVIL} {thing['label']}"
    comparison["runs"][0] |= {"name": EVIL, "hardware": {"name": EVIL}, "status": EVIL}
    comparison["arms"][1] |= {"changes": {EVIL: EVIL}, "kernel": {"train": EVIL, "val": EVIL}}
    comparison["arms"][2]["difference"]["verdict"] = f"confounded: {EVIL}"
    comparison["arms"][3]["tokens_per_s"]["refused"] = EVIL
    comparison["effects"]["main_effects"][0]["term"] = EVIL
    return {**comparison, "problems": [EVIL], "not_compared": [{"name": EVIL, "status": EVIL}]}
