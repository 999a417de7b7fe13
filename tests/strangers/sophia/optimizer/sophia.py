"""Sophia (arXiv:2305.14342): θ ← θ - lr·clip(m / max(γ·h, ε), 1), m the gradient's average, h the
Hessian's diagonal. Every few steps Gauss-Newton-Bartlett estimates h: n labels are drawn from the
model's own predictions, and n times the square of their loss's gradient is added to h. That is a
backward of the optimizer's own, before the update, on the tokens of the last micro-batch."""

from dataclasses import dataclass
from random import Random

import torch
import torch.distributed as dist
import torch.nn.functional as F

from nocap.config.keys import key
from nocap.options.optimizer import Optimizer
from nocap.training.optimizer import decayed


class SophiaOptimizer(torch.optim.Optimizer):
    def __init__(self, params, model, option):
        super().__init__(params, {"lr": option.lr, "weight_decay": 0.0, "steps": 0})
        self.model = model
        self.option = option
        self.batch = None

        def keep(model, inputs):  # not validation's
            if model.training:
                self.batch = inputs[0], torch.is_autocast_enabled(inputs[0].device.type)

        model.register_forward_pre_hook(keep)

    def estimate(self, params, steps):
        """Draw a sample of the Hessian's diagonal. The number of steps and the batch are the draw's
        key: a resumed run draws what it had drawn, and each seed draws for itself."""
        tokens_BT, autocast = self.batch
        device = tokens_BT.device
        seed = Random(f"{steps}/{int(tokens_BT.sum())}").getrandbits(63)
        draw = torch.Generator(device).manual_seed(seed)
        with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            logits_NV = self.model.logits(tokens_BT).flatten(0, 1).float()
            labels_N = torch.multinomial(logits_NV.detach().softmax(-1), 1, generator=draw)[:, 0]
            loss = F.cross_entropy(logits_NV, labels_N)
        grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        return [labels_N.numel() * grad.square() for grad in grads]

    def update_hessian(self, params, steps):
        for p, sample in zip(params, self.estimate(params, steps), strict=True):
            if dist.is_initialized():  # the last of all ranks has the last micro-batch
                dist.broadcast(sample, src=dist.get_world_size() - 1)
            self.state[p]["hessian"].lerp_(sample, 1 - self.option.beta2)

    @torch.no_grad()
    def step(self, closure=None):
        option = self.option
        steps = self.param_groups[0]["steps"]
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in (p for p in params if not self.state[p]):
            self.state[p].update(momentum=torch.zeros_like(p), hessian=torch.zeros_like(p))
        if steps % option.every == 0 and self.batch is not None:  # nocap tries it without a forward
            self.update_hessian(params, steps)
        for group in self.param_groups:
            group["steps"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - option.beta1)
                size = (option.gamma * self.state[p]["hessian"]).clamp_(min=option.eps)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_((momentum / size).clamp_(-1, 1), alpha=group["lr"])


@dataclass(kw_only=True)
class Sophia(Optimizer):
    kind: str = "sophia"
    beta1: float = key(ge=0, lt=1)
    beta2: float = key(ge=0, lt=1)
    gamma: float = key(gt=0, le=1e6)
    eps: float = key(gt=0, le=1)
    every: int = key(ge=1, le=10**9)  # steps

    def build(self, model):
        parameters = decayed(dict(model.named_parameters()), self.weight_decay)
        return [SophiaOptimizer(parameters, model, self)]
