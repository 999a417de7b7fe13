"""What this machine can do at most, measured: a large matrix product in each precision and a large copy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from nocap.profiling.clock import least_ms
from nocap.schema import Device, Precision

PRODUCT = {Device.cpu: 2048, Device.cuda: 8192}  # rows and columns
COPY_BYTES = {Device.cpu: 2**28, Device.cuda: 2**31}  # far beyond any cache


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
    flops = {precision.value: 2 * n**3 / _product_ms(n, precision, device) * 1e3 for precision in Precision}
    source = torch.zeros(size // 4, device=device.value)
    target = torch.empty_like(source)
    copy_ms = least_ms(lambda: target.copy_(source), device)
    return Roof(flops=flops, bytes_per_s=2 * size / copy_ms * 1e3, product=n, copy_bytes=size)


def _product_ms(n: int, precision: Precision, device: Device) -> float:
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
    a, b = (torch.randn(n, n, device=device.value).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return least_ms(lambda: torch.mm(a, b, out=out), device)
