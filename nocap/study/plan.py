"""A study at one scale: its arms composed and checked. Nothing is run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nocap.config.compose import Composed, as_in, composed, parsed
from nocap.config.defaults import ON_CPU
from nocap.config.keys import flat, require
from nocap.config.plain import to_plain
from nocap.config.trainer import Trainer
from nocap.judge.claim import AT_EQUAL_LOSS
from nocap.judge.equal_loss import STEPS
from nocap.launch.lengths import others_of, words_at
from nocap.launch.plan import Datasets, dataset_of
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
    typed: frozenset[str] = frozenset()  # keys of the machine that an override chooses
    datasets: Datasets = field(default_factory=dict)

    @property
    def at(self) -> ScaleConfig:
        return self.study.scales[self.scale]

    @property
    def trainer(self) -> Trainer:
        """Of the first arm: its device is the study's."""
        return next(iter({**self.bench, **self.train}.values())).run.trainer

    def content(self, arm: Composed, what: str) -> dict[str, object]:
        """The keys of an arm that count, without its seed, and without those of the machine that no override
        chooses; what a GPU's rules choose stands as on a CPU. Of data that lies at a path it has the tokens'
        fingerprint: two texts may lie at one path in turn.

        Errors:
            ValueError: no such data.
        """
        plain = to_plain(arm.run)
        config = arm.run.that_count(what, plain)
        config.pop("seed", None)
        if what == "identity" and config["data"].keys() < plain["data"].keys():
            config["data"]["fingerprint"] = dataset_of(arm.run, self.datasets).fingerprint
        for name in OF_THE_MACHINE:
            if name not in self.typed:
                config["trainer"].pop(name, None)
        for name in AS_ON_A_CPU.keys() & {*arm.defaults}:
            config["trainer"][name] = AS_ON_A_CPU[name]
        return config


def prepare(study: Study, scale: str, *, output_dir: str, steps: int | None = None) -> StudyPlan:
    """Compose and check everything. `steps`: of a run, instead of what the scale says.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair comparison.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    study = select_claims(study, scale)
    at = study.scales[scale]
    train = compose_arms(study, at, study.trained, training_overrides(at, output_dir, steps))
    bench = compose_arms(study, at, study.needing(lambda metric: metric.made_by != "train"), at.bench)
    check_fair({**train, **compose_trials(study, train)})
    text = at.decode.prompt + at.decode.new if at.decode else 0
    for arm in study.needing(lambda metric: metric.made_by == "decoding"):
        rule = f"be a text that arm {arm} has positions for: model.seq_len={bench[arm].run.model.seq_len}"
        require(text <= bench[arm].run.model.seq_len, f"scales.{scale}.decode", rule, text)
    words = [word for arm in study.arms for word in arm_overrides(study, at, arm, [*at.train, *at.bench])]
    words += [word for listed in study.tune.trials.values() for trial in listed for word in trial]
    typed = {parsed(word).key_or_group.removeprefix("trainer.") for word in words}
    plan = StudyPlan(
        study=study,
        scale=scale,
        folder=Path(output_dir) / "studies" / study.name / scale,
        train=train,
        bench=bench,
        typed=frozenset(typed & {*OF_THE_MACHINE}),
    )
    for arm in study.racing:
        shorter(plan, train[arm])  # checked
    _check_lengths(plan)
    return plan


def _check_lengths(plan: StudyPlan) -> None:
    """Refuse claims about the time at equal loss whose baseline has no other lengths, or other steps than an
    arm or a trial of it.

    Errors:
        ValueError: the first such claim's; the arm or trial is named.
    """
    study = plan.study
    for arm in study.lengthened:
        other_lengths(plan.train[arm])
    for claim in study.claims:
        if claim.at_equal_loss:
            base = study.against(claim)
            steps = plan.train[base].run.trainer.steps
            sides = {arm: plan.train[arm] for arm in study.sides(claim)}
            for name, made in {**sides, **compose_trials(study, sides)}.items():
                rule = f"be the baseline's ({base}: {steps}) for a claim about {AT_EQUAL_LOSS}"
                require(made.run.trainer.steps == steps, f"arm {name}: {STEPS}", rule, made.run.trainer.steps)


# --- arms ---------------------------------------------------------------------------------------------------


def more(arm: Composed, *overrides: str) -> Composed:
    """The arm with further overrides. A shorter run of it is no reason for another precision or
    compilation."""
    return as_in(arm, [*arm.overrides, *overrides]) if overrides else arm


def training_overrides(at: ScaleConfig, output_dir: str, steps: int | None) -> list[str]:
    return [*at.train, f"output_dir='{output_dir}'", *([] if steps is None else [f"trainer.steps={steps}"])]


def compose_arms(
    study: Study, at: ScaleConfig, arms: Sequence[str], place: Sequence[str]
) -> dict[str, Composed]:
    """Arm → its composition, the baseline first, whose precision and compilation the others have.

    Errors:
        ValueError: an arm does not compose; the arm is named.
    """
    made: dict[str, Composed] = {}
    for arm in sorted(arms, key=lambda name: name != study.baseline):
        made[arm] = _named(arm, next(iter(made.values()), None), arm_overrides(study, at, arm, place))
    return made


def trials_of(study: Study, arm: str) -> dict[str, list[str]]:
    """Name of a trial → its overrides."""
    return {f"{arm}, trial {i}": words for i, words in enumerate(study.tune.trials[arm], start=1)}


def compose_trials(study: Study, arms: Mapping[str, Composed]) -> dict[str, Composed]:
    """Name of a trial → its composition, of these arms.

    Errors:
        ValueError: a trial that does not compose.
    """
    return {
        name: _named(name, arms[arm], [*arms[arm].overrides, *words])
        for arm in study.tune.trials
        if arm in arms
        for name, words in trials_of(study, arm).items()
    }


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
    plain = {name: dict(_of_losses(arm)) for name, arm in arms.items()}
    for name, config in plain.items():
        first, baseline = next(iter(plain.items()))
        for key in dict.fromkeys((*baseline, *config)):
            rule = f"be the baseline's ({first}: {baseline.get(key)}), or losses mean different things"
            require(config.get(key) == baseline.get(key), f"arm {name}: {key}", rule, config.get(key))


def _of_losses(arm: Composed) -> Iterator[tuple[str, Any]]:
    """List what two arms must share for their losses to mean the same."""
    plain = to_plain(arm.run)
    yield from flat(arm.run.that_count("losses", plain))
    yield from flat(plain["data"], prefix="data.")


def shorter(plan: StudyPlan, arm: Composed) -> list[Composed]:
    """Its shorter schedules, each with its own whole decay.

    Errors:
        ValueError: a length that is no schedule, or two that have the same steps.
    """
    steps, warmup = arm.run.trainer.steps, arm.run.schedule.warmup_steps
    counts = [max(1, round(share * steps)) for share in plan.at.lengths]
    rule = f"differ from each other and the whole in steps, of {steps}"
    require(len({*counts, steps}) == len(counts) + 1, f"scales.{plan.scale}.lengths", rule, plan.at.lengths)
    return [
        _named(
            f"at {n} of {steps} steps",
            arm,
            [*arm.overrides, f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}"],
        )
        for n in counts
    ]


def other_lengths(arm: Composed) -> list[Composed]:
    """Return a baseline's shorter and its longer schedule, as `--equal-loss` trains them in a grid.

    Errors:
        ValueError: it is too short to have them.
    """
    steps = arm.run.trainer.steps
    return [
        more(arm, *words_at(arm.overrides, arm.run, length, composed))
        for length in others_of(steps, asked=f"a claim about {AT_EQUAL_LOSS}")
    ]
