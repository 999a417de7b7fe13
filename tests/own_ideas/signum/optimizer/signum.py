"""Signum: the sign of the momentum (arXiv:1802.04434)."""

from dataclasses import dataclass

import torch

from nocap.config.keys import require
from nocap.options.optimizer import Optimizer
from nocap.training.optimizer import ByRule, decayed, kept


@dataclass(kw_only=True)
class Signum(Optimizer):
    kind: str = "signum"
    beta: float

    def __post_init__(self):
        super().__post_init__()
        require(0 <= self.beta < 1, "optimizer.beta", "be in [0, 1)", self.beta)

    def build(self, model):
        return [ByRule(self, decayed(dict(model.named_parameters()), self.weight_decay))]

    def update(self, group, params, grads, states):
        for p, grad, momentum in zip(params, grads, kept(states, "momentum", params), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(torch.sign(momentum.lerp_(grad, 1 - self.beta)), alpha=-group["lr"])
