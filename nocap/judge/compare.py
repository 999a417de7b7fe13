"""Make the comparison: arms against a baseline, with intervals, verdicts, and what should be
doubted. As JSON it is a `judge.comparison_schema.Result`. `--json` writes it with the question and
the records (`nocap.report.result_file`), from which it is judged again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from nocap.config.keys import require
from nocap.display import shorten
from nocap.judge import doubts, grouping, time_to_target, times_and_memory
from nocap.judge.arm_labels import choose_baseline, labelled
from nocap.judge.arms import Arm, changes, swept_keys
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.confounders import confounders, declaring, is_noisy
from nocap.judge.differences import (
    Difference,
    Differences,
    DifferenceWord,
    Pair,
    difference,
    pair_of,
    together,
)
from nocap.judge.equal_loss import EqualLoss, TimeAtEqualLoss, around, judge_rows, shows_a_length
from nocap.judge.factors import Factors, by_factor
from nocap.judge.interval import Estimate, shared
from nocap.judge.pace import TOKEN_US, Paces
from nocap.judge.question import BASELINE, PREVIOUS, Question
from nocap.store.record import Record
from nocap.store.record_files import RunStatus
from nocap.store.runs import Found


def compare(
    runs: Found,
    *,
    baseline: str | None = None,
    target_loss: float | None = None,
    allow: Collection[str] = (),
    group: str | None = None,
    against: str = BASELINE,
    cautious: bool = False,
) -> Comparison:
    """Compare what was found: the runs of one group, whose losses measure the same. `against`:
    baseline, or previous: each arm with the one before it in time. `cautious`: losses too have the
    interval that holds under skewed noise.

    Errors:
        ValueError: no finished run, no such baseline, an unknown `allow` or group, a target that
            was met before the first step.
    """
    _check_question(baseline=baseline, target_loss=target_loss, against=against)
    runs = grouping.select(runs, group_id=group, baseline=baseline, allow=allow)
    sides = _sides(runs, baseline=baseline, target_loss=target_loss, against=against)
    table = _table(sides, cautious=cautious)
    paces = Paces.of(sides.arms, runs.timings)
    worth = _worth(sides, table, paces)
    maker = _Rows(
        sides=sides,
        target_loss=target_loss,
        allow=allow,
        table=table,
        paces=paces,
        ratios=_ratios(sides, table, paces),
        at_equal_loss=_at_equal_loss(worth, sides.others),
    )
    rows = maker.every()
    return Comparison(
        arms=rows,
        baseline=next(row for row in rows if row.arm is sides.base),
        target=target_loss,
        metric=sides.metric,
        swept=swept_keys(arm.config for arm in sides.arms),
        problems=_problems(runs, sides, table, paces, rows, allow=allow),
        not_compared=_not_compared(runs, [*sides.arms, *sides.lengths]),
        found=runs,
        allow=declaring(runs.records, allow),
        against=against,
        factors=_factors(sides, table, paces, worth, allow=allow, wide=cautious),
        look=table.look,
        cautious=cautious,
        lengths=sides.ends or (),
        timing=paces.timing,
    )


def ask(runs: Found, question: Question, *, group: str | None = None) -> Comparison:
    """Compare what was found as the question says. What it does not say is as `compare` has it.

    Errors:
        ValueError: as for `compare`.
    """
    return compare(
        runs,
        baseline=question.baseline,
        target_loss=question.target,
        allow=question.allow or (),
        group=group,
        against=question.against or BASELINE,
        cautious=question.cautious is True,
    )


def _check_question(*, baseline: str | None, target_loss: float | None, against: str) -> None:
    require(against in (BASELINE, PREVIOUS), "--against", f"be {BASELINE} or {PREVIOUS}", against)
    is_loss = target_loss is None or 0 < target_loss < math.inf
    require(is_loss, "--target", "be a loss above 0", target_loss)
    fits = against == BASELINE or baseline is None
    require(fits, "--baseline", "be left out with --against previous", repr(baseline))


# --- what is compared with what -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sides:
    """The arms, and what each is compared with."""

    arms: list[Arm]  # in a chain in the order of time
    base: Arm
    pairs: Mapping[str, Pair]  # by the arm's id, of each arm but the baseline
    metric: str  # of all verdicts
    lengths: list[Arm]  # that show another arm at another length, and have no row
    ends: tuple[Arm, Arm] | None  # the baseline's shorter and longer length; None: it has none
    stepwise: bool  # each is compared with the one before it

    @property
    def others(self) -> list[Arm]:
        """List the arms without the baseline."""
        return [pair.arm for pair in self.pairs.values()]


def _sides(runs: Found, *, baseline: str | None, target_loss: float | None, against: str) -> _Sides:
    """Make arms of runs, choose the baseline, and pair the others with it, or in a chain each with
    the one before it."""
    stepwise = against == PREVIOUS
    every = grouping.group(runs.records)
    arms = labelled([arm for arm in every if not shows_a_length(arm)])
    _check_finished(arms, runs)
    if stepwise:
        arms = _in_time(arms)
    if target_loss is not None:
        _check_target(arms, target_loss)
    base = choose_baseline(arms, baseline)
    metric = _metric(arms)
    # a chain has no one baseline, which has other lengths
    ends = None if stepwise else around(base, every)
    return _Sides(
        arms=arms,
        base=base,
        pairs=_pairs(arms, base, metric, stepwise=stepwise),
        metric=metric,
        lengths=[arm for arm in every if shows_a_length(arm)],
        ends=ends,
        stepwise=stepwise,
    )


def _metric(arms: Sequence[Arm]) -> str:
    """Return the metric of all verdicts: bits per byte where vocabularies differ, or no run has a
    loss."""
    has_loss = any(arm.values["val_loss"] for arm in arms)
    if has_loss and doubts.vocabularies(arms) == 1:
        return "val_loss"
    return "val_bpb"


def _pairs(arms: Sequence[Arm], base: Arm, metric: str, *, stepwise: bool) -> dict[str, Pair]:
    """Return each arm but the baseline with what it is compared with: that, or the arm before
    it."""
    pairs = dict[str, Pair]()
    before = base
    for arm in arms:
        if arm is not base:
            pairs[arm.id] = pair_of(arm, before, metric)
        if stepwise:
            before = arm
    return pairs


def _check_finished(arms: Sequence[Arm], runs: Found) -> None:
    if any(arm.runs for arm in arms):
        return
    unreadable = [f"{name}: {why}" for name, why in runs.unreadable.items()]
    unfinished = [f"{record.folder.name}: {record.status}" for record in runs.records]
    have = shorten([*unreadable, *unfinished]) or "no run"
    raise ValueError(f"a comparison needs a finished run with a validation loss, got none ({have})")


def _problems(
    runs: Found,
    sides: _Sides,
    table: Differences,
    paces: Paces,
    rows: Sequence[ComparedArm],
    *,
    allow: Collection[str],
) -> list[str]:
    """List what a reader should doubt, or know of the runs that were found."""
    problems = [
        *runs.problems,
        *grouping.declarations(runs.records, allow=allow),
        *doubts.of_rows(rows, allow=allow),
        *doubts.unpaired(table, sides.pairs),
    ]
    if not sides.stepwise:
        problems += doubts.holes(sides.arms, sides.base, table)
    problems += doubts.idle_lengths(sides.lengths, sides.ends, sides.base)
    problems += doubts.idle_timings(runs.timings, sides.arms, paces)
    return problems


def _not_compared(runs: Found, arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """List the runs that are in none of these arms, each with its status, and what cannot be
    read."""
    compared = set[str]()
    for arm in arms:
        compared |= {run.identity for run in arm.all}
    rows = list[tuple[str, str]]()
    for record in runs.records:
        if record.identity not in compared:
            name = record.name if record.imported else record.folder.name
            rows.append((name, _status(record)))
    for name, why in runs.unreadable.items():
        rows.append((name, f"unreadable: {why}"))
    return rows


def _table(sides: _Sides, *, cautious: bool) -> Differences:
    """Return the differences of all arms, with the cautious interval where losses are noisy, or
    where it is wanted for all."""
    wide = set[str]()
    for name, pair in sides.pairs.items():
        if cautious or is_noisy(pair.arm, pair.base):
            wide.add(name)
    return _cautious(together([*sides.pairs.values()]), sides.pairs, wide)


def _worth(sides: _Sides, table: Differences, paces: Paces) -> EqualLoss | None:
    """Return what the baseline's shorter and longer length say; `None`: it has none."""
    if sides.ends is None:
        return None
    short, long = sides.ends
    return EqualLoss(
        base=sides.base,
        short=short,
        long=long,
        metric=sides.metric,
        seeds=table.seeds,
        look=table.look,
        paces=paces,
    )


def _factors(
    sides: _Sides,
    table: Differences,
    paces: Paces,
    worth: EqualLoss | None,
    *,
    allow: Collection[str],
    wide: bool,
) -> Factors | None:
    """Return the grid by factor; `None`: it is no full crossing, or is a chain, whose arms have no
    one baseline over whose levels they could be read."""
    if sides.stepwise:
        return None
    return by_factor(
        sides.arms,
        sides.base,
        table,
        metric=sides.metric,
        allow=allow,
        paces=paces,
        wide=wide,
        worth=worth,
    )


def _ratios(sides: _Sides, table: Differences, paces: Paces) -> dict[str, Estimate]:
    """Return the ratio of the time a token of each arm of the table."""
    pairs = {name: replace(pair, metric=TOKEN_US) for name, pair in sides.pairs.items()}
    return paces.ratios(pairs, table)


def _at_equal_loss(worth: EqualLoss | None, arms: Sequence[Arm]) -> dict[str, TimeAtEqualLoss]:
    """Return the time at equal loss of each arm, with one interval for all of them."""
    if worth is None:
        return {}
    rows = {arm.id: worth.row(arm) for arm in arms}
    return judge_rows(rows, look=worth.look)


def _in_time(arms: Sequence[Arm]) -> list[Arm]:
    """Sort arms by the start of their first run; as they are listed where one does not say it."""
    starts = {arm.id: doubts.starts(arm) for arm in arms}
    if not all(starts.values()):
        return list(arms)
    return sorted(arms, key=lambda arm: min(starts[arm.id]))


def _check_target(arms: Sequence[Arm], target: float) -> None:
    if not any(arm.values["val_loss"] for arm in arms):
        raise ValueError(
            f"--target must be of runs with a loss in nats per token, got {target:g} for runs "
            "with bits per byte alone"
        )
    first = math.inf
    for arm in arms:
        firsts = [run.curve.val_loss[0] for run in arm.all if run.curve.val_loss]
        first = min([first, *firsts])
    if target >= first:
        raise ValueError(
            f"--target must be below each run's first validation loss, the lowest of which is "
            f"{first:.4f}: "
            f"that run would reach it at once, got {target:g}"
        )


def _status(record: Record) -> str:
    if record.status == RunStatus.finished:
        return "finished without a validation loss"
    return record.status


# --- a row ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """What all rows of a table share."""

    sides: _Sides
    target_loss: float | None
    allow: Collection[str]
    table: Differences
    paces: Paces
    ratios: Mapping[str, Estimate]  # of times a token
    at_equal_loss: Mapping[str, TimeAtEqualLoss]

    def every(self) -> list[ComparedArm]:
        """Return the row of each arm."""
        rows = list[ComparedArm]()
        for arm in self.sides.arms:
            pair = self.sides.pairs.get(arm.id)
            rows.append(self.row(arm, arm if pair is None else pair.base))
        return rows

    def row(self, arm: Arm, base: Arm) -> ComparedArm:
        """Return an arm's means and differences, over the same seeds."""
        seeds = self._seeds(arm, base)
        pace = _mean(arm, TOKEN_US, seeds)
        means = {
            TOKEN_US: times_and_memory.of_pace(arm, base, pace, self.paces, self.ratios.get(arm.id))
        }
        for name in times_and_memory.SHOWN_METRICS:
            mean = _mean(arm, name, seeds)
            means[name] = times_and_memory.of_metric(arm, base, self.sides.others, name, mean)
        against = None
        difference = None
        if arm is not base:
            against = base
            difference = _word(arm, base, self.table.differences[arm.id], allow=self.allow)
        to_target = None
        if self.target_loss is not None:
            to_target = time_to_target.reach(
                arm, base, goal=self.target_loss, arms=len(self.sides.others)
            )
        changed = changes(arm, base)
        val_loss = _mean(arm, "val_loss", seeds)
        val_bpb = _mean(arm, "val_bpb", seeds)
        equal_loss = self.at_equal_loss.get(arm.id)
        return ComparedArm(
            arm=arm,
            against=against,
            seeds=seeds,
            changes=changed,
            val_loss=val_loss,
            val_bpb=val_bpb,
            difference=difference,
            times=means,
            equal_loss=equal_loss,
            to_target=to_target,
        )

    def _seeds(self, arm: Arm, base: Arm) -> list[int]:
        """Return the seeds of a row: those of the table, or those that an arm in none shares with
        the baseline where these are enough."""
        if arm is not base and arm.id not in self.table.members:
            metric = self.sides.metric
            return shared(arm.values[metric], base.values[metric]) or arm.seeds
        return self.table.seeds or arm.seeds


def _mean(arm: Arm, metric: str, seeds: Collection[int]) -> float | None:
    """Return an arm's mean over those of these seeds that it has; `None`: it has none."""
    known = [value for seed, value in arm.values[metric].items() if seed in seeds]
    return fmean(known) if known else None


def _word(arm: Arm, base: Arm, gap: Difference, *, allow: Collection[str]) -> Difference:
    """Return the difference; what confounds it goes before any other word."""
    reasons = confounders(arm, base, allowed=allow)
    if reasons:
        return replace(gap, outcome=DifferenceWord.confounded, reason=", ".join(reasons))
    return gap


def _cautious(table: Differences, pairs: Mapping[str, Pair], wide: Collection[str]) -> Differences:
    """Return the table with the cautious interval for these of its arms."""
    others = [pair.arm for pair in pairs.values()]
    differences = dict(table.differences)
    for name in table.members:
        if name not in wide:
            continue
        pair = pairs[name]
        estimate = times_and_memory.gain(pair.arm, pair.base, others, pair.metric, log=False)
        if estimate is not None:
            differences[name] = difference(estimate, metric=pair.metric, floor=pair.floor)
    return replace(table, differences=differences)
