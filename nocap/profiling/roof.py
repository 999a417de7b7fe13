"""What this machine can do at most, measured: a large matrix product in each precision and a large copy."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nocap.schema import Device, Precision

PRODUCT = {Device.cpu: 2048, Device.cuda: 8192}  # rows and columns
COPY_BYTES = {Device.cpu: 2**28, Device.cuda: 2**31}  # far beyond any cache
REPEATS = 5  # the best counts: others can only take time away


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    flops: dict[str, float]  # FLOP/s by precision
    bytes_per_s: float  # read and written
    product: int
    copy_bytes: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def measure_roof(device: Device) -> Roof:
    """FLOP/s and bytes/s of the device with the threads that torch has now."""
    n, size = PRODUCT[device], COPY_BYTES[device]
    flops = {precision.value: 2 * n**3 / _product_s(n, precision, device) for precision in Precision}
    source = torch.zeros(size // 4, device=device.value)
    target = torch.empty_like(source)
    return Roof(flops=flops, bytes_per_s=2 * size / _best_s(lambda: target.copy_(source), device), product=n, copy_bytes=size)


def _product_s(n: int, precision: Precision, device: Device) -> float:
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
    a, b = (torch.randn(n, n, device=device.value).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return _best_s(lambda: torch.mm(a, b, out=out), device)


def _best_s(work: Any, device: Device) -> float:
    """Seconds of the fastest of some calls, after one that is not counted."""
    best = float("inf")
    for _ in range(REPEATS + 1):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - began) if _ else best
    return best


def wait(device: Device) -> None:
    if device is Device.cuda:
        torch.cuda.synchronize()
