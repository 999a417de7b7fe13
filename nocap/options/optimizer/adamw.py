"""AdamW (arXiv:1711.05101), torch's fused one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from nocap.config.run import Run


def beta2_of(half_life_tokens: float, batch_tokens: int) -> float:
    """Return the β₂ of a step with which a gradient's weight halves every so many tokens, whatever
    the batch (arXiv:2507.07101)."""
    return 0.5 ** (batch_tokens / half_life_tokens)


class Decay(Enum):
    """Which parameters weight decay applies to."""

    all = "all"
    matrices = "matrices"  # not gains, shifts or scales


@dataclass(kw_only=True, slots=True)
class AdamW(Optimizer):
    kind: str = "adamw"
    beta1: float = key(ge=0, lt=1)  # decay rate of the average of the gradients
    beta2: float = key(ge=0, lt=1)  # decay rate of the average of the squared gradients
    # tokens after which a gradient counts half in the average of beta2; nocap then computes beta2
    beta2_half_life_tokens: float | None = key(gt=0, le=1e12, default=None)
    eps: float = key(gt=0, le=1)  # small number in the update's divisor, so that it is never 0
    decay: Decay  # parameters that the weight decay applies to

    def check(self, run: Run) -> None:
        half_life = self.beta2_half_life_tokens
        if half_life is not None:
            beta2 = beta2_of(half_life, run.trainer.batch_tokens)
            rule = (
                f"be unset, or {beta2:.6g}, which follows from "
                f"optimizer.beta2_half_life_tokens={half_life:g}"
            )
            require(self.beta2 == beta2, "optimizer.beta2", rule, self.beta2)

    def at_batch(self, tokens: int) -> AdamW:
        half_life = self.beta2_half_life_tokens
        if half_life is None:
            return self
        return replace(self, beta2=beta2_of(half_life, tokens))

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.adamw(dict(model.named_parameters()))]

    def adamw(self, named: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
        """Return an AdamW for these parameters only."""
        import torch

        from nocap.training.optimizer import undecorated

        betas = self.beta1, self.beta2
        return undecorated(torch.optim.AdamW)(
            self.groups(named), lr=self.lr, betas=betas, eps=self.eps, fused=True
        )

    def groups(self, named: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return these parameters by whether they decay."""
        from nocap.training.optimizer import decayed

        return decayed(named, self.weight_decay, everything=self.decay is Decay.all)
