"""The answer of a race: as JSON, as tables for a terminal and a page, and the page with a forest plot of the
gains. All of it is drawn from the judge's result; here it is written, and nowhere else."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from nocap.judge.interval import analyses
from nocap.judge.losses import Outcome
from nocap.judge.measured import ArmMean
from nocap.judge.result import interval_json
from nocap.judge.schema import to_json
from nocap.judge.turns import RacedArm, RaceResult
from nocap.report import forest, page
from nocap.report.page import finite
from nocap.report.table import Column, Table, TableCell
from nocap.report.words import measured, values
from nocap.sources.command import result
from nocap.sources.race import Race, Raced
from nocap.store.metrics import METRICS, Measurement, Metric, Scale

START_UP = "Wall-clock includes start-up."
IGNORES_SEED = "n=1: all repeats are equal to rounding, the commands ignore their seed"
# what the page shows of a registration
REGISTERED = (
    "metrics",
    "guards",
    "expect",
    "target",
    "first_seed",
    "seeded",
    "sessions",
    "apart_s",
    "at_once",
)
TEXTS = ("arm", "seed", "session")  # columns of the page's table of runs


def reason(result: RaceResult, arm: RacedArm) -> str:
    """Say why an arm has its word; nothing where its gain says it."""
    if result.ignores_seed:
        return IGNORES_SEED
    if arm.word is Outcome.undecided:
        return f"n={arm.gain.n}"
    if arm.guard:
        return f"guard {arm.guard}"
    return "" if arm.reason is None else arm.reason.value


# --- as JSON ------------------------------------------------------------------------------------------------


def written(race: Race, raced: Raced) -> dict[str, Any]:
    """Write all of it as JSON types: the registration, every verdict, every measurement."""
    registration = raced.registration
    verdicts = list[dict[str, object]]()
    for arm in raced.result.arms:
        verdicts.append({**_verdict(race, raced.result, arm), "exploratory": registration.exploratory})
    return {
        **race.registered(registration),
        "verdicts": verdicts,
        "measurements": _runs(race, raced.result.n),
        "paired": race.seeded,
    }


def _verdict(race: Race, result: RaceResult, arm: RacedArm) -> dict[str, object]:
    guards = list[dict[str, object]]()
    for guard in race.guards:
        name = guard.reading.name
        guards.append({"metric": name, "margin": guard.margin, **to_json(interval_json(arm.guards[name]))})
    costs = dict[str, object]()
    for name, cost in arm.costs.items():
        costs[name] = {**to_json(interval_json(cost.estimate)), "verdict": cost.outcome.value}
    return {
        "arm": arm.name,
        "n": result.n,
        "word": arm.word.value,
        "reason": reason(result, arm),
        "decided": arm.is_decided,
        "gain": to_json(interval_json(arm.gain)),
        "guards": guards,
        "costs": costs,
    }


def _runs(race: Race, n: int) -> list[dict[str, object]]:
    """Return an object a run of the first n repeats, arm by arm, with the value of each metric."""
    runs = dict[tuple[str, int], dict[str, object]]()
    for each in race.rows(n).measurements:
        run = runs.setdefault((each.arm, each.repeat), _named(race, each))
        run[each.metric.name] = each.value
    return [*runs.values()]


def _named(race: Race, row: Measurement) -> dict[str, object]:
    session = race.question.session(row.repeat - race.first_seed)
    return {"arm": row.arm, "seed": row.repeat, "session": session}


def next_step(race: Race, raced: Raced, words: Sequence[str]) -> dict[str, object]:
    """Say what a program does next: the command that goes on with more pairs, null where none would change
    the answer; what it takes, null where no time is known; and how many of the pairs that were allowed are
    left. `words`: those of this race's command."""
    n = raced.result.n
    more = [size for size in analyses() if size > max(n, race.pairs)]
    over = raced.result.is_decided or raced.result.ignores_seed or race.sessions > 1
    pairs = None if over or not more else more[0]
    return {
        "command": None if pairs is None else _with_pairs(words, pairs),
        "minutes": None if pairs is None else _minutes(race, pairs),
        "pairs": pairs,
        "pairs_left": max(race.pairs - n, 0),
    }


def _with_pairs(words: Sequence[str], pairs: int) -> list[str]:
    """Return the command of a race of so many pairs at most."""
    split = words.index("--") if "--" in words else len(words)
    kept = list[str]()
    skips = False
    for word in words[:split]:
        if not skips and word != "--pairs" and not word.startswith("--pairs="):
            kept.append(word)
        skips = word == "--pairs"
    return ["python", "-m", "nocap.race", "--pairs", str(pairs), *kept, *words[split:]]


def _minutes(race: Race, pairs: int) -> float | None:
    """Return what the runs that are missing take, by those that are there."""
    total_s = 0.0
    for arm in race.arms:
        ended = [result(race.place(arm, repeat)) for repeat in range(pairs)]
        times = [float(run["wall_s"]) for run in ended if run and "wall_s" in run]
        if not times:
            return None
        total_s += (pairs - len(times)) * fmean(times)
    return round(total_s / 60, 3)


# --- as tables ----------------------------------------------------------------------------------------------


def tables(race: Race, raced: Raced) -> Iterator[Table]:
    """Yield the verdicts, what else is read from the command's output, and the costs."""
    yield _verdicts(race, raced)
    result = raced.result
    others = [reading.metric for reading in race.measured[1:]]
    if others:
        margins = [f"{guard.reading.name} may be worse by {guard.margin:g}" for guard in race.guards]
        notes = ["; ".join(margins)] if margins else []
        yield _beside(race, result, "What else was read", others, Scale.difference, notes)
    yield _beside(race, result, "Costs", race.costs, Scale.ratio, [_of_times(race)])


def _verdicts(race: Race, raced: Raced) -> Table:
    result = raced.result
    metric = race.readings[0].metric
    base = result.baseline[metric.name]
    rows: list[list[object]] = [[race.arms[0].name, result.n, base.mean, None, "baseline"]]
    for arm in result.arms:
        seen = arm.measured[metric.name]
        why = reason(result, arm)
        word = f"{arm.word.value} ({why})" if why else arm.word.value
        rows.append([arm.name, result.n, seen.mean, _drawn(seen, metric, Scale.difference), word])
    return Table(
        title=f"{metric.name}: {metric.better.value} is better; the gain with its 95% interval",
        columns=[
            Column(title="arm"),
            Column(title="n"),
            _means(metric),
            _gains("gain"),
            Column(title="verdict"),
        ],
        rows=rows,
        notes=_notes(race, raced),
    )


def _beside(
    race: Race,
    result: RaceResult,
    title: str,
    metrics: Sequence[Metric],
    scale: Scale,
    notes: Sequence[str],
) -> Table:
    """Return means and gains, two columns a metric. Notes say which gains are not known."""
    arms: dict[str, Mapping[str, ArmMean]] = {race.arms[0].name: result.baseline}
    for arm in result.arms:
        arms[arm.name] = arm.measured
    columns = [Column(title="arm")]
    unknown = list[str]()
    for metric in metrics:
        columns += [_means(metric), _gains(f"{metric.title}, gain")]
        for name, of_arm in arms.items():
            why = of_arm[metric.name].refused
            if why is not None:
                unknown.append(f"{name}, {metric.title}: {why}.")
    rows = list[list[object]]()
    for name, of_arm in arms.items():
        row: list[object] = [name]
        for metric in metrics:
            seen = of_arm[metric.name]
            row += [seen.mean, _drawn(seen, metric, scale)]
        rows.append(row)
    return Table(title=title, columns=columns, rows=rows, notes=[*notes, *unknown])


def _drawn(seen: ArmMean, metric: Metric, scale: Scale) -> TableCell | None:
    return None if seen.estimate is None else measured(seen.estimate, metric, scale)


def _means(metric: Metric) -> Column:
    if metric.name in METRICS:
        return values(metric.name, metric.title)
    return Column(title=metric.title, show="{:.5g}".format)


def _gains(title: str) -> Column:
    """Return a column of cells that are drawn already."""

    def show(cell: TableCell) -> TableCell:
        return cell

    return Column(title=title, show=show)


def _notes(race: Race, raced: Raced) -> list[str]:
    """List what a reader must know before the verdicts."""
    notes = list[str]()
    if not race.seeded:
        notes.append("Unpaired (Welch): the commands take no seed ({seed} or --reads-seed).")
    if raced.registration.exploratory:
        notes.append(f"exploratory: {raced.registration.exploratory}")
    return notes


def _of_times(race: Race) -> str:
    """Say of which sessions times and memory are, and whether they have verdicts."""
    if race.jobs > 1:
        return f"Runs shared the machine (--jobs {race.jobs}): no times, and no verdict about costs."
    sessions = "one session"
    if race.sessions > 1:
        sessions = f"{race.sessions} sessions, {race.apart_s:g} s apart"
    if race.question.has_verdict(METRICS["wall_s"]):
        return f"Times and memory are of {sessions}. {START_UP}"
    return f"Times and memory are of {sessions}: no verdict; --sessions 3 makes one. {START_UP}"


# --- as a page ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Headline:
    arm: str
    word: str
    reason: str


def render(race: Race, raced: Raced) -> str:
    """Draw the page: headlines, tables, gains, the registration and every run."""
    result = raced.result
    metric = race.readings[0].metric
    headlines = list[_Headline]()
    for arm in result.arms:
        headlines.append(_Headline(arm=arm.name, word=arm.word.value, reason=reason(result, arm)))
    stated = race.stated
    low, high = race.expect or (None, None)
    pictures = [_forest(race, result, metric, stated=(finite(low), finite(high)))]
    for guard in race.guards:
        pictures.append(_forest(race, result, guard.reading.metric, bound=-guard.margin))
    return page.render(
        "race",
        kind="nocap race",
        title=f"{metric.name}, against {race.arms[0].name}",
        verdicts=headlines,
        tables=list(tables(race, raced)),
        forests=[picture for picture in pictures if picture],
        when=raced.registration.at,
        arms={arm.name: shlex.join(arm.words) for arm in race.arms},
        stated={name: json.dumps(stated[name]) for name in REGISTERED if stated[name] not in (None, [])},
        rows=_every_run(_runs(race, result.n)),
    )


def _forest(
    race: Race,
    result: RaceResult,
    metric: Metric,
    *,
    stated: tuple[float | None, float | None] = (None, None),
    bound: float | None = None,
) -> Markup | None:
    """Draw the gains in one metric; `None` where none has an interval, as of one seed."""
    lines = list[forest.ForestRow]()
    for arm in result.arms:
        gain = arm.measured[metric.name].estimate
        if gain is not None and math.isfinite(gain.high):
            lines.append(
                forest.ForestRow(
                    label=arm.name,
                    title=f"{arm.name}: {measured(gain, metric, Scale.difference)}",
                    look=arm.word.value.replace(" ", "-"),
                    mid=gain.mid,
                    low=gain.low,
                    high=gain.high,
                    stated=stated,
                    bound=bound,
                )
            )
    if not lines:
        return None
    title = f"{metric.name}: how much {metric.better.value} than {race.arms[0].name}'s; right is better"
    return forest.svg(lines, title=title, cut=True)


def _every_run(runs: Sequence[Mapping[str, object]]) -> Table:
    columns = list[Column]()
    for name in runs[0]:
        columns.append(Column(title=name, show=str if name in TEXTS else "{:.6g}".format))
    return Table(title="Every run", columns=columns, rows=[list(run.values()) for run in runs])
