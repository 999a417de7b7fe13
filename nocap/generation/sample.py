"""From logits to tokens, and the loop from a prompt to a text.

B: sequences, T: tokens of the prompt, N: new tokens, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nocap.generation.engine import Engine


class Sampler:
    """Draws by the inverse of the distribution function, in fp64: the i-th new token of a sequence needs one uniform number, and that
    number is a function of (seed, sequence, i) alone. So a sample is the same on every device and in every batch.

    `temperature` 0 takes the most probable token. `top_k` keeps the k most probable (ties with the last of them too); 0 keeps all.
    """

    def __init__(self, *, temperature: float, top_k: int, seed: int, sequences: int, max_tokens: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        # fp32 draws stay so far below 1 that their product with a sum in fp64 stays below the sum.
        rows = [np.random.default_rng([seed, i]).random(max_tokens, dtype=np.float32) for i in range(sequences)]
        self.draws_BN = torch.from_numpy(np.stack(rows))

    def __call__(self, logits_BV: Tensor, i: int) -> Tensor:
        """The i-th new token of each sequence, (B,)."""
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        if 0 < self.top_k < logits_BV.shape[1]:
            least = logits_BV.topk(self.top_k).values[:, -1:]
            logits_BV = logits_BV.masked_fill(logits_BV < least, -torch.inf)
        # Less the largest, before a small temperature could make it infinite.
        scores_BV = (logits_BV.double() - logits_BV.amax(-1, keepdim=True)) / self.temperature
        cumulated_BV = scores_BV.softmax(-1).cumsum(-1)
        draw_B1 = self.draws_BN[:, i : i + 1].to(logits_BV.device, torch.float64)
        return torch.searchsorted(cumulated_BV, draw_B1 * cumulated_BV[:, -1:], right=True)[:, 0]


def generate(engine: Engine, prompt_BT: Tensor, sampler: Sampler, *, max_tokens: int) -> Iterator[Tensor]:
    """New tokens, (B,) at a time. The prompt may be one sequence for all of the sampler's."""
    logits_BV = engine.prefill(prompt_BT).expand(len(sampler.draws_BN), -1)
    for i in range(max_tokens):
        tokens_B = sampler(logits_BV, i)
        yield tokens_B
        if i + 1 < max_tokens:
            logits_BV = engine.decode(tokens_B)
