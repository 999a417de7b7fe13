"""Rates that no number holds: training diverges at its first update. No key of nocap's own allows
that."""

from dataclasses import dataclass

from nocap.options.schedule import Schedule


@dataclass(kw_only=True)
class Exploding(Schedule):
    kind: str = "exploding"

    def shape(self, *, step: int, steps: int) -> float:
        return 1e300
