"""Ballast: work of a known amount in every step, which changes no number of the training. For planting a slowdown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from nocap.config.keys import key
from nocap.options.ideas import Idea

SIDE = 64


def product(part: nn.Module) -> None:
    torch.mm(part.a, part.a, out=part.b)


def matrices() -> nn.Module:
    part = nn.Module()
    part.register_buffer("a", torch.eye(SIDE), persistent=False)
    part.register_buffer("b", torch.empty(SIDE, SIDE), persistent=False)
    return part


@dataclass(kw_only=True, slots=True)
class Ballast(Idea):
    kind: str = "ballast"
    products: int = key(ge=0, le=1_000_000)  # a step

    def build_around(self, run, model):
        return matrices()

    def after_step(self, part, model, *, step):
        for _ in range(self.products):
            product(part)
