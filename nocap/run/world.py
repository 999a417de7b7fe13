"""The ranks of a run: who this process is, what they agree on, and that none outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from nocap.schema import Device

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def from_main(self, value: T) -> T:
        """Rank 0's value on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read now counts what was launched before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def join(device: Device, *, timeout_s: float = 600) -> World:
    """This process's place among the ranks that torchrun's environment describes; alone without one. Safe to call twice.

    Nothing destroys the process group: gloo's teardown aborts the process now and then. `leave` ends it once the record is written.
    """
    size, rank, local = (int(os.environ.get(key, default)) for key, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    torch_device = torch.device("cuda", local) if device is Device.cuda else torch.device("cpu")
    if device is Device.cuda:
        torch.cuda.set_device(torch_device)
    if size > 1 and not dist.is_initialized():
        backend = "nccl" if device is Device.cuda else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    return World(rank=rank, size=size, device=torch_device)


def leave(code: int) -> NoReturn:
    """End this process now, after its output is out: interpreter teardown has nothing to add but gloo's aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent dies, also when the parent had no time to say so."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    else:
        watch_parent(parent)


def watch_parent(parent: int) -> None:
    """End this process soon after its parent; for a parent that may have started it from a thread, whose end would count as death above."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
