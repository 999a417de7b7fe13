"""Cells on this machine: one at a time, or side by side, each on devices of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from nocap.config import hardware
from nocap.config.keys import key
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.options.launcher import Launcher, Share, Slots


@dataclass(kw_only=True)
class Pool(Launcher):
    """`hydra/launcher=pool`: a cell for each `trainer.devices` GPUs, or `trainer.threads` × `trainer.devices` CPU cores"""

    kind: str = "pool"
    jobs: int | None = key(ge=1, le=4096, default=None)  # cells at once, at most; null: as many as the devices hold

    def slots(self) -> Slots:
        return Devices(jobs=self.jobs)


def _units() -> dict[Device, list[str]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    gpus = len(hardware.cuda_devices())
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {Device.cpu: [str(core) for core in cores], Device.cuda: names[:gpus] if names[0] else [str(gpu) for gpu in range(gpus)]}


@dataclass(kw_only=True, slots=True)
class Devices:
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
        """How many runs like this one there is room for."""
        fit = len(self.units[run.trainer.device]) // self._need(run)
        return min(fit, self.jobs or fit)

    def describe(self, runs: Sequence[Run]) -> str | None:
        run = min(runs, key=self.at_once)
        t, n = run.trainer, len(self.units[run.trainer.device])
        kind = "GPU" if t.device is Device.cuda else "core"
        text = f"pool: {self.at_once(run)} at once, {self._need(run)} of {n} {kind}s each"
        if t.device is Device.cpu and t.threads > 1 and self.at_once(run) == 1 and self.jobs != 1:
            text += f" (trainer.threads={t.threads}; trainer.threads=1 makes room for {n // t.devices or 1})"
        return text


class One(Devices):
    """The whole machine for one cell."""

    def __init__(self) -> None:
        super().__init__(jobs=1, units={device: [] for device in Device})

    def describe(self, runs: Sequence[Run]) -> None:
        return None
