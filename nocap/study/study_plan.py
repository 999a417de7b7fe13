"""A study at one scale: its arms composed and checked. Nothing is run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from nocap.config.arm_defaults import as_baseline, as_in
from nocap.config.compose import Composed, composed
from nocap.config.defaults import ON_CPU
from nocap.config.keys import flat, require
from nocap.config.overrides import parse_override
from nocap.config.plain import to_plain
from nocap.config.trainer import Trainer
from nocap.judge.claim import AT_EQUAL_LOSS
from nocap.judge.equal_loss import STEPS
from nocap.launch.baseline_lengths import others_of, words_at
from nocap.launch.plan import Datasets, dataset_of
from nocap.sessions.places import DECODING, PLACES, TRAIN
from nocap.store.identity import OF_THE_MACHINE
from nocap.study.spec import ScaleConfig, Study, arm_overrides, select_claims

# what a GPU's rules choose counts as it stands on a CPU: a claim is the same on both
AS_ON_A_CPU: dict[str, object] = {"micro_batch": ON_CPU, "cuda_graphs": False}


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study at one scale."""

    study: Study
    scale: str
    folder: Path  # of its sessions; its runs are in `runs` beside all others
    train: dict[str, Composed] = field(default_factory=dict)  # before tuning
    # with the baselines whose profile bounds a claim
    bench: dict[str, Composed] = field(default_factory=dict)
    machine_keys: frozenset[str] = frozenset()  # keys of the machine that an override chooses
    datasets: Datasets = field(default_factory=dict)

    @property
    def at(self) -> ScaleConfig:
        return self.study.scales[self.scale]

    @property
    def trainer(self) -> Trainer:
        """Return the trainer of the first arm, whose device is the study's."""
        arms = {**self.bench, **self.train}
        first = next(iter(arms.values()))
        return first.run.trainer

    def content(self, arm: Composed, what: str) -> dict[str, object]:
        """Return the keys of an arm that count, without its seed, and without those of the machine
        that no override chooses; what a GPU's rules choose stands as on a CPU. Of data that lies at
        a path it has the tokens' fingerprint: two texts may lie at one path in turn.

        Errors:
            ValueError: no such data.
        """
        plain = to_plain(arm.run)
        config = arm.run.that_count(what, plain)
        config.pop("seed", None)
        lies_at_a_path = any(f.metadata.get("identity") is False for f in fields(arm.run.data))
        if what == "identity" and lies_at_a_path:
            config["data"]["fingerprint"] = dataset_of(arm.run, self.datasets).fingerprint
        self.settle_machine(arm, config["trainer"])
        return config

    def settle_machine(self, arm: Composed, trainer: dict[str, Any]) -> None:
        """Take out of the trainer's keys those of the machine that no override chooses, and put in
        those of a CPU where no override chooses what depends on the device."""
        for name in OF_THE_MACHINE:
            if name not in self.machine_keys:
                trainer.pop(name, None)
        for name in AS_ON_A_CPU.keys() & {*arm.defaults}:
            trainer[name] = AS_ON_A_CPU[name]


def prepare(study: Study, scale: str, *, output_dir: str, steps: int | None = None) -> StudyPlan:
    """Compose and check everything. `steps`: of a run, instead of what the scale says.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair
            comparison.
    """
    at = study.at(scale)
    study = select_claims(study, scale)
    timed_arms = study.arms_needing(lambda metric: metric.made_by != TRAIN)
    train = compose_arms(study, at, study.trained_arms, training_overrides(at, output_dir, steps))
    bench = compose_arms(study, at, timed_arms, at.bench)
    check_fair({**train, **compose_trials(study, train)})
    plan = StudyPlan(
        study=study,
        scale=scale,
        folder=Path(output_dir) / "studies" / study.name / scale,
        train=train,
        bench=bench,
        machine_keys=_machine_keys(study, at),
    )
    _check_text(plan)
    for arm in study.racing_arms:
        shorter(plan, train[arm])  # checks them
    _check_lengths(plan)
    return plan


def _machine_keys(study: Study, at: ScaleConfig) -> frozenset[str]:
    """Return the keys of the machine that an override of the study chooses."""
    words = list[str]()
    for arm in study.arms:
        words += arm_overrides(study, at, arm, [*at.train, *at.bench])
    for trials in study.tune.trials.values():
        words += chain(*trials)
    keys = {parse_override(word).key_or_group.removeprefix("trainer.") for word in words}
    return frozenset(keys.intersection(OF_THE_MACHINE))


def _check_text(plan: StudyPlan) -> None:
    """Refuse a text to decode that an arm has too few positions for.

    Errors:
        ValueError: the first such arm.
    """
    decode = plan.at.decode
    text = decode.prompt + decode.new if decode else 0
    for arm in plan.study.arms_needing(lambda metric: metric.made_by == PLACES[DECODING].kind):
        seq_len = plan.bench[arm].run.model.seq_len
        rule = f"have prompt + new of at most {seq_len} tokens (model.seq_len of arm {arm})"
        require(text <= seq_len, f"scales.{plan.scale}.decode", rule, text)


def _check_lengths(plan: StudyPlan) -> None:
    """Refuse claims about the time at equal loss whose baseline has no other lengths, or other
    steps than an arm or a trial of it.

    Errors:
        ValueError: the first such claim's; the arm or trial is named.
    """
    study = plan.study
    for arm in study.seeds_of_lengths:
        other_lengths(plan.train[arm])
    for claim in study.claims:
        if not claim.at_equal_loss:
            continue
        base = study.against(claim)
        steps = plan.train[base].run.trainer.steps
        rule = f"be equal to the baseline's ({base}: {steps}) for a claim about {AT_EQUAL_LOSS}"
        sides = {arm: plan.train[arm] for arm in study.sides(claim)}
        arms = {**sides, **compose_trials(study, sides)}
        for name, side in arms.items():
            own_steps = side.run.trainer.steps
            require(own_steps == steps, f"arm {name}: {STEPS}", rule, own_steps)


# --- arms -----------------------------------------------------------------------------------------


def more(arm: Composed, *overrides: str) -> Composed:
    """Return the arm with further overrides. A shorter run of it is no reason for another precision
    or compilation."""
    if not overrides:
        return arm
    return as_in(arm, [*arm.overrides, *overrides])


def training_overrides(at: ScaleConfig, output_dir: str, steps: int | None) -> list[str]:
    """List the overrides of a scale's training. `steps`: of a run, instead of what the scale
    says."""
    words = [*at.train, f"output_dir='{output_dir}'"]
    if steps is not None:
        words.append(f"trainer.steps={steps}")
    return words


def compose_arms(
    study: Study, at: ScaleConfig, arms: Sequence[str], setting: Sequence[str]
) -> dict[str, Composed]:
    """Return arm → its composition, the baseline first, whose precision, compilation, micro-batch
    and CUDA graphs the others have.

    Errors:
        ValueError: an arm does not compose; the arm is named.
    """
    composed: dict[str, Composed] = {}
    first: Composed | None = None
    words = dict[str, list[str]]()
    for arm in sorted(arms, key=lambda name: name != study.baseline):
        words[arm] = arm_overrides(study, at, arm, setting)
    for arm, overrides in words.items():
        composed[arm] = _named(arm, first, overrides)
        if first is None:
            first, _ = as_baseline(composed[arm], words.values())
            composed[arm] = first
    return composed


def trials_of(study: Study, arm: str) -> dict[str, list[str]]:
    """Return the name of each trial of an arm → its overrides."""
    return {f"{arm}, trial {i}": words for i, words in enumerate(study.tune.trials[arm], start=1)}


def compose_trials(study: Study, arms: Mapping[str, Composed]) -> dict[str, Composed]:
    """Return the name of each trial of these arms → its composition.

    Errors:
        ValueError: a trial that does not compose.
    """
    trials = dict[str, Composed]()
    for name in study.tune.trials:
        arm = arms.get(name)
        if arm is None:
            continue
        for trial, words in trials_of(study, name).items():
            trials[trial] = _named(trial, arm, [*arm.overrides, *words])
    return trials


def _named(name: str, first: Composed | None, overrides: Sequence[str]) -> Composed:
    try:
        return as_in(first, overrides)
    except ValueError as error:
        raise ValueError(f"arm {name}: {error}") from error


def check_fair(arms: Mapping[str, Composed]) -> None:
    """Refuse arms whose losses would mean different things than the first one's.

    Errors:
        ValueError: the first key in which an arm's data or validation is another.
    """
    if not arms:
        return
    configs = {name: dict(_of_losses(arm)) for name, arm in arms.items()}
    first, baseline = next(iter(configs.items()))
    for name, config in configs.items():
        for key in dict.fromkeys((*baseline, *config)):
            value = baseline.get(key)
            rule = (
                f"be equal to the baseline's ({first}: {value}), because otherwise the "
                "losses are not comparable"
            )
            require(config.get(key) == value, f"arm {name}: {key}", rule, config.get(key))


def _of_losses(arm: Composed) -> Iterator[tuple[str, Any]]:
    """Yield what two arms must share for their losses to mean the same."""
    plain = to_plain(arm.run)
    yield from flat(arm.run.that_count("losses", plain))
    for key, value in flat(plain["data"], prefix="data."):
        if key != "data.document_mask":  # how the tokens are read, and not which
            yield key, value


def shorter(plan: StudyPlan, arm: Composed) -> list[Composed]:
    """Return an arm's shorter schedules, each with a whole decay of its own.

    Errors:
        ValueError: a length that is no schedule, or two that have the same steps.
    """
    steps = arm.run.trainer.steps
    warmup = arm.run.schedule.warmup_steps
    counts = [max(1, round(share * steps)) for share in plan.at.lengths]
    is_distinct = len({*counts, steps}) == len(counts) + 1
    rule = f"give different numbers of steps, none of them trainer.steps={steps}"
    require(is_distinct, f"scales.{plan.scale}.lengths", rule, plan.at.lengths)
    schedules = list[Composed]()
    for n in counts:
        words = [f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}"]
        schedules.append(_named(f"at {n} of {steps} steps", arm, [*arm.overrides, *words]))
    return schedules


def other_lengths(arm: Composed) -> list[Composed]:
    """Return a baseline's shorter and its longer schedule, as `--equal-loss` trains them in a grid.

    Errors:
        ValueError: it is too short to have them.
    """
    lengths = list[Composed]()
    for steps in others_of(arm.run.trainer.steps, requested_by=f"a claim about {AT_EQUAL_LOSS}"):
        words = words_at(arm.overrides, arm.run, steps, composed)
        lengths.append(more(arm, *words))
    return lengths
