"""Forest plots of claims, one for each unit."""

from __future__ import annotations

from collections.abc import Sequence

from nocap.metrics import METRICS, Scale
from nocap.report import forest
from nocap.report.figures_in_words import amount
from nocap.study.claim_row import ClaimRow
from nocap.study.claim_words import expected, is_known


def plots(every: Sequence[ClaimRow]) -> list[tuple[str, forest.Forest]]:
    """Return the title and the picture of each unit's rows, in the rows' order."""
    units: dict[str, list[ClaimRow]] = {}
    for row in every:
        if is_known(row.claim_result.verdict.primary):
            units.setdefault(_unit(row), []).append(row)
    return [(title, _plot(title, some)) for title, some in units.items()]


def _unit(row: ClaimRow) -> str:
    """Say what an axis counts, and which way is better. Rows of one unit share a plot."""
    metric = METRICS[row.claim.metric]
    scale = row.claim.scale
    if scale is Scale.value or metric.wording is None:
        if metric.unit in metric.title:
            return metric.title
        return f"{metric.title}, {metric.unit}"
    if scale is Scale.difference:
        return f"{metric.title}: {metric.wording.better}, {metric.unit}; right is better"
    if metric.relative:
        return "time divided by the baseline's time, at equal loss; left is less time"
    if metric.is_pace:
        return "times as fast as the baseline; right is faster"
    return "the baseline's use divided by the arm's use; on the right, the arm uses less"


def _plot(title: str, some: Sequence[ClaimRow]) -> forest.Forest:
    """Draw the rows of one unit."""
    claim = some[0].claim
    metric = METRICS[claim.metric]
    lines = list(map(_line, some))
    if claim.scale is Scale.value:
        return forest.svg(lines, title=title, tick=lambda x: amount(x, metric))
    return forest.svg(lines, title=title, ratio=claim.scale is Scale.ratio)


def _line(row: ClaimRow) -> forest.ForestRow:
    """Return a claim's line of a plot."""
    claim = row.claim
    shown = row.claim_result.verdict.primary.shown()
    assert shown is not None
    low, high = claim.expected
    found = f"{claim.statement}: {row.word_with_shape}. Measured: {row.cells.measured}."
    title = f"{found} Expected: {expected(claim)}."
    return forest.ForestRow(
        label=claim.statement,
        title=title,
        css_class=row.word,
        mid=shown.mid,
        low=shown.low,
        high=shown.high,
        stated=(low, high),
        bound=row.claim_result.bound,
    )
