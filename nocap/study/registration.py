"""What binds a claim: the hash of all that decides it at a scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from enum import Enum
from typing import Any

from nocap.config import compose as composing
from nocap.config.compose import Composed, to_plain
from nocap.judge.claim import Claim
from nocap.store.identity import OF_THE_MACHINE
from nocap.store.record import digest
from nocap.study.arms import arm_overrides, engine_of, more
from nocap.study.evidence import places
from nocap.study.plan import StudyPlan
from nocap.study.spec import Tune

# Keys of a scale that are in the arms, or that only a reader or a plan uses; and the sittings, of which more may follow on other days: a
# verdict says with how many it was looked at. The others count, also those that are added.
NOT_OF_A_CLAIM = ("claims", "overrides", "train", "bench", "own", "sigma", "speaks_for", "sittings")
# What a claim's hash holds of the rules of before, so that what was registered under them stays registered.
BEFORE: dict[str, Any] = {"slack": {}, "direction": "better", "alpha": 0.05}
BEFORE_AT: dict[str, Any] = {"exchange": None}
# Of the others, those that only some places of the evidence need.
TIMED = {"pace", "bench", "parts", "curve", "decoding"}
FOR = {
    "rounds": {"pace", "bench"},
    "apart_min": TIMED,
    "curve": {"curve"},
    "decode": {"decoding"},
    "lengths": {"train"},
    "least_length": {"train"},
    "budget": {"train"},
}


def hashes(plan: StudyPlan) -> dict[str, str]:
    """Claim → its hash at the plan's scale."""
    return {claim.id: digest(content(plan, claim)) for claim in plan.study.claims}


def content(plan: StudyPlan, claim: Claim) -> dict[str, Any]:
    """All that decides a claim. Of its texts only the statement, whatever its spaces and capitals; no paths, and nothing that follows from
    the machine alone."""
    study, used = plan.study, places(claim)
    settings = BEFORE_AT | asdict(plan.at)
    at = {key: value for key, value in settings.items() if key not in NOT_OF_A_CLAIM and (key not in FOR or FOR[key] & used)}
    arms = {arm: _arm(plan, arm, used) for arm in study.sides(claim)}
    return {"judge": 2, "scale": plan.scale, "claim": _claim(plan, claim), "at": _plain(at), "arms": arms}


def _claim(plan: StudyPlan, claim: Claim) -> dict[str, Any]:
    stated = BEFORE | {"looks": [len(claim.seeds)]} | asdict(claim)
    found: dict[str, Any] = _at_scale(_plain(stated), plan.scale, {*plan.study.scales})
    found["statement"] = " ".join(claim.statement.split()).casefold()
    found["baseline"] = plan.study.against(claim)
    found["guards"].sort(key=lambda guard: str(guard["metric"]))
    del found["source"], found["mechanism"]["formula"]
    return found


def _at_scale(tree: Any, scale: str, scales: set[str]) -> Any:
    """Of what differs by scale, such as a margin, this scale's."""
    if isinstance(tree, dict):
        if tree.keys() <= scales:
            return tree.get(scale)
        return {key: _at_scale(value, scale, scales) for key, value in tree.items()}
    return [_at_scale(one, scale, scales) for one in tree] if isinstance(tree, list) else tree


def _plain(tree: Any) -> Any:
    """As JSON has it."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    return tree.value if isinstance(tree, Enum) else tree


def _arm(plan: StudyPlan, arm: str, used: set[str]) -> dict[str, Any]:
    """An arm where it is trained, with all trials of its search, and where it is timed."""
    study, at, tune = plan.study, plan.at, plan.study.tune
    found: dict[str, Any] = {}
    if arm in plan.train and used & {"train", "pace"}:
        own = arm_overrides(study, at, arm, at.train)
        found["train"] = _counted(plan.train[arm], own, "identity")
        if tune is not None:
            found["tune"] = _tuning(plan, tune, arm, own)
    if arm in plan.bench and used - {"train", "pace"}:
        found["bench"] = _counted(plan.bench[arm], arm_overrides(study, at, arm, at.bench), "step")
        found["engine"] = engine_of(study, at, arm) if "decoding" in used else None
    return found


def _tuning(plan: StudyPlan, tune: Tune, arm: str, own: list[str]) -> dict[str, Any]:
    """An arm's search: each of its trials, or what they follow from."""
    leader = tune.follow.get(arm, arm)  # its trials choose, and the arm takes their words
    arms = [plan.train[one] for one in dict.fromkeys((leader, arm))]
    trials = [(more(one, *words), words) for one in arms for words in tune.trials[leader]]
    return {"seeds": tune.seeds, "trials": [_counted(one, [*own, *words], "identity") for one, words in trials]}


def _counted(arm: Composed, words: Iterable[str], what: str) -> dict[str, Any]:
    """The keys of the resolved config that count, without the seed, and without those of the machine that no word chooses."""
    config = arm.run.that_count(what, to_plain(arm.run))
    chosen = composing.keys(list(words))
    config.pop("seed", None)
    for key in OF_THE_MACHINE:
        if f"trainer.{key}" not in chosen:
            config["trainer"].pop(key, None)
    return config
