"""How many seeds a comparison needs, from a declared noise. Pairs are taken as uncorrelated, whatever pairing may win: between recipes
that differ in more than a number, one seed's two losses were measured to have little in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nocap.config.keys import require
from nocap.judge.stats import n_required, power_of
from nocap.study.claim import LEAST, Scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    pairs: int
    power: float  # at that many


def plan(*, effect: float, sigma: float, scale: Scale, power: float, alpha: float = 0.05) -> Plan:
    """Pairs for a two-sided paired t-test at alpha: `effect` is a difference, or a relative change (0.02 for 2%) for a ratio; `sigma` one
    run's standard deviation, relative for a ratio.

    Errors:
        ValueError: a number out of range; an effect that needs more than 100,000 pairs.
    """
    require(0 < effect < math.inf, "--effect", "be above 0", effect)
    require(0 < sigma < math.inf, "--sigma", "be above 0", sigma)
    require(0.5 <= power < 1, "--power", "be at least 0.5 and below 1", power)
    distance = math.log1p(effect) if scale is Scale.ratio else effect
    standardised = distance / (sigma * math.sqrt(2))
    pairs = max(LEAST, n_required(standardised, power=power, alpha=alpha, pairs=True))
    return Plan(pairs=pairs, power=power_of(standardised, n=pairs, alpha=alpha, pairs=True))


def parse_amount(key: str, text: str) -> tuple[float, bool]:
    """A number as typed, and whether it was a percentage: `2%` is 0.02.

    Errors:
        ValueError: neither.
    """
    relative = text.endswith("%")
    try:
        return float(text.removesuffix("%")) / (100 if relative else 1), relative
    except ValueError:
        raise ValueError(f"{key} must be a number or a percentage, got {text}") from None
