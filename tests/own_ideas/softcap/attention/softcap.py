"""Attention whose scores are capped: cap·tanh(scores/cap), as in Gemma 2 (arXiv:2408.00118)."""

from dataclasses import dataclass

import torch

from nocap.config.keys import require
from nocap.options.attention import Attention


@dataclass(kw_only=True)
class Softcap(Attention):
    kind: str = "softcap"
    cap: float

    def __post_init__(self):
        super().__post_init__()
        require(self.cap > 0, "attention.cap", "be above 0", self.cap)

    def mixer(self, run, layer):
        def mix(q_BHTD, k_BKTD, v_BKTD):
            groups = q_BHTD.shape[1] // k_BKTD.shape[1]
            T, D = q_BHTD.shape[2:]
            k = k_BKTD.repeat_interleave(groups, dim=1)
            v = v_BKTD.repeat_interleave(groups, dim=1)
            raw = q_BHTD @ k.transpose(2, 3) / D**0.5
            scores = self.cap * torch.tanh(raw / self.cap)
            ones_TT = torch.ones(T, T, dtype=torch.bool, device=scores.device)
            future = ones_TT.triu(1)
            masked = scores.masked_fill(future, float("-inf"))
            return masked.softmax(-1, dtype=torch.float32).type_as(v) @ v

        return mix
