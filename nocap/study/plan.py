"""A study at one scale: its arms composed and checked. Nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nocap.config import compose as composing
from nocap.config.compose import Composed, as_in, composed, to_plain
from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.config.run import keys_that_count
from nocap.config.trainer import Trainer
from nocap.judge.claim import BASELINE, Rule
from nocap.store.identity import OF_THE_MACHINE
from nocap.study.spec import ENGINE, ENGINES, ScaleConfig, Study, select_claims

# What two arms must share for their losses to mean the same: their data, and every key declared so.
SAME = ("data", *keys_that_count("losses"))


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study at one scale."""

    study: Study
    scale: str
    folder: Path  # of its sessions; its runs are in `runs` beside all others
    train: dict[str, Composed] = field(default_factory=dict)  # before tuning
    bench: dict[str, Composed] = field(default_factory=dict)  # with the baselines whose profile bounds a claim
    typed: frozenset[str] = frozenset()  # keys of the machine that an override chooses

    @property
    def at(self) -> ScaleConfig:
        return self.study.scales[self.scale]

    @property
    def runs(self) -> Path:
        return expanded(str(self.folder.parents[2])).absolute() / "runs"

    @property
    def trainer(self) -> Trainer:
        """Of the first arm: its device is the study's."""
        return next(iter({**self.bench, **self.train}.values())).run.trainer

    def content(self, arm: Composed, what: str) -> dict[str, Any]:
        """The keys of an arm that count, without its seed, and without those of the machine that no override chooses."""
        config = arm.run.that_count(what, to_plain(arm.run))
        config.pop("seed", None)
        for name in OF_THE_MACHINE:
            if name not in self.typed:
                config["trainer"].pop(name, None)
        return config


def prepare(study: Study, scale: str, *, output_dir: str, steps: int | None = None) -> StudyPlan:
    """Compose and check everything. `steps`: of a run, instead of what the scale says.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair comparison, a target out of reach.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    study = select_claims(study, scale)
    at = study.scales[scale]
    place = [*at.train, f"output_dir='{output_dir}'", *([] if steps is None else [f"trainer.steps={steps}"])]
    train = compose_arms(study, at, study.trained, place)
    if train:
        check_fair(train, baseline=study.baseline if study.baseline in train else next(iter(train)))
        compose_trials(study, train)
    for claim in study.claims if train else ():
        if claim.target not in (None, BASELINE):
            first = math.log(train[claim.arm].run.tokenizer.vocab_size)  # nats of an untrained model
            rule = f"be below the first validation loss, about ln(vocabulary) = {first:.2f}"
            require(claim.target < first, f"claim {claim.id}: target", rule, claim.target)
    bench = compose_arms(study, at, study.needing(lambda metric: metric.made_by != "train"), at.bench, train.get(study.baseline))
    for claim in study.claims:
        if claim.mechanism.rule is Rule.amdahl and (base := study.against(claim)) not in bench:
            bench[base] = composed(arm_overrides(study, at, base, at.bench))
    for arm in study.arms:
        engine_of(study, at, arm)
    for arm in study.needing(lambda metric: metric.made_by == "decoding") if at.decode is not None else []:
        T, text = bench[arm].run.model.seq_len, at.decode.prompt + at.decode.new  # type: ignore[union-attr]
        require(text <= T, f"scales.{scale}.decode", f"be a text that arm {arm} has positions for: model.seq_len={T}", text)
    words = [word for arm in study.arms for word in arm_overrides(study, at, arm, [*at.train, *at.bench])]
    words += [word for trials in (study.tune.trials.values() if study.tune else ()) for trial in trials for word in trial]
    typed = frozenset(name.removeprefix("trainer.") for name in composing.keys(words)).intersection(OF_THE_MACHINE)
    folder = Path(output_dir) / "studies" / study.name / scale
    plan = StudyPlan(study=study, scale=scale, folder=folder, train=train, bench=bench, typed=typed)
    for arm in study.racing:
        shorter(plan, train[arm])
    return plan


# --- arms ----------------------------------------------------------------------------------------------------------------------------


def with_seed(arm: Composed, seed: int) -> Composed:
    return replace(arm, overrides=(*arm.overrides, f"seed={seed}"), run=replace(arm.run, seed=seed))


def more(arm: Composed, *overrides: str) -> Composed:
    """The arm with further overrides. A shorter run of it is no reason for another precision or compilation."""
    return as_in(arm, [*arm.overrides, *overrides]) if overrides else arm


def arm_overrides(study: Study, at: ScaleConfig, arm: str, place: Sequence[str]) -> list[str]:
    """The study's, the scale's, the place's (`at.train` or `at.bench`), and the arm's own."""
    own = [word for word in (*study.arms[arm], *at.own.get(arm, ())) if not word.startswith(ENGINE)]
    return [*study.overrides, *at.overrides, *place, *own]


def engine_of(study: Study, at: ScaleConfig, arm: str) -> str:
    """How an arm decodes: its engine=…, or with a cache.

    Errors:
        ValueError: no such engine.
    """
    named = [word.removeprefix(ENGINE) for word in (*study.arms[arm], *at.own.get(arm, ())) if word.startswith(ENGINE)]
    engine = named[-1] if named else "cache"
    require(engine in ENGINES, f"arm {arm}: engine", f"be one of {'; '.join(ENGINES)}", engine)
    return engine


def compose_arms(
    study: Study, at: ScaleConfig, arms: Sequence[str], place: Sequence[str], trained: Composed | None = None
) -> dict[str, Composed]:
    """Arm → its composition, with the baseline's precision and compilation; those that it is `trained` with, where the shape is the same.

    Errors:
        ValueError: an arm does not compose; the arm is named.
    """
    made: dict[str, Composed] = {}
    first: Composed | None = None
    for arm in sorted(arms, key=lambda name: name != study.baseline):
        made[arm] = _named(arm, first, arm_overrides(study, at, arm, place))
        if first is None and trained is not None and trained.run.model == made[arm].run.model:
            made[arm] = as_in(trained, made[arm].overrides)
        first = first or made[arm]
    return {arm: made[arm] for arm in arms}


def compose_trials(study: Study, arms: Mapping[str, Composed]) -> dict[tuple[str, int], Composed]:
    """(arm, number of its trial) → its composition.

    Errors:
        ValueError: a trial that does not compose, or is no fair comparison.
    """
    trials = study.tune.trials if study.tune else {}
    made = {
        (arm, i): _named(f"{arm}, trial {i + 1}", arms[arm], [*arms[arm].overrides, *words])
        for arm, listed in trials.items()
        for i, words in enumerate(listed)
    }
    if made:
        check_fair({f"{arm}, trial {i + 1}": one for (arm, i), one in made.items()}, baseline=f"{next(iter(trials))}, trial 1")
    return made


def _named(name: str, first: Composed | None, overrides: Sequence[str]) -> Composed:
    try:
        return as_in(first, overrides)
    except ValueError as error:
        raise ValueError(f"arm {name}: {error}") from error


def check_fair(arms: Mapping[str, Composed], *, baseline: str) -> None:
    """Refuse arms whose losses would mean different things.

    Errors:
        ValueError: the first key in which an arm's data or validation is not the baseline's.
    """
    plain = {name: to_plain(arm.run) for name, arm in arms.items()}
    for name, arm in plain.items():
        for key in SAME:
            a, b = _at(arm, key), _at(plain[baseline], key)
            rule = f"be the baseline's ({baseline}: {_differing(b, a)}), or losses mean different things"
            require(a == b, f"arm {name}: {key}", rule, _differing(a, b))


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part)
    return tree


def _differing(value: Any, other: Any) -> Any:
    """Of two dicts the keys that differ."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    return ", ".join(f"{key}={value[key]}" for key in value if value.get(key) != other.get(key))


def shorter(plan: StudyPlan, arm: Composed) -> list[Composed]:
    """Its shorter schedules, each with its own whole decay.

    Errors:
        ValueError: a length that is no schedule, or two that have the same steps.
    """
    steps, warmup, shares = arm.run.trainer.steps, arm.run.schedule.warmup_steps, plan.at.lengths
    counts = [max(1, round(share * steps)) for share in shares]
    ok = len({*counts, steps}) == len(counts) + 1
    require(ok, f"scales.{plan.scale}.lengths", f"differ from each other and the whole in steps, of {steps}", shares)
    return [
        _named(f"at {n} of {steps} steps", arm, [*arm.overrides, f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}"])
        for n in counts
    ]
