"""The answer of a race: its tables, for a terminal and a page, and the page with a forest plot of the
gains."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

from markupsafe import Markup

from nocap.report import forest, page
from nocap.report.table import Cell, Column, Table
from nocap.report.words import measured, values
from nocap.sources.command import Command
from nocap.sources.race import Race
from nocap.store.metrics import METRICS, Metric, Scale

Content = Mapping[str, Any]
SHOWN: Callable[[Cell], Cell] = lambda cell: cell  # noqa: E731  # what is drawn already


def tables(race: Race, content: Content) -> Iterator[Table]:
    """The verdicts; what else is read from the command's output; the costs."""
    base, verdicts = race.arms[0], {verdict["arm"]: verdict for verdict in content["verdicts"]}
    n, primary = _pairs(content), race.readings[0].metric
    rows = [[base.name, n, _mean(content, base, primary.name), None, "baseline"]]
    for arm in race.arms[1:]:
        word, reason = verdicts[arm.name]["word"], verdicts[arm.name]["reason"]
        gain = measured(race.gain(arm, primary, n), primary, Scale.difference)
        rows.append(
            [arm.name, n, _mean(content, arm, primary.name), gain, f"{word} ({reason})" if reason else word]
        )
    columns = [
        Column(title="arm"),
        Column(title="n"),
        _column(primary),
        Column(title="gain", show=SHOWN),
        Column(title="verdict"),
    ]
    title = f"{primary.name}: {primary.better.value} is better; the gain with its 95% interval"
    yield Table(title=title, columns=columns, rows=rows, notes=_notes(content))
    if others := [reading.metric for reading in race.measured[1:]]:
        margins = "; ".join(f"{guard.reading.name} may be worse by {guard.margin:g}" for guard in race.guards)
        yield _beside(
            race, content, "What else was read", others, Scale.difference, [margins] if margins else []
        )
    yield _beside(
        race, content, "Costs", [METRICS[name] for name in race.costs], Scale.ratio, [_of_times(race)]
    )


def _beside(
    race: Race, content: Content, title: str, metrics: list[Metric], scale: Scale, notes: list[str]
) -> Table:
    """Means and gains, two columns a metric."""
    base = race.arms[0]
    n = _pairs(content)
    columns = [Column(title="arm")]
    rows = [list[Any]([arm.name]) for arm in race.arms]
    unknown: list[str] = []
    for metric in metrics:
        columns += [_column(metric), Column(title=f"{metric.title}, gain", show=SHOWN)]
        for row, arm in zip(rows, race.arms, strict=True):
            row += [_mean(content, arm, metric.name), None]
            if arm is not base and (scale is Scale.difference or race.has_verdict(metric.name)):
                gain = race.gain(arm, metric, n)
                row[-1] = measured(gain.exp() if scale is Scale.ratio else gain, metric, scale)
                if math.isnan(gain.mid):
                    unknown.append(f"{arm.name}, {metric.title}: {gain.method}.")
    return Table(title=title, columns=columns, rows=rows, notes=[*notes, *unknown])


def _column(metric: Metric) -> Column:
    return (
        values(metric.name, metric.title)
        if metric.name in METRICS
        else Column(title=metric.title, show="{:.5g}".format)
    )


def _mean(content: Content, arm: Command, name: str) -> float | None:
    known = [row[name] for row in content["measurements"] if row["arm"] == arm.name]
    return None if None in known else fmean(known)


def _pairs(content: Content) -> int:
    return max(verdict["n"] for verdict in content["verdicts"])


def _notes(content: Content) -> list[str]:
    """What a reader must know before the verdicts."""
    notes = (
        [] if content["paired"] else ["Unpaired (Welch): the commands take no seed ({seed} or --reads-seed)."]
    )
    return [*notes, *([f"exploratory: {content['exploratory']}"] if content["exploratory"] else [])]


def _of_times(race: Race) -> str:
    if race.jobs > 1:
        return f"Runs shared the machine (--jobs {race.jobs}): no times, and no verdict about costs."
    timed = race.has_verdict("wall_s")
    sessions = f"{race.sessions} sessions, {race.apart_s:g} s apart" if race.sessions > 1 else "one session"
    return f"Times and memory are of {sessions}{'.' if timed else ': no verdict; --sessions 3 makes one.'}"


# --- the page -----------------------------------------------------------------------------------------------


def render(race: Race, content: Content) -> str:
    primary = race.readings[0].metric
    forests = [_forest(race, content, primary, stated=content["expect"] or (None, None))]
    forests += [_forest(race, content, guard.reading.metric, bound=-guard.margin) for guard in race.guards]
    kept = ("metrics", "guards", "expect", "target", "first_seed", "seeded", "sessions", "apart_s", "at_once")
    return page.render(
        "race",
        kind="nocap race",
        title=f"{primary.name}, against {race.arms[0].name}",
        verdicts=content["verdicts"],
        tables=list(tables(race, content)),
        forests=[picture for picture in forests if picture],
        when=content["at"],
        arms={name: shlex.join(words) for name, (_, *words) in content["arms"].items()},
        stated={name: json.dumps(content[name]) for name in kept if content[name] not in (None, [])},
        rows=_rows(content),
    )


def _forest(race: Race, content: Content, metric: Metric, **line: Any) -> Markup | None:
    """The gains of one metric; `None` where none has an interval, as of one seed."""
    lines = []
    for arm, verdict in zip(race.arms[1:], content["verdicts"], strict=True):
        gain = race.gain(arm, metric, _pairs(content))
        told, look = (
            f"{arm.name}: {measured(gain, metric, Scale.difference)}",
            verdict["word"].replace(" ", "-"),
        )
        if math.isfinite(gain.high):
            lines.append(
                forest.Line(
                    label=arm.name, title=told, look=look, mid=gain.mid, low=gain.low, high=gain.high, **line
                )
            )
    title = f"{metric.name}: how much {metric.better.value} than {race.arms[0].name}'s; right is better"
    return forest.svg(lines, title=title, cut=True) if lines else None


def _rows(content: Content) -> Table:
    names, texts = list(content["measurements"][0]), ("arm", "seed", "session")
    columns = [Column(title=name, show=str if name in texts else "{:.6g}".format) for name in names]
    return Table(
        title="Every run", columns=columns, rows=[list(row.values()) for row in content["measurements"]]
    )
