"""A study at one scale: its arms composed and checked, the shorter schedules and sessions it needs, and its length. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nocap.config.compose import Composed, composed
from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.config.trainer import Device, Trainer
from nocap.judge.claim import BASELINE, Rule
from nocap.judge.interval import LEAST_PAIRS
from nocap.store.metrics import is_count
from nocap.store.runs import Record
from nocap.study.arms import arm_overrides, check_fair, compose_arms, engine_of, more, with_seed
from nocap.study.cells import Wanted
from nocap.study.evidence import FIELD_OF
from nocap.study.ledger import FILE
from nocap.study.narrowed import narrowed
from nocap.study.sessions import Session
from nocap.study.spec import At, Study

PILOT_STEPS = 100  # a config needs a length; a timed step does not depend on it
PROFILE_REPEATS = 2  # of a step, in each seed's profile
OVERHEAD = 1.15  # validation, checkpoints and startup beside the steps
MULTIPLE = 16  # a budget's steps are rounded down to it


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study at one scale."""

    study: Study
    scale: str
    folder: Path  # of its sessions; its runs are in `runs` beside all others
    train: dict[str, Composed] = field(default_factory=dict)  # before tuning, and before a budget is spread
    bench: dict[str, Composed] = field(default_factory=dict)

    @property
    def at(self) -> At:
        return self.study.scales[self.scale]

    @property
    def ledger(self) -> Path | None:
        """In the study's own folder."""
        return Path(self.study.folder) / FILE if self.study.folder else None

    @property
    def runs(self) -> Path:
        return expanded(str(self.folder.parents[2])).absolute() / "runs"

    @property
    def trainer(self) -> Trainer:
        """Of the first arm: its device is the study's."""
        return next(iter({**self.bench, **self.train}.values())).run.trainer

    @property
    def needs_budget(self) -> bool:
        return self.at.budget and bool(self.train)


def prepare(study: Study, scale: str, *, output_dir: str) -> StudyPlan:
    """Compose and check everything.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair comparison, a target out of reach.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    study = narrowed(study, scale)
    at = study.scales[scale]
    place = [*at.train, f"output_dir='{output_dir}'", *([f"trainer.steps={PILOT_STEPS}"] if at.budget else [])]
    train = compose_arms(study, at, study.trained, place)
    if train:
        check_fair(train, baseline=study.baseline if study.baseline in train else next(iter(train)))
        compose_trials(study, train)
    _check_targets(study, train)
    bench = compose_arms(study, at, study.arms_by("steps", "parts", "lengths", "decoding"), at.bench, train.get(study.baseline))
    for arm in study.arms:
        engine_of(study, at, arm)
    for arm in study.arms_by("decoding") if at.decode is not None else []:
        T, text = bench[arm].run.model.seq_len, at.decode.prompt + at.decode.new  # type: ignore[union-attr]
        require(text <= T, f"scales.{scale}.decode", f"be a text that arm {arm} has positions for: model.seq_len={T}", text)
    plan = StudyPlan(study=study, scale=scale, folder=Path(output_dir) / "studies" / study.name / scale, train=train, bench=bench)
    for arm in [] if at.budget else with_lengths(plan):
        shorter(plan, train[arm])
    for arm in [] if at.budget else racing(study):
        shorter(plan, train[arm], [*halvings(at), *at.lengths])
    return plan


def _check_targets(study: Study, train: Mapping[str, Composed]) -> None:
    """A target that an untrained model meets is none: its loss is about the logarithm of its vocabulary's size."""
    for claim in study.claims:
        if claim.target in (None, BASELINE) or not train:
            continue
        first = math.log(train[claim.arm].run.tokenizer.vocab_size)
        rule = f"be below the first validation loss, about ln(vocabulary) = {first:.2f}"
        require(claim.target < first, f"claim {claim.id}: target", rule, claim.target)


def compose_trials(study: Study, arms: Mapping[str, Composed]) -> dict[str, Composed]:
    """`ARM, trial N` → its composition, of every arm that is tuned.

    Errors:
        ValueError: a trial that does not compose, or is no fair comparison.
    """
    tune, found = study.tune, dict[str, Composed]()
    listed = [(f"{arm}, trial {i}", arm, words) for arm, of in (tune.trials if tune else {}).items() for i, words in enumerate(of, start=1)]
    for name, arm, words in listed:
        try:
            found[name] = more(arms[arm], *words)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if found:
        check_fair(found, baseline=next(iter(found)))
    return found


# --- shorter schedules -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Short:
    """A shorter schedule of an arm, with its own whole decay, and the step at which it leaves the long one; 0: it never follows it."""

    composed: Composed
    branches_at: int

    @property
    def steps(self) -> int:
        return self.composed.run.trainer.steps

    def of(self, arm: str, seed: int, whole: Record) -> Wanted | None:
        """The run of it. It begins from the whole run's checkpoint where there is one, else from step 0; the result is the same."""
        if whole.status == "diverged":
            return None
        checkpoint = whole.folder / "checkpoints" / f"step-{self.branches_at:08d}"
        init = [f"trainer.init_from='{checkpoint}'"] if self.branches_at and checkpoint.is_dir() else []
        steps = self.composed.run.trainer.steps
        return Wanted(arm=arm, seed=seed, composed=with_seed(more(self.composed, *init), seed), short=steps)


def with_lengths(plan: StudyPlan) -> list[str]:
    """The arms that are trained at several lengths: those that race to one loss."""
    return [arm for arm in plan.study.trained if plan.at.lengths and arm in racing(plan.study)]


def racing(study: Study) -> list[str]:
    return list(dict.fromkeys(arm for claim in study.claims if claim.races for arm in study.sides(claim)))


def halvings(at: At) -> list[float]:
    """The lengths that a race may go on to, one after the other, after the scale's own."""
    shares = [min(at.lengths, default=1.0) / 2**i for i in range(1, 64)]
    return [share for share in shares if share >= at.least_length]


def shorter(plan: StudyPlan, arm: Composed, lengths: Sequence[float] | None = None) -> list[Short]:
    """Its schedules at the scale's lengths, or at others.

    Errors:
        ValueError: a length that is no schedule, or two that have the same steps.
    """
    steps, warmup = arm.run.trainer.steps, arm.run.schedule.warmup_steps
    shares = plan.at.lengths if lengths is None else lengths
    counts = [max(1, round(share * steps)) for share in shares]
    ok = len({*counts, steps}) == len(counts) + 1
    require(ok, f"scales.{plan.scale}.lengths", f"differ from each other and the whole in steps, of {steps}", shares)
    found = []
    for n in counts:
        try:
            short = more(arm, f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}")
        except ValueError as error:
            raise ValueError(f"scales.{plan.scale}.lengths: {n} of {steps} steps: {error}") from error
        stable = short.run.schedule.free_until(n)
        follows = warmup <= stable <= arm.run.schedule.free_until(steps)
        found.append(Short(composed=short, branches_at=stable if follows else 0))
    return found


# --- sessions ----------------------------------------------------------------------------------------------------------------------


def all_sessions(plan: StudyPlan, train: Mapping[str, Composed]) -> dict[str, list[Session]]:
    """Every session the study needs, by the field of the evidence that it fills. `train`: the arms as they are trained."""
    study, at, bench = plan.study, plan.at, plan.bench
    timed, profiled, curved, decoded = (study.made_by(kind) for kind in ("steps", "parts", "lengths", "decoding"))
    paced = bool(study.needing(lambda metric: metric.name == "time_to_target_s"))
    trained = study.made_by("train") if paced else {}
    amdahl = [study.against(claim) for claim in study.claims if claim.mechanism.rule is Rule.amdahl]
    profiled_arms = {
        arm: bench.get(arm) or composed(arm_overrides(study, at, arm, at.bench))
        for arm in study.arms
        if arm in (*study.arms_by("parts"), *amdahl)
    }
    profiles = profiled or {seed: [] for seed in study.seeds[:LEAST_PAIRS]}  # a bound's profile is repeated as a metric's is
    decode = {} if at.decode is None else {"prompt": at.decode.prompt, "new": at.decode.new, "vocab": at.decode.vocab_size}

    def first(made: Mapping[str, Composed], arms: Sequence[str]) -> dict[str, Composed]:
        return {arm: made[arm] for arm in sorted(arms, key=lambda arm: arm != study.baseline) if arm in made}  # the baseline runs twice

    def engines(arms: Sequence[str]) -> dict[str, str]:
        return {arm: engine_of(study, at, arm) for arm in arms}

    return {
        "pace": [one for seed, arms in trained.items() for one in ask("steps", "pace", seed, first(train, arms), rounds=at.rounds)],
        "bench": [one for seed, arms in timed.items() for one in ask("steps", "bench", seed, first(bench, arms), rounds=at.rounds)],
        "parts": [
            one
            for seed, arms in profiles.items()
            for arm, made in profiled_arms.items()
            if arm in (*arms, *amdahl)
            for one in ask("parts", f"parts-{arm}", seed, {arm: made}, repeats=PROFILE_REPEATS)
        ],
        "curve": [
            one for seed, arms in curved.items() for one in ask("lengths", "curve", seed, {arm: bench[arm] for arm in arms}, T=at.curve)
        ],
        "decoding": [
            one
            for seed, arms in decoded.items()
            for one in ask("decoding", "decoding", seed, {arm: bench[arm] for arm in arms}, **decode, engines=engines(arms))
        ],
    }


def sittings_of(plan: StudyPlan, place: str) -> int:
    """How many a place's sessions are held in: one where only counts are taken of them."""
    instruments = [name for name, field in FIELD_OF.items() if field == place]
    t = next(iter({**plan.bench, **plan.train}.values())).run.trainer
    metrics = [metric for claim in plan.study.claims for metric in claim.metrics if metric.made_by in instruments]
    counted = metrics and all(is_count(metric, on_cuda=t.device is Device.cuda) for metric in metrics)
    return 1 if counted else plan.at.sittings


def ask(kind: str, what: str, seed: int, arms: Mapping[str, Composed], **how: object) -> list[Session]:
    """The session of a seed, or none where there are no arms."""
    return (
        [Session(kind=kind, what=what, seed=seed, arms={arm: with_seed(one, seed) for arm, one in arms.items()}, how=how)] if arms else []
    )


# --- a length from hours -----------------------------------------------------------------------------------------------------------


def check_budget(plan: StudyPlan, budget_h: float | None) -> None:
    """Refuse a length that is to come from a budget, without one.

    Errors:
        ValueError: no budget, or none that is a number of hours.
    """
    rule = f"be given for scale={plan.scale}, whose length is what the hours allow"
    require(not plan.needs_budget or (budget_h is not None and 0 < budget_h < math.inf), "budget_h", rule, budget_h)


def with_steps(plan: StudyPlan, steps: int) -> StudyPlan:
    return replace(plan, train={arm: more(one, f"trainer.steps={steps}") for arm, one in plan.train.items()})


def steps_for(plan: StudyPlan, seconds_per_token: Mapping[str, float], budget_h: float) -> int:
    """Steps of a whole run, so that the study's training, tuning and shorter lengths take the budget.

    Errors:
        ValueError: not even `MULTIPLE` steps.
    """
    study, several, tune = plan.study, with_lengths(plan), plan.study.tune
    a_step = 0.0  # seconds of one step of every run
    for arm, one in plan.train.items():
        runs: float = len(study.seeds) * (1 + (sum(plan.at.lengths) if arm in several else 0))
        runs += len(tune.seeds) * len(tune.trials.get(arm, ())) if tune else 0
        a_step += runs * seconds_per_token[arm] * one.run.trainer.batch_tokens
    steps = math.floor(budget_h * 3600 / OVERHEAD / a_step / MULTIPLE) * MULTIPLE
    require(steps >= MULTIPLE, "budget_h", f"allow {MULTIPLE} steps of every run, {MULTIPLE * a_step * OVERHEAD / 3600:.2g} h", budget_h)
    return steps
