"""Blocks with attention and MLP side by side, from one norm: x + scale·(attention(norm(x)) +
mlp(norm(x)))."""

from dataclasses import dataclass

from torch import nn

from nocap.config.keys import key
from nocap.model.language_model import joined
from nocap.options.model.gpt import Gpt


class ParallelBlock(nn.Module):
    def __init__(self, run, layer, scale):
        super().__init__()
        self.norm = run.norm.build(run.model.d_model)
        self.scale = scale
        self.attention = run.attention.build(run, layer)
        self.mlp = run.mlp.build(run.model.d_model)
        # Ideas that have a part in a block: without this, nocap refuses them beside this model.
        self.ideas, self.joined = joined(
            run, f"blocks.{layer}.ideas", lambda idea: idea.build_layer(run, layer)
        )

    def forward(self, x_BTC, context):
        for _, idea, part in self.joined:
            x_BTC = idea.enter(part, x_BTC, context)
        h_BTC = self.norm(x_BTC)
        # an attention from outside need not know of them
        ideas = (self.joined,) if self.joined else ()
        x_BTC = x_BTC + self.scale * (self.attention(h_BTC, context, *ideas) + self.mlp(h_BTC))
        for _, idea, part in self.joined:
            x_BTC = idea.leave(part, x_BTC, context)
        return x_BTC


@dataclass(kw_only=True)
class Parallel(Gpt):
    kind: str = "parallel"
    scale: float = key(gt=0, le=1000)

    def build_block(self, run, layer):
        return ParallelBlock(run, layer, self.scale)
