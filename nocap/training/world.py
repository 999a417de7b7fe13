"""The ranks of a run: who this process is, and what they agree on."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nocap.config.trainer import Device

# how long a rank waits for the others where nocap's own parent decides which of them hangs
WATCHED = timedelta(days=365)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Say which of a run's ranks this process is, and let it agree with the others."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Say whether this is rank 0, which alone writes."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, element by element and in place, and return it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def all(self, holds: bool) -> bool:
        """Say whether it is true on every rank."""
        n_true = self.sum(torch.tensor(int(holds), device=self.device))
        return int(n_true) == self.size

    def from_main(self, value: Any) -> Any:
        """Return rank 0's value on every rank: plain JSON, because what comes over a socket must
        never be unpickled."""
        if self.size == 1:
            return value
        text = bytearray(json.dumps(value).encode())
        content = torch.tensor(text, dtype=torch.uint8, device=self.device)
        length = torch.tensor(len(content), device=self.device)
        dist.broadcast(length, src=0)
        if not self.is_main:
            content = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(content, src=0)
        return json.loads(bytes(content.tolist()))

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read now counts what was launched before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def world_of_environment(device: Device) -> World:
    """Return this process's place among the ranks that the environment describes, as torchrun's
    does; alone without one."""
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    if "RANK" not in os.environ:
        size = 1
    torch_device = torch.device("cpu")
    if device is Device.cuda:
        torch_device = torch.device("cuda", local)
    return World(rank=rank, size=size, device=torch_device)


def join(device: Device, *, timeout_s: float = 600, store_path: str | None = None) -> World:
    """Return this process's place, connected with the other ranks. Safe to call twice.

    `store_path` is the file in which they find each other. Without it torchrun has started them,
    and they wait for each other for `timeout_s`.

    Nothing destroys the process group: gloo's teardown aborts the process now and then. `leave`
    ends it once the record is written.
    """
    world = world_of_environment(device)
    if device is Device.cuda:
        torch.cuda.set_device(world.device)
    if world.size == 1 or dist.is_initialized():
        return world
    backend = "nccl" if device is Device.cuda else "gloo"
    if store_path is None:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        return world
    # torch exports it without saying so
    store = dist.FileStore(store_path, world.size)  # type: ignore[attr-defined]
    dist.init_process_group(
        backend, timeout=WATCHED, store=store, rank=world.rank, world_size=world.size
    )
    if backend == "gloo":
        close_listeners()
    return world


def close_listeners() -> None:
    """Close the sockets on which this process waits for connections: gloo's ask nobody who he is,
    and all ranks are connected."""
    with open(os.devnull) as null:
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:  # it is no socket
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    # the number stays taken: gloo believes that it has it
                    os.dup2(null.fileno(), fd)
