"""The position options: how a token knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key
from nocap.config.option import AnyRun, Option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.options.model import Model


@dataclass(kw_only=True, slots=True)
class Position(Option):
    """Position information. `part` is what `build` made; `where` are the positions: of all
    sequences, or of each, (B, T), where they begin anew in its documents."""

    READ_BY: ClassVar[dict[str, tuple[str, ...]]] = {
        "embed": ("position.restart",),
        "tables": ("position.restart",),
        "turn": ("position.restart",),
    }

    # positions begin at 0 in each document; attention still crosses documents without
    # data.document_mask
    restart: bool = key(default=False, added=True)

    def flops_per_token(self, run: AnyRun) -> float:
        """Return the FLOPs of matrix products for a token, forward and backward, in all layers. It
        describes what its own class does, and nothing else (see `nocap.config.option.declared`):
        without it they are counted."""
        return 0.0

    def build(self, model: Model) -> nn.Module | None:
        """Return what it keeps: parameters, tables."""
        return None

    def embed(self, part: Any, x_BTC: Tensor, where: slice | Tensor) -> Tensor:
        """Return the token embeddings with their positions."""
        return x_BTC

    def tables(self, part: Any, where: slice | Tensor) -> Any:
        """Return what `turn` needs for these positions, made once a forward."""
        return None

    def turn(self, q_BTHD: Tensor, k_BTKD: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their positions, in each layer."""
        return q_BTHD, k_BTKD
