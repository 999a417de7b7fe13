"""The comparison: arms against a baseline, with intervals, verdicts, and what should be doubted. As JSON it
is a `judge.schema.Result`. `--json` writes it with the question and the records (`nocap.report.result`), from
which it is judged again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from nocap.config.keys import require
from nocap.judge import time_to_target
from nocap.judge.arms import (
    Arm,
    changes,
    choose_baseline,
    confounders,
    covers,
    declared,
    declaring,
    equal_time,
    is_noisy,
    kernel_control,
    kernels,
    labelled,
    machines_differ,
    select,
    setting,
    steps_alike,
    swept_keys,
)
from nocap.judge.arms import group as grouped
from nocap.judge.cautious import CLOCK_BIAS, between, pooled
from nocap.judge.equal_loss import EqualLoss, TimeAtEqualLoss, around, judged, shows_a_length
from nocap.judge.factors import Factors, by_factor, crossing
from nocap.judge.findings import Findings, JudgedArm, by_effect, findings
from nocap.judge.interval import LEAST_PAIRS, Estimate, shared
from nocap.judge.losses import Difference, Differences, Outcome, Pair, difference, pair_of, together
from nocap.judge.measured import ArmMean
from nocap.judge.pace import PACE, Paces
from nocap.judge.question import BASELINE, PREVIOUS, Question
from nocap.judge.time_to_target import Reach
from nocap.store.formats import plural, shorten
from nocap.store.metrics import METRICS, Kind, moment
from nocap.store.runs import Found, Record
from nocap.store.timing import Timing

# of one machine only; a run's wall clock has no ratio, for it holds what else the machine did
TIMES = ("tokens_per_s", "step_ms", "model_mib", "train_s")
PEAK_ONLY = "a record has no figure of the model's memory, or only the peak of its process"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedArm:
    """An arm beside the baseline, or beside the arm before it."""

    arm: Arm
    against: Arm | None  # None: it is the baseline
    seeds: list[int]  # that the row is over
    changes: Mapping[str, object]  # config keys in which it differs from the baseline, with its own values
    val_loss: float | None  # means
    val_bpb: float | None
    difference: Difference | None  # None: it is the baseline
    times: Mapping[str, ArmMean]  # means over runs of one machine, and their ratios to the baseline's
    equal_loss: TimeAtEqualLoss | None  # None: it is the baseline, or that has no other lengths
    to_target: Mapping[str, Reach] | None

    @property
    def label(self) -> str:
        return self.arm.label

    @property
    def costs(self) -> dict[str, float | None]:
        return {
            "params": (self.arm.summary("params") or {}).get("total"),
            **{key: self.arm.summary(key) for key in ("flops_per_token", "tokens", "steps")},
        }

    @property
    def clock_s(self) -> dict[str, float]:
        clocks = [run.summary["clock_s"] for run in self.arm.runs]
        return {
            line: fmean(clock.get(line) or 0.0 for clock in clocks)
            for line in dict.fromkeys(k for c in clocks for k in c)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    arms: list[ComparedArm]
    baseline: ComparedArm
    target: float | None
    metric: str
    swept: list[str]
    problems: list[str]
    not_compared: list[tuple[str, str]]  # name and status
    found: Found  # all runs of the group, those that are not compared too
    allow: Collection[str] = ()  # differences that were declared
    against: str = BASELINE  # what each arm is compared with; of PREVIOUS the baseline is the first arm
    factors: Factors | None = None  # None: the arms are no full crossing of keys
    look: int = 1  # how often its arms were looked at, this time included
    cautious: bool = False
    lengths: Sequence[Arm] = ()  # of the baseline, that say what a loss is worth: shorter, longer
    timing: Timing | None = None  # that speeds are of; None: they are the runs' own

    @property
    def question(self) -> Question:
        """Return what was asked, with the baseline by the identity of one of its runs."""
        return Question(
            baseline=self.baseline.arm.all[0].identity,
            target=self.target,
            allow=self.allow,
            against=self.against,
            cautious=self.cautious,
        )

    @property
    def records(self) -> list[Record]:
        return self.found.records

    @property
    def rows(self) -> list[ComparedArm]:
        """List the baseline first, then the lowest loss; in a chain, each arm after the one that it is
        compared with."""
        others = [row for row in self.arms if row is not self.baseline]
        if self.against == PREVIOUS:
            return [self.baseline, *others]
        return [self.baseline, *sorted(others, key=_effect)]

    @property
    def findings(self) -> Findings:
        """Return what was found, the surest and largest first, and what to run next."""
        return findings(
            [
                JudgedArm(arm=row.arm, difference=row.difference, equal_loss=row.equal_loss)
                for row in self.arms
                if row.difference
            ],
            self.factors,
            look=self.look,
            base=self.baseline.arm,
            stepwise=self.against == PREVIOUS,
        )

    @property
    def imported(self) -> list[Mapping[str, object]]:
        """What the records of another trainer's logs say of themselves; empty where the runs are nocap's
        own."""
        return [record.imported for record in self.records if record.imported]

    @property
    def methods(self) -> list[str]:
        """How the differences were estimated."""
        return list(dict.fromkeys(row.difference.estimate.method for row in self.arms if row.difference))

    @property
    def runs(self) -> list[tuple[Record, Arm]]:
        return [(run, row.arm) for row in self.arms for run in row.arm.all]


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
    """Compare what was found: the runs of one group, whose losses measure the same. `against`: baseline, or
    previous: each arm with the one before it in time. `cautious`: losses too have the interval that holds
    under skewed noise.

    Errors:
        ValueError: no finished run, no such baseline, an unknown `allow` or group, a target that was met
            before the first step.
    """
    require(against in (BASELINE, PREVIOUS), "--against", f"be {BASELINE} or {PREVIOUS}", against)
    require(target_loss is None or 0 < target_loss < math.inf, "--target", "be a loss above 0", target_loss)
    stepwise = against == PREVIOUS
    require(
        not stepwise or baseline is None, "--baseline", "be left out with --against previous", repr(baseline)
    )
    runs = select(runs, wanted=group, baseline=baseline, allow=allow)
    every = grouped(runs.records)
    arms = labelled([arm for arm in every if not shows_a_length(arm)])
    _check_finished(arms, runs)
    if stepwise:
        arms = _in_time(arms)
    base = choose_baseline(arms, baseline)
    ends = None if stepwise else around(base, every)
    bases = dict(zip((arm.id for arm in arms[1:]), arms, strict=False)) if stepwise else {}
    in_bytes = _vocabularies(arms) > 1 or not any(arm.values["val_loss"] for arm in arms)
    metric = "val_bpb" if in_bytes else "val_loss"
    if target_loss is not None:
        _check_target(arms, target_loss)
    others = [arm for arm in arms if arm is not base]
    pairs = {arm.id: pair_of(arm, bases.get(arm.id, base), metric) for arm in others}
    table = together([*pairs.values()])
    wide = {name for name, pair in pairs.items() if cautious or is_noisy(pair.arm, pair.base)}
    table = _cautious(table, pairs, wide)
    paces = Paces.of(arms, runs.timings)
    worth = _worth(base, ends, table, metric, paces)
    at_equal_loss = _at_equal_loss(worth, others)
    ratios = paces.ratios({name: replace(pair, metric=PACE) for name, pair in pairs.items()}, table)
    rows = [
        _row(
            arm,
            pairs[arm.id].base if arm.id in pairs else arm,
            others,
            metric=metric,
            target_loss=target_loss,
            allow=allow,
            table=table,
            paces=paces,
            pace=ratios.get(arm.id),
            equal_loss=at_equal_loss.get(arm.id),
        )
        for arm in arms
    ]
    # a chain has no one baseline, over whose levels its arms could be read
    factors = (
        None
        if stepwise
        else by_factor(arms, base, table, metric=metric, allow=allow, paces=paces, wide=cautious, worth=worth)
    )
    lengths = [arm for arm in every if shows_a_length(arm)]
    return Comparison(
        arms=rows,
        baseline=next(row for row in rows if row.arm is base),
        target=target_loss,
        metric=metric,
        swept=swept_keys(arm.config for arm in arms),
        problems=[
            *runs.problems,
            *declared(runs.records, allow=allow),
            *_doubts(rows, allow=allow),
            *_unpaired(table, pairs),
            *([] if stepwise else _holes(arms, base, table)),
            *_idle_lengths(lengths, ends, base),
            *_idle_timings(runs.timings, arms, paces),
        ],
        not_compared=_not_compared(runs, [*arms, *lengths]),
        found=runs,
        allow=declaring(runs.records, allow),
        against=against,
        factors=factors,
        look=table.look,
        cautious=cautious,
        lengths=ends or (),
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


def _check_finished(arms: Sequence[Arm], runs: Found) -> None:
    if not any(arm.runs for arm in arms):
        open_ = [f"{record.folder.name}: {record.status}" for record in runs.records]
        have = shorten([*(f"{name}: {why}" for name, why in runs.unreadable.items()), *open_])
        raise ValueError(
            f"a comparison needs a finished run with a validation loss, got none ({have or 'no run'})"
        )


def _not_compared(runs: Found, arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """List the runs that are in none of these arms, each with its status, and what cannot be read."""
    compared = {run.identity for arm in arms for run in arm.all}
    left_out = [record for record in runs.records if record.identity not in compared]
    return [
        *((record.name if record.imported else record.folder.name, _status(record)) for record in left_out),
        *((name, f"unreadable: {why}") for name, why in runs.unreadable.items()),
    ]


def _idle_lengths(lengths: Sequence[Arm], ends: tuple[Arm, Arm] | None, base: Arm) -> Iterator[str]:
    """Say that runs which show an arm's other lengths say nothing here, where that arm is no baseline."""
    if lengths and ends is None:
        count = sum(len(arm.all) for arm in lengths)
        yield (
            f"{plural(count, 'run')} of other lengths are not of {base.label}: there is no time at equal "
            "loss (--equal-loss trains the lengths of the first arm)"
        )


def _idle_timings(timings: Sequence[Timing], arms: Sequence[Arm], paces: Paces) -> Iterator[str]:
    """Say which arms keep a timing from being used."""
    if timings and paces.timing is None:
        missing = [arm.label for arm in arms if arm.id not in timings[0].arms]
        yield f"the timing of {timings[0].started} lacks {shorten(missing)}: speeds are those of the runs"


def _worth(
    base: Arm, ends: tuple[Arm, Arm] | None, table: Differences, metric: str, paces: Paces
) -> EqualLoss | None:
    """Return what the baseline's shorter and longer length say; `None`: it has none."""
    if ends is None:
        return None
    short, long = ends
    return EqualLoss(
        base=base,
        short=short,
        long=long,
        metric=metric,
        seeds=table.seeds,
        look=table.look,
        paces=paces,
    )


def _at_equal_loss(worth: EqualLoss | None, arms: Sequence[Arm]) -> dict[str, TimeAtEqualLoss]:
    """Return the time at equal loss of each arm, with one interval for all of them."""
    if worth is None:
        return {}
    return judged({arm.id: worth.row(arm) for arm in arms}, look=worth.look)


def _effect(row: ComparedArm) -> tuple[bool, float]:
    return by_effect(row.difference) if row.difference else (True, 0.0)


def _in_time(arms: Sequence[Arm]) -> list[Arm]:
    """Sort arms by the start of their first run; as they are listed where one does not say it."""
    starts = {arm.id: _starts(arm) for arm in arms}
    return sorted(arms, key=lambda arm: min(starts[arm.id])) if all(starts.values()) else list(arms)


def _check_target(arms: Sequence[Arm], target: float) -> None:
    firsts = [run.curve.val_loss[0] for arm in arms for run in arm.all if run.curve.val_loss]
    first = min(firsts, default=math.inf)
    if not any(arm.values["val_loss"] for arm in arms):
        raise ValueError(
            f"--target must be of runs with a loss in nats per token, got {target:g} for runs "
            "with bits per byte alone"
        )
    if target >= first:
        raise ValueError(
            f"--target must be below each run's first validation loss, the lowest of which is {first:.4f}: "
            f"that run would reach it at once, got {target:g}"
        )


def _vocabularies(arms: Sequence[Arm]) -> int:
    return len({setting(arm.config, "tokenizer.vocabulary") for arm in arms})


def _status(record: Record) -> str:
    return "finished without a validation loss" if record.status == "finished" else record.status


# --- a row --------------------------------------------------------------------------------------------------


def _row(
    arm: Arm,
    base: Arm,
    others: Sequence[Arm],
    *,
    metric: str,
    target_loss: float | None,
    allow: Collection[str],
    table: Differences,
    paces: Paces,
    pace: Estimate | None,
    equal_loss: TimeAtEqualLoss | None,
) -> ComparedArm:
    """Return means and differences over the same seeds: those of the table, or those that an arm in none
    shares with the baseline where these are enough."""
    if table.seeds and (arm is base or arm.id in table.members):
        seeds = table.seeds
    elif arm is base or arm.id in table.members:
        seeds = arm.seeds
    else:
        seeds = shared(arm.values[metric], base.values[metric]) or arm.seeds

    def mean(name: str) -> float | None:
        known = [x for seed, x in arm.values[name].items() if seed in seeds]
        return fmean(known) if known else None

    return ComparedArm(
        arm=arm,
        against=None if arm is base else base,
        seeds=seeds,
        changes=changes(arm, base),
        val_loss=mean("val_loss"),
        val_bpb=mean("val_bpb"),
        difference=None if arm is base else _word(arm, base, table.differences[arm.id], allow=allow),
        times={
            PACE: _paced(arm, base, mean(PACE), paces, pace),
            **{name: _timed(arm, base, others, name, mean(name)) for name in TIMES},
        },
        equal_loss=equal_loss,
        to_target=None
        if target_loss is None
        else time_to_target.reach(arm, base, goal=target_loss, arms=len(others)),
    )


def _word(arm: Arm, base: Arm, gap: Difference, *, allow: Collection[str]) -> Difference:
    """Return the difference; what confounds it goes before any other word."""
    spoilt = confounders(arm, base, allowed=allow)
    return replace(gap, outcome=Outcome.confounded, reason=", ".join(spoilt)) if spoilt else gap


def _cautious(table: Differences, pairs: Mapping[str, Pair], wide: Collection[str]) -> Differences:
    """Return the table with the cautious interval for these of its arms."""
    others = [pair.arm for pair in pairs.values()]
    judged = dict(table.differences)
    for name in table.members:
        if name not in wide:
            continue
        pair = pairs[name]
        estimate = _gain(pair.arm, pair.base, others, pair.metric, log=False)
        if estimate is not None:
            judged[name] = difference(estimate, metric=pair.metric, floor=pair.floor)
    return replace(table, differences=judged)


def _gain(arm: Arm, base: Arm, others: Sequence[Arm], metric: str, *, log: bool) -> Estimate | None:
    """With an interval for all arms together, which the noise of the other arms narrows."""
    groups = []
    for other in others:
        values, base_values = other.values[metric], base.values[metric]
        if (
            other is not arm
            and values.keys() == base_values.keys()
            and (not log or min([*values.values(), *base_values.values()], default=0) > 0)
        ):
            groups.append(
                [
                    math.log(x / base_values[seed]) if log else x - base_values[seed]
                    for seed, x in values.items()
                ]
            )
    bias = CLOCK_BIAS if METRICS[metric].kind is Kind.clock else 0.0
    sides = arm.values[metric], base.values[metric]
    return between(*sides, log=log, bias=bias, declared=pooled(groups), comparisons=len(others))


def _paced(arm: Arm, base: Arm, mean: float | None, paces: Paces, ratio: Estimate | None) -> ArmMean:
    """Return an arm's time a token: that of a timing, or of its own runs where these are of one machine."""
    if paces.timing is not None:
        mean = paces.mean(arm)
    elif len(arm.machines) != 1:
        mean = None
    return ArmMean(mean=mean, estimate=ratio, refused=paces.refusal(arm, base))


def _timed(arm: Arm, base: Arm, others: Sequence[Arm], metric: str, mean: float | None) -> ArmMean:
    refused = _refused(arm, base, metric)
    ratio = None
    if refused is None and arm is not base and _has_ratio(arm, metric):
        ratio = _gain(arm, base, others, metric, log=True)
    return ArmMean(mean=mean if len(arm.machines) == 1 else None, estimate=ratio, refused=refused)


def _has_ratio(arm: Arm, metric: str) -> bool:
    """Say whether a metric is compared: memory is, and of a log its seconds, which are all that it has."""
    return metric == "model_mib" or (metric == "train_s" and any(run.imported for run in arm.all))


def _refused(arm: Arm, base: Arm, metric: str) -> str | None:
    """Say why a time or memory of an arm is not compared; `None`: it is."""
    if (why := machines_differ(arm, base)) is not None:
        return why
    if metric == "model_mib" and not (arm.values[metric] and base.values[metric]):
        return PEAK_ONLY
    return _other_lengths(arm, base) if metric == "train_s" else None


def _other_lengths(arm: Arm, base: Arm) -> str | None:
    """Say why times of whole runs are no speed: they did not train for as many steps."""
    if steps_alike(arm, base):
        return None
    steps = [{run.summary["steps"] for run in side.runs} - {None} for side in (arm, base)]
    shown = " against ".join(shorten(f"{count:,}" for count in sorted(side)) for side in steps)
    return f"other numbers of steps: {shown}"


# --- doubts -------------------------------------------------------------------------------------------------


def _doubts(rows: Sequence[ComparedArm], *, allow: Collection[str]) -> Iterator[str]:
    arms = [row.arm for row in rows]
    if _vocabularies(arms) > 1:
        yield (
            "vocabularies differ: verdicts are on bits per byte, each over the text that its val_tokens cover"
        )
    for row in rows:
        arm = row.arm
        for spoilt in confounders(arm, row.against or arm, allowed=allow):
            yield (
                f"{arm.label}: differs from what it is compared with in its {spoilt} too; no verdict unless "
                f"declared (--allow {spoilt})"
            )
        yield from _came_along(arm, row.against or arm)
        if arm.diverged and arm.runs:
            seeds = shorten(str(run.seed) for run in arm.diverged)
            yield (
                f"{arm.label}: seed {seeds} diverged; its means are over the seeds that did not, "
                "which flatters it"
            )
        if left := sorted({*arm.seeds} - {*row.seeds}):
            yield (
                f"{arm.label}: its row is over the seeds that it shares with the other arms, without "
                f"{shorten(map(str, left))}"
            )
        if len(arm.runs) > len(arm.seeds):
            yield (
                f"{arm.label}: {len(arm.runs)} runs of {len(arm.seeds)} seeds; a seed that ran twice "
                "counts once, with its mean"
            )
    yield from _controls(rows)
    others = [(row.arm, row.against) for row in rows if row.against is not None]
    if apart := [arm.label for arm, base in others if _one_after_the_other(arm, base)]:
        yield (
            "not interleaved with the baseline, so a machine that drifted would look like "
            f"speed: {shorten(apart)}"
        )
    torches = {str(run.parts.get("environment", {}).get("torch")) for arm in arms for run in arm.all}
    if len(torches) > 1 and not any(covers(a, "torch") for a in allow):
        yield f"runs of several versions of torch: {', '.join(sorted(torches))}"


def _controls(rows: Sequence[ComparedArm]) -> Iterator[str]:
    """Say which arms have another kernel because that came with what was swept, and what their control is."""
    arms = [row.arm for row in rows]
    labels: dict[str, list[str]] = {}
    for row in rows:
        base = row.against or row.arm
        control = kernel_control(row.arm, base, arms)
        if control is None:
            continue
        setting_, there = control
        with_it = f"{there.label} (--baseline {there.id})" if there is not None else "no arm here"
        told = f"kernel differs: {_kernel(base)} and {_kernel(row.arm)}; the control"
        labels.setdefault(f"{told} is {base.label} with {setting_}: {with_it}", []).append(row.label)
    for line, some in labels.items():
        yield f"{shorten(some)}: {line}"


def _kernel(arm: Arm) -> str:
    """Name the kernels of an arm."""
    return ", ".join({*kernels(arm).values()})


def _came_along(arm: Arm, base: Arm) -> Iterator[str]:
    """Say that an equal time of training ended runs of other steps."""
    steps = {run.summary.get("steps") for run in (*arm.runs, *base.runs)}
    if len(steps) > 1 and None not in steps and equal_time(arm, base):
        budget = max(arm.values["train_s"].values())
        yield (
            f"{arm.label}: compared at an equal time of training ({budget:,.4g} s), after another number of "
            "steps"
        )


def _unpaired(table: Differences, pairs: Mapping[str, Pair]) -> Iterator[str]:
    """Say why nothing is paired where the runs name their seeds."""
    members = [pair for name, pair in pairs.items() if name in table.members]
    named = all(seed >= 0 for pair in members for seed in (*pair.values, *pair.base_values))
    if table.seeds or not members or not named:
        return
    apart = [pair.arm.label for pair in members if len(pair.seeds) < LEAST_PAIRS]
    advice = f": compare without {shorten(apart)} for pairs of the others" if len(apart) == 1 else ""
    yield f"nothing is paired, as the arms do not all share {LEAST_PAIRS} seeds{advice}"


def _holes(arms: Sequence[Arm], base: Arm, table: Differences) -> Iterator[str]:
    """Say which arms keep a full crossing from being read by factor."""
    left = [arm for arm in arms if arm is not base and arm.id not in table.members]
    if left and table.members and crossing(arms, base) is not None:
        why = (f"{arm.label} ({table.differences[arm.id].verdict})" for arm in left)
        yield f"not read by factor: without {shorten(why)} the grid has holes"


def _one_after_the_other(arm: Arm, base: Arm) -> bool:
    """Whether all runs of one arm were started before all runs of the other. Two seeds or more should have
    alternated."""
    own = _starts(arm)
    others = _starts(base)
    if min(len(own), len(others)) < 2 or machines_differ(arm, base):
        return False
    return max(own) < min(others) or max(others) < min(own)


def _starts(arm: Arm) -> list[float]:
    """Read when each of its runs began; none, where one of them does not say it."""
    starts = [moment(run.started) for run in arm.runs]
    known = [start for start in starts if start is not None]
    return known if len(known) == len(starts) else []
