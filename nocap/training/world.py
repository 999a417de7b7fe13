"""The ranks of a run: who this process is, and what they agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from nocap.config.trainer import Device

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
