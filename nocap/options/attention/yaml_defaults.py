"""No option, but what the yamls of attention ask for: heads, kernels and a pattern of layers that
follow from the model's shape and the device."""

from __future__ import annotations

from nocap.config.trainer import Device
from nocap.options.attention.kernel import Kernel


def gqa_heads(n_head: int) -> int:
    """Return the key/value heads for groups of 3, 2 or 5 query heads: the first that divides."""
    for group in (3, 2, 5):
        if n_head % group == 0:
            return n_head // group
    raise ValueError(
        "attention=gqa needs model.n_head divisible by 3, 2 or 5, or an explicit "
        f"attention.n_kv_heads, got model.n_head={n_head}"
    )


def pattern(n_layer: int) -> str:
    """Return local layers before a global one: both kinds, also of fewer than four layers."""
    return "L" * min(3, n_layer - 1) + "G"


def local_kernel(device: Device) -> Kernel:
    """Return the kernel of layers with a window."""
    if device is Device.cpu:
        return Kernel.blocks
    return Kernel.flex


def fused_kernel(device: Device, document_mask: bool) -> Kernel:
    """Return the kernel of layers that see all earlier tokens."""
    if device is Device.cuda and document_mask:
        return Kernel.flex
    return Kernel.fused
