"""The clock of measured work: one kind for all that is compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from functools import partial

import torch

from nocap.config.trainer import Device

# of work behind a figure of `least_ms`; figures, of which the least counts: others can only add
# time
LEAST_S = 0.2
REPEATS = 3


class Clock(Enum):
    """How work is timed."""

    cuda = "CUDA events"
    cpu = "process CPU time, one thread"  # what other processes take of the core does not count
    wall = "wall clock"  # CPU time would count threads that wait for each other

    @classmethod
    def of(cls, device: Device, threads: int) -> Clock:
        if device is Device.cuda:
            return cls.cuda
        if threads == 1:
            return cls.cpu
        return cls.wall

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long `work` takes. On CUDA: between two events in the stream, with one wait at
        the end."""
        if self is Clock.cuda:
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        read = time.process_time if self is Clock.cpu else time.perf_counter
        began = read()
        work()
        return read() - began

    def least_ms(self, work: Callable[[], object]) -> float:
        """Return the milliseconds of a call: the least of REPEATS figures, each over enough calls,
        after one call that is not counted."""
        work()
        calls = 1
        while self.seconds(partial(repeat, work, calls)) < LEAST_S and calls < 4096:
            calls *= 2
        many = partial(repeat, work, calls)
        seconds = [self.seconds(many) for _ in range(REPEATS)]
        return min(seconds) / calls * 1e3


def repeat(work: Callable[[], object], n: int) -> None:
    for _ in range(n):
        work()
