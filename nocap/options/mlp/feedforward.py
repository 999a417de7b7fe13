"""Feed-forward with one activation, plain or gated: `gelu4x`, `gelu3x`, `relu2` and `swiglu` are
its yamls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.mlp import Mlp

if TYPE_CHECKING:
    from torch import nn


class Activation(Enum):
    gelu = "gelu"  # exact, not the tanh approximation
    relu2 = "relu2"
    swiglu = "swiglu"


@dataclass(kw_only=True, slots=True)
class Feedforward(Mlp):
    """`expansion` sets the parameters: hidden = expansion·d, and for the three matrices of SwiGLU
    ⅔·expansion·d."""

    kind: str = "mlp"
    activation: Activation  # function between the two matrices
    expansion: float = key(gt=0, le=1000)  # width inside the MLP, as a multiple of model.d_model

    @property
    def gated(self) -> bool:
        return self.activation is Activation.swiglu

    def hidden(self, d_model: int) -> int:
        """Hidden channels; from a thousand up a multiple of 8, for tensor cores."""
        share = 1.0  # a gated MLP has three matrices for two
        if self.gated:
            share = 2 / 3
        exact = self.expansion * d_model * share
        if exact >= 1000:
            return 8 * round(exact / 8)
        return max(1, round(exact))

    def build(self, d_model: int) -> nn.Module:
        from nocap.model.mlp import PlainMlp, SwiGLU

        hidden = self.hidden(d_model)
        if self.gated:
            return SwiGLU(d_model=d_model, hidden=hidden)
        squared_relu = self.activation is Activation.relu2
        return PlainMlp(d_model=d_model, hidden=hidden, squared_relu=squared_relu)

    def rows(self) -> dict[str, str]:
        return {"": "activation", "gate": "mlp_up", "up": "mlp_up", "down": "mlp_down"}

    def flops_per_token(self, d_model: int) -> float:
        matrices = 3 if self.gated else 2
        return 6.0 * matrices * d_model * self.hidden(d_model)
