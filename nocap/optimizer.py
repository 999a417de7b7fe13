"""Optimizers, all torch's own: AdamW, or Muon for the matrices inside the blocks with AdamW for the rest."""

from __future__ import annotations

import torch
from torch import nn

from nocap import schema

MATRICES = "blocks."  # parameters of two dimensions below this name are hidden matrices


def build_optimizers(spec: schema.AdamW, model: nn.Module) -> list[torch.optim.Optimizer]:
    """One or two optimizers whose groups carry `peak_lr`, which the schedule multiplies."""
    named = dict(model.named_parameters())
    hidden = {name: p for name, p in named.items() if isinstance(spec, schema.Muon) and name.startswith(MATRICES) and p.ndim == 2}
    rest = {name: p for name, p in named.items() if name not in hidden}
    optimizers: list[torch.optim.Optimizer] = [_adamw(spec, rest)]
    if isinstance(spec, schema.Muon):
        optimizers.append(
            torch.optim.Muon(
                list(hidden.values()),
                lr=spec.muon_lr,
                weight_decay=spec.weight_decay,
                momentum=spec.momentum,
                nesterov=True,
                ns_steps=spec.ns_steps,
                adjust_lr_fn=spec.scale.value,
            )
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def _adamw(spec: schema.AdamW, named: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    decays = {name: p for name, p in named.items() if spec.decay is schema.Decay.all or p.ndim >= 2}
    groups = [
        {"params": list(decays.values()), "weight_decay": spec.weight_decay},
        {"params": [p for name, p in named.items() if name not in decays], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True)


def set_lr(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
