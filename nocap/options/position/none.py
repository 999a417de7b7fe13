"""No position information: the causal mask is all there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.option import require_default
from nocap.options.position import Position

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class NoPosition(Position):
    kind: str = "none"

    def check(self, run: Run) -> None:
        require_default(self, "position.restart", "with position=none, which has no positions")
