"""Attention with a learned temperature per head: softmax(t·q·kᵀ/√D), each head's t from `start` on.

B: batch, T: tokens, D: channels of a head; H: query heads, K: key/value heads.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from nocap.config.keys import require
from nocap.options.attention import Attention


class Tempered(nn.Module):
    def __init__(self, n_head, start):
        super().__init__()
        self.temperature = nn.Parameter(torch.full((n_head,), start))

    def forward(self, q_BHTD, k_BKTD, v_BKTD):
        # bf16 under autocast, as keys are
        q_BHTD = (q_BHTD * self.temperature[:, None, None]).type_as(q_BHTD)
        grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
        return F.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=grouped
        )


@dataclass(kw_only=True)
class HeadTemperature(Attention):
    kind: str = "head_temperature"
    start: float

    def __post_init__(self):
        super().__post_init__()
        require(self.start > 0, "attention.start", "be above 0", self.start)

    def mixer(self, run, layer):
        return Tempered(run.model.n_head, self.start)
