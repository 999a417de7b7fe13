"""The result of a race as tables, for a terminal and for its page: verdicts, what else was read,
costs, and every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nocap.display import ONE
from nocap.judge.arm_mean import ArmMean
from nocap.judge.races import RaceResult
from nocap.metrics import METRICS, Metric, Scale
from nocap.report.figures_in_words import measured, values
from nocap.report.table import Column, Table, TableCell, as_drawn
from nocap.sources.races.race import Race, RaceOutcome

START_UP = "The wall-clock time includes the start of the program."
TEXT_COLUMNS = ("arm", "seed", "session")  # columns of the table of runs that hold no number


def tables(race: Race, outcome: RaceOutcome) -> Iterator[Table]:
    """Yield the verdicts, what else is read from the command's output, and the costs."""
    yield _verdicts(race, outcome)
    result = outcome.result
    others = [reader.metric for reader in race.all_readers[1:]]
    if others:
        margins = [f"{guard.reader.name} may be worse by {guard.margin:g}" for guard in race.guards]
        notes = ["; ".join(margins)] if margins else []
        yield _beside(race, result, "Other metrics", others, Scale.difference, notes)
    yield _beside(race, result, "Costs", race.costs, Scale.ratio, [_of_times(race)])


def _verdicts(race: Race, outcome: RaceOutcome) -> Table:
    result = outcome.result
    metric = race.readers[0].metric
    base = result.baseline[metric.name]
    first = TableCell(text="baseline")
    rows: list[list[object]] = [[race.arms[0].name, result.n, base.mean, None, first]]
    for arm in result.arms:
        own = arm.measured[metric.name]
        word = TableCell(text=arm.word_with_reason, kind=arm.word.name)
        rows.append([arm.name, result.n, own.mean, gain_cell(own, metric, Scale.difference), word])
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
            row += [own.mean, gain_cell(own, metric, scale)]
        rows.append(row)
    return Table(title=title, columns=columns, rows=rows, notes=[*notes, *unknown])


def gain_cell(own: ArmMean, metric: Metric, scale: Scale) -> TableCell | None:
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
        notes.append(
            "The intervals are unpaired (Welch), because the commands take no seed ({seed} or "
            "--reads-seed)."
        )
    if outcome.registration.exploratory:
        notes.append(f"exploratory: {outcome.registration.exploratory}")
    return notes


def _of_times(race: Race) -> str:
    """Say of which sessions times and memory are, and whether they have verdicts."""
    if race.jobs > 1:
        return (
            f"The runs shared the machine (--jobs {race.jobs}), so nocap compares no times "
            "and no other costs."
        )
    sessions = "one session"
    if race.sessions > 1:
        sessions = f"{race.sessions} sessions, {race.apart_s:g} s apart"
    if race.question.has_verdict(METRICS["wall_s"]):
        return f"Times and memory are from {sessions}. {START_UP}"
    return (
        f"Times and memory are from {sessions}, so they have no verdict; --sessions 3 gives them "
        f"verdicts. {START_UP}"
    )


def every_run(runs: Sequence[Mapping[str, object]], costs: Sequence[Metric]) -> Table:
    titles = {cost.name: cost.title for cost in costs}
    columns = list[Column]()
    for name in runs[0]:
        if name in TEXT_COLUMNS:
            columns.append(Column(title=name))
        elif name in titles:
            columns.append(values(name, titles[name]))
        else:
            columns.append(Column(title=name, show="{:.6g}".format, units=ONE))
    return Table(title="Every run", columns=columns, rows=[list(run.values()) for run in runs])
