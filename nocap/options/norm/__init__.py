"""The normalisation options: what keeps the scale of activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.option import Option

if TYPE_CHECKING:
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Norm(Option):
    """Normalisation over channels, in the blocks and before the head.

    Optional, about the module of `build` (see `nocap.config.option.declared`):

        flops_per_token(d_model) -> float    of matrix products, forward and backward; without it
                                             they are counted
    """

    def build(self, d_model: int) -> nn.Module:
        """Return a module over the last dimension, of `d_model` channels."""
        raise NotImplementedError(f"norm.kind={self.kind} must define the method build")
