"""A learned vector per position, added to the token embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.options.position import Position

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.options.model import Model


@dataclass(kw_only=True, slots=True)
class Learned(Position):
    READS: ClassVar[tuple[str, ...]] = ("position.restart",)
    kind: str = "learned"

    def flops_per_token(self, run: Run) -> float:
        return 0.0

    def build(self, model: Model) -> nn.Module:
        from torch import nn

        return nn.Embedding(model.seq_len, model.d_model)

    def embed(self, part: Any, x_BTC: Tensor, where: slice | Tensor) -> Tensor:
        from torch.nn.functional import embedding

        table: Tensor = part.weight
        if isinstance(where, slice):
            return x_BTC + table[where]
        # its gradient is summed in one order; that of an index is not
        return x_BTC + embedding(where, table)
