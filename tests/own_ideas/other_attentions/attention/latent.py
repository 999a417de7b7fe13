"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values come from a few
channels, and the position from a few more that all heads share."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from nocap.config.keys import key
from nocap.options.attention import Attention


class Latent(nn.Module):
    def __init__(self, d_model, n_head, rank, shared):
        super().__init__()
        self.n_head = n_head
        self.rank = rank
        self.d_head = d_model // n_head
        self.shared = shared
        self.query = nn.Linear(d_model, n_head * (self.d_head + shared), bias=False)
        self.shrink = nn.Linear(d_model, rank + shared, bias=False)
        self.grow = nn.Linear(rank, 2 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTC, context):
        query_BTHD = self.query(x_BTC).unflatten(2, (self.n_head, -1))
        q_BHTD = query_BTHD.transpose(1, 2)
        latent_BTR, shared_BTS = self.shrink(x_BTC).split([self.rank, self.shared], 2)
        grown_BTHD = self.grow(latent_BTR).unflatten(2, (self.n_head, -1))
        grown = grown_BTHD.transpose(1, 2)
        k_BHTD, v_BHTD = grown.chunk(2, 3)
        shared_BHTS = shared_BTS[:, None].expand(-1, self.n_head, -1, -1)
        keys = torch.cat([k_BHTD, shared_BHTS], 3)
        y_BHTD = scaled_dot_product_attention(q_BHTD, keys, v_BHTD, is_causal=True)
        return self.out(y_BHTD.transpose(1, 2).flatten(2))


@dataclass(kw_only=True)
class LatentAttention(Attention):
    kind: str = "latent"
    rank: int = key(ge=1, le=65536)  # channels of which keys and values are made
    shared: int = key(ge=1, le=65536)  # channels of a key that all heads share

    def build(self, run, layer):
        return Latent(run.model.d_model, run.model.n_head, self.rank, self.shared)
