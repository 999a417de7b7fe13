"""Differential attention (arXiv:2410.05258): two softmax maps, of half the channels each, are
subtracted."""

from dataclasses import dataclass

import torch

from nocap.model.attention import repeat_heads
from nocap.options.attention import Attention


def mapped(q_BHTD, k_BHTD):
    T, D = q_BHTD.shape[2:]
    ones_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device)
    future_TT = ones_TT.triu(1)
    scores_BHTT = q_BHTD @ k_BHTD.transpose(2, 3) / D**0.5
    return scores_BHTT.masked_fill(future_TT, float("-inf")).softmax(-1)


@dataclass(kw_only=True)
class Differential(Attention):
    kind: str = "differential"

    def mixer(self, run, layer):
        def mix(q_BHTD, k_BKTD, v_BKTD):
            keys = repeat_heads(q_BHTD, k_BKTD)
            first, second = zip(q_BHTD.chunk(2, 3), keys.chunk(2, 3), strict=True)
            return (mapped(*first) - 0.5 * mapped(*second)) @ repeat_heads(q_BHTD, v_BKTD)

        return mix
