"""AdamW Schedule-Free (arXiv:2405.15682): a constant rate, and an average of the weights in place of its decay."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import require
from nocap.options.ideas import overrides
from nocap.options.optimizer import Optimizer
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class ScheduleFree(AdamW):
    """`beta1` is the average's share of the weights where the gradients are taken. The average is validated, and generated from."""

    kind: str = "schedule_free"

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require(self.beta1 > 0, "optimizer.beta1", "be above 0: else nothing of the average is in the weights", self.beta1)
        rule = "be false beside optimizer=schedule_free, whose decay acts on another copy of the weights"
        require(not self.cautious_decay, "optimizer.cautious_decay", rule, self.cautious_decay)

    def check(self, run: Run) -> None:
        AdamW.check(self, run)
        last = run.schedule.multiplier(step=run.trainer.steps - 1, steps=run.trainer.steps)
        require(last == 1.0, "schedule", "stay at its peak beside optimizer=schedule_free, as schedule=constant does", run.schedule.kind)
        for name, idea in run.ideas.items():
            rule = f"leave out {name} beside optimizer=schedule_free: both choose the weights that are validated"
            require(not overrides(idea, "validating"), "ideas", rule, ", ".join(run.ideas))

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training import schedule_free

        groups = self.groups(dict(model.named_parameters()))
        return [schedule_free.ScheduleFree(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps)]

    def validating(self, optimizers: list[Any]) -> AbstractContextManager[object]:
        from nocap.model.language_model import lent

        return lent([pair for optimizer in optimizers for pair in optimizer.averages()])
