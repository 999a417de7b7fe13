"""The MLP options: what is done to each token by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.option import Option

if TYPE_CHECKING:
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Mlp(Option):
    """The second branch of a block.

    Optional methods about the module of `build` (see `nocap.config.option.declared`):

        flops_per_token(d_model) -> float    of forward and backward; without it they are counted
        rows() -> dict                       the row of the profile for each module inside by its
                                             name; without it the module is one row
    """

    def build(self, d_model: int) -> nn.Module:
        """Return a module from x_BTC to BTC, C being `d_model`."""
        raise NotImplementedError(f"mlp.kind={self.kind} must define the method build")
