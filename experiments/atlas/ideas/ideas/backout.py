"""Backout: a learned multiple of a middle layer's stream is subtracted before the head: x ← x -
λ·x_middle (modded-nanogpt).

What the first layers left in the stream for those after them need not reach the head. At λ = 0 the
model is the one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.ideas import WithRate, learned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context


@dataclass(kw_only=True, slots=True)
class Backout(WithRate):
    PER_TOKEN = True
    LEAST_LAYERS = 2
    kind: str = "backout"
    # whose output is subtracted, from 0 on; null: the last of the first half
    layer: int | None = key(ge=0, le=4096)
    start: float = key(ge=-1e3, le=1e3)  # the multiple at the start

    def check(self, run: Run) -> None:
        WithRate.check(self, run)
        last = run.model.n_layer - 1
        require(
            (self.layer or 0) < last,
            "ideas.backout.layer",
            f"be below the last, {last}",
            self.layer,
        )

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        return learned(share=self.start)

    def build_layer(self, run: Run, layer: int) -> nn.Module | None:
        from torch import nn

        middle = (run.model.n_layer - 1) // 2 if self.layer is None else self.layer
        return nn.Module() if layer == middle else None

    def leave(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        context.memory[self.kind] = x_BTC
        return x_BTC

    def readout(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC - part["share"] * context.memory[self.kind]
