"""The comparison as a page: what its template names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap import display
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
from nocap.store.file_writing import write_file
from nocap.training.ledger import LINES

MANY = 12  # arms; of more not all differences are seen at once
MOST_FIRST = 10  # differences that are seen then
RATIOS = [ratio for _, ratio in comparison_tables.SPEED_COLUMNS.values()]  # of times and memory


@dataclass(frozen=True, kw_only=True, slots=True)
class PageArm:
    """An arm as the template names it."""

    label: str
    look: ArmStyle
    kind: str | None  # its outcome; None: it is the baseline
    besides: str  # its speed, and what it had more or less of


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockShares:
    """Where the seconds of each arm's runs went, in the mean."""

    parts: list[str]
    shares: list[list[float]]  # of each arm's parts: percent of the longest run
    seconds: Table  # of each part, and of all


def write(comparison: Comparison, path: Path, *, command: str | None = None) -> None:
    """Write the page. `command`: what was typed."""
    write_file(path, render(comparison, command=command).encode())


def render(comparison: Comparison, *, command: str | None = None) -> str:
    """Return the page. `command`: what was typed."""
    rows = comparison.rows
    charts = comparison_charts.charts(rows, comparison.swept)
    verdicts, speed, costs, *target = comparison_tables.tables(comparison)
    return html_page.render(
        "comparison",
        kind="nocap comparison",
        title=headline.headline(comparison),
        data=charts.data(comparison.target),
        answer=headline.answer(comparison),
        others=headline.other_findings(comparison),
        facts=provenance.facts(comparison, command),
        c=comparison,
        arms=_arms(rows, charts, speed, costs),
        intervals=_intervals(comparison),
        factors=_factors(comparison),
        effects=_effects(comparison),
        paces=comparison_tables.paces_by_factor(comparison),
        meanings=_meanings(comparison),
        judged=verdicts.known,
        target=[table.known for table in target],
        speed=speed.known,
        costs=costs.known,
        logged=comparison_tables.logged_by_modules(comparison),
        charts=charts,
        banded=comparison_charts.BANDED,
        few=comparison_charts.FEW,
        clock=_clock(rows),
        compared=headline.sides(comparison),
        imported=headline.imported(comparison),
        next=headline.next_step(comparison),
        unplaced=[row.label for row in rows if row.times["tokens_per_s"].refused],
        dashes=svg_chart.DASHES,
        symbols=svg_chart.SYMBOLS,
        most=MOST_FIRST,
        interval=f"{100 * confidence(comparison.look):.4g}%",
        least_seeds=LEAST_PAIRS,
        f=display,
    )


def _arms(
    rows: Sequence[ComparedArm], charts: comparison_charts.Charts, speed: Table, costs: Table
) -> list[PageArm]:
    page_arms = list[PageArm]()
    for row, arm, besides in zip(rows, charts.arms, _besides(speed, costs), strict=True):
        kind = comparison_tables.word(row.difference).kind or None
        page_arms.append(PageArm(label=arm.label, look=arm.look, kind=kind, besides=besides))
    return page_arms


def _besides(speed: Table, costs: Table) -> Iterator[str]:
    """Say of each arm its speed and memory, the ratios of that table, and the costs that are not
    the baseline's."""
    for timed, cost in zip(speed.cells, costs.cells, strict=True):
        ratios = [cell for title, cell in zip(speed.head, timed, strict=True) if title in RATIOS]
        texts = [str(cell) for cell in ratios if cell.text != display.NONE]
        parts = list(dict.fromkeys(texts))  # one reason may refuse both
        for title, cell in zip(costs.head, cost, strict=True):
            if cell.small:
                parts.append(f"{title} {cell.small}")
        yield "; ".join(parts)


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
        look=difference.word.name,
        mid=estimate.mid,
        low=low,
        high=high,
        arm=arm,
    )
    return [row]
