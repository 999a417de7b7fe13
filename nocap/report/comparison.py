"""The comparison as a page: its tables, its colours, and what its script draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nocap import display as formats
from nocap.judge.arms import Arm, setting
from nocap.judge.compared_arms import ComparedArm, Comparison
from nocap.judge.interval import LEAST_PAIRS, confidence
from nocap.judge.losses import Outcome
from nocap.report import arms, forest, page, provenance, still
from nocap.report.names import fitted
from nocap.report.table import Table, TableCell
from nocap.report.words import gains, values
from nocap.store.files import write_file
from nocap.store.metrics import METRICS, Scale
from nocap.store.runs import Curve, Record
from nocap.training.ledger import LINES

HUES = 7  # --hue-0 … --hue-6 in page.css; 0 is the text's colour
AXES = ("tokens", "train_s", "val_loss", "val_bpb")  # of a curve, beside its steps
AXIS = "{} less {}'s; left is better"  # of the differences
RESOLUTION = (
    6  # digits of a plotted number: more than a screen shows, and half of the file's size saved
)
SHORT = 24  # letters of a name in a chart
SPANS = {"all": 0.0, "most": 0.1, "end": 0.75}  # the share of a run that is left out of sight
NEAR = 0.1  # of the range of the losses: ends that lie so close are not told apart
LEAST_POINTS = 2  # of a curve that is drawn
SAMPLES = 6  # steps in the table of a chart's data
DECIDED = (Outcome.better, Outcome.worse)  # whose marks are filled

# Outcome → its mark, its name, and what it means to somebody who has never seen one. The order is
# the page's.
VERDICTS = {
    Outcome.better: (
        "✓",
        "Better",
        "the loss is lower than the other arm's, beyond what seeds explain",
    ),
    Outcome.worse: (
        "✕",
        "Worse",
        "the loss is higher than the other arm's, beyond what seeds explain",
    ),
    Outcome.unclear: (
        "○",
        "No difference shown",
        "the seeds cannot tell them apart; that does not make them equal",
    ),
    Outcome.depends: ("±", "Depends", "the sign of the difference changes with another key"),
    Outcome.undecided: ("?", "No verdict", "too few seeds finished to tell a change from luck"),
    Outcome.diverged: (
        "∞",
        "Diverged",
        "the loss of a seed ran away; a mean over the others flatters",
    ),
    Outcome.unfinished: ("…", "Unfinished", "a command asked for more seeds than are there"),
    Outcome.confounded: (
        "!",
        "Confounded",
        "something else differs too, so the difference cannot be put down to the change",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How an arm is drawn: numbers of a colour, a dash and a mark."""

    hue: int
    dash: int
    symbol: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PageArm:
    """An arm as the template names it."""

    label: str
    look: Look
    kind: str | None  # its outcome; None: it is the baseline
    besides: str  # its speed, and what it had more or less of


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockPart:
    """A line of a run's clock."""

    name: str
    seconds: float
    share: float  # percent of the longest run


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the curves show first, and what they can show."""

    relative: bool  # less the baseline's
    span: str
    spans: Mapping[str, bool]  # whether a part of the runs has curves


def write(comparison: Comparison, path: Path, *, command: str | None = None) -> None:
    """Write the page. `command`: what was typed."""
    write_file(path, render(comparison, command=command).encode())


def render(comparison: Comparison, *, command: str | None = None) -> str:
    """Return the page. `command`: what was typed."""
    rows = comparison.rows
    looks = _looks([row.arm for row in rows], comparison.swept)
    names = fitted([row.label for row in rows], SHORT)
    plotted = [_plotted(*each) for each in zip(rows, looks, names, strict=True)]
    view = _view(plotted)
    verdicts, speed, costs, *rest = arms.tables(comparison)
    besides = _besides(speed, costs)
    return page.render(
        "comparison",
        kind="nocap comparison",
        title=arms.headline(comparison),
        data={
            "arms": plotted,
            "target": comparison.target,
            "dashes": still.DASHES,
            "symbols": still.SYMBOLS,
            "shares": SPANS,
            "view": asdict(view),
        },
        answer=arms.answer(comparison),
        others=arms.other_findings(comparison),
        facts=provenance.facts(comparison, command),
        c=comparison,
        arms=[
            PageArm(label=row.label, look=look, kind=_kind(row), besides=text)
            for row, look, text in zip(rows, looks, besides, strict=True)
        ],
        intervals=_intervals(comparison),
        factors=page.known(arms.by_factor(comparison.factors, comparison.metric))
        if comparison.factors
        else None,
        effects=_effects(comparison) if comparison.factors else None,
        paces=arms.paces_by_factor(comparison),
        verdicts={outcome.name: texts for outcome, texts in VERDICTS.items()},
        judged=page.known(verdicts),
        target=[page.known(table) for table in rest],
        speed=page.known(speed),
        costs=page.known(costs),
        view=view,
        curves=_still_curves(plotted, view),
        losses=_losses(rows),
        times=_still_times(plotted),
        ends=_ends(rows),
        clocks=_clocks(rows),
        compared=arms.compared(comparison),
        next=arms.next_step(comparison),
        unplaced=[row.label for row in rows if row.times["tokens_per_s"].refused],
        dashes=still.DASHES,
        symbols=still.SYMBOLS,
        interval=f"{100 * confidence(comparison.look):.4g}%",
        least_seeds=LEAST_PAIRS,
        f=formats,
    )


def _kind(row: ComparedArm) -> str | None:
    """Return the name of an arm's outcome; None: it is the baseline."""
    return row.difference.outcome.name if row.difference else None


def _besides(speed: Table, costs: Table) -> list[str]:
    """Say of each arm its speed, the first ratio of that table, and the costs that are not the
    baseline's."""
    found = list[str]()
    for timed, cost in zip(speed.cells, costs.cells, strict=True):
        parts = [str(cell) for cell in timed[2:3] if cell.text != formats.NONE]
        parts += [
            f"{title} {cell.small}"
            for title, cell in zip(costs.head, cost, strict=True)
            if cell.small
        ]
        found.append("; ".join(parts))
    return found


def _looks(arms: Sequence[Arm], swept: Sequence[str]) -> list[Look]:
    """Colour and dash of each arm. In a grid one factor (`attention`, with all its keys) is the
    colour and the rest is the dash, so that the eye sees the factors; where that does not fit, they
    are counted through, and then the marks. The baseline is the text's colour, solid."""
    groups = [
        [key for key in swept if key.partition(".")[0] == group]
        for group in dict.fromkeys(key.partition(".")[0] for key in swept)
    ]
    splits = []
    for factor in [*groups, *([key] for key in swept)]:
        hues = _numbered(arms, factor)
        dashes = _numbered(arms, [key for key in swept if key not in factor])
        looks = [
            Look(hue=hue, dash=dash, symbol=dash) for hue, dash in zip(hues, dashes, strict=True)
        ]
        if max(hues) < HUES and max(dashes) < len(still.DASHES) and len(set(looks)) == len(arms):
            splits.append(looks)
    counted = [_counted(index) for index in range(len(arms))]
    return max(splits, key=lambda looks: len({look.hue for look in looks}), default=counted)


def _counted(index: int) -> Look:
    """Return the look of an arm by its place; none comes twice among 252."""
    turn, hue = divmod(index, HUES)
    shift, dash = divmod(turn, len(still.DASHES))
    return Look(hue=hue, dash=dash, symbol=(dash + shift) % len(still.SYMBOLS))


def _numbered(arms: Sequence[Arm], keys: Sequence[str]) -> list[int]:
    """0, 1, 2 … for the arms' values of `keys`, in the order in which they first come."""
    numbers: dict[tuple[str, ...], int] = {}
    return [
        numbers.setdefault(tuple(setting(arm.config, key) for key in keys), len(numbers))
        for arm in arms
    ]


def _plotted(row: ComparedArm, look: Look, name: str) -> dict[str, Any]:
    arm = row.arm
    whole = [run.curve for run in arm.runs if run.curve.step]
    mean = _rounded(_mean_curve(whole))
    outcome = row.difference and row.difference.outcome
    return {
        "label": arm.label,
        "short": name,
        **asdict(look),
        "hollow": outcome is not None and outcome not in DECIDED,
        "seeds": [_seed(run, mean) for run in arm.all if run.curve.step],
        "mean": mean,
        "averaged": len(whole),
        "val_loss": row.val_loss,
        "val_bpb": row.val_bpb,
        **{metric: row.times[metric].mean for metric in ("train_s", "model_mib")},
        "placed": not row.times["tokens_per_s"].refused,
    }


def _seed(run: Record, mean: Mapping[str, list[Any]]) -> dict[str, object]:
    """Return a run's curve; a column that is its arm's mean is left out, such as the steps."""
    columns = _rounded(asdict(run.curve))
    own = {key: column for key, column in columns.items() if column != mean[key]}
    return {"seed": run.seed, "status": run.status, **own}


def _rounded(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: list(map(_short_number, column)) for key, column in columns.items()}


def _short_number(x: Any) -> Any:
    if not isinstance(x, float) or not math.isfinite(x):
        return x
    short = float(f"{x:.{RESOLUTION}g}")
    return int(short) if short.is_integer() else short


def _mean_curve(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """Return the mean over seeds at the steps that all of them reached: a mean whose members change
    would show jumps that nobody trained."""
    at = [{step: index for index, step in enumerate(curve.step)} for curve in curves]
    common = sorted(set.intersection(*map(set, at))) if at else []
    mean: dict[str, list[Any]] = {"step": common}
    for key in AXES:
        columns = [
            [getattr(curve, key)[steps[step]] for curve, steps in zip(curves, at, strict=True)]
            for step in common
        ]
        mean[key] = [
            None if None in column else math.fsum(column) / len(column) for column in columns
        ]
    return mean


# --- what the charts show before, and without, the script -----------------------------------------


def _view(plotted: Sequence[Mapping[str, Any]]) -> View:
    """Leave out the first steps, whose fall hides the rest, where enough points are left; show
    differences where the ends could not be told apart."""
    means = [still.known(arm["mean"]["step"], arm["mean"]["val_loss"]) for arm in plotted]
    drawn = [points for points in means if points]
    spans = {span: _is_drawn(drawn, share) for span, share in SPANS.items()}
    span = "most" if spans["most"] else "all"
    ends = [points[-1][1] for points in drawn]
    inside = [y for points in drawn for x, y in points if x >= SPANS[span] * points[-1][0]]
    close = len(ends) > 1 and _range(ends) < NEAR * _range(inside)
    return View(relative=close and bool(means[0]), span=span, spans=spans)


def _is_drawn(means: Sequence[Sequence[tuple[float, float]]], share: float) -> bool:
    """Say whether each curve keeps enough points to be one."""
    last = max((points[-1][0] for points in means), default=0.0)
    left = [sum(x >= share * last for x, _ in points) for points in means]
    return share == 0 or min(left, default=0) >= LEAST_POINTS


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _still_curves(plotted: Sequence[Mapping[str, Any]], view: View) -> Any:
    base = dict(still.known(plotted[0]["mean"]["step"], plotted[0]["mean"]["val_loss"]))
    lines = list[still.StillLine]()
    for arm in plotted:
        points = still.known(arm["mean"]["step"], arm["mean"]["val_loss"])
        if view.relative:
            points = [(step, loss - base[step]) for step, loss in points if step in base]
        lines.append(_still_line(arm, points))
    last = max((step for line in lines for step, _ in line.points), default=0.0)
    words = "loss less the baseline's" if view.relative else "validation loss"
    return still.chart(lines, x="training steps", y=words, ends=(SPANS[view.span] * last, last))


def _still_times(plotted: Sequence[Mapping[str, Any]]) -> Any:
    lines = list[still.StillLine]()
    for arm in plotted:
        if arm["placed"]:
            lines.append(_still_line(arm, still.known([arm["train_s"]], [arm["val_loss"]])))
    return still.chart(lines, x="training time (s)", y="validation loss (nats per token)")


def _still_line(arm: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> still.StillLine:
    return still.StillLine(
        name=arm["short"],
        color=f"var(--hue-{arm['hue']})",
        dash=still.DASHES[arm["dash"]],
        symbol=arm["symbol"],
        hollow=arm["hollow"],
        points=points,
    )


def _losses(rows: Sequence[ComparedArm]) -> Table:
    """Return the data of the curves: mean losses at a few steps of the baseline's."""
    curves = [_mean_curve([run.curve for run in row.arm.runs if run.curve.step]) for row in rows]
    steps = curves[0]["step"]
    stride = max(1, -(-len(steps) // SAMPLES))
    sampled = sorted({*steps[::stride], *steps[-1:]})
    losses = [dict(still.known(curve["step"], curve["val_loss"])) for curve in curves]
    columns = [arms.ARM, *(values("val_loss", f"step {step:,}") for step in sampled)]
    table = [[row.label, *map(at.get, sampled)] for row, at in zip(rows, losses, strict=True)]
    return Table(title="Mean validation loss over steps", columns=columns, rows=table)


def _ends(rows: Sequence[ComparedArm]) -> Table:
    """Return the data of loss against time."""
    columns = [arms.ARM]
    columns += [values(name, METRICS[name].title) for name in ("train_s", "val_loss", "model_mib")]
    table = [
        [row.label, row.times["train_s"].mean, row.val_loss, row.times["model_mib"].mean]
        for row in rows
    ]
    return page.known(Table(title="Loss, time and memory", columns=columns, rows=table))


def _clocks(rows: Sequence[ComparedArm]) -> list[list[ClockPart]]:
    """Return the mean clock of each arm's runs, line by line, without lines that no arm has."""
    clocks = [row.clock_s for row in rows]
    used = [line for line in LINES if any(clock.get(line) for clock in clocks)]
    totals = [
        sum(clock.get(line, 0.0) for line in used) for clock in clocks
    ]  # `wall` would count twice
    longest = max(totals, default=0.0) or 1.0
    return [list(_parts(clock, used, longest)) for clock in clocks]


def _parts(clock: Mapping[str, float], lines: Sequence[str], longest: float) -> Iterator[ClockPart]:
    for line in lines:
        seconds = clock.get(line, 0.0)
        yield ClockPart(name=LINES[line], seconds=seconds, share=100 * seconds / longest)


# --- the pictures of the differences --------------------------------------------------------------


def _differences(comparison: Comparison) -> list[TableCell]:
    column = gains(comparison.metric, Scale.difference, arms.DIFFERENCE)
    return [column.draw(row.difference and row.difference.estimate) for row in comparison.rows]


def _effects(comparison: Comparison) -> forest.Forest:
    """Draw the effects of the levels, the lowest loss first."""
    column = gains(comparison.metric, Scale.difference, arms.DIFFERENCE)
    lines = list[forest.ForestRow]()
    for factor in comparison.factors.factors if comparison.factors else ():
        for level in factor.levels:
            label, estimate = f"{factor.key}={level.name}", level.difference.estimate
            line = forest.ForestRow(
                label=label,
                title=f"{label}: {column.draw(estimate)}",
                look=level.difference.outcome.name,
                mid=estimate.mid,
                low=estimate.low,
                high=estimate.high,
            )
            lines.append(line)
    lines.sort(key=lambda line: line.mid)
    return forest.svg(lines, title=AXIS.format(comparison.metric, "the baseline"), zero=True)


def _intervals(comparison: Comparison) -> forest.Forest | None:
    """Draw the differences. An interval without an end is not drawn: its point is."""
    lines = list[forest.ForestRow]()
    for i, (row, cell) in enumerate(zip(comparison.rows, _differences(comparison), strict=True)):
        if row.difference is None or not math.isfinite(row.difference.estimate.mid):
            continue
        estimate = row.difference.estimate
        bounded = math.isfinite(estimate.high)
        line = forest.ForestRow(
            label=row.label,
            title=f"{row.label}: {cell}",
            look=row.difference.outcome.name,
            mid=estimate.mid,
            low=estimate.low if bounded else estimate.mid,
            high=estimate.high if bounded else estimate.mid,
            arm=i,
        )
        lines.append(line)
    if not lines:
        return None
    return forest.svg(lines, title=AXIS.format(comparison.metric, arms.other(comparison)), cut=True)
