"""What counts as time: one clock for all arms of a bench, and a name for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import Enum

from nocap.config.run import Run
from nocap.config.trainer import Device


class Clock(Enum):
    """How a block is timed."""

    cuda = "CUDA events"
    cpu = "process CPU time, one thread"  # the share of a core that others take is not in it
    wall = "wall clock"  # CPU time would count threads that wait for each other

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


def clock_of(runs: Iterable[Run]) -> Clock:
    """The clock that can time all of them."""
    trainers = [run.trainer for run in runs]
    if any(t.device is Device.cuda for t in trainers):
        return Clock.cuda
    return Clock.cpu if all(t.threads == 1 for t in trainers) else Clock.wall
