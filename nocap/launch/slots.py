"""Where the cells of a grid run on this machine: one at a time, or each on devices of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nocap import hardware
from nocap.schema import Device, Run


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
        """A share for this run; `None` while there is none."""

    def give_back(self, share: Share) -> None: ...

    def at_once(self, run: Run) -> int:
        """How many runs like this one there is room for."""

    def say(self, runs: Sequence[Run]) -> str | None:
        """What a user should know about them."""


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

    def at_once(self, run: Run) -> int:
        return 1

    def say(self, runs: Sequence[Run]) -> str | None:
        return None


def _units() -> dict[Device, list[str]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    gpus = len(hardware.cuda_devices())
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {Device.cpu: [str(core) for core in cores], Device.cuda: names[:gpus] if names[0] else [str(gpu) for gpu in range(gpus)]}


@dataclass(kw_only=True, slots=True)
class Pool:
    """`trainer.devices` GPUs a cell, or `trainer.threads` × `trainer.devices` CPU cores; at most `jobs` cells."""

    jobs: int | None
    units: dict[Device, list[str]] = field(default_factory=_units)
    free: dict[Device, list[str]] = field(init=False)
    running: int = 0

    def __post_init__(self) -> None:
        self.free = {device: list(units) for device, units in self.units.items()}

    def _need(self, run: Run) -> int:
        t = run.trainer
        wanted = t.devices if t.device is Device.cuda else t.devices * t.threads
        return min(wanted, len(self.units[t.device]))  # more threads than cores: all cores

    def take(self, run: Run) -> Share | None:
        free, need = self.free[run.trainer.device], self._need(run)
        if self.running == self.jobs or len(free) < need:
            return None
        self.running += 1
        share = Share(device=run.trainer.device, units=tuple(free[:need]))
        del free[:need]
        return share

    def give_back(self, share: Share) -> None:
        self.running -= 1
        self.free[share.device] += share.units

    def at_once(self, run: Run) -> int:
        fit = len(self.units[run.trainer.device]) // self._need(run)
        return min(fit, self.jobs or fit)

    def say(self, runs: Sequence[Run]) -> str | None:
        run = min(runs, key=self.at_once)
        t, n = run.trainer, len(self.units[run.trainer.device])
        kind = "GPU" if t.device is Device.cuda else "core"
        text = f"pool: {self.at_once(run)} at once, {self._need(run)} of {n} {kind}s each"
        if t.device is Device.cpu and t.threads > 1 and self.at_once(run) == 1 and self.jobs != 1:
            text += f" (trainer.threads={t.threads}; trainer.threads=1 makes room for {n // t.devices or 1})"
        return text
