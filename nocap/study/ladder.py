"""A ladder: the races of a study at several sizes on one machine, and what size does to their speedup."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from nocap.judge.claim import TO_TARGET
from nocap.judge.interval import Estimate
from nocap.judge.trend import LEAST_SIZES, Trend, trend
from nocap.report import forest
from nocap.report.table import Column, Table
from nocap.report.words import measured as in_words
from nocap.store.formats import NONE, count
from nocap.store.metrics import METRICS, Ending, Metric, Scale

Json = Mapping[str, Any]
HOLDS = 1.1  # times, at ten times the parameters: what changes less holds
FAR = 124e6  # parameters of the challenge
TOLD = 2.0  # the most that the ends of an interval there may differ by, times
PICTURE = "ladder.svg"


@dataclass(frozen=True, kw_only=True)
class Size:
    scale: str
    params: float  # of the baseline
    gain: Estimate  # the speedup, a ratio
    word: str  # of the verdict there
    pairs: Sequence[float]  # logarithms of the speedup; none where a side was not measured but bounded


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Of one race."""

    claim: str
    metric: Metric
    sizes: Sequence[Size]  # the smallest first

    @cached_property
    def trend(self) -> Trend | None:
        """Of the speedup's logarithm over that of the parameters; `None`: too few sizes were measured."""
        points = [(math.log(size.params), size.pairs) for size in self.sizes if size.pairs]
        return trend(points) if len({x for x, _ in points}) >= LEAST_SIZES else None

    @property
    def decade(self) -> Estimate | None:
        """What ten times the parameters multiply the speedup by."""
        return self.trend.slope(math.log(10)).exp() if self.trend else None

    @property
    def word(self) -> str:
        if self.decade is None:
            return f"cannot be told: fewer than {LEAST_SIZES} sizes were measured"
        if self.trend and not self.trend.straight:
            return "cannot be told: not the same from size to size"
        if self.decade.place(1 / HOLDS, HOLDS) == 0:
            return "holds"
        return {1: "grows", -1: "shrinks"}.get(self.decade.place(1.0, 1.0), "cannot be told")

    @property
    def far(self) -> Estimate | None:
        """At the challenge's size, where the interval allows it."""
        if self.trend is None or not self.trend.straight:
            return None
        there = self.trend.at(math.log(FAR)).exp()
        return there if there.high <= TOLD * there.low else None


def ladders(every: Sequence[Json]) -> list[Ladder]:
    """Of the results of one machine, those of each size; a race that has one size has no ladder."""
    races: dict[tuple[str, str], list[Size]] = {}
    for results in every:
        params = {arm["arm"]: arm["params"] for arm in results["arms"]}
        for claim in results["claims"]:
            if claim["metric"] in TO_TARGET and claim["measured"]:
                races.setdefault((claim["id"], claim["metric"]), []).append(
                    Size(
                        scale=results["scale"],
                        params=params[claim["baseline"]],
                        gain=Estimate(**claim["measured"], n=claim["n"]),
                        word=claim["word"],
                        pairs=list(_pairs(results, claim)),
                    )
                )
    return [
        Ladder(claim=name, metric=METRICS[metric], sizes=sorted(sizes, key=lambda size: size.params))
        for (name, metric), sizes in races.items()
        if len(sizes) > 1
    ]


def _pairs(results: Json, claim: Json) -> Iterator[float]:
    of_claim = (claim["id"], claim["metric"])
    rows = [row for row in results["measurements"] if (row["claim"], row["metric"]) == of_claim]
    if all(row["ending"] == Ending.measured.value for row in rows):
        sides = [
            {row["repeat"]: row["value"] for row in rows if row["arm"] == claim[side]}
            for side in ("baseline", "arm")
        ]
        yield from (math.log(sides[0][n] / sides[1][n]) for n in sorted(sides[0].keys() & sides[1].keys()))


def section(every: Sequence[Json]) -> list[str]:
    """Of a README: a table a machine."""
    lines = []
    for results, made in _by_machine(every):
        shown = {size.scale: size.params for ladder in made for size in ladder.sizes}
        cells: list[list[Any]] = [
            [f"{scale}: {count(params)} parameters", *(_at(ladder, scale) for ladder in made)]
            for scale, params in shown.items()
        ]
        cells += [
            ["times, at ten times the parameters", *(_times(ladder.decade) for ladder in made)],
            [f"at {FAR / 1e6:.0f}M parameters", *(_times(ladder.far) for ladder in made)],
            ["as the model grows, the gain", *(f"**{ladder.word}**" for ladder in made)],
        ]
        columns = [Column(title=title) for title in ("size", *(ladder.claim for ladder in made))]
        lines += [
            f"## The ladder: {results['hardware']['name']}",
            "",
            f"![the ladder]({PICTURE})",
            "",
            *Table(title="", columns=columns, rows=cells).markdown(),
            "",
            RULE,
            "",
        ]
    return lines


RULE = (
    "A line through the logarithms of the speedups over those of the baseline's parameters, pair by pair, "
    "with its interval at 95%. *Holds*: ten times the parameters change the speedup by less than "
    f"{HOLDS - 1:.0%}. Nothing is said where the sizes' means lie off the line, nor of 124M parameters where "
    f"the interval's ends differ by more than {TOLD:g} times."
)


def picture(every: Sequence[Json]) -> Markup | None:
    """The speedups over the sizes, a line each, and what the fit says of ten times the parameters."""
    lines = []
    for _, made in _by_machine(every):
        for ladder in made:
            what = ladder.metric.name.partition("_")[0]  # time or steps
            lines += [_line(f"{what}: {size.scale}", size.gain, size.word) for size in ladder.sizes]
            lines += [_line(f"{what}: for ten times", ladder.decade, "fit")] if ladder.decade else []
    return (
        forest.svg(
            lines,
            title="times as fast to the baseline's loss; for ten times the parameters: by what that changes",
            ratio=True,
        )
        if lines
        else None
    )


def _line(label: str, gain: Estimate, look: str) -> forest.Line:
    return forest.Line(
        label=label, title=f"{label}: {_times(gain)}", look=look, mid=gain.mid, low=gain.low, high=gain.high
    )


def _by_machine(every: Sequence[Json]) -> Iterator[tuple[Json, list[Ladder]]]:
    machines: dict[str, list[Json]] = {}
    for results in every:
        machines.setdefault(results["hardware"]["fingerprint"], []).append(results)
    yield from ((some[0], made) for some in machines.values() if (made := ladders(some)))


def _at(ladder: Ladder, scale: str) -> str:
    gains = [size.gain for size in ladder.sizes if size.scale == scale]
    return str(in_words(gains[0], ladder.metric, Scale.ratio)) if gains else NONE


def _times(gain: Estimate | None) -> str:
    return NONE if gain is None else f"{gain.mid:.2f}× [{gain.low:.2f}, {gain.high:.2f}]"
