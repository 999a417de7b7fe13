"""Muon (Keller Jordan, 2024), torch's own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import require
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn


class MuonScale(Enum):
    """How Muon's step is scaled by a matrix's shape (torch's `adjust_lr_fn`)."""

    original = "original"
    match_rms_adamw = "match_rms_adamw"


@dataclass(kw_only=True, slots=True)
class Muon(AdamW):
    """torch's Muon for the matrices inside the blocks; AdamW, with the inherited keys, for embeddings, head and vectors."""

    kind: str = "muon"
    muon_lr: float
    momentum: float
    ns_steps: int  # Newton-Schulz iterations
    scale: MuonScale

    def __post_init__(self) -> None:
        AdamW.__post_init__(self)
        require(self.muon_lr > 0, "optimizer.muon_lr", "be above 0", self.muon_lr)
        require(0 <= self.momentum < 1, "optimizer.momentum", "be in [0, 1)", self.momentum)
        require(1 <= self.ns_steps < 100, "optimizer.ns_steps", "be between 1 and 99", self.ns_steps)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        import torch

        from nocap.training.optimizer import hidden_matrices

        hidden = hidden_matrices(model)
        rest = {name: p for name, p in model.named_parameters() if name not in hidden}
        muon = torch.optim.Muon(
            list(hidden.values()),
            lr=self.muon_lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=True,
            ns_steps=self.ns_steps,
            adjust_lr_fn=self.scale.value,
        )
        return [self.adamw(rest), muon]
