"""The optimizer options: how gradients change the weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.config.option import Option

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Optimizer(Option):
    """One or several of torch's optimizers. The schedule multiplies each group's `lr`, and ideas
    may scale a parameter's rate or decay.

    Optional: `update`, a rule of its own for `nocap.training.optimizer.ByRule`. Their state lies in
    `state` and `param_groups`: `nocap check` shows that a checkpoint holds it.
    """

    lr: float = key(gt=0, le=1000)  # peak learning rate
    # weight decay as in AdamW: each step takes away this share of a weight, times the learning rate
    weight_decay: float = key(ge=0, le=1000)
    # do not decay a number that the update moves away from zero (arXiv:2510.12402)
    cautious_decay: bool = False

    def __post_init__(self) -> None:
        has_decay = self.weight_decay > 0
        rule = "be false with optimizer.weight_decay=0"
        fits = has_decay or not self.cautious_decay
        require(fits, "optimizer.cautious_decay", rule, self.cautious_decay)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return optimizers that share out all of the model's parameters.
        `nocap.training.optimizer` has the usual groups."""
        raise NotImplementedError(f"optimizer.kind={self.kind} must define the method build")

    def validating(self, optimizers: list[torch.optim.Optimizer]) -> AbstractContextManager[object]:
        """Give the parameters, inside the block, the weights that are validated, and generated
        from."""
        return nullcontext()

    def period(self) -> int:
        """Return the steps after which the work of an update repeats, where not every update does
        the same."""
        return 1

    def at_batch(self, tokens: int) -> Optimizer:
        """Return the same optimizer for steps of so many tokens, where a key depends on them."""
        return self
