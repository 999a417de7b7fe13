"""A comparison as `judge.compare` makes it: its arms, each with its differences, and what they rest
on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nocap.judge.arm_mean import ArmMean
from nocap.judge.arms import Arm
from nocap.judge.differences import Difference
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.findings import Findings, JudgedArm, by_effect, findings
from nocap.judge.question import BASELINE, PREVIOUS, Question
from nocap.judge.time_to_target import Reach
from nocap.store.grid_timing import Timing
from nocap.store.record import Record
from nocap.store.runs import Found


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedArm:
    """An arm beside the baseline, or beside the arm before it."""

    arm: Arm
    against: Arm | None  # None: it is the baseline
    seeds: list[int]  # that the row is over
    # config keys in which it differs from the baseline, with its own values
    changes: Mapping[str, object]
    val_loss: float | None  # means
    val_bpb: float | None
    difference: Difference | None  # None: it is the baseline
    # means over runs of one machine, and their ratios to the baseline's
    times: Mapping[str, ArmMean]
    equal_loss: TimeAtEqualLoss | None  # None: it is the baseline, or that has no other lengths
    to_target: Mapping[str, Reach] | None

    @property
    def label(self) -> str:
        return self.arm.label

    @property
    def costs(self) -> dict[str, float | None]:
        """Return what a training of the arm takes besides time."""
        params = self.arm.summary("params") or {}
        return {
            "params": params.get("total"),
            "flops_per_token": self.arm.summary("flops_per_token"),
            "tokens": self.arm.summary("tokens"),
            "steps": self.arm.summary("steps"),
        }

    @property
    def clock_s(self) -> dict[str, float]:
        """Return the mean seconds of each line of the runs' clock ledgers."""
        clocks = [run.clock_s for run in self.arm.runs]
        lines: dict[str, None] = {}
        for clock in clocks:
            lines |= dict.fromkeys(clock)
        means = dict[str, float]()
        for line in lines:
            means[line] = fmean(clock.get(line) or 0.0 for clock in clocks)
        return means

    @property
    def logged(self) -> dict[str, float]:
        """Return the mean over the runs of each value that modules logged last; without a value
        that is not finite in one of them."""
        values = dict[str, list[float | None]]()
        for run in self.arm.runs:
            for name, value in (run.summary.get("logged") or {}).items():
                values.setdefault(name, []).append(value)
        means = dict[str, float]()
        for name, of_runs in values.items():
            finite = [value for value in of_runs if value is not None]
            if len(finite) == len(of_runs):
                means[name] = fmean(finite)
        return means


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
    # what each arm is compared with; of PREVIOUS the baseline is the first arm
    against: str = BASELINE
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
        """List the baseline first, then the lowest loss; in a chain, each arm after the one that it
        is compared with."""
        others = [row for row in self.arms if row is not self.baseline]
        if self.against == PREVIOUS:
            return [self.baseline, *others]
        return [self.baseline, *sorted(others, key=_effect)]

    @property
    def findings(self) -> Findings:
        """Return what was found, the surest and largest first, and what to run next."""
        arms = list[JudgedArm]()
        for row in self.arms:
            if row.difference is not None:
                arms.append(
                    JudgedArm(arm=row.arm, difference=row.difference, equal_loss=row.equal_loss)
                )
        stepwise = self.against == PREVIOUS
        base = self.baseline.arm
        return findings(arms, self.factors, look=self.look, base=base, stepwise=stepwise)

    @property
    def imported(self) -> list[Mapping[str, object]]:
        """List what the records of another trainer's logs say of themselves; empty where the runs
        are nocap's own."""
        return [record.imported for record in self.records if record.imported]

    @property
    def methods(self) -> list[str]:
        """List the methods by which the differences were estimated, each once."""
        differences = [row.difference for row in self.arms if row.difference is not None]
        methods = dict.fromkeys(difference.estimate.method for difference in differences)
        return list(methods)

    @property
    def runs(self) -> list[tuple[Record, Arm]]:
        """List the runs of all arms, each with its arm."""
        runs = list[tuple[Record, Arm]]()
        for row in self.arms:
            runs += [(run, row.arm) for run in row.arm.all]
        return runs


def _effect(row: ComparedArm) -> tuple[bool, float]:
    if row.difference is None:
        return True, 0.0
    return by_effect(row.difference)
