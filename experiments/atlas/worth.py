"""What an idea is worth, from the lines of runs.jsonl: lower loss, steps saved, time saved, each with its interval.

A block is a machine with a seed and a length. An arm's gain is taken against the baseline of its own block, and all arms share the noise of
a pair. The baseline's loss at several lengths shows what a logarithm of steps is worth. A gain divided by that is the logarithm of the
equivalent speedup in steps; times the step's own speed it is one in time.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nocap.judge.noise import Noise, Prior
from nocap.judge.stats import Estimate, interval, pooled_sd
from nocap.show.table import markdown

README, MARK = Path(__file__).resolve().parent / "README.md", "<!-- the table -->"
BASELINE = "baseline"
ENDS = ("ratio", "low", "high")
SAME = 1e-4  # nats: an arm whose gains differ by less computes the same but for rounding
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Blocks:
    """All runs of one length."""

    share: float
    runs: Sequence[Line]

    @cached_property
    def losses(self) -> dict[tuple[str, int], dict[str, float]]:
        """Block → arm → final loss; one that diverged is infinitely bad."""
        found: dict[tuple[str, int], dict[str, float]] = {}
        for one in self.runs:
            if one["share"] == self.share:
                loss = math.inf if one["val_loss"] is None else one["val_loss"]
                found.setdefault((one["machine"], one["seed"]), {})[one["arm"]] = loss
        return found

    def gains(self, arm: str, over: str = BASELINE) -> list[float]:
        return [of[over] - of[arm] for of in self.losses.values() if {over, arm} <= of.keys()]

    @cached_property
    def noise(self) -> Prior | None:
        """Of one pair; `None`: fewer than three arms with two pairs."""
        names = dict.fromkeys(arm for of in self.losses.values() for arm in of if arm != BASELINE)
        groups = [gains for arm in names if len(gains := self.gains(arm)) > 1 and all(map(math.isfinite, gains))]
        groups = [gains for gains in groups if max(gains) - min(gains) > SAME]
        df = sum(len(gains) - 1 for gains in groups)
        return Prior(sd=pooled_sd(groups), df=df, source=f"{len(groups)} arms, {df} degrees of freedom") if len(groups) >= 3 else None

    def lower(self, arm: str, over: str = BASELINE) -> Estimate | None:
        """By how many nats it ends lower. `None`: too few pairs, or one diverged."""
        gains = self.gains(arm, over)
        noise = Noise(prior=self.noise)
        return noise.interval(np.array(gains), 0.05) if noise.enough(len(gains), 3) and gains and all(map(math.isfinite, gains)) else None

    def without(self, arm: str) -> str:
        """Why there is no interval."""
        return "–" if all(map(math.isfinite, self.gains(arm))) else "diverged"

    def slope(self) -> Estimate | None:
        """Nats that e times the steps lower the baseline's loss: over the lengths next to this one, in blocks that have both; `None`: there
        are fewer than two."""
        ends: dict[float, dict[tuple[str, int], float]] = {}
        for one in self.runs:
            if one["arm"] == BASELINE and one["val_loss"] is not None:
                ends.setdefault(one["share"], {})[one["machine"], one["seed"]] = one["val_loss"]
        around = sorted(sorted(ends, key=lambda share: abs(math.log(share / self.share)))[:3])
        if len(around) < 2:
            return None
        both = ends[around[0]].keys() & ends[around[-1]].keys()
        times = math.log(around[-1] / around[0])
        drops = [(ends[around[0]][block] - ends[around[-1]][block]) / times for block in sorted(both)]
        return interval(drops) if len(drops) > 1 else None


def logarithm(speed: Mapping[str, float]) -> Estimate:
    return Estimate(mid=math.log(speed["ratio"]), low=math.log(speed["low"]), high=math.log(speed["high"]))


def stages(asked: Line) -> list[tuple[float, str]]:
    """Shares of the baseline's tokens, and the overrides of a step there; none are the baseline's own step."""
    return [(share, shlex.join(words)) for share, words in asked.get("stages", [[1, asked.get("with", [])]])]


def speed_of(asked: Line, steps: Line | None, share: float) -> dict[str, float] | None:
    """The baseline's time over an arm's, through its stages and with what was trained before it; `None`: a step was not timed."""
    timed = {words: one["speed"] for words, one in ((steps or {}).get("steps") or {}).items()} | {"": dict.fromkeys(ENDS, 1.0)}
    parts = [(of, timed.get(words)) for of, words in stages(asked)]
    before = asked.get("before", 0) / share
    return (
        None
        if not all(speed for _, speed in parts)
        else {at: 1 / (sum(of / speed[at] for of, speed in parts if speed) + before) for at in ENDS}
    )


def table(runs: Sequence[Line], arms: Mapping[str, Line], steps: Line | None) -> list[str]:
    """A row an arm, at the longest length that it was trained at; those worth most first."""
    shares = sorted({one["share"] for one in runs}, reverse=True)
    rows: list[tuple[float, list[str]]] = []
    for arm, asked in arms.items():
        found = next((blocks for share in shares if (blocks := Blocks(share, runs)).gains(arm)), None)
        if arm == BASELINE or found is None:
            continue
        lower, rate, speed = found.lower(arm), found.slope(), speed_of(asked, steps, found.share)
        in_steps = lower.over(rate) if lower and rate else None
        in_time = in_steps.plus(logarithm(speed)) if in_steps and speed else None
        shown = [
            arm,
            f"{lower.mid:+.4f} [{lower.low:+.4f}, {lower.high:+.4f}]" if lower else found.without(arm),
            ratio(in_steps),
            f"{1 / speed['ratio']:.2f}" if speed else "–",
            ratio(in_time),
            word(in_time or in_steps),
            f"{found.share:g}, n={len(found.gains(arm))}",
            asked.get("source", ""),
            asked.get("said", ""),
        ]
        rows.append((-(in_time or in_steps or Estimate(mid=-math.inf, low=0, high=0)).mid, shown))
    head = ("idea", "lower loss, nats", "steps", "a step's time", "time", "verdict", "length, seeds", "source", "there")
    return markdown(head, [cells for _, cells in sorted(rows, key=lambda row: row[0])])


def ratio(e: Estimate | None) -> str:
    return "–" if e is None else f"{(x := e.exp()).mid:.2f}× [{x.low:.2f}, {x.high:.2f}]"


def word(e: Estimate | None) -> str:
    """By the interval alone: a screen over many arms chooses what is confirmed on fresh seeds, and confirms nothing itself."""
    if e is None:
        return "–"
    return "helps" if e.low > 0 else "hurts" if e.high < 0 else "not seen"


def tell(runs: Sequence[Line], arms: Mapping[str, Line], steps: Line | None) -> int:
    before, _, after = README.read_text().split(MARK)
    README.write_text("\n".join([before + MARK, *table(runs, arms, steps), MARK + after]))
    return 0
