"""Logit rescale: the logits times one number, before a soft-cap: how sure the model is, apart from
its directions (modded-nanogpt).

It stands before the head's matrix, so the loss in chunks has it, too. At 1 the model is the one
without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import WithRate, learned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class LogitRescale(WithRate):
    PER_TOKEN = True
    kind: str = "logit_rescale"
    factor: float = key(
        gt=0, le=1e6
    )  # by which logits are multiplied, at the start where it is learned
    learned: bool  # whether the factor is learned

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        return learned(factor=self.factor) if self.learned else learned()

    def unembed(self, part: Any, x_BTC: Tensor) -> Tensor:
        return (part["factor"] if self.learned else self.factor) * x_BTC
