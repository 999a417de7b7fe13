"""How much time an arm trains for a token, beside the baseline: the median step's, on a CPU in CPU time,
which other work on the machine changes less than a clock. The intervals are those of losses, on logarithms:
one for all arms of a table together. They are of one session: what holds on other days takes a study."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nocap.judge.arms import Arm, machines_differ
from nocap.judge.interval import Estimate
from nocap.judge.losses import Pair, Table, common, estimates

PACE = "token_us"
NO_TIMES = "a record has no time a token"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A mean over runs of one machine, and its ratio to the baseline's; or why there is none."""

    mean: float | None
    ratio: Estimate | None = None
    refused: str | None = None

    def json(self) -> dict[str, Any]:
        return {"mean": self.mean, "ratio": self.ratio and self.ratio.json(), "refused": self.refused}


def has_pace(arm: Arm, base: Arm, seeds: Collection[int]) -> bool:
    """Say whether the time of each of these seeds is known, on the baseline's machine."""
    return set(seeds) <= arm.values[PACE].keys() and machines_differ(arm, base) is None


def refusal(arm: Arm, base: Arm) -> str | None:
    """Say why an arm's time a token is not compared; `None`: it is."""
    if (why := machines_differ(arm, base)) is not None:
        return why
    known = all(side.values[PACE].keys() == {*side.seeds} for side in (arm, base))
    return None if known else NO_TIMES


def ratios(pairs: Mapping[str, Pair], table: Table) -> dict[str, Estimate]:
    """Return the ratio of the time a token of each arm of the table, for all of them together. `pairs`: by
    the arm's id, of the metric `PACE`."""
    members = {
        name: pair
        for name, pair in pairs.items()
        if name in table.members and refusal(pair.arm, pair.base) is None
    }
    seeds = common([*members.values()])
    judged = estimates([*members.values()], seeds, table.look)
    return {
        name: estimate.exp()
        for name, estimate in zip(members, judged, strict=True)
        if math.isfinite(estimate.high)
    }
