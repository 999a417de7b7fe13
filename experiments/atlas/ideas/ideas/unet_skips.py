"""U-net skips: the layers of the first half feed those of the second, the last of them first
(arXiv:1505.04597; modded-nanogpt).

Of n layers, layer i > n/2 gets x + λ·(the output of layer n - 1 - i). A learned λ a skip. At 0 the
model is the one without. The layers differ, so each is compiled once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import WithRate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context


@dataclass(kw_only=True, slots=True)
class UnetSkips(WithRate):
    PER_TOKEN = True
    LEAST_LAYERS = 2
    kind: str = "unet_skips"
    start: float = key(ge=-1e3, le=1e3)  # the skips' weight at the start

    def build_layer(self, run: Run, layer: int) -> nn.Module | None:
        import torch
        from torch import nn

        other = run.model.n_layer - 1 - layer
        if layer == other:
            return None
        part: Any = nn.Module()
        part.skip = f"{self.kind}.{min(layer, other)}"
        part.share = nn.Parameter(torch.tensor(self.start)) if layer > other else None
        return part

    def enter(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC if part.share is None else x_BTC + part.share * context.memory[part.skip]

    def leave(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        if part.share is None:
            context.memory[part.skip] = x_BTC
        return x_BTC
