"""Muon (Keller Jordan, 2024) for the blocks' matrices, AdamW for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key
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
    """Muon for the matrices inside the blocks; AdamW, with the inherited keys, for embeddings, head and vectors."""

    kind: str = "muon"
    muon_lr: float = key(gt=0, le=1000)
    momentum: float = key(ge=0, lt=1)
    ns_steps: int = key(ge=1, le=99)  # Newton-Schulz iterations
    scale: MuonScale

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training import muon
        from nocap.training.optimizer import hidden_matrices

        hidden = hidden_matrices(model)
        rest = {name: p for name, p in model.named_parameters() if name not in hidden}
        matrices = muon.Muon(
            list(hidden.values()),
            lr=self.muon_lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=True,
            ns_steps=self.ns_steps,
            adjust_lr_fn=self.scale.value,
        )
        return [self.adamw(rest), matrices]
