"""AdamW Schedule-Free (arXiv:2405.15682): an average of the weights in place of a decaying rate and
of Adam's momentum."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import require
from nocap.options.ideas import overrides
from nocap.options.optimizer import Optimizer
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nocap.config.run import Run
    from nocap.training.optimizer import Group, States, Tensors


@dataclass(kw_only=True, slots=True)
class ScheduleFree(AdamW):
    """The parameters are y = (1-β₁)·z + β₁·x, where the gradients are taken; the average x is
    validated, and generated from."""

    kind: str = "schedule_free"

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        rule = "be above 0, because with 0 nocap cannot compute the averaged weights"
        require(self.beta1 > 0, "optimizer.beta1", rule, self.beta1)
        rule = "be false with optimizer=schedule_free, which decays two copies of the weights"
        require(not self.cautious_decay, "optimizer.cautious_decay", rule, self.cautious_decay)

    def check(self, run: Run) -> None:
        AdamW.check(self, run)
        steps = run.trainer.steps
        last_rate = run.schedule.multiplier(step=steps - 1, steps=steps)
        rule = "end at the peak learning rate with optimizer=schedule_free (set schedule=constant)"
        require(last_rate == 1.0, "schedule", rule, run.schedule.kind)
        for name, idea in run.ideas.items():
            rule = (
                f"not include {name} with optimizer=schedule_free, because both choose the weights "
                f"for validation"
            )
            require(not overrides(idea, "validating"), "ideas", rule, ", ".join(run.ideas))

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training.optimizer import ByRule

        return [ByRule(self, self.groups(dict(model.named_parameters())), sum=0.0)]

    def update(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """Update by z ← z - γ·(g / (√v + ε) + λ·y) and x ← (1-c)·x + c·z, with γ = lr·√(1-β₂ᵗ), v
        the average of g² by β₂, and c = γ² / Σγ² over all steps so far. As x follows from y and z,
        only z and v are kept."""
        import torch

        from nocap.training.optimizer import buffers

        y = params
        z = buffers(states, "z", params, first=torch.clone)
        squares = buffers(states, "exp_avg_sq", params)
        rate = group["lr"] * math.sqrt(1 - self.beta2 ** group["step"])
        group["sum"] += rate**2
        c = rate**2 / group["sum"]
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - self.beta2)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, self.eps)
        updates = torch._foreach_div(grads, scales)
        torch._foreach_add_(updates, y, alpha=group["weight_decay"])
        # y after the step is (1-c)·y + c·z - (1 - β₁·(1-c))·γ·update, with the z of before it.
        torch._foreach_lerp_(y, z, c)
        torch._foreach_add_(y, updates, alpha=-rate * (1 - self.beta1 * (1 - c)))
        torch._foreach_add_(z, updates, alpha=-rate)

    def validating(self, optimizers: list[torch.optim.Optimizer]) -> AbstractContextManager[object]:
        """Lend each parameter that has been updated its x = (y - (1-β₁)·z) / β₁."""
        import torch

        from nocap.model.language_model import lent

        averages = []
        for optimizer in optimizers:
            for p, state in optimizer.state.items():
                averages.append((p, torch.lerp(state["z"], p.detach(), 1 / self.beta1)))
        return lent(averages)
