"""Time: one clock for all that is compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from functools import partial

from nocap.config.trainer import Device

LEAST_S = 0.2  # of work behind a figure of `least_ms`
REPEATS = 3  # figures, of which the least counts: other processes can only add time


class Clock(Enum):
    """How work is timed."""

    cuda = "CUDA events"
    cpu = "process CPU time, one thread"  # what other processes take of the core does not count
    wall = "wall clock"  # CPU time would count threads that wait for each other

    @classmethod
    def of(cls, device: Device, threads: int) -> Clock:
        if device is Device.cuda:
            return cls.cuda
        return cls.cpu if threads == 1 else cls.wall

    def seconds(self, work: Callable[[], object]) -> float:
        """How long `work` takes. On CUDA: between two events in the stream, with one wait at the end."""
        if self is Clock.cuda:
            import torch

            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
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
        """Milliseconds of a call: the least of REPEATS figures, each over enough calls, after one call that is not counted."""
        work()
        calls, done, best = 1, 0, math.inf
        while done < REPEATS:
            spent = self.seconds(partial(repeat, work, calls))
            if spent < LEAST_S and calls < 4096:
                calls *= 2
                continue
            best, done = min(best, spent / calls), done + 1
        return best * 1e3


def repeat(work: Callable[[], object], n: int) -> None:
    for _ in range(n):
        work()
