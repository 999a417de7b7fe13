"""What size does to the speedup of a race: `python experiments/ladder/ladder.py`.

It reads the results of this study at all of its scales, writes `ladder.svg`, and the table in
README.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trend import LEAST_SIZES, Trend, trend

from nocap.display import NONE, count
from nocap.judge.claim import TO_TARGET
from nocap.judge.interval import Estimate, Position
from nocap.metrics import METRICS, Metric, Scale
from nocap.report import forest
from nocap.report.figures_in_words import measured as in_words
from nocap.report.table import Column, Table
from nocap.study.claim_words import is_known
from nocap.study.study_folder import load_study
from nocap.study.study_pages import all_results
from nocap.study.study_result import ClaimResult, StudyResult

HOLDS = 1.1  # times, at ten times the parameters: what changes less holds
FAR = 124e6  # parameters of the challenge
TOLD = 2.0  # the most that the ends of an interval there may differ by, times
PICTURE = "ladder.svg"
START = "<!-- tables: written by ladder.py -->"
END = "<!-- end of tables -->"


@dataclass(frozen=True, kw_only=True)
class Size:
    scale: str
    params: float  # of the baseline
    gain: Estimate  # the speedup, a ratio
    word: str  # of the verdict there
    pairs: Sequence[
        float
    ]  # logarithms of the speedup; none where a side was not measured but bounded


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Of one race."""

    claim: str
    metric: Metric
    sizes: Sequence[Size]  # the smallest first

    @cached_property
    def trend(self) -> Trend | None:
        """Of the speedup's logarithm over that of the parameters; `None`: too few sizes were
        measured."""
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
        if self.decade.position(1 / HOLDS, HOLDS) is Position.within:
            return "holds"
        words = {Position.above: "grows", Position.below: "shrinks"}
        return words.get(self.decade.position(1.0, 1.0), "cannot be told")

    @property
    def far(self) -> Estimate | None:
        """At the challenge's size, where the interval allows it."""
        if self.trend is None or not self.trend.straight:
            return None
        there = self.trend.at(math.log(FAR)).exp()
        return there if there.high <= TOLD * there.low else None


def ladders(every: Sequence[StudyResult]) -> list[Ladder]:
    """Return the races of one machine at each size; a race that has one size has no ladder."""
    races: dict[tuple[str, str], list[Size]] = {}
    for result in every:
        params = {arm.arm: arm.params for arm in result.arms}
        for claim_result in result.claims:
            claim = claim_result.claim
            if claim.metric in TO_TARGET and is_known(claim_result.verdict.primary):
                of_baseline = params[str(claim_result.against)]
                races.setdefault((claim.id, claim.metric), []).append(
                    _size(result, claim_result, of_baseline)
                )
    return [
        Ladder(
            claim=name, metric=METRICS[metric], sizes=sorted(sizes, key=lambda size: size.params)
        )
        for (name, metric), sizes in races.items()
        if len(sizes) > 1
    ]


def _size(result: StudyResult, claim_result: ClaimResult, params: float | None) -> Size:
    gain = claim_result.verdict.primary
    shown = gain.shown()
    assert shown is not None
    return Size(
        scale=result.scale,
        params=params or math.nan,
        gain=shown,
        word=claim_result.word,
        pairs=gain.least if gain.measured else (),
    )


def section(every: Sequence[StudyResult]) -> list[str]:
    """Draw a table a machine, as lines of Markdown."""
    lines = []
    for result, made in _by_machine(every):
        shown = {size.scale: size.params for ladder in made for size in ladder.sizes}
        cells = [
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
            f"### {result.machine_name}",
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
    "A line through the logarithms of the speedups over those of the baseline's parameters, pair "
    "by pair, "
    "with its interval at 95%. *Holds*: ten times the parameters change the speedup by less than "
    f"{HOLDS - 1:.0%}. Nothing is said where the sizes' means lie off the line, nor of 124M "
    f"parameters where "
    f"the interval's ends differ by more than {TOLD:g} times."
)


def picture(every: Sequence[StudyResult]) -> forest.Forest | None:
    """The speedups over the sizes, a line each, and what the fit says of ten times the
    parameters."""
    lines = []
    for _, made in _by_machine(every):
        for ladder in made:
            what = ladder.metric.name.partition("_")[0]  # time or steps
            lines += [_line(f"{what}: {size.scale}", size.gain, size.word) for size in ladder.sizes]
            lines += (
                [_line(f"{what}: for ten times", ladder.decade, "fit")] if ladder.decade else []
            )
    return (
        forest.svg(
            lines,
            title="times as fast to the baseline's loss; for ten times the parameters: by what "
            "that changes",
            ratio=True,
        )
        if lines
        else None
    )


def _line(label: str, gain: Estimate, look: str) -> forest.ForestRow:
    return forest.ForestRow(
        label=label,
        title=f"{label}: {_times(gain)}",
        css_class=look,
        mid=gain.mid,
        low=gain.low,
        high=gain.high,
    )


def _by_machine(every: Sequence[StudyResult]) -> Iterator[tuple[StudyResult, list[Ladder]]]:
    machines: dict[str, list[StudyResult]] = {}
    for result in every:
        machines.setdefault(result.machine, []).append(result)
    for some in machines.values():
        made = ladders(some)
        if made:
            yield some[0], made


def _at(ladder: Ladder, scale: str) -> str:
    gains = [size.gain for size in ladder.sizes if size.scale == scale]
    return str(in_words(gains[0], ladder.metric, Scale.ratio)) if gains else NONE


def _times(gain: Estimate | None) -> str:
    return NONE if gain is None else f"{gain.mid:.2f}× [{gain.low:.2f}, {gain.high:.2f}]"


def main() -> None:
    folder = Path(__file__).parent
    every = all_results(load_study(folder), folder)
    drawn = picture(every)
    assert drawn is not None, "a race has results at several scales"
    (folder / PICTURE).write_text(drawn.file)
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + START, "", *section(every), END]) + after)


if __name__ == "__main__":
    main()
