"""The arms of a bench: overrides on top of common ones, each composed and checked as `nocap.train` does; and their turns. No torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nocap.config.compose import compose_measured, to_plain
from nocap.config.keys import require
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.launch.plan import check_compiler

if TYPE_CHECKING:
    from nocap.measure.external import External

Times = NDArray[np.float64]  # (rounds, arms, 2): seconds a token in the two blocks of an arm; NaN from where an arm failed


@dataclass(frozen=True, kw_only=True)
class BenchArm:
    """What is timed under one name; the first of several is the baseline."""

    label: str
    run: Run  # of an external arm: the sizes that it was asked for
    external: External | None = None

    @property
    def config(self) -> dict[str, Any]:
        """What a step of it executes, as plain JSON types."""
        return step_config(self.run) if self.external is None else self.external.config(self.run)


def compose_arms(base: Sequence[str], arms: Sequence[str], *, least: int = 2) -> list[BenchArm]:
    """Each of `arms` (overrides as typed in a shell) on top of `base`. As in `compose_measured`.

    Errors:
        ValueError: fewer than `least` arms, a wrong override, two arms with the same training step, or arms on different devices.
    """
    often = "at least twice, the baseline first" if least == 2 else "for the baseline"
    require(len(arms) >= least, "--arm", f"be given {often}", f"{len(arms)} of them")
    composed = [compose_arm(base, overrides) for overrides in arms]
    seen: dict[str, str] = {}
    for arm in composed:
        key = repr(step_config(arm.run))
        require(key not in seen, f"--arm {arm.label!r}", "differ from the others in what a training step executes", seen.get(key))
        seen[key] = repr(arm.label)
        devices = composed[0].run.trainer.device, arm.run.trainer.device
        same = devices[0] is devices[1]
        require(same, "trainer.device", "be the same in all arms: they share a clock", " and ".join(d.value for d in devices))
    return composed


def compose_arm(base: Sequence[str], overrides: str) -> BenchArm:
    """One arm.

    Errors:
        ValueError: a wrong override, or more than one device.
    """
    label = overrides.strip() or "(no change)"
    try:
        run = compose_measured(["tracker=none", *base, *shlex.split(overrides)])
        require(run.trainer.devices == 1, "trainer.devices", "be 1: one device is timed at a time", run.trainer.devices)
        check_compiler(run)
    except ValueError as error:
        raise ValueError(f"--arm {label!r}: {error}") from error
    return BenchArm(label=label, run=run)


def step_config(run: Run) -> dict[str, Any]:
    """The part of the config that a training step executes, as plain JSON types."""
    return run.that_count("step", to_plain(run))


def refuse_ranks() -> None:
    """A rank of torchrun shares its machine with the other ranks and would time them too."""
    require("RANK" not in os.environ, "nocap.bench", "be started by itself", "a rank of torchrun")


# --- the order of blocks: A B C C B A, so that a machine whose speed drifts evenly slows all arms alike; then B C A A C B, and so on


def order(n: int, *, round_: int) -> list[int]:
    """The arms of a round's blocks: there and back. Over n rounds each arm has every place once; then the neighbours change."""
    cycle, shift = divmod(round_, n)
    there = np.roll(np.random.default_rng(cycle).permutation(n) if cycle else np.arange(n), -shift).tolist()
    return [*there, *reversed(there)]


def interleave(blocks: Sequence[Callable[[], float]], *, enough: Callable[[Times], bool]) -> Times:
    """Rounds of blocks until `enough` of the times so far; at least one round."""
    rounds: list[list[list[float]]] = []
    while not rounds or not enough(np.array(rounds)):
        rounds.append([[] for _ in blocks])
        for i in order(len(blocks), round_=len(rounds) - 1):
            rounds[-1][i].append(blocks[i]())
    return np.array(rounds)


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
    """The suite of this name: what its arms share, with the user's overrides; its arms, the baseline first, then each attention and MLP
    that there is, and the rest, one change an arm; its seconds."""
    plain = PLAIN[name].split()
    options = [f"{group}={path.stem}" for group in ("attention", "mlp") for path in sorted((conf_dir() / group).glob("*.yaml"))]
    arms = [" ".join(plain), *(option for option in options if option not in plain), *SAVERS, *LAST[name]]
    return [*BASE[name].split(), *plain, *overrides], arms, SECONDS[name]
