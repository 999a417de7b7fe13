"""The launcher options: where the cells of a grid run. Chosen by `hydra/launcher=…`, Hydra's own group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nocap.config.option import Option
from nocap.config.trainer import Device

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True)
class Launcher(Option):
    """How many cells may run at once, and on what."""

    def slots(self) -> Slots | None:
        """Where a grid may run its cells on this machine. None: other machines run them, as jobs of `cluster`.

        Errors:
            ValueError: something that it needs is not installed.
        """
        raise NotImplementedError(f"hydra.launcher.kind={self.kind} must define slots")

    def cluster(self) -> Cluster:
        """The machines that run the cells.

        Errors:
            ValueError: they are not there.
        """
        raise NotImplementedError(f"hydra.launcher.kind={self.kind} must define cluster")


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


# --- other machines ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A cell as a command for another machine, which shares the folders with this one."""

    key: str  # the cell's
    run: Run  # as this machine planned it
    undecided: tuple[str, ...]  # the keys of its trainer that the other machine decides
    words: tuple[str, ...]  # after `python`
    env: Mapping[str, str]  # beside the other machine's own
    folder: Path  # where it starts
    log: Path  # what it prints


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """A job that has ended."""

    key: str
    reason: str | None = None  # why, where the job did not end by itself
    lost: bool = False  # its machine went away, and another one may go on with it


class Cluster(Protocol):
    restarts: int  # of a job that was lost

    def describe(self, jobs: Sequence[Job]) -> str:
        """Lines for the user about these jobs, printed before the first of them.

        Errors:
            ValueError: one of them cannot be run.
        """

    def start(self, job: Job) -> None:
        """Hand a job over; it starts when there is room."""

    def ended(self) -> Sequence[End]:
        """The jobs that have ended since. Waits for one a moment, at most a second."""

    def stop(self) -> None:
        """Ask the jobs that run to save and end, and start no more. Each of them ends still."""

    def close(self) -> None:
        """Leave the cluster."""
