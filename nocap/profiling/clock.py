"""Timing of something that can be repeated: the least of some figures, each over enough calls to be measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from nocap.schema import Device

LEAST_S = 0.2  # of work behind a figure
REPEATS = 3  # figures, of which the least counts: others can only take time away


def wait(device: Device) -> None:
    """Until the device has done what was launched."""
    if device is Device.cuda:
        torch.cuda.synchronize()


def least_ms(work: Callable[[], object], device: Device, *, repeats: int = REPEATS) -> float:
    """Milliseconds of a call, after one that is not counted: process CPU time on one CPU thread, else wall time."""
    clock = time.process_time if device is Device.cpu and torch.get_num_threads() == 1 else time.perf_counter
    work()
    wait(device)
    calls, done, best = 1, 0, math.inf
    while done < repeats:
        began = clock()
        for _ in range(calls):
            work()
        wait(device)
        spent = clock() - began
        if spent < LEAST_S and calls < 4096:
            calls *= 2
            continue
        best, done = min(best, spent / calls), done + 1
    return best * 1e3
