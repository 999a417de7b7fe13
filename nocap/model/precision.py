"""The precision in which products of matrices run."""

from __future__ import annotations

import torch
from torch import Tensor

from nocap.config.trainer import Precision


def product_precision(x: Tensor) -> Precision:
    """Return the precision a product of x runs in: autocast's where it is on, else the tensor's
    own."""
    if torch.is_autocast_enabled(x.device.type) or x.dtype is torch.bfloat16:
        return Precision.bf16
    return Precision.fp32
