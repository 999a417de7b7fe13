"""The answer of a race: as JSON, as tables for a terminal and a page, and the page with a forest
plot of the gains. All of it is drawn from the judge's result; here it is written, and nowhere
else."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from nocap import __version__
from nocap.display import NONE, ONE
from nocap.judge.arm_mean import ArmMean
from nocap.judge.comparison_json import interval_json
from nocap.judge.comparison_schema import to_json
from nocap.judge.interval import analyses
from nocap.judge.losses import Outcome
from nocap.judge.turns import RacedArm, RaceResult
from nocap.judge.verdict import Word
from nocap.report import forest, page, still
from nocap.report.looks import HUES
from nocap.report.page import finite
from nocap.report.provenance import Fact
from nocap.report.table import Column, Table, TableCell, as_drawn
from nocap.report.words import measured, values
from nocap.sources.command import Command
from nocap.sources.race import Race, RaceOutcome
from nocap.sources.reading import result
from nocap.store.metrics import METRICS, Better, Measurement, Metric, Scale

START_UP = "Wall-clock includes start-up."
IGNORES_SEED = "n=1: all repeats are equal to rounding, the commands ignore their seed"
GAINS = (Outcome.better, Word.confirmed, Word.exceeded)
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


# --- as JSON --------------------------------------------------------------------------------------


def written(race: Race, outcome: RaceOutcome) -> dict[str, Any]:
    """Write all of it as JSON types: the registration, every verdict, every measurement."""
    registration = outcome.registration
    verdicts = list[dict[str, object]]()
    for arm in outcome.result.arms:
        verdicts.append(
            {**_verdict(race, outcome.result, arm), "exploratory": registration.exploratory}
        )
    return {
        **race.registration_json(registration),
        "verdicts": verdicts,
        "measurements": _runs(race, outcome.result.n),
        "paired": race.seeded,
    }


def _verdict(race: Race, result: RaceResult, arm: RacedArm) -> dict[str, object]:
    guards = list[dict[str, object]]()
    for guard in race.guards:
        name = guard.reading.name
        guards.append(
            {"metric": name, "margin": guard.margin, **to_json(interval_json(arm.guards[name]))}
        )
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


def next_step(race: Race, outcome: RaceOutcome, words: Sequence[str]) -> dict[str, object]:
    """Say what a program does next: the command that goes on with more pairs, null where none would
    change the answer; what it takes, null where no time is known; and how many of the pairs that
    were allowed are left. `words`: those of this race's command."""
    n = outcome.result.n
    more = [size for size in analyses() if size > max(n, race.pairs)]
    over = outcome.result.is_decided or outcome.result.ignores_seed or race.sessions > 1
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
    options = list[str]()
    skips = False
    for word in words[:split]:
        if not skips and word != "--pairs" and not word.startswith("--pairs="):
            options.append(word)
        skips = word == "--pairs"
    return ["python", "-m", "nocap.race", "--pairs", str(pairs), *options, *words[split:]]


def _minutes(race: Race, pairs: int) -> float | None:
    """Return what the runs that are missing take, by those that are there."""
    total_s = 0.0
    for arm in race.arms:
        results = [result(race.run_folder(arm, repeat)) for repeat in range(pairs)]
        times = [float(run["wall_s"]) for run in results if run and "wall_s" in run]
        if not times:
            return None
        total_s += (pairs - len(times)) * fmean(times)
    return round(total_s / 60, 3)


# --- as tables ------------------------------------------------------------------------------------


def tables(race: Race, outcome: RaceOutcome) -> Iterator[Table]:
    """Yield the verdicts, what else is read from the command's output, and the costs."""
    yield _verdicts(race, outcome)
    result = outcome.result
    others = [reading.metric for reading in race.all_readings[1:]]
    if others:
        margins = [
            f"{guard.reading.name} may be worse by {guard.margin:g}" for guard in race.guards
        ]
        notes = ["; ".join(margins)] if margins else []
        yield _beside(race, result, "What else was read", others, Scale.difference, notes)
    yield _beside(race, result, "Costs", race.costs, Scale.ratio, [_of_times(race)])


def _verdicts(race: Race, outcome: RaceOutcome) -> Table:
    result = outcome.result
    metric = race.readings[0].metric
    base = result.baseline[metric.name]
    first = TableCell(text="baseline")
    rows: list[list[object]] = [[race.arms[0].name, result.n, base.mean, None, first]]
    for arm in result.arms:
        own = arm.measured[metric.name]
        why = reason(result, arm)
        text = f"{arm.word.value} ({why})" if why else arm.word.value
        word = TableCell(text=text, kind=arm.word.name)
        rows.append([arm.name, result.n, own.mean, _drawn(own, metric, Scale.difference), word])
    return Table(
        title=f"{metric.name}: {metric.better.value} is better; the gain with its 95% interval",
        columns=[
            Column(title="arm"),
            Column(title="n"),
            _means(metric),
            _gains("gain"),
            Column(title="verdict", show=as_drawn, keep=True),
        ],
        rows=rows,
        notes=_notes(race, outcome),
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
            own = of_arm[metric.name]
            row += [own.mean, _drawn(own, metric, scale)]
        rows.append(row)
    return Table(title=title, columns=columns, rows=rows, notes=[*notes, *unknown])


def _drawn(own: ArmMean, metric: Metric, scale: Scale) -> TableCell | None:
    return None if own.estimate is None else measured(own.estimate, metric, scale)


def _means(metric: Metric) -> Column:
    if metric.name in METRICS:
        return values(metric.name, metric.title)
    return Column(title=metric.title, show="{:.5g}".format, units=ONE)


def _gains(title: str) -> Column:
    """Return a column of cells that are drawn already."""
    return Column(title=title, show=as_drawn, keep=True)


def _notes(race: Race, outcome: RaceOutcome) -> list[str]:
    """List what a reader must know before the verdicts."""
    notes = list[str]()
    if not race.seeded:
        notes.append("Unpaired (Welch): the commands take no seed ({seed} or --reads-seed).")
    if outcome.registration.exploratory:
        notes.append(f"exploratory: {outcome.registration.exploratory}")
    return notes


def _of_times(race: Race) -> str:
    """Say of which sessions times and memory are, and whether they have verdicts."""
    if race.jobs > 1:
        return (
            f"Runs shared the machine (--jobs {race.jobs}): no times, and no verdict about costs."
        )
    sessions = "one session"
    if race.sessions > 1:
        sessions = f"{race.sessions} sessions, {race.apart_s:g} s apart"
    if race.question.has_verdict(METRICS["wall_s"]):
        return f"Times and memory are of {sessions}. {START_UP}"
    return f"Times and memory are of {sessions}: no verdict; --sessions 3 makes one. {START_UP}"


# --- as a page ------------------------------------------------------------------------------------


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
    metric = race.readings[0].metric
    first = _first(result)
    others = [arm for arm in result.arms if arm is not first]
    low, high = race.expect or (None, None)
    pictures = [_forest(race, result, metric, stated=(finite(low), finite(high)))]
    for guard in race.guards:
        pictures.append(_forest(race, result, guard.reading.metric, bound=-guard.margin))
    return page.render(
        "race",
        kind="nocap race",
        title=f"{metric.name}, against {race.arms[0].name}",
        answer=_answer(race, result, first),
        others=[_headline(result, arm, metric) for arm in others],
        facts=_facts(outcome, command),
        tables=[page.known(table) for table in tables(race, outcome)],
        forests=[picture for picture in pictures if picture],
        curves=_curves(race, result.n),
        when=outcome.registration.at,
        arms={arm.name: shlex.join(arm.words) for arm in race.arms},
        stated=list(_stated(race)),
        rows=_every_run(_runs(race, result.n), race.costs),
    )


def _gain(arm: RacedArm, metric: Metric) -> str:
    cell = _drawn(arm.measured[metric.name], metric, Scale.difference)
    return "" if cell is None or cell.text == NONE else str(cell)


def _headline(result: RaceResult, arm: RacedArm, metric: Metric) -> _Headline:
    return _Headline(
        arm=arm.name,
        word=arm.word.value,
        kind=arm.word.name,
        gain=_gain(arm, metric),
        reason=reason(result, arm),
    )


def _first(result: RaceResult) -> RacedArm | None:
    """Return the arm that the heading is about: the best of those that gain, or the only one;
    `None`: several raced, and none gains."""
    better = [arm for arm in result.arms if arm.word in GAINS]
    if better:
        return max(better, key=lambda arm: arm.gain.mid)
    if len(result.arms) == 1:
        return result.arms[0]
    return None


def _answer(race: Race, result: RaceResult, first: RacedArm | None) -> str:
    """Say the word of the first arm, and its gain; of no arm, that none is shown to be better."""
    metric = race.readings[0].metric
    base = race.arms[0].name
    if first is None:
        return f"Nothing is shown to be better than {base} in {metric.name}"
    word = first.word.value
    why = reason(result, first)
    if why:
        word += f" ({why})"
    facts = [word]
    gain = _gain(first, metric)
    if gain:
        facts.append(f"{metric.name} {gain}")
    return f"{first.name}: {', '.join(facts)}, against {base}"


def _facts(outcome: RaceOutcome, command: str | None) -> list[Fact]:
    found = [
        Fact(name="registered", text=outcome.registration.at[:10]),
        Fact(name="repeats", text=str(outcome.result.n)),
        Fact(name="judged by nocap", text=__version__),
    ]
    return [*found, Fact(name="command", text=command, code=True)] if command else found


def _stated(race: Race) -> Iterator[tuple[str, str]]:
    """Yield what was registered beside the arms, in words."""
    for reading in race.readings:
        origin = f" of {reading.file}" if reading.file else ""
        yield "metric", f"{reading.what}{origin}; {reading.better.value} is better"
    for guard in race.guards:
        yield "guard", f"{guard.reading.what} may be worse by {guard.margin:g} at most"
    if race.expect is not None:
        yield "expected gain", _between(*race.expect)
    if race.target is not None:
        yield "target", f"{race.target:g}"
    yield "seeds", f"from {race.first_seed} on" if race.seeded else "the commands take none"
    if race.sessions > 1:
        yield (
            "sessions",
            f"{race.sessions}, {race.apart_s:g} s apart, of {race.pairs} repeats in all",
        )
    if race.jobs > 1:
        yield "runs", "several at once, so that no time is known"


def _between(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low:g} or more"
    return f"{high:g} or less" if math.isinf(low) else f"{low:g} to {high:g}"


def _curves(race: Race, n: int) -> Markup | None:
    """Draw the metric over the steps that the commands printed; `None` where they printed none."""
    lines = list[still.StillLine]()
    for i, arm in enumerate(race.arms):
        line = still.StillLine(
            name=arm.name,
            color=f"var(--hue-{i % HUES})",
            dash=still.DASHES[i % len(still.DASHES)],
            symbol=i % len(still.SYMBOLS),
            hollow=False,
            points=_mean_curve(race, arm, n),
        )
        lines.append(line)
    if not any(len(line.points) > 1 for line in lines):
        return None
    return still.chart(lines, x="steps", y=race.readings[0].name, named=True)


def _mean_curve(race: Race, arm: Command, n: int) -> list[tuple[float, float]]:
    """Return the mean at the steps that all repeats of an arm printed."""
    values = dict[float, list[float]]()
    for repeat in range(n):
        points = race.readings[0].curve(race.run_folder(arm, repeat))
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
                    look=arm.word.name,
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
    title = f"{metric.name} less {race.arms[0].name}'s; {side} is better"
    return forest.svg(lines, title=title, cut=True)


def _turned(ends: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    low, high = ends
    return (None if high is None else -high, None if low is None else -low)


def _every_run(runs: Sequence[Mapping[str, object]], costs: Sequence[Metric]) -> Table:
    titles = {cost.name: cost.title for cost in costs}
    columns = list[Column]()
    for name in runs[0]:
        if name in TEXTS:
            columns.append(Column(title=name))
        elif name in titles:
            columns.append(values(name, titles[name]))
        else:
            columns.append(Column(title=name, show="{:.6g}".format, units=ONE))
    return Table(title="Every run", columns=columns, rows=[list(run.values()) for run in runs])
