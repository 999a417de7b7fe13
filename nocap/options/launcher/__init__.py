"""The launcher options: where the cells of a grid run. Chosen by `hydra/launcher=…`, Hydra's own group."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nocap.config.keys import key, require
from nocap.config.option import Option
from nocap.config.trainer import Compile, Device, Precision

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class Target:
    """The machines that a cluster's jobs run on. What is null is as on the machine where the command is given, or by the device's default.
    It decides which runs the cells are, so a job that lands on another machine ends with exit code 2."""

    device: Device | None = None
    name: str | None = None  # of the GPU as the driver has it, or of the CPU
    precision: Precision | None = None
    compile: Compile | None = None
    threads: int | None = key(ge=1, le=65536, default=None)
    torch: str | None = None  # its version

    def __post_init__(self) -> None:
        words = (self.precision, self.compile, self.threads)
        ok = self.name is None or self.device is Device.cuda or (self.device is Device.cpu and None not in words)
        require(ok, "hydra.launcher.target", "state the device of another machine, of a CPU precision, compile and threads too", self.name)


@dataclass(kw_only=True)
class Launcher(Option):
    """How many cells may run at once, and on what."""

    def slots(self) -> Slots | None:
        """Where a grid may run its cells on this machine. None: they are jobs of `cluster`.

        Errors:
            ValueError: something that it needs is not installed.
        """
        return None

    def cluster(self, folder: Path) -> Cluster:
        """The machines that run the cells as jobs, whose logs go into the folder.

        Errors:
            ValueError: they are not there.
        """
        raise NotImplementedError(f"hydra.launcher.kind={self.kind} must define slots or cluster")


@dataclass(kw_only=True)
class OfCluster(Launcher):
    """A launcher of other machines."""

    target: Target = field(default_factory=Target)  # the machines that the jobs run on, as target.device, target.name


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


# --- other machines, which share the folders with this one ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A cell for another machine."""

    key: str  # the cell's
    run: Run
    train: Callable[[], int]  # what does it there, by its own name; its exit code
    words: tuple[str, ...]  # the same after `python`
    env: Mapping[str, str]  # beside the other machine's own
    log: Path  # what it prints


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Of a job."""

    reason: str | None = None  # what was wrong, where something was
    lost: bool = False  # its machine went away, and another one may go on with it


def last_words(printed: str | None) -> str | None:
    """The last line in which a job says what is wrong."""
    lines = re.findall(r"^nocap: (.*)", printed or "", re.MULTILINE)
    return str(lines[-1]) if lines else None


class Handle(Protocol):
    """A job that was handed over."""

    def poll(self) -> End | None:
        """None: it has not ended."""

    def stop(self) -> None:
        """Ask it to save and end, or leave it to itself; it ends for this process either way."""


class Cluster(Protocol):
    restarts: int  # of a job that was lost

    def describe(self, runs: Sequence[Run]) -> str:
        """A line for the user about these runs, printed before the first of them."""

    def submit(self, job: Job) -> Handle:
        """Hand a job over; it starts when there is room."""

    def close(self) -> Any:
        """Leave the cluster."""
