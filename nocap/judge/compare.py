"""Compare runs: from the records that were found to a `Comparison`.

The steps, and the files that take them:

    grouping       choose runs whose losses measure the same
    pairing        make arms of them, choose the baseline, pair each arm with it
    differences    judge the losses of all arms together
    pace           judge their times a token
    equal_loss     judge their times for the loss that they reach
    arm_rows       make the row of each arm
    factors        read a crossed grid key by key
    doubts         say what should be doubted
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from nocap.config.keys import require
from nocap.judge import doubts, grouping, times_and_memory
from nocap.judge.arm_rows import RowMaker
from nocap.judge.arms import Arm, swept_keys
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.confounders import declaring, is_noisy
from nocap.judge.differences import ArmPair, DifferenceTable, difference, judge_together
from nocap.judge.equal_loss import BaselineLengths, TimeAtEqualLoss, judge_rows
from nocap.judge.factors import Factors, by_factor
from nocap.judge.interval import Estimate
from nocap.judge.pace import TOKEN_US, Paces
from nocap.judge.pairing import Pairing, pair_arms
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
    pairing = pair_arms(runs, baseline=baseline, target_loss=target_loss, against=against)
    table = _difference_table(pairing, cautious=cautious)
    paces = Paces.of(pairing.arms, runs.timings)
    lengths = _baseline_lengths(pairing, table, paces)
    row_maker = RowMaker(
        pairing=pairing,
        target_loss=target_loss,
        allow=allow,
        table=table,
        paces=paces,
        ratios=_ratios(pairing, table, paces),
        at_equal_loss=_at_equal_loss(lengths, pairing.others),
    )
    rows = row_maker.rows()
    return Comparison(
        arms=rows,
        baseline=next(row for row in rows if row.arm is pairing.base),
        target=target_loss,
        metric=pairing.metric,
        swept=swept_keys(arm.config for arm in pairing.arms),
        problems=_problems(runs, pairing, table, paces, rows, allow=allow),
        not_compared=_not_compared(runs, [*pairing.arms, *pairing.lengths]),
        found=runs,
        allow=declaring(runs.records, allow),
        against=against,
        factors=_factors(pairing, table, paces, lengths, allow=allow, cautious=cautious),
        look=table.look,
        cautious=cautious,
        lengths=pairing.ends or (),
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
    require(is_loss, "--target", "be a finite loss above 0", target_loss)
    if against == PREVIOUS and baseline is not None:
        raise ValueError("--baseline does not work with --against previous")


# --- differences and times ------------------------------------------------------------------------


def _difference_table(pairing: Pairing, *, cautious: bool) -> DifferenceTable:
    """Return the differences of all arms, with the cautious interval where losses are noisy, or
    where it is wanted for all."""
    wide = set[str]()
    for name, pair in pairing.pairs.items():
        if cautious or is_noisy(pair.arm, pair.base):
            wide.add(name)
    return _cautious(judge_together([*pairing.pairs.values()]), pairing.pairs, wide)


def _cautious(
    table: DifferenceTable, pairs: Mapping[str, ArmPair], arms: Collection[str]
) -> DifferenceTable:
    """Return the table with the cautious interval for these of its arms."""
    others = [pair.arm for pair in pairs.values()]
    by_arm = dict(table.by_arm)
    for name in table.members:
        if name not in arms:
            continue
        pair = pairs[name]
        estimate = times_and_memory.difference_among(
            pair.arm, pair.base, others, pair.metric, log=False
        )
        if estimate is not None:
            by_arm[name] = difference(estimate, metric=pair.metric, floor=pair.floor)
    return replace(table, by_arm=by_arm)


def _baseline_lengths(
    pairing: Pairing, table: DifferenceTable, paces: Paces
) -> BaselineLengths | None:
    """Return what the baseline's shorter and longer length say; `None`: it has none."""
    if pairing.ends is None:
        return None
    short, long = pairing.ends
    return BaselineLengths(
        base=pairing.base,
        short=short,
        long=long,
        metric=pairing.metric,
        seeds=table.seeds,
        look=table.look,
        paces=paces,
    )


def _factors(
    pairing: Pairing,
    table: DifferenceTable,
    paces: Paces,
    lengths: BaselineLengths | None,
    *,
    allow: Collection[str],
    cautious: bool,
) -> Factors | None:
    """Return the grid by factor; `None`: it is no full crossing, or is a chain, whose arms have no
    one baseline over whose levels they could be read."""
    if pairing.stepwise:
        return None
    return by_factor(
        pairing.arms,
        pairing.base,
        table,
        metric=pairing.metric,
        allow=allow,
        paces=paces,
        cautious=cautious,
        lengths=lengths,
    )


def _ratios(pairing: Pairing, table: DifferenceTable, paces: Paces) -> dict[str, Estimate]:
    """Return the ratio of the time a token of each arm of the table."""
    pairs = {name: replace(pair, metric=TOKEN_US) for name, pair in pairing.pairs.items()}
    return paces.ratios(pairs, table)


def _at_equal_loss(
    lengths: BaselineLengths | None, arms: Sequence[Arm]
) -> dict[str, TimeAtEqualLoss]:
    """Return the time at equal loss of each arm, with one interval for all of them."""
    if lengths is None:
        return {}
    rows = {arm.id: lengths.row(arm) for arm in arms}
    return judge_rows(rows, look=lengths.look)


# --- what a reader should know --------------------------------------------------------------------


def _problems(
    runs: Found,
    pairing: Pairing,
    table: DifferenceTable,
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
        *doubts.unpaired(table, pairing.pairs),
    ]
    if not pairing.stepwise:
        problems += doubts.holes(pairing.arms, pairing.base, table)
    problems += doubts.idle_lengths(pairing.lengths, pairing.ends, pairing.base)
    problems += doubts.idle_timings(runs.timings, pairing.arms, paces)
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


def _status(record: Record) -> str:
    if record.status == RunStatus.finished:
        return "finished without a validation loss"
    return record.status
