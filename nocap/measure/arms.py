"""The arms of a bench as they are typed: overrides on top of common ones, each composed and checked as
`nocap.train` does. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from nocap import outside
from nocap.config.compose import Composed, compose_measured
from nocap.config.keys import require
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.launch.plan import check_compiler


def compose_arms(base: Sequence[str], arms: Sequence[str]) -> dict[str, Run]:
    """Label → run of each of `arms` (overrides as typed in a shell) on top of `base`; the first is the
    baseline, whose precision and compilation are all arms' where nobody chooses them. As in
    `compose_measured`.

    Errors:
        ValueError: a wrong override, or two arms with the same training step.
    """
    baseline = compose_arm(base, arms[0])
    runs = [baseline.run, *(compose_arm(base, overrides, baseline).run for overrides in arms[1:])]
    composed = [(overrides.strip() or "(no change)", run) for overrides, run in zip(arms, runs, strict=True)]
    for (first, run), (label, other) in combinations(composed, 2):
        differs = step_config(run) != step_config(other)
        require(
            differs,
            f"--arm {label!r}",
            "differ from the others in what a training step executes",
            repr(first),
        )
    return dict(composed)


def compose_arm(base: Sequence[str], overrides: str, baseline: Composed | None = None) -> Composed:
    """One arm.

    Errors:
        ValueError: a wrong override, or more than one device.
    """
    try:
        made = compose_measured(["tracker=none", *base, *shlex.split(overrides)], baseline)
        run = made.run
        require(
            run.trainer.devices == 1,
            "trainer.devices",
            "be 1: one device is timed at a time",
            run.trainer.devices,
        )
        check_compiler(run)
    except ValueError as error:
        raise ValueError(f"--arm {overrides.strip()!r}: {error}") from error
    return made


def step_config(run: Run) -> dict[str, Any]:
    """The part of the config that a training step executes, as plain JSON types."""
    return run.that_count("step", to_plain(run))


# --- the standard suites: the same arms on every machine, so that results can be laid side by side

BASE = {
    "cpu": "model=tiny tokenizer=bytes trainer.device=cpu trainer.micro_batch=2 trainer.batch_tokens=512",
    "gpu": "model=d12 tokenizer=gpt2 trainer.device=cuda trainer.micro_batch=8 trainer.batch_tokens=8192",
}
PLAIN = {  # the baseline, spelt out: each arm changes one of these or adds one override
    "cpu": "attention=flash mlp=gelu4x trainer.precision=fp32 trainer.compile=off",
    "gpu": "attention=flash mlp=gelu4x trainer.precision=bf16 trainer.compile=regional",
}
SAVERS = ["objective.loss_chunks=8", "trainer.activation_checkpointing=block"]
LAST = {  # the slowest to warm up come last: they are what a short time leaves out
    "cpu": ["trainer.precision=bf16", "trainer.compile=regional"],
    "gpu": ["trainer.compile=off", "trainer.precision=fp32", "trainer.compile=full"],
}
SECONDS = {"cpu": 285.0, "gpu": 420.0}  # five and eight minutes, less the start and the last round


def suite(name: str, overrides: Sequence[str]) -> tuple[list[str], list[str], float]:
    """The suite of this name: what its arms share, with the user's overrides; its arms, the baseline first,
    then each attention and MLP that there is, and the rest, one change an arm; its seconds."""
    plain = PLAIN[name].split()
    options = [f"{group}={option}" for group in ("attention", "mlp") for option in outside.yamls(group)]
    arms = [" ".join(plain), *(option for option in options if option not in plain), *SAVERS, *LAST[name]]
    return [*BASE[name].split(), *plain, *overrides], arms, SECONDS[name]
