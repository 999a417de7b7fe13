"""A comparison as tables, for the terminal and for the page. What is missing (one seed, another
machine, no bytes) is a dash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nocap.display import count, listed, percent, plural, shorten
from nocap.judge.arms import ABSENT, spell
from nocap.judge.compared_arms import ComparedArm, Comparison
from nocap.judge.equal_loss import STEPS, TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.findings import ORDER, Finding
from nocap.judge.interval import Estimate, confidence
from nocap.judge.losses import Outcome
from nocap.judge.pace import TOKEN_US as PACE
from nocap.judge.question import PREVIOUS
from nocap.report.table import Column, Table, TableCell
from nocap.report.terminal import prose
from nocap.report.words import counted, extent, gains, ratio, values
from nocap.store.metrics import METRICS, Metric, Scale
from nocap.store.timing import Timing

ARM = Column(title="arm")
NAMED = 3  # findings in a headline; the others are counted
# of imported runs
ERRORS = (
    "Each key's table has a false word in 5% of grids, and so has the arms' table. Of grids with "
    "two keys "
    "some 11% have one somewhere."
)
ONE_SESSION = (
    "Of one session: what holds on other days takes a study, in three sessions that lie apart."
)
OF_PACE = (
    "µs a token: the median step's, on a CPU in CPU time, which other work changes less than a "
    "clock. "
    f"{ONE_SESSION}"
)
DIFFERENCE = "difference"  # a column that the page knows
# Times and memory: metric → the title of its mean, and of its ratio to the baseline's. The page
# shows the first ratio beside a verdict.
MEASURED = {PACE: ("µs a token", "speed"), "model_mib": ("model MiB", "memory")}
LOGGED = {"train_s": ("training", "speed")}
COSTS = {"params": "params", "flops_per_token": "FLOPs/token", "tokens": "tokens"}
# of the wall clock, which holds what else the machine did
CLOCKED = {"train_s": "training", "tokens_per_s": "mean tokens/s"}
LOGGED_COSTS = {"steps": "steps", "tokens": "tokens"}


def headline(comparison: Comparison) -> str:
    """Name what was found: `mlp=swiglu better by 0.0530 ± 0.0330; attention=gqa over 3 mlps: no
    difference shown, some 12 seeds would show 0.0200`."""
    found = comparison.findings.found
    if not found:
        return f"one arm, {comparison.baseline.label}, and none to compare it with"
    return "; ".join(_all_told(comparison))


def _all_told(comparison: Comparison) -> list[str]:
    found = comparison.findings.found
    told = [_told(finding, METRICS[comparison.metric]) for finding in found[:NAMED]]
    rest = [finding.difference.outcome.value for finding in found[NAMED:]]
    if rest:
        told.append(f"{len(rest)} more: {counted(rest, [outcome.value for outcome in ORDER])}")
    return told


def answer(comparison: Comparison) -> str:
    """Say in one line what a reader comes for: the best arm and by how much it is better, or that
    none is."""
    found = comparison.findings.found
    if not found:
        return headline(comparison)
    if _is_gain(found[0]):
        return _told(found[0], METRICS[comparison.metric])
    than = "the one before it" if comparison.against == PREVIOUS else comparison.baseline.label
    return f"Nothing is shown to be better than {than}"


def other_findings(comparison: Comparison) -> list[str]:
    """List what was found beside the answer, as the headline has it."""
    found = comparison.findings.found
    first = 1 if found and _is_gain(found[0]) else 0
    return _all_told(comparison)[first:]


def _is_gain(finding: Finding) -> bool:
    """Say whether it is shown that the loss is lower, or that equal loss takes less time."""
    at = finding.equal_loss
    return Outcome.better in (finding.difference.outcome, at.outcome if at is not None else None)


def _told(finding: Finding, metric: Metric) -> str:
    """Say in a few words what was found of one arm, or of one level."""
    gap = finding.difference
    size = extent(gap.estimate.mid, metric)
    at = _at_equal_loss(finding.equal_loss)
    if gap.outcome in (Outcome.better, Outcome.worse):
        reach = f" ± {extent(gap.estimate.half_width, metric)}" if gap.estimate.half_width else ""
        return f"{finding.name} {gap.verdict} by {size}{reach}" + (f", {at}" if at else "")
    over = f" over {_over(finding.over)}" if finding.over else ""
    if at and gap.outcome is Outcome.unclear:
        return f"{finding.name}{over}: {at}"
    more = f", some {finding.seeds} seeds would show {size}" if finding.seeds else ""
    return f"{finding.name}{over}: {gap.verdict}{more}"


def _at_equal_loss(at: TimeAtEqualLoss | None) -> str:
    """Say of an arm what its loss and its speed make together: `1.03 of the time at equal loss
    [0.97, 1.10], not shown; some 14 seeds would show 3%`."""
    if at is None or at.ratio is None:
        return ""
    drawn = ratio(at.ratio)
    text = " ".join(filter(None, (drawn.text, "of the time at equal loss", drawn.small)))
    if at.outcome in (Outcome.better, Outcome.worse):
        return text
    more = f"; some {at.seeds} seeds would show {abs(at.ratio.mid - 1):.1%}" if at.seeds else ""
    return f"{text}, not shown{more}"


def _over(keys: Mapping[str, int]) -> str:
    return " × ".join(plural(count, key) for key, count in keys.items())


def next_step(comparison: Comparison) -> str | None:
    """Return what to type for what is not shown yet; `None`: nothing, or it is not known which
    command that is."""
    more = comparison.findings.next
    if more is None:
        return None
    why = (
        "finished runs are kept"
        if more.key == "seed"
        else "four times the seeds would not show what is open"
    )
    return f"next: the same command with {more.override} ({why})"


def _counts(comparison: Comparison) -> str:
    """`11 arms against flash gelu4x: 2 better, 5 worse, 4 no verdict`."""
    said = [row.difference.outcome.value for row in comparison.arms if row.difference]
    words = counted(said, [outcome.value for outcome in Outcome])
    other = "the one before" if comparison.against == PREVIOUS else comparison.baseline.label
    return f"{plural(len(said), 'arm')} against {other}: {words}"


def compared(comparison: Comparison) -> list[str]:
    """Return what was compared with what."""
    arms, runs = plural(len(comparison.arms), "arm"), plural(len(comparison.runs), "run")
    head = f"{arms} from {runs}; baseline: {comparison.baseline.label} (another with --baseline)"
    if comparison.against == PREVIOUS:
        head = (
            f"{arms} from {runs}; each against the one before it, from "
            f"{comparison.baseline.label} on"
        )
    lines = [head]
    if comparison.factors is not None or len(comparison.findings.found) > NAMED:
        lines.append(_counts(comparison))  # the headline does not name each arm
    if comparison.imported:
        lines.append(_imported(comparison))
    elif comparison.swept:
        lines.append(f"swept: {', '.join(comparison.swept)}")
    return lines


def _imported(comparison: Comparison) -> str:
    """Return what nobody can check, on every page."""
    logs = comparison.imported
    formats = listed(dict.fromkeys(str(log["format"]) for log in logs))
    arms = [f"arms from {source}" for source in _sources(logs, "arm")]
    unnamed = "no seeds are named, so nothing is paired"
    seeds = [f"seeds from {source}" for source in _sources(logs, "seed")] or [unnamed]
    said = {record.machine_name for record in comparison.records if record.imported["hardware"]}
    parts = [
        f"imported: logs of another trainer ({formats}), exploratory: nocap has seen neither "
        "code, data nor settings",
        ", ".join([*arms, *seeds]),
        *(f"--hardware says that they ran on {name}" for name in said),
    ]
    return "; ".join(parts)


def _sources(logs: Sequence[Mapping[str, object]], key: str) -> list[str]:
    """List what named the arms, or the seeds, of these logs."""
    named = dict.fromkeys(str(log[key]) for log in logs if log.get(key))
    return [" and ".join(named)] if named else []


def all_tables(comparison: Comparison) -> Iterator[Table]:
    """List every table, in the order in which they are read: by factor, then arm by arm."""
    verdicts, speed, *rest = tables(comparison)
    if comparison.factors is not None:
        yield by_factor(comparison.factors, comparison.metric)
    yield verdicts
    yield speed
    if (paces := paces_by_factor(comparison)) is not None:
        yield paces
    yield from rest


def by_factor(factors: Factors, metric: str) -> Table:
    """Draw a row a level of each key, the keys in the order in which the grid has them."""
    every = [level for factor in factors.factors for level in factor.levels]
    at = _AtEqualLoss([level.equal_loss for level in every])
    columns = [
        Column(title="level"),
        Column(title="against"),
        Column(title="over"),
        Column(title="seeds"),
        gains(metric, Scale.difference, DIFFERENCE),
        Column(title="verdict", keep=True),
        *at.columns,
    ]
    rows = [
        [
            f"{factor.key}={level.name}",
            factor.baseline,
            _over(factor.over),
            len(factors.seeds),
            level.difference.estimate,
            level.difference.verdict,
            *at.cells(level.equal_loss),
        ]
        for factor in factors.factors
        for level in factor.levels
    ]
    notes = [*_interactions(factors, metric), ERRORS, *at.notes]
    return Table(title="By factor", columns=columns, rows=rows, notes=notes)


def paces_by_factor(comparison: Comparison) -> Table | None:
    """Draw the ratio of the time a token of each level to that of the baseline's; `None`: it is not
    known."""
    if comparison.factors is None:
        return None
    columns = [
        Column(title="level"),
        Column(title="against"),
        Column(title="over"),
        gains(PACE, Scale.ratio, "speed"),
    ]
    rows = [
        [f"{factor.key}={level.name}", factor.baseline, _over(factor.over), level.speed]
        for factor in comparison.factors.factors
        for level in factor.levels
        if level.speed is not None
    ]
    return Table(title="Speed by factor", columns=columns, rows=rows) if rows else None


class _AtEqualLoss:
    """The column of times at equal loss of a table; none, where the baseline has no other
    lengths."""

    def __init__(self, every: Sequence[TimeAtEqualLoss | None]) -> None:
        self.there = any(every)
        self.reasons = list(dict.fromkeys(each.refused for each in every if each and each.refused))

    @property
    def columns(self) -> list[Column]:
        return (
            [Column(title="time at equal loss", show=lambda drawn: drawn, keep=True)]
            if self.there
            else []
        )

    def cells(self, at: TimeAtEqualLoss | None) -> list[TableCell | str | None]:
        if not self.there:
            return []
        if at is None:
            return [None]
        if at.refused is not None:
            return [f"refused [{self.reasons.index(at.refused) + 1}]"]
        return [ratio(at.ratio) if at.ratio is not None else None]

    @property
    def notes(self) -> list[str]:
        return [f"[{number}] {reason}" for number, reason in enumerate(self.reasons, start=1)]


def _interactions(factors: Factors, metric: str) -> Iterator[str]:
    """Say which arms end elsewhere than their single changes add up to."""
    shown = [each for each in factors.interactions if each.shown]
    number = plural(len(factors.interactions), "interaction")
    if not shown:
        yield f"None of {number} is shown: the gains may add up."
        return
    drawn = gains(metric, Scale.difference, "")
    told = [f"{each.arm}: {drawn.draw(each.estimate)}" for each in shown]
    yield (
        f"Of {number}, {len(shown)} shown. Beyond the sum of the single changes: {'; '.join(told)}."
    )


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a row an arm, the baseline first."""
    yield _verdicts(comparison)
    what = other(comparison)
    yield _speed(comparison, what)
    yield _costs(comparison, what, imported=bool(comparison.imported))
    if comparison.target is not None:
        yield _target(comparison.rows, comparison.target, what)


def other(comparison: Comparison) -> str:
    """Say what each arm is compared with."""
    return "the arm before" if comparison.against == PREVIOUS else "the baseline"


def _verdicts(comparison: Comparison) -> Table:
    has_bpb = any(row.val_bpb for row in comparison.arms)
    at = _AtEqualLoss([row.equal_loss for row in comparison.arms])
    columns = [
        ARM,
        Column(title="n"),
        values("val_loss", "val loss"),
        *([values("val_bpb", "bits/byte")] if has_bpb else []),
        gains(comparison.metric, Scale.difference, DIFFERENCE),
        Column(title="verdict", keep=True),
        *at.columns,
    ]
    rows = []
    for row in comparison.rows:
        gap, diverged = row.difference, len(row.arm.diverged)
        n = f"{len(row.seeds)} ({diverged} diverged)" if diverged else len(row.seeds)
        bpb = [row.val_bpb] if has_bpb else []
        word = gap.verdict if gap else "baseline"
        rows.append(
            [
                row.label,
                n,
                row.val_loss,
                *bpb,
                gap and gap.estimate,
                word,
                *at.cells(row.equal_loss),
            ]
        )
    methods = ", ".join(comparison.methods) or "none"
    level = f"{100 * confidence(comparison.look):.4g}%"
    look = f", at look {comparison.look}" if comparison.look > 1 else ""
    interval = "cautious interval" if comparison.cautious else f"{level} interval"
    note = (
        f"±: half of the {interval} that decides, for all arms together{look}. Differences: "
        f"{methods}."
    )
    notes = [note, *_lengths(comparison), *at.notes]
    return Table(title="Verdicts", columns=columns, rows=rows, notes=notes)


def _lengths(comparison: Comparison) -> Iterator[str]:
    """Say how times at equal loss were worked out."""
    if not comparison.lengths:
        return
    short, long = (f"{arm.config[STEPS]:,}" for arm in comparison.lengths)
    own = f"{comparison.baseline.arm.config[STEPS]:,}"
    yield (
        f"Time at equal loss: of that which {comparison.baseline.label} takes for the loss that "
        f"the arm "
        f"reaches, by its ends after {short}, {own} and {long} steps (whole schedules, rates "
        f"unchanged). Of "
        "other lengths it says nothing."
    )


def _speed(comparison: Comparison, what: str) -> Table:
    """Draw times and memory; a reason stands where a ratio would be a lie. A log has at most the
    seconds of training."""
    arms = comparison.rows
    imported = bool(comparison.imported)
    shown = LOGGED if imported else MEASURED

    def refused(row: ComparedArm, metric: str) -> str | None:
        return row.times[metric].refused if row.arm.values[metric] or not imported else None

    reasons = list(
        dict.fromkeys(
            filter(
                None,
                (
                    refused(row, metric)
                    for row in arms
                    for metric, (_, gain) in shown.items()
                    if gain
                ),
            )
        )
    )

    def cells(row: ComparedArm, metric: str, gain: str) -> list[float | Estimate | str | None]:
        why, timed = refused(row, metric), row.times[metric]
        return [
            timed.mean,
            *([f"refused [{reasons.index(why) + 1}]" if why else timed.estimate] if gain else []),
        ]

    columns = [ARM]
    for metric, (title, gain) in shown.items():
        columns += [values(metric, title), *([gains(metric, Scale.ratio, gain)] if gain else [])]
    rows = [
        [
            row.label,
            *(cell for metric, (_, gain) in shown.items() for cell in cells(row, metric, gain)),
        ]
        for row in arms
    ]
    notes = [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    if imported:
        notes.append(
            "Times are as the logs state them, compared where the hardware is the same: a log "
            "names it, or --hardware does."
        )
        return Table(
            title=f"Training time, against {what}", columns=columns, rows=rows, notes=notes
        )
    notes.append(_in_turns(comparison.timing) if comparison.timing is not None else OF_PACE)
    return Table(title=f"Speed and memory, against {what}", columns=columns, rows=rows, notes=notes)


def _in_turns(timing: Timing) -> str:
    """Say how the arms were timed beside each other."""
    return (
        f"µs a token and speed: the arms timed in turns, {plural(timing.rounds, 'round')} by "
        f"{timing.clock}, "
        f"on {timing.machine_name}, {timing.started[:10]}. {ONE_SESSION}"
    )


def _costs(comparison: Comparison, what: str, *, imported: bool) -> Table:
    """Return what an arm had that the other one had not. Of a log, steps and tokens are all that is
    known."""
    arms = comparison.rows
    shown = LOGGED_COSTS if imported else COSTS
    costs = {row.arm.id: row.costs for row in arms}

    def cell(row: ComparedArm, name: str) -> TableCell | None:
        x = row.costs[name]
        before = costs[(row.against or row.arm).id][name]
        if x is None:
            return None
        return TableCell(
            text=count(x), small=f"({percent(x / before - 1)})" if before and x != before else ""
        )

    columns = [ARM, *(Column(title=title, show=lambda drawn: drawn) for title in shown.values())]
    rows: list[list[Any]] = [[row.label, *(cell(row, name) for name in shown)] for row in arms]
    if not imported:
        columns += [values(metric, title) for metric, title in CLOCKED.items()]
        for cells, row in zip(rows, arms, strict=True):
            cells += [row.times[metric].mean for metric in CLOCKED]
        columns += [Column(title="kernel"), Column(title=f"differs from {what} in")]
        for cells, row in zip(rows, arms, strict=True):
            kernel = " / ".join(
                dict.fromkeys(str(name) for name in (row.arm.summary("kernel") or {}).values())
            )
            differs = ", ".join(
                f"{key}={spell(value)}" for key, value in row.changes.items() if value != ABSENT
            )
            cells += [kernel or None, differs or None]
    notes = [
        f"{row.label}: FLOPs {basis}"
        for row in arms
        if row.costs["flops_per_token"] is None and (basis := row.arm.summary("flops_basis"))
    ]
    return Table(title="What each arm is", columns=columns, rows=rows, notes=notes)


def _target(arms: Sequence[ComparedArm], target: float, what: str) -> Table:
    axes = {"steps": METRICS["steps_to_target"], "train_s": METRICS["train_s"]}
    columns, rows, refused = [ARM], [], dict[str, None]()
    for axis, metric in axes.items():
        columns += [Column(title=axis), gains(metric.name, Scale.ratio, f"{axis} against {what}")]
    for row in arms:
        reaches = row.to_target or {}
        cells: list[str | Estimate | None] = [row.label]
        for axis, metric in axes.items():
            reach = reaches[axis]
            at = (
                metric.show(reach.median)
                if reach.median is not None
                else f"> {metric.show(reach.budget)}"
                if reach.budget
                else "never"
            )
            seen = reach.median is not None or not reach.refused
            cells += [
                at if seen else "refused",
                "refused" if seen and reach.refused else reach.ratio,
            ]
            refused |= {reach.refused: None} if reach.refused else {}
        rows.append([*cells, f"{reaches['steps'].reached} of {reaches['steps'].n}"])
    notes = [
        *(f"refused: {reason}" for reason in refused),
        "In mid-schedule a crossing misleads: compare runs that end at the target.",
    ]
    title = f"To val loss {target:g}, medians over seeds"
    return Table(
        title=title, columns=[*columns, Column(title="reached it")], rows=rows, notes=notes
    )


def notes_on(comparison: Comparison) -> list[str]:
    """List what should be doubted, and the runs that are not compared."""
    notes = [f"note: {line}" for line in comparison.problems]
    if left := comparison.not_compared:
        notes.append(
            f"not compared: {shorten((f'{name} ({status})' for name, status in left), most=6)}"
        )
    return notes


def render(comparison: Comparison) -> str:
    """Draw the whole comparison for a terminal."""
    notes = notes_on(comparison)
    # not dashes alone
    told = [
        table
        for table in all_tables(comparison)
        if any(cell is not None for row in table.rows for cell in row[1:])
    ]
    if (more := next_step(comparison)) is not None:
        notes.append(more)
    head = [f"found: {headline(comparison)}", *compared(comparison)]
    parts = ["\n".join(map(prose, head)), *map(str, told), "\n".join(map(prose, notes))]
    return "\n\n".join(part for part in parts if part)
