"""A power law after the warm-up: the rate falls as steps^-power; 0.5 is the Transformer's own
(arXiv:1706.03762)."""

from dataclasses import dataclass

from nocap.config.keys import key
from nocap.options.schedule import Schedule


@dataclass(kw_only=True)
class PowerLaw(Schedule):
    kind: str = "power_law"
    power: float = key(gt=0, le=100)

    def shape(self, *, step, steps):
        return ((step + 1) / (self.warmup_steps + 1)) ** -self.power

    def free_until(self, steps):
        return steps  # no rate depends on how many there are
