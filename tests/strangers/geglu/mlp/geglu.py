"""A gated MLP with GELU (arXiv:2002.05202)."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from nocap.options.mlp import Mlp


class Gated(nn.Module):
    def __init__(self, d_model, hidden):
        super().__init__()
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


@dataclass(kw_only=True)
class Geglu(Mlp):
    kind: str = "geglu"
    expansion: float

    def build(self, d_model):
        return Gated(d_model, round(2 / 3 * self.expansion * d_model))
