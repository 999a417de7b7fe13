"""No position information."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.position import Position


@dataclass(kw_only=True, slots=True)
class NoPosition(Position):
    """No position information at all."""

    kind: str = "none"
