"""The optimizer options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.config.option import Option

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Optimizer(Option):
    """One or several of torch's optimizers. The schedule multiplies each group's `lr`, and ideas may scale a parameter's rate or decay.

    Optional: `elementwise()`, whether each number's update depends on that number alone, which bounds the bytes (see
    `nocap.config.option.declared`). Their state is found by trying them on small tensors before step 1: what a checkpoint cannot hold is
    refused there.
    """

    lr: float = key(gt=0, le=1000)
    weight_decay: float = key(ge=0, le=1000)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Optimizers that share out all of the model's parameters. `nocap.training.optimizer` has the usual groups."""
        raise NotImplementedError(f"optimizer.kind={self.kind} must define build")
