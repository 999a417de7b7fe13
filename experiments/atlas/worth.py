"""What an idea is worth, from the lines of runs.jsonl: lower loss, steps saved, time saved, each
with its interval.

A block is a machine with a seed and a length. An arm's gain is taken against the baseline of its
own block, and all arms share the noise of a pair. The baseline's loss at several lengths shows what
a logarithm of steps is worth: less beyond this length, which is the rate for what ends lower, than
before it, which is the rate for what ends higher. A gain divided by that is the logarithm of the
equivalent speedup in steps; times the step's own speed, over sessions of timing, it is one in time.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from estimate import Estimate, Noise, benjamini_hochberg, holm, interval, pooled, quantile

from nocap.config.keys import require
from nocap.judge.cautious_interval import CAP, CLOCK_BIAS, Declared, of_pairs
from nocap.judge.cautious_interval import pooled as declared_by
from nocap.judge.interval import LEAST_PAIRS
from nocap.report.table import markdown

HERE = Path(__file__).resolve().parent
README, FIGURE, MARK, CORRECTION = (
    HERE / "README.md",
    HERE / "atlas.svg",
    "the table",
    "the correction",
)
COUNT = "the count"
# grey: what has no verdict
GREY, COLORS = "#9db4c8", {"helps": "#0b6e4f", "not seen": "#6b7785", "hurts": "#b0413e"}
BASELINE = "baseline"
# of the baseline's schedules, in shares of the scale's steps: what steps are worth
LENGTHS = (0.25, 0.5, 0.71, 1.0)
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
        by_block: dict[tuple[str, int], dict[str, float]] = {}
        for run in self.runs:
            if run["share"] == self.share:
                loss = math.inf if run["val_loss"] is None else run["val_loss"]
                by_block.setdefault((run["machine"], run["seed"]), {})[run["arm"]] = loss
        return by_block

    def gains(self, arm: str, over: str = BASELINE) -> list[float]:
        return [
            by_arm[over] - by_arm[arm]
            for by_arm in self.losses.values()
            if {over, arm} <= by_arm.keys()
        ]

    @cached_property
    def noise(self) -> Noise | None:
        """Of one pair; `None`: fewer than three arms with two pairs."""
        names = dict.fromkeys(
            arm for by_arm in self.losses.values() for arm in by_arm if arm != BASELINE
        )
        groups = [
            gains
            for arm in names
            if len(gains := self.gains(arm)) > 1 and all(map(math.isfinite, gains))
        ]
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

    def slope(
        self, arm: str = BASELINE, lengths: Sequence[float] = LENGTHS, *, lower: float = 1.0
    ) -> Estimate | None:
        """Nats that e times the steps lower an arm's loss, in blocks that have both ends of up to
        three lengths next to each other: from this one on for what ends lower, up to this one for
        what ends higher. Where nothing was trained on that side it is the other's: from the longest
        length what ends lower is understated. `None`: there are fewer than two lengths."""
        ends: dict[float, dict[tuple[str, int], float]] = {}
        for run in self.runs:
            if (
                run["arm"] == arm
                and run["val_loss"] is not None
                and run["share"] in (*lengths, self.share)
            ):
                ends.setdefault(run["share"], {})[run["machine"], run["seed"]] = run["val_loss"]
        beyond = sorted(share for share in ends if share >= self.share)[:3]
        before = sorted(share for share in ends if share <= self.share)[-2:]
        first, second = (beyond, before) if lower >= 0 else (before, beyond)
        around = first if len(first) > 1 else second
        if len(around) < 2:
            return None
        both = ends[around[0]].keys() & ends[around[-1]].keys()
        times = math.log(around[-1] / around[0])
        drops = [
            (ends[around[0]][block] - ends[around[-1]][block]) / times for block in sorted(both)
        ]
        return interval(drops) if len(drops) > 1 else None

    def in_steps(
        self, lower: Estimate | None, arm: str = BASELINE, lengths: Sequence[float] = LENGTHS
    ) -> Estimate | None:
        """Logarithm of the equivalent speedup, by the slope on the effect's own side."""
        rate = self.slope(arm, lengths, lower=lower.mid) if lower else None
        return lower.over(rate) if lower and rate else None


def stages(asked: Line) -> list[tuple[float, str]]:
    """Shares of the baseline's tokens, and the overrides of a step there; none are the baseline's
    own step."""
    return [
        (share, shlex.join(words))
        for share, words in asked.get("stages", [[1, asked.get("with", [])]])
    ]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The logarithm of the baseline's time over an arm's, in each session of timing that has
    both."""

    mid: float
    n: int  # sessions
    estimate: Estimate | None  # `None`: fewer than three sessions

    @property
    def cell(self) -> str:
        """A step's time, the baseline's being 1."""
        return f"{math.exp(-self.mid):.2f}, n={self.n}"


@dataclass(frozen=True)
class Steps:
    """What steps take, by sessions that lie apart."""

    sessions: Sequence[Line]

    def logs(self, words: str) -> dict[int, float]:
        """Session → how fast a step is over the baseline's; no words are the baseline's own."""
        by_session = {i: timing["steps"].get(words) for i, timing in enumerate(self.sessions)}
        return {
            i: 0.0 if not words else math.log(timing["speed"]["ratio"])
            for i, timing in by_session.items()
            if not words or (timing and timing["speed"])
        }

    def by_flops(self, words: str) -> float | None:
        """What arithmetic alone would make of it."""
        return next(
            (
                session["steps"][words]["speed_by_flops"]
                for session in reversed(self.sessions)
                if words in session["steps"]
            ),
            None,
        )

    def noise(self, but: Sequence[str]) -> Declared | None:
        """Between sessions, of one step: pooled over all but these."""
        words = dict.fromkeys(words for session in self.sessions for words in session["steps"])
        return declared_by([list(self.logs(other).values()) for other in words if other not in but])

    def over_sessions(self, logs: Sequence[float], words: Sequence[str]) -> Speed | None:
        """`nocap.judge`'s interval. As a standard error with degrees of freedom it goes into the
        sum with the loss's."""
        if not logs:
            return None
        declared, n = self.noise(words), len(logs)
        e = of_pairs(logs, declared=declared, bias=CLOCK_BIAS)
        df = n - 1 + (min(declared.df, CAP) if declared and "declared" in e.method else 0)
        estimate = (
            Estimate(mid=e.mid, se=e.half_width / quantile(df), df=df) if n >= LEAST_PAIRS else None
        )
        return Speed(mid=e.mid, n=n, estimate=estimate)

    def of(self, asked: Line, share: float) -> Speed | None:
        """Through an arm's stages and with what was trained before it; `None`: no session has all
        of its steps."""
        parts = [(fraction, self.logs(words)) for fraction, words in stages(asked)]
        both = set.intersection(*(set(logs) for _, logs in parts))
        before = asked.get("before", 0) / share
        took = [
            sum(fraction * math.exp(-logs[i]) for fraction, logs in parts) + before
            for i in sorted(both)
        ]
        return self.over_sessions(
            [-math.log(each) for each in took], [words for _, words in stages(asked)]
        )

    def between(self, words: str, over: str) -> Speed | None:
        """Of one step over another."""
        a, b = self.logs(words), self.logs(over)
        return self.over_sessions([a[i] - b[i] for i in sorted(a.keys() & b.keys())], [words, over])


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What one idea is worth at the longest length that it was trained at."""

    arm: str
    share: float  # of the scale's steps
    n: int  # pairs
    lower: Estimate | None  # nats
    steps: Estimate | None  # logarithm of the equivalent speedup
    # the same, at the time of its steps; `None`: a step was timed in fewer than three sessions
    time: Estimate | None
    speed: Speed | None
    params: int
    without: str  # why there is no interval

    @property
    def at(self) -> float:
        return -math.inf if self.time is None else self.time.mid

    @property
    def word(self) -> str:
        """By the interval alone, without a correction; nothing is said of fewer than three
        seeds."""
        if self.time is None or self.n < LEAST_PAIRS:
            return "–" if self.time is None else f"no verdict (n={self.n})"
        return "helps" if self.time.low > 0 else "hurts" if self.time.high < 0 else "not seen"


def worths(runs: Sequence[Line], arms: Mapping[str, Line], steps: Steps) -> list[Worth]:
    """Those worth most first."""
    unranked: list[Worth] = []
    for arm, asked in arms.items():
        blocks = next(
            (
                candidate
                for share in sorted({row["share"] for row in runs}, reverse=True)
                if (candidate := Blocks(share, runs)).gains(arm)
            ),
            None,
        )
        if arm == BASELINE or blocks is None:
            continue
        lower, speed = blocks.lower(arm), steps.of(asked, blocks.share)
        in_steps = blocks.in_steps(lower)
        unranked.append(
            Worth(
                arm=arm,
                share=blocks.share,
                n=len(blocks.gains(arm)),
                lower=lower,
                steps=in_steps,
                time=in_steps.plus(speed.estimate)
                if in_steps and speed and speed.estimate
                else None,
                speed=speed,
                params=round(next(row.get("params") or 0 for row in runs if row["arm"] == arm)),
                without=blocks.without(arm),
            )
        )
    return sorted(unranked, key=lambda row: -row.at)


def corrected(ranked: Sequence[Worth]) -> tuple[set[str], set[str]]:
    """The ideas whose worth in time is apart from 1 after a correction for all of them: by Holm, by
    Benjamini and Hochberg."""
    p = {idea.arm: 1.0 if idea.time is None else idea.time.p for idea in ranked}
    return holm(p), benjamini_hochberg(p)


def left_of(ranked: Sequence[Worth]) -> list[str]:
    """The sentence with which the page begins."""
    by_holm, by_bh = corrected(ranked)
    helps, hurts = ([idea for idea in ranked if idea.word == word] for word in ("helps", "hurts"))

    def count(ideas: Sequence[Worth]) -> str:
        strict = [idea.arm for idea in ideas if idea.arm in by_holm]
        named = f" ({', '.join(strict)})" if strict else ""
        return (
            f"Holm's keeps {len(strict)}{named}, Benjamini and Hochberg's "
            f"{sum(idea.arm in by_bh for idea in ideas)}"
        )

    sessions = sorted({idea.speed.n for idea in ranked if idea.speed})
    timed = (
        " to ".join(map(str, (sessions[0], sessions[-1])[: len(sessions)])) if sessions else "no"
    )
    few = sum(idea.n < LEAST_PAIRS for idea in ranked)
    return [
        f"**{len(helps)} of {len(ranked)} ideas help in time, each by its own 95% interval. "
        f"After a correction for {len(ranked)} comparisons",
        "(5% for all together),",
        f"{count(helps)}.** {len(hurts)} hurt: {count(hurts)}.",
        f"{few} have one seed or two, and no verdict. Steps are timed in {timed} sessions.",
    ]


def so_far(runs: Sequence[Line]) -> list[str]:
    """Say how many runs there are, and how long they took."""
    hours = sum(run["clock_s"]["wall"] for run in runs) / 3600
    days = sorted({run["started"][:10] for run in runs})
    return [
        f"So far {len(runs)} runs, {hours:.1f} hours of a core beside other work, "
        f"{' and '.join(days)}."
    ]


HEAD = (
    *(
        "idea",
        "lower loss, nats",
        "steps",
        "a step's time, sessions",
        "time",
        "parameters",
        "verdict",
        "after a correction",
    ),
    *("by FLOPs", "lines", "length, seeds", "source", "there"),
)


def table(
    ranked: Sequence[Worth], arms: Mapping[str, Line], steps: Steps, code: Mapping[str, int]
) -> list[str]:
    """A row an arm. `code`: the lines of its own files."""
    by_holm, by_bh = corrected(ranked)
    rows = []
    for idea in ranked:
        by_flops = steps.by_flops(stages(arms[idea.arm])[-1][1])
        stays = (
            "–"
            if idea.n < LEAST_PAIRS
            else "Holm"
            if idea.arm in by_holm
            else "BH"
            if idea.arm in by_bh
            else "–"
        )
        rows.append(
            [
                idea.arm,
                nats(idea.lower) if idea.lower else idea.without,
                ratio(idea.steps),
                idea.speed.cell if idea.speed else "–",
                ratio(idea.time),
                f"{idea.params / 1e6:.2f}M",
                idea.word,
                stays,
                f"{1 / by_flops:.2f}" if by_flops else "–",
                str(code.get(idea.arm) or "–"),
                f"{idea.share:g}, n={idea.n}",
                arms[idea.arm].get("source", ""),
                arms[idea.arm].get("said", ""),
            ]
        )
    return markdown(HEAD, rows)


ADDED = ("lower loss, nats", "steps", "a step's time, sessions", "time", "seeds")


def added(
    blocks: Blocks,
    arm: str,
    over: str,
    words: Mapping[str, str],
    steps: Steps,
    slope_arm: str = BASELINE,
    lengths: Sequence[float] = LENGTHS,
) -> list[str]:
    """Cells: what one arm is worth over another, at the exchange rate of a third. `words`: arm →
    the name of its step in `steps`."""
    lower = blocks.lower(arm, over)
    in_steps, speed = (
        blocks.in_steps(lower, slope_arm, lengths),
        steps.between(words[arm], words[over]),
    )
    return [
        nats(lower) if lower else blocks.without(arm),
        ratio(in_steps),
        speed.cell if speed else "–",
        ratio(in_steps.plus(speed.estimate) if in_steps and speed and speed.estimate else None),
        str(len(blocks.gains(arm, over))),
    ]


def nats(e: Estimate) -> str:
    return f"{e.mid:+.4f} [{e.low:+.4f}, {e.high:+.4f}]"


def ratio(e: Estimate | None) -> str:
    return "–" if e is None else "{:.2f}× [{:.2f}, {:.2f}]".format(*e.exp())


def figure(ranked: Sequence[Worth]) -> None:
    """The equivalent speedups in time as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "nocap",
        }
    )
    shown = [idea for idea in reversed(ranked) if idea.time]
    picture, axes = pyplot.subplots(figsize=(7.2, 0.6 + 0.17 * len(shown)), layout="constrained")
    axes.axvline(1, color=GREY, lw=1)
    for y, idea in enumerate(shown):
        assert idea.time
        (mid, low, high), color = idea.time.exp(), COLORS.get(idea.word, GREY)
        axes.plot([low, high], [y, y], color=color, lw=1.6)
        axes.plot(mid, y, "o", color=color, ms=4)
    axes.set(yticks=range(len(shown)), xscale="log", ylim=(-0.7, len(shown) - 0.3))
    axes.set_xlabel(
        "as fast to the same loss, in time, with 95% intervals, not corrected; pale: fewer than "
        "three seeds"
    )
    axes.set_yticklabels([f"{idea.arm}, {idea.params / 1e6:.2f}M" for idea in shown], fontsize=8)
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


def tell(
    runs: Sequence[Line], arms: Mapping[str, Line], steps: Steps, code: Mapping[str, int]
) -> int:
    ranked = worths(runs, arms, steps)
    figure(ranked)
    put(CORRECTION, left_of(ranked))
    put(COUNT, so_far(runs))
    put(MARK, table(ranked, arms, steps, code))
    return 0
