"""The position options: how a token knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.option import Option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.options.model import Model

    Where = slice | Tensor  # positions in the sequence


@dataclass(kw_only=True, slots=True)
class Position(Option):
    """Position information. `part` is what `build` made."""

    def flops_per_token(self, run: Run) -> float:
        """Return the FLOPs of matrix products for a token, forward and backward, in all layers. It
        describes what its own class does, and nothing else (see `nocap.config.option.declared`):
        without it they are counted."""
        return 0.0

    def build(self, model: Model) -> nn.Module | None:
        """Return what it keeps: parameters, tables."""
        return None

    def embed(self, part: Any, x_BTC: Tensor, where: Where) -> Tensor:
        """Return the token embeddings with their positions."""
        return x_BTC

    def tables(self, part: Any, where: Where) -> Any:
        """Return what `turn` needs for these positions, made once a forward."""
        return None

    def turn(self, q_BTHD: Tensor, k_BTKD: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their positions, in each layer."""
        return q_BTHD, k_BTKD
