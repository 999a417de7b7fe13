"""The command that trains one run: by a process of its own for each device, or as one of torchrun's
ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from nocap.config.compose import Composed, composed
from nocap.config.keys import require
from nocap.launch import attempt
from nocap.launch.plan import Plan, plan, typed_keys
from nocap.launch.process import watch_parent


def single(overrides: Sequence[str], *, started: float) -> NoReturn:
    """Train one run, or take part in it as a rank of torchrun's; the process ends with its exit
    code. `started`: a `time.monotonic()`.

    Errors:
        ValueError: it cannot be trained.
    """
    if "RANK" in os.environ:
        _as_rank(overrides, started=started)
    one = composed(overrides)
    raise SystemExit(attempt.run_and_report(_planned(one, overrides), started=started))


def _as_rank(overrides: Sequence[str], *, started: float) -> NoReturn:
    """Take part in a run as a rank of torchrun's.

    Errors:
        ValueError: it cannot be trained.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    one = composed([f"trainer.devices={ranks}", *overrides])
    watch_parent(os.getppid())
    devices = one.run.trainer.devices
    require(
        devices == ranks,
        "trainer.devices",
        f"be {ranks}, the number of processes that torchrun starts",
        devices,
    )
    from nocap.launch.torchrun_rank import train_as_rank  # torch

    train_as_rank(_planned(one, overrides), started=started)


def _planned(one: Composed, overrides: Sequence[str]) -> Plan:
    """Return the plan of the run that these overrides make."""
    planned = plan(one.run, choices=one.choices)
    return replace(planned, swept=typed_keys(one.run, overrides))
