"""A ladder: the races of a study at several sizes on one machine, and what size does to their speedup."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nocap.judge.claim import TO_TARGET
from nocap.judge.interval import Estimate
from nocap.judge.trend import LEAST_SIZES, Trend, trend
from nocap.report import forest
from nocap.report.table import Column, Table
from nocap.report.words import measured as in_words
from nocap.store.formats import NONE, count
from nocap.store.metrics import METRICS, Ending, Scale

Json = Mapping[str, Any]
HOLDS = 1.1  # times, at ten times the parameters: what changes less holds
FAR = 124e6  # parameters of the challenge
TOLD = 2.0  # the most that the ends of an interval there may differ by, times
PICTURE = "ladder.svg"


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Of one race. Speedups are ratios."""

    claim: Json  # of the smallest size
    sizes: Mapping[str, tuple[float, Estimate]]  # scale → the baseline's parameters, the speedup
    trend: Trend | None  # of its logarithm over that of the parameters; `None`: too few sizes were measured

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
    races: dict[str, dict[str, tuple[float, Estimate, list[float]]]] = {}
    claims: dict[str, Json] = {}
    for results in every:
        params = {arm["arm"]: arm["params"] for arm in results["arms"]}
        for claim in results["claims"]:
            if claim["metric"] not in TO_TARGET or not claim["measured"]:
                continue
            size = params[claim["baseline"]], Estimate(**claim["measured"], n=claim["n"])
            claims.setdefault(claim["id"], claim)
            races.setdefault(claim["id"], {})[results["scale"]] = *size, list(_pairs(results, claim))
    made = []
    for name, by_scale in races.items():
        sizes = dict(sorted(by_scale.items(), key=lambda item: item[1][0]))
        points = [(math.log(params), pairs) for params, _, pairs in sizes.values() if pairs]
        known = {scale: (params, gain) for scale, (params, gain, _) in sizes.items()}
        if len(known) > 1:
            made.append(
                Ladder(
                    claim=claims[name],
                    sizes=known,
                    trend=trend(points) if len({x for x, _ in points}) >= LEAST_SIZES else None,
                )
            )
    return made


def _pairs(results: Json, claim: Json) -> Iterator[float]:
    """Logarithms of the speedup, pair by pair; none where a side was not measured but bounded."""
    rows = [row for row in results["measurements"] if row["claim"] == claim["id"]]
    rows = [row for row in rows if row["metric"] == claim["metric"]]
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
        hardware = results["hardware"]
        names = [ladder.claim["id"] for ladder in made]
        sizes = list(dict.fromkeys(scale for ladder in made for scale in ladder.sizes))
        cells: list[list[Any]] = [
            [f"{scale}: {count(_params(made, scale))} parameters", *(_at(ladder, scale) for ladder in made)]
            for scale in sizes
        ]
        cells += [
            ["times, at ten times the parameters", *(_times(ladder.decade) for ladder in made)],
            [f"at {FAR / 1e6:.0f}M parameters", *(_times(ladder.far) for ladder in made)],
            ["as the model grows, the gain", *(f"**{ladder.word}**" for ladder in made)],
        ]
        table = Table(title="", columns=[Column(title=name) for name in ("size", *names)], rows=cells)
        lines += [f"## The ladder: {hardware['name']}", "", f"![the ladder]({PICTURE})", ""]
        lines += [*table.markdown(), "", RULE, ""]
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
            title = METRICS[ladder.claim["metric"]].title
            lines += [
                _line(f"{count(params)}, {title}", gain, ladder.claim["word"])
                for params, gain in ladder.sizes.values()
            ]
            lines += [_line(f"per 10×, {title}", ladder.decade, "fit")] if ladder.decade else []
    return forest.svg(lines, title="times as fast as the baseline", ratio=True) if lines else None


def _line(label: str, gain: Estimate, look: str) -> forest.Line:
    return forest.Line(
        label=label, title=f"{label}: {_times(gain)}", look=look, mid=gain.mid, low=gain.low, high=gain.high
    )


def _by_machine(every: Sequence[Json]) -> Iterator[tuple[Json, list[Ladder]]]:
    machines: dict[str, list[Json]] = {}
    for results in every:
        machines.setdefault(results["hardware"]["fingerprint"], []).append(results)
    for some in machines.values():
        if made := ladders(some):
            yield some[0], made


def _params(made: Sequence[Ladder], scale: str) -> float:
    return next(ladder.sizes[scale][0] for ladder in made if scale in ladder.sizes)


def _at(ladder: Ladder, scale: str) -> str:
    metric = METRICS[ladder.claim["metric"]]
    return str(in_words(ladder.sizes[scale][1], metric, Scale.ratio)) if scale in ladder.sizes else NONE


def _times(gain: Estimate | None) -> str:
    return NONE if gain is None else f"{gain.mid:.2f}× [{gain.low:.2f}, {gain.high:.2f}]"
