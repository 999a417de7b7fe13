"""The launcher options: where the cells of a grid run. Chosen by `hydra/launcher=…`, Hydra's own
group."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key, require
from nocap.config.option import Option
from nocap.config.trainer import Compile, Device, Precision

if TYPE_CHECKING:
    from nocap.launch.executor import Executor
    from nocap.launch.this_machine import ThisMachine


@dataclass(kw_only=True, slots=True)
class Target:
    """The machines that a cluster's jobs run on. A key that is null has the value of the machine
    where you type the command, or the default of the device. The target decides which runs the
    cells are, so a job that lands on another machine ends with exit code 2."""

    device: Device | None = None
    name: str | None = None  # of the GPU as the driver has it, or of the CPU
    precision: Precision | None = None
    compile: Compile | None = None
    threads: int | None = key(ge=1, le=65536, default=None)
    torch: str | None = None  # its version

    def __post_init__(self) -> None:
        is_here = self.name is None
        is_gpu = self.device is Device.cuda
        is_cpu = self.device is Device.cpu
        is_whole_cpu = is_cpu and None not in (self.precision, self.compile, self.threads)
        rule = "state the machine's device, and for a CPU also its precision, compile and threads"
        require(is_here or is_gpu or is_whole_cpu, "hydra.launcher.target", rule, self.name)


@dataclass(kw_only=True, slots=True)
class Launcher(Option):
    """Where cells run, and how many at once."""

    # a queue starts the cells, also once the command has ended
    has_queue: ClassVar[bool] = False

    def executor(self, folder: Path) -> Executor:
        """Return what runs the cells of the grid in this folder.

        Errors:
            ValueError: something that it needs is not there.
        """
        raise NotImplementedError(
            f"hydra.launcher.kind={self.kind} must define the method executor"
        )

    def devices(self) -> ThisMachine | None:
        """Return this machine's devices where cells run on these alone, as those of a search must;
        None: they do not."""
        return None

    def machines(self) -> Target | None:
        """Return the machines of a cluster that cells run on; None: they run on this one."""
        return None


@dataclass(kw_only=True, slots=True)
class OfCluster(Launcher):
    """A launcher of other machines."""

    # description of the machines that the jobs run on, as in target.device and target.name
    target: Target = field(default_factory=Target)

    def machines(self) -> Target:
        return self.target
