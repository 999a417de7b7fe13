"""The arms of a bench: overrides over a common base, each composed and checked as `nocap.train` does. No torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nocap.launch.plan import check_compiler
from nocap.run.config import compose, to_plain
from nocap.schema import Run, require

# What a training step never meets: two arms that differ in nothing else are one.
OUTSIDE_THE_STEP = ("data", "schedule", "tracker", "seed", "output_dir", "cache_dir")
OUTSIDE_THE_STEP_OF_TRAINER = (
    "steps",
    "val_every",
    "val_tokens",
    "val_precision",
    "checkpoint_every",
    "keep_checkpoints",
    "keep_steps",
    "init_from",
    "log_every",
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is timed under one name; the first of several is the baseline."""

    label: str
    run: Run


def compose_arms(base: Sequence[str], arms: Sequence[str]) -> list[Arm]:
    """Each of `arms`, words as in a shell, over the words of `base`. An arm has one thread unless the words say otherwise.

    Errors:
        ValueError: fewer than two arms, a wrong word, two arms that execute the same step, or arms that no one clock can time.
    """
    require(len(arms) >= 2, "--arm", "be given at least twice, the baseline first", f"{len(arms)} of them")
    made = [compose_arm(base, words) for words in arms]
    executed: dict[str, str] = {}
    for arm in made:
        key = repr(step_config(arm.run))
        require(key not in executed, f"--arm {arm.label!r}", "differ from the others in what a training step executes", executed.get(key))
        executed[key] = repr(arm.label)
        devices = made[0].run.trainer.device, arm.run.trainer.device
        require(
            devices[0] is devices[1],
            "trainer.device",
            "be the same in all arms: they share a clock",
            " and ".join(d.value for d in devices),
        )
    return made


def compose_arm(base: Sequence[str], words: str) -> Arm:
    """One of them.

    Errors:
        ValueError: a wrong word, or more than one device.
    """
    label = words.strip() or "(no change)"
    try:
        run = compose(["tracker=none", "trainer.threads=1", *base, *shlex.split(words)])
        require(run.trainer.devices == 1, "trainer.devices", "be 1: one device is timed at a time", run.trainer.devices)
        check_compiler(run)
    except ValueError as error:
        raise ValueError(f"--arm {label!r}: {error}") from error
    return Arm(label=label, run=run)


def step_config(run: Run) -> dict[str, Any]:
    """The part of the config that a training step executes, as plain JSON types."""
    plain = {group: value for group, value in to_plain(run).items() if group not in OUTSIDE_THE_STEP}
    plain["trainer"] = {key: value for key, value in plain["trainer"].items() if key not in OUTSIDE_THE_STEP_OF_TRAINER}
    return plain


def refuse_ranks() -> None:
    """A rank of torchrun shares its machine with the others, and times them."""
    require("RANK" not in os.environ, "nocap.bench", "be started by itself", "a rank of torchrun")
