"""The arms of a bench: overrides over a common base, each composed and checked as `nocap.train` does. No torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nocap.config.compose import compose, to_plain
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.launch.plan import check_compiler


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
    return run.that_count("step", to_plain(run))


def refuse_ranks() -> None:
    """A rank of torchrun shares its machine with the others, and times them."""
    require("RANK" not in os.environ, "nocap.bench", "be started by itself", "a rank of torchrun")
