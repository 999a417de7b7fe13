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


class Iteration(Enum):
    """The polynomials that bring a matrix's singular values to 1."""

    newton_schulz = "newton_schulz"  # one for all iterations, which leaves them within about 0.3 of 1
    polar_express = "polar_express"  # one for each, the best for what the one before leaves (arXiv:2505.16932)


class MuonScale(Enum):
    """How Muon's step is scaled by a matrix's shape (torch's `adjust_lr_fn`)."""

    original = "original"
    match_rms_adamw = "match_rms_adamw"


@dataclass(kw_only=True, slots=True)
class Muon(AdamW):
    """Muon for the matrices inside the blocks; AdamW, with the inherited keys, for embeddings, head and vectors."""

    kind: str = "muon"
    muon_lr: float = key(gt=0, le=1000)  # peak learning rate of the matrices inside the blocks; lr is of the rest
    momentum: float = key(ge=0, lt=1)  # of the matrices' updates
    momentum_start: float = key(ge=0, lt=1, default=0.85)  # where a warm-up of the momentum begins
    momentum_warmup_steps: int = key(ge=0, le=10**9, default=0)  # from `momentum_start` to `momentum` in a straight line
    ns_steps: int = key(ge=1, le=99)  # iterations
    iteration: Iteration = Iteration.newton_schulz  # the polynomials of the orthogonalisation
    row_beta2: float | None = key(ge=0, lt=1, default=None)  # NorMuon (arXiv:2510.05491): of the rows' second moments; it has 0.95
    scale: MuonScale  # how a step follows a matrix's shape

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
            polar_express=self.iteration is Iteration.polar_express,
            row_beta2=self.row_beta2,
            warmup=(self.momentum_start, self.momentum_warmup_steps),
        )
        return [self.adamw(rest), matrices]
