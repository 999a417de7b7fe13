"""The peaks of this machine: what it can compute and copy in a second, as measured here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nocap.config.trainer import Device, Precision
from nocap.measure.clock import Clock
from nocap.measure.profile_schema import Peak

PRODUCT = {Device.cpu: 2048, Device.cuda: 8192}  # rows and columns
COPY_BYTES = {Device.cpu: 2**28, Device.cuda: 2**31}  # far beyond any cache


def measure_peak(device: Device) -> Peak:
    """Measure the FLOP/s and bytes/s of the device, with the threads that torch has now."""
    flops = {precision.value: matmul_flops(device, precision) for precision in Precision}
    n = COPY_BYTES[device]
    source = torch.zeros(n // 4, device=device.value)
    target = torch.zeros(n // 4, device=device.value)
    clock = Clock.of(device, torch.get_num_threads())
    copy_ms = clock.least_ms(lambda: target.copy_(source))
    return Peak(flops=flops, bytes_per_s=2 * n / copy_ms * 1e3)


def matmul_flops(device: Device, precision: Precision) -> float:
    """Measure the FLOP/s of a large square matrix product, the best of several: the denominator of
    MFU. The product is smaller where a large one takes more than a second, as in bf16 on a CPU
    without instructions for it."""
    clock = Clock.of(device, torch.get_num_threads())
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32

    def product(n: int) -> Callable[[], object]:
        a = torch.randn(n, n, device=device.value).to(dtype)
        b = torch.randn(n, n, device=device.value).to(dtype)
        out = a @ b
        return lambda: torch.mm(a, b, out=out)

    n = 256
    while n < PRODUCT[device] and 8 * clock.seconds(product(n)) < 1:
        n *= 2
    return 2 * n**3 / clock.least_ms(product(n)) * 1e3
