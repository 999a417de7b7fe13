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

from estimate import Estimate, Noise, interval, pooled

from nocap.config.keys import require
from nocap.report.table import markdown

HERE = Path(__file__).resolve().parent
README, FIGURE, MARK = HERE / "README.md", HERE / "atlas.svg", "the table"
GREY, COLORS = "#9db4c8", {"helps": "#0b6e4f", "not seen": "#6b7785", "hurts": "#b0413e"}
BASELINE = "baseline"
ENDS = ("ratio", "low", "high")
LENGTHS = (0.25, 0.5, 0.71, 1.0)  # of the baseline's schedules, in shares of the scale's steps: what steps are worth
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
    def noise(self) -> Noise | None:
        """Of one pair; `None`: fewer than three arms with two pairs."""
        names = dict.fromkeys(arm for of in self.losses.values() for arm in of if arm != BASELINE)
        groups = [gains for arm in names if len(gains := self.gains(arm)) > 1 and all(map(math.isfinite, gains))]
        groups = [gains for gains in groups if max(gains) - min(gains) > SAME]
        return pooled(groups) if len(groups) >= 3 else None

    def lower(self, arm: str, over: str = BASELINE) -> Estimate | None:
        """By how many nats it ends lower. `None`: too few pairs, or one diverged."""
        gains = self.gains(arm, over)
        enough = len(gains) >= (1 if self.noise else 3) and all(map(math.isfinite, gains))
        return interval(gains, self.noise) if enough else None

    def without(self, arm: str) -> str:
        """Why there is no interval."""
        return "–" if all(map(math.isfinite, self.gains(arm))) else "diverged"

    def slope(self, of: str = BASELINE, lengths: Sequence[float] = LENGTHS) -> Estimate | None:
        """Nats that e times the steps lower an arm's loss: over those of the declared lengths that are next to this one, in blocks that
        have both; `None`: there are fewer than two."""
        ends: dict[float, dict[tuple[str, int], float]] = {}
        for one in self.runs:
            if one["arm"] == of and one["val_loss"] is not None and one["share"] in lengths:
                ends.setdefault(one["share"], {})[one["machine"], one["seed"]] = one["val_loss"]
        far = {share: abs(math.log(share / self.share)) for share in ends}
        around = sorted(
            sorted(ends, key=lambda share: (round(far[share], 9), -share))[:3]
        )  # of two as far the longer: what helps is like it
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


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What one idea is worth at the longest length that it was trained at."""

    arm: str
    share: float  # of the scale's steps
    n: int  # pairs
    lower: Estimate | None  # nats
    steps: Estimate | None  # logarithm of the equivalent speedup
    time: Estimate | None  # the same, at the time of its steps
    speed: Mapping[str, float] | None
    params: int
    without: str  # why there is no interval

    @property
    def best(self) -> Estimate:
        return self.time or self.steps or Estimate(mid=-math.inf, low=-math.inf, high=math.inf)

    @property
    def word(self) -> str:
        """By the interval alone: a screen over many arms chooses what is confirmed on fresh seeds, and confirms nothing itself."""
        return "–" if not math.isfinite(self.best.mid) else "helps" if self.best.low > 0 else "hurts" if self.best.high < 0 else "not seen"


def worths(runs: Sequence[Line], arms: Mapping[str, Line], steps: Line | None) -> list[Worth]:
    """Those worth most first."""
    found: list[Worth] = []
    for arm, asked in arms.items():
        blocks = next(
            (of for share in sorted({one["share"] for one in runs}, reverse=True) if (of := Blocks(share, runs)).gains(arm)), None
        )
        if arm == BASELINE or blocks is None:
            continue
        lower, rate, speed = blocks.lower(arm), blocks.slope(), speed_of(asked, steps, blocks.share)
        in_steps = lower.over(rate) if lower and rate else None
        found.append(
            Worth(
                arm=arm,
                share=blocks.share,
                n=len(blocks.gains(arm)),
                lower=lower,
                steps=in_steps,
                time=in_steps.plus(logarithm(speed)) if in_steps and speed else None,
                speed=speed,
                params=round(next(one.get("params") or 0 for one in runs if one["arm"] == arm)),
                without=blocks.without(arm),
            )
        )
    return sorted(found, key=lambda one: -one.best.mid)


HEAD = (
    *("idea", "lower loss, nats", "steps", "a step's time", "time", "verdict"),
    *("by FLOPs", "parameters", "lines", "length, seeds", "source", "there"),
)


def table(found: Sequence[Worth], arms: Mapping[str, Line], steps: Line | None, code: Mapping[str, int]) -> list[str]:
    """A row an arm. `code`: the lines of its own files."""
    timed = (steps or {}).get("steps") or {}
    rows = []
    for one in found:
        by_flops = (timed.get(stages(arms[one.arm])[-1][1]) or {}).get("speed_by_flops")
        rows.append(
            [
                one.arm,
                nats(one.lower) if one.lower else one.without,
                ratio(one.steps),
                f"{1 / one.speed['ratio']:.2f}" if one.speed else "–",
                ratio(one.time),
                one.word,
                f"{1 / by_flops:.2f}" if by_flops else "–",
                f"{one.params / 1e6:.2f}M",
                str(code.get(one.arm) or "–"),
                f"{one.share:g}, n={one.n}",
                arms[one.arm].get("source", ""),
                arms[one.arm].get("said", ""),
            ]
        )
    return markdown(HEAD, rows)


ADDED = ("lower loss, nats", "steps", "a step's time", "time", "seeds")


def added(blocks: Blocks, arm: str, over: str, words: Mapping[str, str], steps: Line, rate: Estimate | None) -> list[str]:
    """Cells: what one arm is worth over another, at this exchange rate. `words`: arm → the name of its step in `steps`."""
    lower = blocks.lower(arm, over)
    timed = [steps["steps"].get(words[one]) for one in (arm, over)]
    in_steps = lower.over(rate) if lower and rate else None
    speed = logarithm(timed[0]["speed"]).plus(inverse(logarithm(timed[1]["speed"]))) if timed[0] and timed[1] else None
    return [
        nats(lower) if lower else blocks.without(arm),
        ratio(in_steps),
        f"{1 / speed.exp().mid:.2f}" if speed else "–",
        ratio(in_steps.plus(speed) if in_steps and speed else None),
        str(len(blocks.gains(arm, over))),
    ]


def inverse(e: Estimate) -> Estimate:
    """Of a logarithm."""
    return Estimate(mid=-e.mid, low=-e.high, high=-e.low)


def nats(e: Estimate) -> str:
    return f"{e.mid:+.4f} [{e.low:+.4f}, {e.high:+.4f}]"


def ratio(e: Estimate | None) -> str:
    return "–" if e is None else f"{(x := e.exp()).mid:.2f}× [{x.low:.2f}, {x.high:.2f}]"


def figure(found: Sequence[Worth]) -> None:
    """The equivalent speedups in time as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "nocap"})
    shown = [one for one in reversed(found) if one.time]
    picture, axes = pyplot.subplots(figsize=(7.2, 0.6 + 0.17 * len(shown)), layout="constrained")
    axes.axvline(1, color=GREY, lw=1)
    for y, one in enumerate(shown):
        at = one.best.exp()
        axes.plot([at.low, at.high], [y, y], color=COLORS[one.word], lw=1.6)
        axes.plot(at.mid, y, "o", color=COLORS[one.word], ms=4)
    axes.set(yticks=range(len(shown)), xscale="log", ylim=(-0.7, len(shown) - 0.3))
    axes.set_xlabel("as fast to the same loss, in time, with 95% intervals")
    axes.set_yticklabels([one.arm for one in shown], fontsize=8)
    ticks = [0.5, 0.7, 1, 1.4, 2]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    picture.savefig(FIGURE, metadata={"Date": None})
    pyplot.close(picture)


def between(mark: str) -> tuple[str, str, str]:
    """The page before, between and after two comments with this text.

    Errors:
        ValueError: the page has not both.
    """
    parts = README.read_text().split(f"<!-- {mark} -->")
    require(len(parts) == 3, str(README), f"have the mark <!-- {mark} --> twice", len(parts) - 1)
    return parts[0], parts[1], parts[2]


def put(mark: str, rows: Sequence[str]) -> None:
    """Write a table into the page."""
    before, _, after = between(mark)
    README.write_text("\n".join([f"{before}<!-- {mark} -->", *rows, f"<!-- {mark} -->{after}"]))


def tell(runs: Sequence[Line], arms: Mapping[str, Line], steps: Line | None, code: Mapping[str, int]) -> int:
    found = worths(runs, arms, steps)
    figure(found)
    put(MARK, table(found, arms, steps, code))
    return 0
