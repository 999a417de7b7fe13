"""The leaderboard as one page: the rows with their verdicts, and a forest plot for each unit. It has no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from nocap.config.outward import redact, visible
from nocap.report import forest, page
from nocap.store.formats import count
from nocap.store.metrics import METRICS, Scale
from nocap.study import text, wording
from nocap.study.rows import WORDS, Row, errors, first, sections
from nocap.study.wording import Json

DETAILS = ("expected", "arithmetic allows", "guards", "verdict", "notes", "where", "machine, date", "command")


def render(title: str, every: Sequence[Row]) -> str:
    words = [(word, word, sum(row.word == word for row in every)) for word in WORDS]
    about = [(standing.name, standing.value, len(some)) for standing, some in sections(every).items()]
    filters = [("verdict", words), ("about", about)]
    hidden = [
        f'.claims:has([name="{name}"][value="{value}"]:checked) .claim:not([data-{name}="{value}"]) {{ display: none; }}'
        for name, choices in filters
        for value, _, _ in choices
    ]
    return page.render(
        "board",
        kind="nocap leaderboard",
        title=title,
        note=errors(every),
        hidden=Markup("\n".join(hidden)),
        first=first(every),
        filters=filters,
        rows=[(row, [(name, text.COLUMNS[name](row)) for name in DETAILS]) for row in every],
        plots=plots(every),
        bare=[row.claim["statement"] for row in every if row.claim["measured"] is None],
    )


# --- forest plots ------------------------------------------------------------------------------------------------------------------


def plots(every: Sequence[Row]) -> list[tuple[str, Markup]]:
    """Title and picture of each unit's rows, in the rows' order."""
    units: dict[str, list[Row]] = {}
    for row in every:
        if row.claim["measured"] is not None:
            units.setdefault(_unit(row.claim), []).append(row)
    return [(title, _plot(title, some)) for title, some in units.items()]


def _unit(claim: Json) -> str:
    """What an axis counts, and which way is better. Rows of one unit share a plot."""
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    if scale is Scale.ratio:
        fast = of.gain.startswith("faster") or of.gain == "less time"
        what = {"train": " to the target loss", "decoding": " in decoding"}.get(of.made_by, "")
        return (
            f"times as fast{what} as the baseline; right is faster" if fast else f"the baseline's use over the arm's{what}; right is less"
        )
    if scale is Scale.difference:
        return f"{of.title} against the baseline, {of.unit}; right is better"
    return {"share": "share of the time", "MiB": "MiB", "ms": "ms", "MB": "MB"}.get(of.unit, of.title)


def _plot(title: str, some: Sequence[Row]) -> Markup:
    lines, ratio = list(map(_line, some)), some[0].claim["scale"] == Scale.ratio.value
    ends = [x for line in lines for x in (line.mid, line.low, line.high, line.bound, *line.stated) if x is not None and math.isfinite(x)]
    return forest.svg(lines, forest.axis(ends, ratio=ratio), title=title, tick=_tick(some[0].claim))


def _line(row: Row) -> forest.Line:
    claim, found = row.claim, row.claim["measured"]
    words = f"{claim['statement']}: {row.verdict}. Measured: {row.measured}. Expected: {wording.expected(claim)}."
    low, high = claim["expected"]
    return forest.Line(
        label=visible(redact(row.name)),
        title=visible(redact(words)),
        look=row.word,
        mid=found["mid"],
        low=found["low"],
        high=found["high"],
        stated=(low, high),
        bound=claim["bound"],
    )


def _tick(claim: Json) -> Callable[[float], str]:
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    if scale is Scale.ratio:
        return lambda x: f"{x:g}×"
    if scale is Scale.difference:
        return lambda x: "0" if x == 0 else f"{abs(x):g} {(of.gain if x > 0 else of.loss).split()[0]}"
    if of.unit == "parameters":
        return count
    return lambda x: f"{100 * x:g}%" if of.name == "share" else f"{x:,g}"
