"""The page of a race: headlines, tables, curves, a forest plot of the gains, and what was
registered."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from nocap import __version__
from nocap.display import NONE
from nocap.judge.interval import Position, finite
from nocap.judge.races import RacedArm, RaceResult
from nocap.metrics import Better, Metric, Scale
from nocap.report import forest, html_page, svg_chart
from nocap.report.arm_styles import HUES
from nocap.report.figures_in_words import measured
from nocap.report.provenance import Fact
from nocap.sources.races.command import Command
from nocap.sources.races.race import Race, RaceOutcome
from nocap.sources.races.result_json import more_pairs, run_objects
from nocap.sources.races.result_tables import every_run, gain_cell, tables

SAID_COSTS = ("wall_s", "peak_mib")  # of which a heading says the means


@dataclass(frozen=True, kw_only=True, slots=True)
class _Headline:
    arm: str
    word: str
    kind: str  # by which the page has its mark
    gain: str
    reason: str


def render(race: Race, outcome: RaceOutcome, *, command: str | None = None) -> str:
    """Draw the page: headlines, tables, gains, the registration and every run. `command`: what was
    typed."""
    result = outcome.result
    metric = race.readers[0].metric
    first = _first(result)
    others = [arm for arm in result.arms if arm is not first]
    low, high = race.expect or (-math.inf, math.inf)
    pictures = [_forest(race, result, metric, stated=(finite(low), finite(high)))]
    for guard in race.guards:
        pictures.append(_forest(race, result, guard.reader.metric, bound=-guard.margin))
    answer = _answer(race, result, first)
    return html_page.render(
        "race",
        kind="nocap race",
        title=answer,
        answer=answer,
        others=[_headline(race, result, arm) for arm in others],
        facts=_facts(outcome, command),
        tables=[table.known for table in tables(race, outcome)],
        forests=[picture for picture in pictures if picture],
        more=more_pairs(race, outcome),
        shaded=race.expect is not None,
        guarded=bool(race.guards),
        curves=_curves(race, result.n),
        when=outcome.registration.at,
        arms={arm.name: shlex.join(arm.words) for arm in race.arms},
        stated=list(_stated(race)),
        rows=every_run(run_objects(race, result.n), race.costs),
    )


def _gain(arm: RacedArm, metric: Metric) -> str:
    cell = gain_cell(arm.measured[metric.name], metric, Scale.difference)
    return "" if cell is None or cell.text == NONE else str(cell)


def _headline(race: Race, result: RaceResult, arm: RacedArm) -> _Headline:
    facts = [_gain(arm, race.readers[0].metric), *_costs(race, result, arm)]
    return _Headline(
        arm=arm.name,
        word=arm.word.value,
        kind=arm.word.name,
        gain=", ".join(filter(None, facts)),
        reason=arm.reason_text,
    )


def _first(result: RaceResult) -> RacedArm | None:
    """Return the arm that the heading is about: the best of those that gain, or the only one;
    `None`: several raced, and none gains."""
    better = [arm for arm in result.arms if arm.word.is_gain]
    if better:
        return max(better, key=lambda arm: arm.gain.mid)
    if len(result.arms) == 1:
        return result.arms[0]
    return None


def _answer(race: Race, result: RaceResult, first: RacedArm | None) -> str:
    """Say the word of the first arm, and its gain; of no arm, that none is shown to be better."""
    metric = race.readers[0].metric
    base = race.arms[0].name
    if first is None:
        return f"No arm is shown to be better than {base} in {metric.name}"
    facts = [first.word_with_reason]
    gain = _gain(first, metric)
    if gain:
        facts.append(f"{metric.name} {gain}")
    facts += _costs(race, result, first)
    return f"{first.name} against {base}: {', '.join(facts)}"


def _costs(race: Race, result: RaceResult, arm: RacedArm) -> Iterator[str]:
    """Say what an arm takes more or less of, where its interval lies on one side; of one session,
    which has no intervals, both means where they differ."""
    for metric in race.costs:
        own = arm.measured[metric.name]
        base = result.baseline[metric.name]
        if own.estimate is not None:
            if own.estimate.position(1.0, 1.0) in (Position.below, Position.above):
                yield measured(own.estimate, metric, Scale.ratio).text
        elif metric.name in SAID_COSTS and own.mean is not None and base.mean is not None:
            means = [metric.show(own.mean), metric.show(base.mean)]
            if means[0] != means[1]:
                yield f"{metric.title} {means[0]} against {means[1]}"


def _facts(outcome: RaceOutcome, command: str | None) -> list[Fact]:
    found = [
        Fact(name="registered", text=outcome.registration.at[:10]),
        Fact(name="repeats", text=str(outcome.result.n)),
        Fact(name="judged by nocap", text=__version__),
    ]
    return [*found, Fact(name="command", text=command, code=True)] if command else found


def _stated(race: Race) -> Iterator[tuple[str, str]]:
    """Yield what was registered beside the arms, in words."""
    for reader in race.readers:
        origin = f" of {reader.file}" if reader.file else ""
        yield "metric", f"{reader.what}{origin}; {reader.better.value} is better"
    for guard in race.guards:
        yield "guard", f"{guard.reader.what} may be worse by at most {guard.margin:g}"
    if race.expect is not None:
        yield "expected gain", _between(*race.expect)
    if race.target is not None:
        yield "target", f"{race.target:g}"
    yield "seeds", f"from {race.first_seed} on" if race.seeded else "the commands take no seed"
    if race.sessions > 1:
        yield (
            "sessions",
            f"{race.sessions}, {race.apart_s:g} s apart, with {race.pairs} repeats in total",
        )
    if race.jobs > 1:
        yield "runs", "several at once, so no times are compared"


def _between(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low:g} or more"
    return f"{high:g} or less" if math.isinf(low) else f"{low:g} to {high:g}"


def _curves(race: Race, n: int) -> Markup | None:
    """Draw the metric over the steps that the commands printed; `None` where they printed none."""
    lines = list[svg_chart.StillLine]()
    for i, arm in enumerate(race.arms):
        line = svg_chart.StillLine(
            name=arm.name,
            color=f"var(--hue-{i % HUES})",
            dash=svg_chart.DASHES[i % len(svg_chart.DASHES)],
            symbol=i % len(svg_chart.SYMBOLS),
            hollow=False,
            points=_mean_curve(race, arm, n),
        )
        lines.append(line)
    if not any(len(line.points) > 1 for line in lines):
        return None
    return svg_chart.chart(lines, x="steps", y=race.readers[0].name, named=True)


def _mean_curve(race: Race, arm: Command, n: int) -> list[tuple[float, float]]:
    """Return the mean at the steps that all repeats of an arm printed."""
    values = dict[float, list[float]]()
    for repeat in range(n):
        points = race.readers[0].curve(race.run_folder(arm, repeat))
        for step, value in {step: value for step, value, _ in points if step is not None}.items():
            values.setdefault(step, []).append(value)
    means = [(step, fmean(some)) for step, some in sorted(values.items()) if len(some) == n]
    return [point for point in means if math.isfinite(point[1])]


def _forest(
    race: Race,
    result: RaceResult,
    metric: Metric,
    *,
    stated: tuple[float | None, float | None] = (None, None),
    bound: float | None = None,
) -> forest.Forest | None:
    """Draw the differences in one metric, on its own axis; `None` where none has an interval, as of
    one seed. `stated` and `bound` are gains."""
    lower = metric.better is Better.lower
    lines = list[forest.ForestRow]()
    for arm in result.arms:
        gain = arm.measured[metric.name].estimate
        if gain is not None and math.isfinite(gain.high):
            lines.append(
                forest.ForestRow(
                    label=arm.name,
                    title=f"{arm.name}: {measured(gain, metric, Scale.difference)}",
                    css_class=arm.word.name,
                    mid=-gain.mid if lower else gain.mid,
                    low=-gain.high if lower else gain.low,
                    high=-gain.low if lower else gain.high,
                    stated=_turned(stated) if lower else stated,
                    bound=-bound if lower and bound is not None else bound,
                )
            )
    if not lines:
        return None
    side = "left" if lower else "right"
    title = f"{metric.name} minus {race.arms[0].name}'s; {side} is better"
    return forest.svg(lines, title=title, cut=True)


def _turned(ends: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    low, high = ends
    return (None if high is None else -high, None if low is None else -low)
