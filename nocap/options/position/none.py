"""No position information: the causal mask is all there is."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.position import Position


@dataclass(kw_only=True, slots=True)
class NoPosition(Position):
    kind: str = "none"
