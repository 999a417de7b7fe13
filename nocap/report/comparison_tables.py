"""A comparison as tables, for the terminal and for the page. What is missing (one seed, another
machine, no bytes) is a dash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nocap.display import COUNTS, ONE, count, listed, percent, plural, shorten
from nocap.judge.arms import ABSENT, spell
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.differences import Difference, DifferenceWord
from nocap.judge.equal_loss import STEPS, TimeAtEqualLoss
from nocap.judge.factors import Factor, Factors, Level
from nocap.judge.findings import by_effect
from nocap.judge.interval import ALL_PAIRS, ALL_SAMPLES, PAIRS, SAMPLES, Estimate
from nocap.judge.pace import TOKEN_US
from nocap.judge.question import PREVIOUS
from nocap.judge.time_to_target import Reach
from nocap.metrics import METRICS, Metric, Scale
from nocap.report.figures_in_words import gains, ratio, ratio_digits, values
from nocap.report.headline import compared, crossed, findings, interval_name, next_step
from nocap.report.table import Column, Table, TableCell, as_drawn
from nocap.report.terminal import PHRASE, prose
from nocap.store.grid_timing import Timing

ARM = Column(title="arm")
LEVEL = Column(title="level", show=as_drawn)
VERDICT = Column(title="verdict", show=as_drawn, keep=True)
AT_EQUAL_LOSS = Column(title="time at equal loss", show=as_drawn, keep=True)
ERRORS = (
    "In 5% of grids at least one verdict about a key is wrong, and in 5% at least one verdict "
    "about an arm. With two keys, about 11% of grids have at least one wrong verdict."
)
ONE_SESSION = (
    "These times are from one session. Only a study, which has three separate sessions, says "
    "what holds on other days."
)
OF_SPEED = "Speed is in tokens/s: an arm that takes twice the time for a token is 50% slower."
OF_PACE = (
    "µs a token is the time of the median step. On a CPU it is CPU time, which other programs "
    f"disturb less than wall time. {OF_SPEED} {ONE_SESSION}"
)
OF_LOGS = (
    "The times are those that the logs state. nocap compares them if the hardware is the same; a "
    "log or --hardware must name it. An arm that takes twice the time is 50% slower."
)
OF_TARGET = (
    "A target in the middle of a schedule misleads: compare runs whose schedules end at the target."
)
OF_LOGGED = (
    "Each number is the last value that a module logged, as a mean over the runs. No verdict uses "
    "it."
)
# method of an estimate → how its differences are taken
WAYS = {
    PAIRS: "seed by seed",
    ALL_PAIRS: "seed by seed",
    SAMPLES: "between the means of the arms",
    ALL_SAMPLES: "between the means of the arms",
}
DIFFERENCE = "difference"
FOUND = "found: "
AXES = {"steps": "steps", "train_s": "training"}  # to a target → its columns
# Times and memory: metric → the title of its mean, and of its ratio to the baseline's. The page
# shows the first ratio beside a verdict.
SPEED_COLUMNS = {TOKEN_US: ("µs a token", "speed"), "model_mib": ("model MiB", "memory")}
LOGGED_SPEED_COLUMNS = {"train_s": ("training", "speed")}  # of imported runs
COST_COLUMNS = {"params": "params", "flops_per_token": "FLOPs/token", "tokens": "tokens"}
LOGGED_COST_COLUMNS = {"steps": "steps", "tokens": "tokens"}
# of the wall clock, which holds what else the machine did
CLOCKED = {"train_s": "training", "tokens_per_s": "tokens/s"}
OF_CLOCK = (
    "training is the mean training time of the runs. tokens/s is their tokens divided by this time."
)


def render(comparison: Comparison) -> str:
    """Draw the whole comparison for a terminal."""
    first, *others = findings(comparison)
    head = [prose(f"{FOUND}{first}", hang=len(FOUND))]
    head += [prose(" " * len(FOUND) + line, hang=len(FOUND)) for line in others]
    head += map(prose, compared(comparison))
    notes = [*notes_on(comparison), next_step(comparison)]
    parts = ["\n".join(head)]
    parts += [str(table) for table in all_tables(comparison) if _has_figures(table)]
    parts.append("\n".join(map(prose, notes)))
    return "\n\n".join(part for part in parts if part)


def _has_figures(table: Table) -> bool:
    """Say whether a table has more than dashes."""
    figures = list[object]()
    for row in table.rows:
        figures += row[1:]
    return any(value is not None for value in figures)


def notes_on(comparison: Comparison) -> list[str]:
    """List what should be doubted, and the runs that are not compared."""
    notes = [f"note: {line}" for line in comparison.problems]
    left = [f"{name} ({status})" for name, status in comparison.not_compared]
    if left:
        notes.append(f"not compared: {shorten(left, most=6)}")
    return notes


def all_tables(comparison: Comparison) -> Iterator[Table]:
    """List every table, in the order in which they are read: by factor, then arm by arm."""
    verdicts, speed, *rest = tables(comparison)
    if comparison.factors is not None:
        yield by_factor(comparison.factors, comparison.metric)
    yield verdicts
    yield speed
    paces = paces_by_factor(comparison)
    if paces is not None:
        yield paces
    yield from rest
    logged = logged_by_modules(comparison)
    if logged is not None:
        yield logged


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a row an arm, the baseline first."""
    yield _verdicts(comparison)
    yield _speed(comparison)
    yield _costs(comparison)
    if comparison.target is not None:
        yield _target(comparison, comparison.target)


def other(comparison: Comparison) -> str:
    """Say what each arm is compared with."""
    return "the arm before" if comparison.against == PREVIOUS else "the baseline"


def word(difference: Difference | None) -> TableCell:
    """Draw a verdict, a short reason beside it. `None`: it is the baseline's."""
    if difference is None:
        return TableCell(text="baseline")
    kind = difference.word.name
    small = f"({difference.reason})"
    if difference.word is DifferenceWord.depends or not 2 < len(small) <= PHRASE:
        return TableCell(text=difference.word_with_reason, kind=kind)
    return TableCell(text=difference.word.value, small=small, kind=kind)


# --- by factor ------------------------------------------------------------------------------------


def by_factor(factors: Factors, metric: str) -> Table:
    """Draw a row a level of each key, the lowest loss first."""
    at = _AtEqualLoss([level.equal_loss for _, level in _levels(factors)])
    columns = [
        LEVEL,
        Column(title="over"),
        Column(title="seeds"),
        gains(metric, Scale.difference, DIFFERENCE),
        VERDICT,
        *at.columns,
    ]
    rows = list[list[object]]()
    for factor, level in _levels(factors):
        row: list[object] = [_name(factor, level), crossed(factor.over)]
        row += [len(factors.seeds), level.difference.estimate, word(level.difference)]
        rows.append([*row, *at.cells(level.equal_loss)])
    notes = [_interactions(factors, metric), ERRORS, *at.notes]
    title = f"By factor, against {_baselines(factors)}"
    return Table(title=title, columns=columns, rows=rows, notes=notes)


def _baselines(factors: Factors) -> str:
    """Name what the levels of each key are compared with: `attention=flash and mlp=gelu4x`."""
    return listed(factor.label(factor.baseline) for factor in factors.factors)


def _name(factor: Factor, level: Level) -> TableCell:
    """Name a level; where several keys make it, with what sets them."""
    overrides = factor.overrides.get(level.name)
    return TableCell(text=factor.label(level.name), small=f"({overrides})" if overrides else "")


def _levels(factors: Factors) -> list[tuple[Factor, Level]]:
    """List the levels of all keys, the lowest loss first, as the picture of them has them."""
    levels = list[tuple[Factor, Level]]()
    for factor in factors.factors:
        levels += [(factor, level) for level in factor.levels]
    return sorted(levels, key=lambda pair: by_effect(pair[1].difference))


def paces_by_factor(comparison: Comparison) -> Table | None:
    """Draw the ratio of the time a token of each level to that of the baseline's; `None`: it is not
    known."""
    if comparison.factors is None:
        return None
    columns = [LEVEL, Column(title="over"), gains(TOKEN_US, Scale.ratio, "speed")]
    rows = list[list[object]]()
    for factor, level in _levels(comparison.factors):
        if level.speed is not None:
            name = _name(factor, level)
            rows.append([name, crossed(factor.over), level.speed])
    if not rows:
        return None
    title = f"Speed by factor, against {_baselines(comparison.factors)}"
    return Table(title=title, columns=columns, rows=rows)


def _interactions(factors: Factors, metric: str) -> str:
    """Say which arms end elsewhere than their single changes add up to."""
    shown = [each for each in factors.interactions if each.shown]
    number = plural(len(factors.interactions), "interaction")
    if not shown:
        return f"Of {number}, 0 shown: the gains of single changes may add up."
    drawn = gains(metric, Scale.difference, "")
    sizes = "; ".join(f"{each.arm}: {drawn.draw(each.estimate)}" for each in shown)
    return (
        f"Of {number}, {len(shown)} shown. Difference from the sum of the single changes: {sizes}."
    )


class _AtEqualLoss:
    """The column of times at equal loss of a table; none, where the baseline has no other
    lengths."""

    def __init__(self, every: Sequence[TimeAtEqualLoss | None]) -> None:
        self.columns = [AT_EQUAL_LOSS] if any(every) else []
        known = [each for each in every if each is not None]
        self.reasons = _Reasons([each.refused for each in known])
        self.digits = max((ratio_digits(each.ratio) for each in known if each.ratio), default=0)

    def cells(self, at: TimeAtEqualLoss | None) -> list[TableCell | None]:
        if not self.columns:
            return []
        if at is None:
            return [None]
        if at.refused is not None:
            return [TableCell(text=self.reasons.mark(at.refused))]
        return [None if at.ratio is None else ratio(at.ratio, least=self.digits)]

    @property
    def notes(self) -> list[str]:
        return self.reasons.notes


class _Reasons:
    """Why something is refused, each reason once, with a number in the table and a note below."""

    def __init__(self, every: Sequence[str | None]) -> None:
        self.each = list(dict.fromkeys(reason for reason in every if reason))

    def mark(self, reason: str) -> str:
        return f"refused [{self.each.index(reason) + 1}]"

    @property
    def notes(self) -> list[str]:
        return [f"[{number}] {reason}" for number, reason in enumerate(self.each, start=1)]


# --- arm by arm -----------------------------------------------------------------------------------


def _verdicts(comparison: Comparison) -> Table:
    has_bpb = any(row.val_bpb for row in comparison.arms)
    at = _AtEqualLoss([row.equal_loss for row in comparison.arms])
    columns = [ARM, Column(title="n"), values("val_loss", "val loss")]
    if has_bpb:
        columns.append(values("val_bpb", "bits/byte"))
    columns += [gains(comparison.metric, Scale.difference, DIFFERENCE), VERDICT, *at.columns]
    rows = list[list[object]]()
    for row in comparison.rows:
        cells: list[object] = [row.label, _seeds(row), row.val_loss]
        if has_bpb:
            cells.append(row.val_bpb)
        gap = row.difference
        cells += [gap and gap.estimate, word(gap), *at.cells(row.equal_loss)]
        rows.append(cells)
    notes = [_interval(comparison), *_lengths(comparison), *at.notes]
    return Table(title="Verdicts", columns=columns, rows=rows, notes=notes)


def _seeds(row: ComparedArm) -> int | str:
    """Return over how many seeds a row is, and how many of its arm's diverged."""
    diverged = len(row.arm.diverged)
    if diverged:
        return f"{len(row.seeds)} ({diverged} diverged)"
    return len(row.seeds)


def _interval(comparison: Comparison) -> str:
    """Say what `±` is, and how the differences were estimated."""
    look = ""
    if comparison.look > 1:
        look = f", at look {comparison.look}"
    ways = dict.fromkeys(WAYS.get(method, method) for method in comparison.methods)
    methods = "; ".join(ways) or "none"
    return (
        f"± is half of the {interval_name(comparison)}, which decides the verdicts and holds for "
        f"all arms together{look}. Differences: {methods}."
    )


def _lengths(comparison: Comparison) -> Iterator[str]:
    """Say how times at equal loss were worked out."""
    if not comparison.lengths:
        return
    short, long = (f"{arm.config[STEPS]:,}" for arm in comparison.lengths)
    own = f"{comparison.baseline.arm.config[STEPS]:,}"
    yield (
        "Time at equal loss is the arm's time divided by the time that "
        f"{comparison.baseline.label} needs to reach the same loss. nocap reads that time from "
        f"runs of {comparison.baseline.label} with {short}, {own} and {long} steps, each with a "
        "complete schedule and the same learning rate. It says nothing about other lengths."
    )


def _speed(comparison: Comparison) -> Table:
    """Draw times and memory; a reason stands where a ratio would be a lie. A log has at most the
    seconds of training."""
    imported = bool(comparison.imported)
    shown = LOGGED_SPEED_COLUMNS if imported else SPEED_COLUMNS
    columns = [ARM]
    notes = list[str]()
    refusals = dict[str, list[str | None]]()  # of the metrics that are compared
    for metric, (mean, gain) in shown.items():
        columns.append(values(metric, mean))
        of_rows = [_refusal(row, metric, imported) for row in comparison.rows]
        if all(of_rows):
            why = "; ".join(dict.fromkeys(filter(None, of_rows)))
            notes.append(f"{gain.capitalize()} is not compared: {why}.")
        else:
            columns.append(gains(metric, Scale.ratio, gain))
            refusals[metric] = of_rows
    reasons = _Reasons([why for of_rows in refusals.values() for why in of_rows])
    rows = list[list[object]]()
    for i, row in enumerate(comparison.rows):
        cells: list[object] = [row.label]
        for metric in shown:
            timed = row.times[metric]
            cells.append(timed.mean)
            if metric in refusals:
                refusal = refusals[metric][i]
                cells.append(reasons.mark(refusal) if refusal else timed.estimate)
        rows.append(cells)
    title = "Speed and memory"
    note = OF_PACE
    if imported:
        title = "Training time"
        note = OF_LOGS
    elif comparison.timing is not None:
        note = _in_turns(comparison.timing)
    return Table(
        title=f"{title}, against {other(comparison)}",
        columns=columns,
        rows=rows,
        notes=[*reasons.notes, *notes, note],
    )


def _refusal(row: ComparedArm, metric: str, imported: bool) -> str | None:
    """Say why a ratio is refused; of a log that has no such time nothing is said."""
    if imported and not row.arm.values[metric]:
        return None
    return row.times[metric].refused


def _in_turns(timing: Timing) -> str:
    """Say how the arms were timed beside each other."""
    rounds = plural(timing.rounds, "round")
    return (
        f"µs a token and speed are from arms that were timed in turns: {rounds} by "
        f"{timing.clock}, on {timing.machine_name}, {timing.started[:10]}. {OF_SPEED} "
        f"{ONE_SESSION}"
    )


# --- what each arm is -----------------------------------------------------------------------------


def _costs(comparison: Comparison) -> Table:
    """Return what an arm had that the other one had not. Of a log, steps and tokens are all that is
    known."""
    imported = bool(comparison.imported)
    counts = LOGGED_COST_COLUMNS if imported else COST_COLUMNS
    before = {row.arm.id: row.costs for row in comparison.rows}
    columns = [ARM, *(Column(title=title, show=as_drawn) for title in counts.values())]
    if not imported:
        columns += [values(metric, title) for metric, title in CLOCKED.items()]
        columns += [Column(title="kernel"), Column(title=f"differs from {other(comparison)} in")]
    drawn = dict[str, list[TableCell]]()
    for name, title in counts.items():
        column = Column(title=title, show=count, units=COUNTS)
        drawn[name] = column.draw_all([row.costs[name] for row in comparison.rows])
    rows = list[list[object]]()
    for i, row in enumerate(comparison.rows):
        base = before[(row.against or row.arm).id]
        cells: list[object] = [row.label]
        cells += [_cost(drawn[name][i], row.costs[name], base[name]) for name in counts]
        if not imported:
            seconds = row.times["train_s"].mean
            cells += [seconds, _rate(row.costs["tokens"], seconds)]
            cells += [_kernels(row) or None, _changes(row) or None]
        rows.append(cells)
    notes = list(_uncounted(comparison.rows))
    if not imported:
        notes.append(OF_CLOCK)
    return Table(title="What each arm is", columns=columns, rows=rows, notes=notes)


def _rate(tokens: float | None, seconds: float | None) -> float | None:
    """Return the tokens a second."""
    if not tokens or not seconds:
        return None
    return tokens / seconds


def _cost(cell: TableCell, x: float | None, before: float | None) -> TableCell:
    """Draw beside a cost how far it is from the baseline's."""
    if x is None or not before or x == before:
        return cell
    return replace(cell, small=f"({percent(x / before - 1)})")


def _kernels(row: ComparedArm) -> str:
    kernels = row.arm.summary("kernel") or {}
    return " / ".join(dict.fromkeys(map(str, kernels.values())))


def _changes(row: ComparedArm) -> str:
    changes = {key: value for key, value in row.changes.items() if value != ABSENT}
    return ", ".join(f"{key}={spell(value)}" for key, value in changes.items())


def _uncounted(rows: Sequence[ComparedArm]) -> Iterator[str]:
    """Say of which arms no FLOPs are counted, and why."""
    for row in rows:
        basis = row.arm.summary("flops_basis")
        if row.costs["flops_per_token"] is None and basis:
            yield f"{row.label}: FLOPs {basis}"


def logged_by_modules(comparison: Comparison) -> Table | None:
    """Draw what the modules of the arms logged last; `None`: none of them logs."""
    names = dict[str, None]()
    for row in comparison.rows:
        names |= dict.fromkeys(row.logged)
    if not names:
        return None
    columns = [ARM, *(Column(title=name, show="{:.4g}".format, units=ONE) for name in names)]
    rows = list[list[object]]()
    for row in comparison.rows:
        rows.append([row.label, *map(row.logged.get, names)])
    return Table(title="Logged by modules", columns=columns, rows=rows, notes=[OF_LOGGED])


# --- to a loss ------------------------------------------------------------------------------------


def _target(comparison: Comparison, target: float) -> Table:
    axes = {"steps": METRICS["steps_to_target"], "train_s": METRICS["train_s"]}
    columns = [ARM]
    for axis, metric in axes.items():
        name = AXES[axis]
        title = f"{name} against {other(comparison)}"
        columns += [Column(title=name), gains(metric.name, Scale.ratio, title)]
    columns.append(Column(title="reached it"))
    rows = list[list[object]]()
    refusals: dict[str, None] = {}
    for row in comparison.rows:
        reaches = row.to_target or {}
        cells: list[object] = [row.label]
        for axis, metric in axes.items():
            cells += _reach(reaches[axis], metric)
            refusals |= dict.fromkeys(filter(None, [reaches[axis].refused]))
        steps = reaches["steps"]
        rows.append([*cells, f"{steps.reached} of {steps.n}"])
    notes = [*(f"refused: {reason}" for reason in refusals), OF_TARGET]
    title = f"To val loss {target:g}, medians over seeds"
    return Table(title=title, columns=columns, rows=rows, notes=notes)


def _reach(reach: Reach, metric: Metric) -> tuple[str, Estimate | str | None]:
    """Return where an arm came to the target, and the ratio to the baseline's."""
    if reach.median is not None:
        at = metric.show(reach.median)
    elif reach.refused:
        return "refused", reach.ratio
    elif reach.budget:
        at = f"> {metric.show(reach.budget)}"
    else:
        at = "never"
    return at, "refused" if reach.refused else reach.ratio
