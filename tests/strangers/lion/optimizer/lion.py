"""Lion: the sign of an interpolated momentum (arXiv:2302.06675)."""

from dataclasses import dataclass

import torch

from nocap.config.keys import require
from nocap.options.optimizer import Optimizer
from nocap.training.optimizer import decayed


class LionOptimizer(torch.optim.Optimizer):
    def __init__(self, params, lr, betas):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(momentum.lerp(p.grad, 1 - beta1)), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - beta2)


@dataclass(kw_only=True)
class Lion(Optimizer):
    kind: str = "lion"
    beta1: float
    beta2: float

    def __post_init__(self):
        super().__post_init__()
        for key in ("beta1", "beta2"):
            require(0 <= getattr(self, key) < 1, f"optimizer.{key}", "be in [0, 1)", getattr(self, key))

    def build(self, model):
        groups = decayed(dict(model.named_parameters()), self.weight_decay)
        return [LionOptimizer(groups, self.lr, (self.beta1, self.beta2))]
