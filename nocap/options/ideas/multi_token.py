"""Multi-token prediction (arXiv:2404.19737): more heads on one trunk predict the tokens after the
next, in training only.

loss += (1 - (1 - final)·step/steps) · Σ_k weights[k]·CE(logits(x + W_k·x), the token k + 2 ahead),
k = 0, 1, …; norm and unembedding are the head's own, and each W_k starts at zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.head import Head


@dataclass(kw_only=True, slots=True)
class MultiToken(Idea):
    PER_TOKEN: ClassVar[bool] = True
    kind: str = "multi_token"
    # weights of the losses of the tokens 2, 3, … ahead; each token has a head
    weights: list[float] = key(ge=0, le=1000)
    # share of these weights at the end of training; 1: they stay
    final: float = key(ge=0, le=1)

    def check(self, run: Run) -> None:
        rule = f"have at least 1 number, and fewer numbers than model.seq_len={run.model.seq_len}"
        fits = 0 < len(self.weights) < run.model.seq_len
        require(fits, "ideas.multi_token.weights", rule, self.weights)

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        import torch
        from torch import nn

        part: Any = nn.Module()
        width = run.model.d_model
        part.heads = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in self.weights)
        for own in part.heads:
            nn.init.zeros_(own.weight)
        part.register_buffer("decay", torch.ones(()), persistent=False)
        part.steps = run.trainer.steps
        return part

    def before_forward(self, part: Any, model: nn.Module, *, step: int) -> None:
        part.decay.fill_(1 - (1 - self.final) * step / part.steps)

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Any:
        losses = []
        for k, (weight, own) in enumerate(zip(self.weights, part.heads, strict=True), start=1):
            ahead_BTC = (x_BTC + own(x_BTC))[:, :-k]
            losses.append(weight * head.next_token(ahead_BTC, targets_BT[:, k:]))
        return part.decay * sum(losses)
