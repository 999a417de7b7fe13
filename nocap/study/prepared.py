"""A study at one scale, composed and checked: its arms as runs, and the shorter schedules some of them need. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nocap.config.compose import Composed, composed
from nocap.config.keys import require
from nocap.store.runs import Record
from nocap.study import arms as arming
from nocap.study.arms import all_composed, check_fair
from nocap.study.claim import BASELINE, TO_TARGET, Metric
from nocap.study.spec import DECODED, PROFILED, TIMED, At, Study, metrics
from nocap.study.training import Wanted
from nocap.study.tuning import trials_of

STEPS_OF_PILOT = 100  # a config needs a length; a timed step does not know it


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A study at one scale, composed and checked. Nothing has been run."""

    study: Study
    at: At
    scale: str
    folder: Path  # of its runs and sessions
    train: dict[str, Composed] = field(default_factory=dict)  # before tuning, and before a budget is spread
    bench: dict[str, Composed] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, str]:
        """id → hash, as they are now."""
        return {claim.id: claim.hash() for claim in self.study.claims}


def prepare(study: Study, scale: str, *, output_dir: str) -> Prepared:
    """Compose and check everything.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair comparison, a target out of reach.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    at = study.scales[scale]
    folder = Path(output_dir) / "studies" / study.name / scale
    more = [f"output_dir='{folder}'", *([f"trainer.steps={STEPS_OF_PILOT}"] if at.budget else [])]
    trained = all_composed(study, at, study.trained, [*at.train, *more])
    if trained:
        check_fair(trained, baseline=study.baseline if study.baseline in trained else next(iter(trained)))
    _check_targets(study, trained)
    if study.tune and trained:
        trials_of(study.tune.trials, trained)
    benched = all_composed(study, at, study.needing((*TIMED, *PROFILED, *DECODED, Metric.exponent)), at.bench)
    for arm in study.arms:
        arming.engine_of(study, at, arm)
    for arm in study.needing(DECODED) if at.decode is not None else []:
        T, text = benched[arm].run.model.seq_len, at.decode.prompt + at.decode.new  # type: ignore[union-attr]
        require(text <= T, f"scales.{scale}.decode", f"be a text that arm {arm} has positions for: model.seq_len={T}", text)
    plan = Prepared(study=study, at=at, scale=scale, folder=folder, train=trained, bench=benched)
    for arm in [] if at.budget else with_lengths(plan):
        lengths_of(plan, trained[arm])
    return plan


def _check_targets(study: Study, trained: Mapping[str, Composed]) -> None:
    """A target that a model without any training meets is none: its first loss is about the logarithm of its vocabulary's size."""
    for claim in study.claims:
        if claim.target in (None, BASELINE) or not trained:
            continue
        first = math.log(trained[claim.arm].run.tokenizer.vocab_size)
        rule = f"be below the first validation loss, about ln(vocabulary) = {first:.2f}"
        require(claim.target < first, f"claim {claim.id}: target", rule, claim.target)


def at_budget(plan: Prepared) -> bool:
    return plan.at.budget and bool(plan.train)


# --- shorter schedules --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Short:
    """A shorter schedule of an arm, with its own whole decay, and the step at which it parts from the long one; 0: it never ran along."""

    composed: Composed
    branches_at: int

    def of(self, arm: str, seed: int, trunk: Record) -> Wanted | None:
        """The run of it. It begins from the trunk's checkpoint where that is, and from its start where not: the result is the same."""
        if trunk.status == "diverged":
            return None
        words = list(self.composed.overrides)
        checkpoint = trunk.folder / "checkpoints" / f"step-{self.branches_at:08d}"
        if self.branches_at and checkpoint.is_dir():
            words.append(f"trainer.init_from='{checkpoint}'")
        return Wanted(arm=arm, seed=seed, composed=arming.with_seed(composed(words), seed))


def with_lengths(plan: Prepared) -> list[str]:
    """The arms that are trained at several lengths: the baseline for the exchange rate, and who is to end at the baseline's loss sooner."""
    study = plan.study
    racing = {claim.arm for claim in study.claims if claim.target == BASELINE and set(metrics(claim)) & set(TO_TARGET)}
    return [arm for arm in study.trained if plan.at.lengths and (arm == study.baseline or arm in racing)]


def lengths_of(plan: Prepared, arm: Composed) -> list[Short]:
    steps, warmup = arm.run.trainer.steps, arm.run.schedule.warmup_steps
    found = []
    counts = [max(1, round(share * steps)) for share in plan.at.lengths]
    ok = len({*counts, steps}) == len(counts) + 1
    require(ok, f"scales.{plan.scale}.lengths", f"differ from each other and the whole in steps, of {steps}", plan.at.lengths)
    for n in counts:
        try:
            short = composed([*arm.overrides, f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}"])
        except ValueError as error:
            raise ValueError(f"scales.{plan.scale}.lengths: {n} of {steps} steps: {error}") from error
        stable = short.run.schedule.free_until(n)
        along = warmup <= stable <= arm.run.schedule.free_until(steps)
        found.append(Short(composed=short, branches_at=stable if along else 0))
    return found
