"""What this machine can do at most, measured: a large matrix product in each precision, a large copy, and how such figures are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nocap.config.trainer import Device, Precision

PRODUCT = {Device.cpu: 2048, Device.cuda: 8192}  # rows and columns
COPY_BYTES = {Device.cpu: 2**28, Device.cuda: 2**31}  # far beyond any cache
LEAST_S = 0.2  # of work behind a figure
REPEATS = 3  # figures, of which the least counts: others can only take time away


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    flops: dict[str, float]  # FLOP/s by precision
    bytes_per_s: float  # read and written
    product: int
    copy_bytes: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def measure_roof(device: Device) -> Roof:
    """FLOP/s and bytes/s of the device with the threads that torch has now, by the clock that the parts are measured with."""
    n, size = PRODUCT[device], COPY_BYTES[device]
    flops = {precision.value: matmul_flops(device, precision) for precision in Precision}
    source = torch.zeros(size // 4, device=device.value)
    target = torch.empty_like(source)
    copy_ms = least_ms(lambda: target.copy_(source), device)
    return Roof(flops=flops, bytes_per_s=2 * size / copy_ms * 1e3, product=n, copy_bytes=size)


def matmul_flops(device: Device, precision: Precision) -> float:
    """FLOP/s of a large square matrix product, the least of several times: the honest denominator of MFU beside the data sheet's."""
    n, dtype = PRODUCT[device], torch.bfloat16 if precision is Precision.bf16 else torch.float32
    a, b = (torch.randn(n, n, device=device.value).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / least_ms(lambda: torch.mm(a, b, out=out), device) * 1e3


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
