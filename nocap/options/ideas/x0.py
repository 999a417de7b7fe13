"""x0 and residual λ: each block's input is λ₁·x + λ₂·x0, x0 being the stream before the first block
(modded-nanogpt, nanochat).

Two learned numbers a layer. At (1, 0) the model is the one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import WithRate, learned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context


@dataclass(kw_only=True, slots=True)
class X0(WithRate):
    PER_TOKEN = True
    kind: str = "x0"
    residual: float = key(ge=-1e3, le=1e3)  # factor λ₁ of the residual at the start
    x0: float = key(ge=-1e3, le=1e3)  # factor λ₂ of x0 at the start

    def flops_per_token(self, run: Run, *, vocab_size: int) -> float:
        return 0.0

    def build_layer(self, run: Run, layer: int) -> nn.Module:
        return learned(lambdas=[self.residual, self.x0])

    def enter(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        residual, x0 = part["lambdas"].unbind()
        return residual * x_BTC + x0 * context.x0_BTC
