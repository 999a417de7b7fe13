"""The launcher options: where the cells of a grid run on this machine. Chosen by `hydra/launcher=…`, Hydra's own group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nocap.config.option import Option
from nocap.config.trainer import Device

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True)
class Launcher(Option):
    """How many cells may run at once, and on what."""

    def slots(self) -> Slots:
        """Where a grid may run its cells."""
        raise NotImplementedError(f"hydra.launcher.kind={self.kind} must define slots")


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a cell has to itself while it runs."""

    device: Device
    units: tuple[str, ...] = ()  # GPUs as CUDA_VISIBLE_DEVICES names them, or numbers of CPU cores

    @property
    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.units)} if self.device is Device.cuda and self.units else {}

    def pin(self, pid: int) -> None:
        """Keep a process that has just been started, and what it will start, on the share's cores."""
        if self.device is Device.cpu and self.units and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(pid, {int(core) for core in self.units})


class Slots(Protocol):
    def take(self, run: Run) -> Share | None:
        """A share for this run. None while there is none."""

    def give_back(self, share: Share) -> None: ...

    def describe(self, runs: Sequence[Run]) -> str | None:
        """A line for the user about these runs, printed before the first of them."""


@dataclass(kw_only=True, slots=True)
class One:
    """The whole machine for one cell."""

    busy: bool = False

    def take(self, run: Run) -> Share | None:
        if self.busy:
            return None
        self.busy = True
        return Share(device=run.trainer.device)

    def give_back(self, share: Share) -> None:
        self.busy = False

    def describe(self, runs: Sequence[Run]) -> str | None:
        return None
