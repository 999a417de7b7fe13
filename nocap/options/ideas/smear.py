"""Smear: each token's embedding gets a gated share of the token's before it (modded-nanogpt).

x_t ← x_t + λ·σ(w·x_t)·x_{t-1}, w over the first channels. λ and w are learned; w starts at 0. At λ
= 0 the model is the one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.ideas import WithRate, learned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context


@dataclass(kw_only=True, slots=True)
class Smear(WithRate):
    kind: str = "smear"
    # number of channels that decide how much of the token before is added
    channels: int = key(ge=1, le=2**20)
    start: float = key(ge=-1e3, le=1e3)  # factor on that share at the start of training

    def check(self, run: Run) -> None:
        WithRate.check(self, run)
        rule = f"be at most model.d_model={run.model.d_model}"
        require(self.channels <= run.model.d_model, "ideas.smear.channels", rule, self.channels)

    def flops_per_token(self, run: Run, *, vocab_size: int) -> float:
        return 0.0

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        return learned(gate=[0.0] * self.channels, share=self.start)

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        from torch.nn.functional import pad

        gated_BTG = x_BTC[..., : self.channels] * part["gate"]
        gate_BT1 = gated_BTG.sum(2, keepdim=True).sigmoid()
        before_BTC = pad(x_BTC, (0, 0, 1, 0))[:, :-1]
        return x_BTC + part["share"] * gate_BT1 * before_BTC
