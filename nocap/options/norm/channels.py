"""RMSNorm and LayerNorm: `rmsnorm`, `rmsnorm_gain` and `layernorm` are the yamls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.norm import Norm

if TYPE_CHECKING:
    from torch import nn


class NormKind(Enum):
    rms = "rms"
    layer = "layer"


@dataclass(kw_only=True, slots=True)
class ChannelNorm(Norm):
    kind: str = "norm"
    norm: NormKind  # which norm
    eps: float = key(gt=0, le=1)  # number that is added under the root
    gain: bool  # learn a scale for each channel
    bias: bool  # learn a shift for each channel; only for LayerNorm

    def __post_init__(self) -> None:
        is_layer_norm = self.norm is NormKind.layer
        rule = "be false for RMSNorm, which has no shift"
        require(is_layer_norm or not self.bias, "norm.bias", rule, self.bias)
        rule = "be false if norm.gain is false"
        require(self.gain or not self.bias, "norm.bias", rule, self.bias)

    def flops_per_token(self, d_model: int) -> float:
        return 0.0

    def build(self, d_model: int) -> nn.Module:
        from torch import nn

        from nocap.model.norm import RMSNorm

        if self.norm is NormKind.rms:
            return RMSNorm(d_model=d_model, eps=self.eps, gain=self.gain)
        return nn.LayerNorm(d_model, eps=self.eps, elementwise_affine=self.gain, bias=self.bias)
