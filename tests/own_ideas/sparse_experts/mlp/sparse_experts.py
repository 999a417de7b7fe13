"""A sparse mixture of experts: each token goes through the one that its gate prefers. How many
tokens an expert gets depends on the numbers."""

from dataclasses import dataclass

import torch
from torch import nn

from nocap.config.keys import key
from nocap.options.mlp import Mlp


class Experts(nn.Module):
    def __init__(self, d_model, n):
        super().__init__()
        self.gate = nn.Linear(d_model, n, bias=False)
        self.up = nn.ModuleList(nn.Linear(d_model, 2 * d_model, bias=False) for _ in range(n))
        self.down = nn.ModuleList(nn.Linear(2 * d_model, d_model, bias=False) for _ in range(n))

    def forward(self, x_BTC):
        x_NC = x_BTC.flatten(0, 1)
        share_N, expert_N = self.gate(x_NC).softmax(-1).max(-1)
        y_NC = torch.zeros_like(x_NC)
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            tokens_M = (expert_N == i).nonzero().squeeze(1)
            hidden = up(x_NC[tokens_M]).relu()
            made_MC = down(hidden) * share_N[tokens_M, None]
            y_NC = y_NC.index_add(0, tokens_M, made_MC)
        return y_NC.view_as(x_BTC)


@dataclass(kw_only=True)
class SparseExperts(Mlp):
    kind: str = "sparse_experts"
    experts: int = key(ge=1, le=1024)  # experts, of which a token goes through one

    def build(self, d_model):
        return Experts(d_model, self.experts)
