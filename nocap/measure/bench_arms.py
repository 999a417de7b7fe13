"""The arms of a bench as they are typed: overrides on top of common ones, each composed and checked
as `nocap.train` does. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from nocap.config.arm_defaults import as_baseline, as_in
from nocap.config.compose import Composed, composed
from nocap.config.keys import require
from nocap.config.override_keys import key_of
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.plan import check_compiler

WORDS = ("tracker=none",)  # of each arm, first


def compose_arms(base: Sequence[str], arms: Sequence[str]) -> dict[str, Run]:
    """Label → run of each of `arms` (overrides as typed in a shell) on top of `base`; the first is
    the baseline, whose precision, compilation, micro-batch and CUDA graphs are all arms' where
    nobody chooses them. As in `compose_measured`.

    Errors:
        ValueError: a wrong override, or two arms with the same training step.
    """
    others = [_words(base, overrides) for overrides in arms[1:]]
    baseline, _ = as_baseline(compose_arm(base, arms[0]), others, compose_measured)
    runs = [baseline.run]
    for overrides in arms[1:]:
        runs.append(compose_arm(base, overrides, baseline).run)
    labels = [overrides.strip() or "(no change)" for overrides in arms]
    labelled = list(zip(labels, runs, strict=True))
    for (first, run), (label, other) in combinations(labelled, 2):
        if step_config(run) == step_config(other):
            raise ValueError(
                f"--arm {label!r} must change the training step, got the same step as --arm "
                f"{first!r}"
            )
    return dict(labelled)


def _words(base: Sequence[str], overrides: str) -> list[str]:
    """Return an arm's overrides, one by one.

    Errors:
        ValueError: a quotation that does not end.
    """
    try:
        return [*WORDS, *base, *shlex.split(overrides)]
    except ValueError as error:
        raise ValueError(f"--arm {overrides.strip()!r}: {error}") from error


def compose_arm(base: Sequence[str], overrides: str, baseline: Composed | None = None) -> Composed:
    """Return one arm.

    Errors:
        ValueError: a wrong override, or more than one device.
    """
    words = _words(base, overrides)
    try:
        arm = compose_measured(words, baseline)
        devices = arm.run.trainer.devices
        rule = "be 1, because a bench times one device"
        require(devices == 1, "trainer.devices", rule, devices)
        check_compiler(arm.run)
    except ValueError as error:
        raise ValueError(f"--arm {overrides.strip()!r}: {error}") from error
    return arm


def compose_measured(overrides: Sequence[str], baseline: Composed | None = None) -> Composed:
    """Return a run whose step is measured: with one thread, whose process time is a fair clock on a
    machine that others use, and on a CPU not compiled, which pays in no measurement; unless the
    overrides choose otherwise or give a length, `trainer.steps`, whose default then is measured.
    Beside a `baseline`: `as_in` it.

    Errors:
        ValueError: as for `compose`.
    """
    words = ("trainer.threads=1", *overrides)
    arm = as_in(baseline, words)
    on_cpu = arm.run.trainer.device is Device.cpu
    if baseline is not None or not on_cpu or "compile" not in arm.defaults:
        return arm
    if "trainer.steps" in map(key_of, overrides):
        return arm
    return composed([*words, "trainer.compile=off"])


def step_config(run: Run) -> dict[str, Any]:
    """Return the part of the config that a training step executes, as plain JSON types."""
    return run.that_count("step", to_plain(run))
