"""How much worse still counts: a number, or what some more steps buy, as in `5% of steps`. The exchange rate of a scale translates the
second: the loss that so many more steps of the baseline are worth."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.store.measurement import Metric, Scale

_STEPS = re.compile(r"(\d+(?:\.\d+)?)% of steps")
LOSSES = ("val_loss",)  # whose unit is the exchange rate's


def share_of_steps(margin: Any) -> float | None:
    """0.05 for `5% of steps`; `None` for a number."""
    found = _STEPS.fullmatch(margin) if isinstance(margin, str) else None
    return float(found[1]) / 100 if found else None


def checked(key: str, margins: Mapping[str, Any], *, metric: str, scale: Scale, least: float) -> dict[str, Any]:
    """Scale of the study → margin, in order.

    Errors:
        ValueError: neither a finite number of at least `least` nor a share of steps above 0; a share where no loss differs.
    """
    for name, margin in margins.items():
        share = share_of_steps(margin)
        number = isinstance(margin, int | float) and not isinstance(margin, bool) and math.isfinite(margin) and margin >= least
        rule = f"be a finite number of at least {least:g} for a {scale.value}, or a share as in 5% of steps"
        require(number or (share is not None and share > 0), f"{key}.{name}", rule, margin)
        ok = share is None or (metric in LOSSES and scale is Scale.difference)
        require(ok, f"{key}.{name}", f"be a number where it is not about a difference of {' or '.join(LOSSES)}", margin)
    return {name: margin if isinstance(margin, str) else float(margin) for name, margin in sorted(margins.items())}


class Direction(Enum):
    """Which way a claim of an upper end alone is meant."""

    better = "better"
    worse = "worse"


def check_direction(of: str, metric: Metric, scale: Scale, expected: list[float | None], direction: Direction) -> None:
    """Refuse an upper end alone, as in [null, 0] for a lower loss: a gain of at most 0 is the opposite.

    Errors:
        ValueError: that, with how to state each direction; or a worse one where a gain is stated, or nothing is compared.
    """
    worse, none, low = direction is Direction.worse, 1 if scale is Scale.ratio else 0, expected[0]
    compares = scale is not Scale.value
    rule = f"have a low end: [{none}, null] states {metric.gain}, and [null, {none}] with direction: worse states {metric.loss}"
    require(worse or not compares or low is not None, f"{of} expected", rule, expected)
    ok = not worse or (compares and (low is None or low < none))
    require(ok, f"{of} direction", "be better for a value, and where expected begins at no change or above", direction.value)
