"""x0 and residual λ: each block's input is λ₀·x + λ₁·x0, x0 being the embedding (modded-nanogpt)."""

from dataclasses import dataclass

import torch
from torch import nn

from nocap.options.ideas import Idea, Rate


@dataclass(kw_only=True)
class MyX0(Idea):
    PER_TOKEN = True
    kind: str = "my_x0"
    share: float  # λ₁ at the start; λ₀ starts at 1
    lr: float  # the λs' learning rate, as a factor

    def build_layer(self, run, layer):
        return nn.ParameterDict({"lambdas": nn.Parameter(torch.tensor([1.0, self.share]))})

    def enter(self, part, x_BTC, context):
        lambdas = part["lambdas"]
        return lambdas[0] * x_BTC + lambdas[1] * context.x0_BTC

    def rates(self, name):
        return Rate(lr=self.lr) if ".ideas.my_x0." in name else Rate()
