"""Rotary embedding of queries and keys, halves rotated (RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.position import Position

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.options.model import Model


@dataclass(kw_only=True, slots=True)
class Rope(Position):
    READS: ClassVar[tuple[str, ...]] = ("position.restart",)
    kind: str = "rope"
    base: float = key(gt=1, le=1e12)  # base of the wavelengths; a larger base gives longer ones

    def check(self, run: Run) -> None:
        d_head = run.model.d_model // run.model.n_head
        rule = "be even for position=rope"
        require(d_head % 2 == 0, "model.d_model / model.n_head", rule, d_head)

    def flops_per_token(self, run: Run) -> float:
        return 0.0

    def build(self, model: Model) -> nn.Module:
        from nocap.model.position import RotaryTables

        return RotaryTables(
            seq_len=model.seq_len, d_head=model.d_model // model.n_head, base=self.base
        )

    def tables(self, part: Any, where: slice | Tensor) -> tuple[Tensor, Tensor]:
        return part.cos[where], part.sin[where]

    def turn(self, q_BTHD: Tensor, k_BTKD: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        from nocap.model.position import rotate

        return rotate(q_BTHD, *tables), rotate(k_BTKD, *tables)
