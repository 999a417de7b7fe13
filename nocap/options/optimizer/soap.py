"""SOAP (arXiv:2409.11321) for the blocks' matrices, AdamW for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Soap(AdamW):
    """SOAP for the matrices inside the blocks; AdamW, with the same keys, for embeddings, head and vectors."""

    kind: str = "soap"
    basis_every: int = key(ge=1, le=10**9)  # steps between two updates of the eigenvectors

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training import soap
        from nocap.training.optimizer import hidden_matrices

        hidden = hidden_matrices(model)
        rest = {name: p for name, p in model.named_parameters() if name not in hidden}
        betas = self.beta1, self.beta2
        return [self.adamw(rest), soap.Soap(self.groups(hidden), lr=self.lr, betas=betas, eps=self.eps, basis_every=self.basis_every)]
