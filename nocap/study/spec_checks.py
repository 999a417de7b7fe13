"""What must hold of a study, checked before anything runs. The first thing that is wrong is
refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import chain

from nocap.config.keys import check_keys, require
from nocap.config.overrides import parse_override
from nocap.judge.claim import CLAIMABLE
from nocap.judge.interval import LEAST_PAIRS
from nocap.sessions.places import ENGINES, scale_key_of
from nocap.study.spec import ENGINE, Propose, Study, Tune, engine_of, select_claims

# keys of what is written, read and sent elsewhere: the command says it, and no study
CLOSED = ("output_dir", "cache_dir", "trainer.init_from", "tracker.", "store.")


def check(study: Study) -> None:
    """Refuse a study that cannot be carried out, or whose verdicts would say nothing.

    Errors:
        ValueError: the first thing that is wrong.
    """
    _check_limits(study)
    _check_names(study)
    require(bool(study.question.strip()), "question", "not be empty", repr(study.question))
    _check_propose(study)
    _check_spelling([*study.arms, *study.scales])
    _check_claims(study)
    _check_tune(study)
    _check_margins(study)
    for name in study.scales:
        _check_scale(study, name)
    for override in _overrides(study):
        _check_override(override)


def _check_limits(study: Study) -> None:
    """Refuse a value beyond its key's limits."""
    check_keys("", study)
    for name, at in study.scales.items():
        check_keys(f"scales.{name}", at)
    for name, at in study.scales.items():
        if at.decode:
            check_keys(f"scales.{name}.decode", at.decode)
    check_keys("tune", study.tune)
    check_keys("propose", study.propose or Propose())


def _check_names(study: Study) -> None:
    """Refuse a name of an arm, claim, metric or engine that there is not."""
    ids = [claim.id for claim in study.claims]
    if study.arms:
        _check_known("baseline", [study.baseline], study.arms)
    for claim in study.claims:
        _check_known(f"claim {claim.id}: arm", study.sides(claim), study.arms)
    _check_known("notes", study.notes, ids)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.claims", at.claims, ids)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.own", at.own, study.arms)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.noise", at.noise, CLAIMABLE)
    for arm in study.arms:
        for at in study.scales.values():
            _check_known(f"arm {arm}: engine", [engine_of(study, at, arm)], ENGINES)
    _check_known("tune.trials", study.tune.trials, study.trained_arms)


def _check_known(key: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not among the known ones. `key`: where they stand in the file."""
    unknown = [name for name in names if name not in known]
    require(not unknown, key, f"be one of {', '.join(known)}", ", ".join(unknown))


def _check_spelling(names: Iterable[str]) -> None:
    """Refuse names that could not be part of a file's name."""
    odd = list[str]()
    for name in names:
        if not re.fullmatch(r"\w[^/\\]{0,99}", name) or not name.isprintable():
            odd.append(name)
    rule = "have names of at most 100 characters, without /, that begin with a letter or digit"
    require(not odd, "arms and scales", rule, odd[:1])


def _check_claims(study: Study) -> None:
    """Refuse claims that are too few, have too few seeds, or leave an arm out."""
    claims = study.claims
    ids = [claim.id for claim in claims]
    n_seeds = len(study.seeds)
    require(
        bool(claims or study.propose),
        "claims",
        "have at least one claim, unless the study has propose",
        "none",
    )
    rule = f"be at least {LEAST_PAIRS} seeds, because nocap gives no verdict with fewer"
    require(not claims or n_seeds >= LEAST_PAIRS, "seeds", rule, n_seeds)
    require(len({*ids}) == len(ids), "claims", "have different ids", ", ".join(ids))
    used = {study.baseline}
    for claim in claims:
        is_own = claim.compares and study.against(claim) == claim.arm
        require(not is_own, f"claim {claim.id}: arm", "differ from the claim's baseline", claim.arm)
        used.update(study.sides(claim))
    idle = [arm for arm in study.arms if arm not in used]
    require(not idle, "arms", "not have an arm that no claim uses", ", ".join(idle))


def _check_tune(study: Study) -> None:
    """Refuse a search that favours an arm, or the study's own seeds."""
    tune = study.tune
    is_searched = tune != Tune()
    require(not is_searched or bool(tune.seeds), "tune.seeds", "have at least one seed", "none")
    shared = [seed for seed in tune.seeds if seed in study.seeds]
    rule = "not be seeds of the study, because the search fits each arm to the seeds of tune"
    require(not shared, "tune.seeds", rule, shared)
    if not is_searched:
        return
    bare = [arm for arm in study.trained_arms if arm not in tune.trials]
    require(
        not bare,
        "tune.trials",
        "have trials for every arm that the study trains",
        f"none for {', '.join(bare)}",
    )
    sizes = {len(trials) for trials in tune.trials.values()}
    is_even = len(sizes) == 1 and min(sizes) >= 2
    rule = (
        "give every arm the same number of trials (at least two), because otherwise the "
        "comparison is unfair"
    )
    require(is_even, "tune.trials", rule, sizes)


def _check_propose(study: Study) -> None:
    """Refuse proposals that are not either overrides of arms or commands."""
    rules = study.propose or Propose()
    is_command = bool(rules.command)
    require(is_command or bool(study.arms), "arms", "have at least one arm", "none")
    require(is_command or bool(study.scales), "scales", "have at least one scale", "none")
    settings = {"arms": study.arms, "scales": study.scales, "propose.flops": rules.flops}
    own = [name for name, value in settings.items() if value]
    if is_command and own:
        raise ValueError(f"propose.command does not work with {', '.join(own)}")
    if is_command != bool(rules.metric):
        raise ValueError("propose.command and propose.metric must both be set, or neither")
    of_commands = ("metric", "file", "ref", "locked", "link", "reads_seed")
    set_keys = [name for name in of_commands if getattr(rules, name)]
    if set_keys and not is_command:
        raise ValueError(f"propose.{set_keys[0]} works only with propose.command")


def _check_margins(study: Study) -> None:
    """Refuse a guard that has no margin for a scale that its claim is about."""
    for name in study.scales:
        for claim in select_claims(study, name).claims:
            for guard in claim.guards:
                guard.margin(name)


def _check_scale(study: Study, name: str) -> None:
    """Refuse a scale without what a claim needs of it."""
    at = study.scales[name]
    key = f"scales.{name}"
    is_curve = not at.curve or len({*at.curve}) >= 3
    require(is_curve, f"{key}.curve", "be at least 3 different lengths, in tokens", at.curve)
    for claim in select_claims(study, name).claims:
        needed = {scale_key_of(metric): f"is about {metric.name}" for metric in claim.metrics}
        if claim.races:
            needed["lengths"] = "has a target"
        for setting, why in needed.items():
            rule = f"be set, because claim {claim.id} {why}"
            require(bool(getattr(at, setting)), f"{key}.{setting}", rule, "none")


def _overrides(study: Study) -> list[str]:
    """List all overrides that the file has."""
    overrides = [*study.overrides, *chain(*study.arms.values())]
    for trials in study.tune.trials.values():
        overrides += chain(*trials)
    for at in study.scales.values():
        overrides += [*at.overrides, *at.train, *at.bench, *chain(*at.own.values())]
    return overrides


def _check_override(override: str) -> None:
    """Refuse an override of what is written, read and sent elsewhere: it follows from the command,
    not from the file, which may be a stranger's."""
    require(
        isinstance(override, str),
        "overrides",
        "be a list of KEY=VALUE, as in [attention=gqa]",
        override,
    )
    if not override.startswith(ENGINE):
        name = parse_override(override).key_or_group
        if name.startswith(CLOSED):
            raise ValueError(f"a study must not set {name}, because the command sets it")
