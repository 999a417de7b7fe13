"""What this machine's matrix unit does at its best, measured: the honest denominator of MFU beside the data sheet's."""

from __future__ import annotations

import torch

from nocap.schema import Device, Precision
from nocap.speed.clock import Clock

SIDE = {Device.cpu: 1024, Device.cuda: 8192}


def matmul_flops(device: Device, precision: Precision, clock: Clock, *, repeats: int = 5) -> float:
    """FLOP/s of a square matrix product in this precision, on the threads that are set: the best of `repeats`."""
    n = SIDE[device]
    a, b = (
        torch.randn(n, n, device=device.value, dtype=getattr(torch, {"fp32": "float32", "bf16": "bfloat16"}[precision.value])) for _ in "ab"
    )
    a @ b  # the first call chooses the kernel
    return 2 * n**3 / min(clock.seconds(lambda: a @ b) for _ in range(repeats))
