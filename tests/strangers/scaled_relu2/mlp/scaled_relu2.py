"""An MLP with a squared ReLU (arXiv:2109.08668) whose scale is learned: down(s·relu(up(x))²)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from nocap.config.keys import key
from nocap.options.mlp import Mlp


class ScaledSquares(nn.Module):
    def __init__(self, d_model, hidden, start):
        super().__init__()
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)
        self.scale = nn.Parameter(torch.tensor(start))

    def forward(self, x_BTC):
        return self.down(self.scale * F.relu(self.up(x_BTC)).square())


@dataclass(kw_only=True)
class ScaledRelu2(Mlp):
    kind: str = "scaled_relu2"
    expansion: float = key(gt=0, le=1000)  # width inside, in multiples of model.d_model
    start: float  # the scale's first value

    def build(self, d_model):
        return ScaledSquares(d_model, max(1, round(self.expansion * d_model)), self.start)
