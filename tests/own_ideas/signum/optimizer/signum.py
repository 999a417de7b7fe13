"""Signum: the sign of the momentum (arXiv:1802.04434)."""

from dataclasses import dataclass

import torch

from nocap.config.keys import require
from nocap.options.optimizer import Optimizer
from nocap.training.optimizer import decayed


class SignumOptimizer(torch.optim.Optimizer):
    def __init__(self, params, lr, beta):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(momentum.lerp_(p.grad, 1 - group["beta"])), alpha=-group["lr"])


@dataclass(kw_only=True)
class Signum(Optimizer):
    kind: str = "signum"
    beta: float

    def __post_init__(self):
        super().__post_init__()
        require(0 <= self.beta < 1, "optimizer.beta", "be in [0, 1)", self.beta)

    def build(self, model):
        groups = decayed(dict(model.named_parameters()), self.weight_decay)
        return [SignumOptimizer(groups, self.lr, self.beta)]
