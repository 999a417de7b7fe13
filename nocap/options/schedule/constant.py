"""No decay."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.schedule import Schedule


@dataclass(kw_only=True, slots=True)
class Constant(Schedule):
    """Warm-up, then constant."""

    kind: str = "constant"

    def shape(self, *, step: int, steps: int) -> float:
        return 1.0
