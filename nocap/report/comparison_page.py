"""The comparison as a page: what its template names, as one value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap import display
from nocap.judge.arms import Arm
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.differences import Difference
from nocap.judge.findings import ORDER
from nocap.judge.interval import LEAST_PAIRS, confidence
from nocap.metrics import METRICS, Scale
from nocap.report import (
    comparison_charts,
    comparison_tables,
    forest,
    headline,
    html_page,
    provenance,
    svg_chart,
    verdict_marks,
)
from nocap.report.arm_styles import ArmStyle
from nocap.report.figures_in_words import gains
from nocap.report.table import Column, Table
from nocap.row_keys import LINES
from nocap.store.file_writing import write_file
from nocap.store.record import Record

MANY = 12  # arms; of more not all differences are seen at once
MOST_FIRST = 10  # differences that are seen then


@dataclass(frozen=True, kw_only=True, slots=True)
class PageArm:
    """An arm as the template names it."""

    label: str
    style: ArmStyle
    kind: str | None  # its outcome; None: it is the baseline
    besides: str  # its speed, and what it had more or less of


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockShares:
    """Where the seconds of each arm's runs went, in the mean."""

    parts: list[str]
    shares: list[list[float]]  # of each arm's parts: percent of the longest run
    seconds: Table  # of each part, and of all


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRun:
    """A run as the template names it."""

    name: str
    arm: str
    seed: int | None
    status: str
    steps: str
    loss: str
    bpb: str
    tokens_per_s: str
    hardware: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonPage:
    """All that the template names, from top to bottom."""

    # the header
    answer: str
    others: list[str]  # that were found
    imported: list[str]
    next_step: str
    facts: list[provenance.Fact]
    compared: list[str]
    # by factor
    factors: Table | None
    effects: forest.Forest | None
    # arm by arm
    arms: list[PageArm]
    intervals: list[forest.Forest]
    verdicts: Table
    problems: list[str]
    # curves, targets and costs
    charts: comparison_charts.Charts
    unplaced: list[str]  # arms that did not run where the baseline did
    target: list[Table]
    speed: Table
    paces: Table | None
    clock: ClockShares
    costs: Table
    logged: Table | None
    # how to read it, and the runs
    interval: str
    methods: list[str]
    meanings: dict[str, verdict_marks.Meaning]
    runs: list[PageRun]
    not_compared: list[tuple[str, str]]  # name and status
    # constants
    most: int = MOST_FIRST
    banded: int = comparison_charts.BANDED
    few: int = comparison_charts.FEW
    least_seeds: int = LEAST_PAIRS
    dashes: tuple[str, ...] = svg_chart.DASHES
    symbols: tuple[str, ...] = svg_chart.SYMBOLS


def write(comparison: Comparison, path: Path, *, command: str | None = None) -> None:
    """Write the page. `command`: what was typed."""
    write_file(path, render(comparison, command=command).encode())


def render(comparison: Comparison, *, command: str | None = None) -> str:
    """Return the page. `command`: what was typed."""
    charts = comparison_charts.charts(comparison.rows, comparison.swept)
    return html_page.render(
        "comparison",
        kind="nocap comparison",
        title=headline.headline(comparison),
        data=charts.data(comparison.target),
        page=_page(comparison, charts, command),
    )


def _page(
    comparison: Comparison, charts: comparison_charts.Charts, command: str | None
) -> ComparisonPage:
    rows = comparison.rows
    verdicts, speed, costs, *target = comparison_tables.tables(comparison)
    return ComparisonPage(
        answer=headline.answer(comparison),
        others=headline.other_findings(comparison),
        imported=headline.imported(comparison),
        next_step=headline.next_step(comparison),
        facts=provenance.facts(comparison, command),
        compared=headline.sides(comparison),
        factors=_factors(comparison),
        effects=_effects(comparison),
        arms=_arms(comparison, charts),
        intervals=_intervals(comparison),
        verdicts=verdicts.known,
        problems=comparison.problems,
        charts=charts,
        unplaced=[row.label for row in rows if row.times["tokens_per_s"].refused],
        target=[table.known for table in target],
        speed=speed.known,
        paces=comparison_tables.paces_by_factor(comparison),
        clock=_clock(rows),
        costs=costs.known,
        logged=comparison_tables.logged_by_modules(comparison),
        interval=f"{100 * confidence(comparison.look):.4g}%",
        methods=comparison.methods,
        meanings=_meanings(comparison),
        runs=[_run(run, arm) for run, arm in comparison.runs],
        not_compared=comparison.not_compared,
    )


def _arms(comparison: Comparison, charts: comparison_charts.Charts) -> list[PageArm]:
    page_arms = list[PageArm]()
    every = zip(comparison.rows, charts.arms, comparison_tables.besides(comparison), strict=True)
    for row, arm, besides in every:
        kind = comparison_tables.word(row.difference).kind or None
        page_arms.append(PageArm(label=arm.label, style=arm.style, kind=kind, besides=besides))
    return page_arms


def _run(run: Record, arm: Arm) -> PageRun:
    return PageRun(
        name=run.name,
        arm=arm.label,
        seed=run.seed if run.seed >= 0 else None,
        status=run.status,
        steps=display.integer(run.number("steps")),
        loss=display.loss(run.val_loss),
        bpb=display.loss(run.value("val_bpb")),
        tokens_per_s=display.integer(run.value("tokens_per_s")),
        hardware=run.hardware.get("name") or None,
    )


def _factors(comparison: Comparison) -> Table | None:
    if comparison.factors is None:
        return None
    return comparison_tables.by_factor(comparison.factors, comparison.metric).known


def _meanings(comparison: Comparison) -> dict[str, verdict_marks.Meaning]:
    """Return what the words on this page mean."""
    used = {each.difference.word for each in comparison.findings.found}
    used |= {row.difference.word for row in comparison.arms if row.difference is not None}
    return {
        outcome.name: text for outcome, text in verdict_marks.OUTCOMES.items() if outcome in used
    }


def _clock(rows: Sequence[ComparedArm]) -> ClockShares:
    """Return the clock of each arm, line by line, without lines that no arm has."""
    # without `wall`, which would count twice
    used = list[str]()
    for line in LINES:
        if any(row.clock_s.get(line) for row in rows):
            used.append(line)
    parts = [LINES[line] for line in used]
    columns = [comparison_tables.ARM]
    for title in (*parts, "all"):
        columns.append(Column(title=title, show=display.three_digits, units=display.ONE))
    longest = max(_seconds(row, used)[-1] for row in rows) or 1.0
    shares = list[list[float]]()
    lines = list[list[object]]()
    for row in rows:
        seconds = _seconds(row, used)
        shares.append([100 * part / longest for part in seconds[:-1]])
        lines.append([row.label, *seconds])
    table = Table(title="Seconds by part", columns=columns, rows=lines)
    return ClockShares(parts=parts, shares=shares, seconds=table)


def _seconds(row: ComparedArm, lines: Sequence[str]) -> list[float]:
    """Return those of each line, and their sum."""
    seconds = [row.clock_s.get(line, 0.0) for line in lines]
    return [*seconds, sum(seconds)]


# --- the pictures of the differences --------------------------------------------------------------


def _effects(comparison: Comparison) -> forest.Forest | None:
    """Draw the effects of the levels, the lowest loss first."""
    if comparison.factors is None:
        return None
    lines = list[forest.ForestRow]()
    for factor in comparison.factors.factors:
        for level in factor.levels:
            label = factor.label(level.name)
            lines += _line(label, level.difference, comparison.metric)
    if not lines:
        return None
    lines.sort(key=lambda line: line.mid)
    return forest.svg(lines, title=_axis(comparison, "the baseline"), zero=True)


def _intervals(comparison: Comparison) -> list[forest.Forest]:
    """Draw the differences of the arms: of many the first ones, and the others in a picture of
    their own, over the same axis."""
    rows = list(enumerate(comparison.rows))
    if len(rows) > MANY:
        rows.sort(key=lambda numbered: _rank(numbered[1].difference))
    lines = list[forest.ForestRow]()
    for arm, row in rows:
        if row.difference is not None:
            lines += _line(row.label, row.difference, comparison.metric, arm)
    title = _axis(comparison, comparison_tables.other(comparison))
    first = lines if len(rows) <= MANY else lines[:MOST_FIRST]
    rest = lines[len(first) :]
    parts = [(first, rest), (rest, first)]
    return [forest.svg(own, title=title, cut=True, beside=other) for own, other in parts if own]


def _rank(gap: Difference | None) -> tuple[int, float]:
    """Put the better ones first, then the worse ones, then the others; of each the largest."""
    if gap is None or not math.isfinite(gap.estimate.mid):
        return len(ORDER), 0.0
    return ORDER.index(gap.word), -abs(gap.estimate.mid)


def _axis(comparison: Comparison, other: str) -> str:
    """Say what an axis counts: `validation loss less the baseline's; left is better`."""
    return f"{METRICS[comparison.metric].title} minus {other}'s; left is better"


def _line(
    label: str, difference: Difference, metric: str, arm: int | None = None
) -> list[forest.ForestRow]:
    """Return the row of a difference, if it has a figure. An interval without an end is not drawn:
    its point is."""
    estimate = difference.estimate
    if not math.isfinite(estimate.mid):
        return []
    low = estimate.low
    high = estimate.high
    if not math.isfinite(high):
        low = high = estimate.mid
    drawn = gains(metric, Scale.difference, comparison_tables.DIFFERENCE).draw(estimate)
    row = forest.ForestRow(
        label=label,
        title=f"{label}: {drawn}",
        css_class=difference.word.name,
        mid=estimate.mid,
        low=low,
        high=high,
        arm=arm,
    )
    return [row]
