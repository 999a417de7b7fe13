"""What binds a claim: the hash of its arms, its metric and all that decides it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from nocap.config.compose import Composed
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.sessions.places import CURVE, DECODING, PLACES, TRAIN
from nocap.store.record_files import digest
from nocap.study.evidence import places
from nocap.study.spec import engine_of
from nocap.study.study_plan import StudyPlan, compose_trials


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A claim's hash is of its composed arms, metric, ends, margins and the rule that lists its
    seeds. No name is in it."""

    hash: str
    subject: str  # of the arms and the metric alone


def registrations(plan: StudyPlan) -> dict[str, Registration]:
    """Return claim → its registration, of each claim at the plan's scale."""
    return {claim.id: registration_of(plan, claim) for claim in plan.study.claims}


def registration_of(plan: StudyPlan, claim: Claim) -> Registration:
    """Return the registration of a claim at the plan's scale."""
    subject = _plain(_subject(plan, claim))
    decides = _plain(_rule(plan, claim))
    return Registration(hash=digest([subject, decides]), subject=digest(subject))


def _subject(plan: StudyPlan, claim: Claim) -> dict[str, object]:
    """Return what a claim measures: its arms and its metric."""
    at = plan.at
    used = places(claim)
    subject: dict[str, object] = {
        "arms": [_side(plan, arm, used) for arm in plan.study.sides(claim)],
        "metric": [claim.metric, claim.parts, claim.of, claim.scale.value, claim.target],
        "lengths": None,
        "curve": None,
        "decode": None,
    }
    if claim.races:
        subject["lengths"] = at.lengths
    if CURVE in used:
        subject["curve"] = at.curve
    if at.decode and DECODING in used:
        subject["decode"] = asdict(at.decode)
    if claim.at_equal_loss:
        subject["equal_loss"] = SHARES
    return subject


def _rule(plan: StudyPlan, claim: Claim) -> dict[str, object]:
    """Return what decides a claim: its ends, margins, declared noise, and what lists its seeds."""
    guards = list[tuple[str, str, float]]()
    for guard in claim.guards:
        guards.append((guard.metric, guard.scale.value, guard.margin(plan.scale)))
    metrics = {metric.name for metric in claim.metrics}
    noise = dict[str, object]()
    for name, declared in plan.at.noise.items():
        if name in metrics:
            noise[name] = declared.json()
    return {
        "ends": [claim.expected, claim.two_sided],
        "guards": sorted(guards),
        "noise": noise,
        "seeds": _seeds(plan.study.seeds),
    }


def _seeds(seeds: list[int]) -> int | list[int]:
    """Return what lists the seeds, not how many there are: the first, where the others follow in
    turn."""
    first = seeds[0]
    in_turn = list(range(first, first + len(seeds)))
    return first if seeds == in_turn else seeds


def _side(plan: StudyPlan, arm: str, used: set[str]) -> list[object]:
    """Return an arm where it is trained, with its search, and where it is timed. `used`: the places
    of the claim's measurements."""
    side = list[object]()
    as_trained = set(filter(_is_as_trained, used))
    if arm in plan.train and as_trained:
        side.append(plan.content(plan.train[arm], "identity"))
        if plan.study.tune.trials:
            side.append(_search(plan, arm))
    if arm in plan.bench and used - as_trained:
        side.append(plan.content(plan.bench[arm], "step"))
        engine = None
        if DECODING in used:
            engine = engine_of(plan.study, plan.at, arm)
        side.append(engine)
    return side


def _is_as_trained(place: str) -> bool:
    """Say whether an arm has the shape in a place that it is trained with."""
    return place == TRAIN or PLACES[place].as_trained


def _search(plan: StudyPlan, arm: str) -> list[object]:
    """Return the seeds and the trials of an arm's search."""
    trials = compose_trials(plan.study, {arm: plan.train[arm]})
    contents = [plan.content(trial, "identity") for trial in trials.values()]
    return [plan.study.tune.seeds, contents]


def _plain(tree: object) -> object:
    """Return a tree as JSON has it, options by their values."""
    text = json.dumps(tree, default=lambda option: option.value)
    return json.loads(text)


def content_of(plan: StudyPlan, arm: Composed, place: str) -> str:
    """Return the digest of an arm as it is trained, or timed: what a line of the log says of whom
    it is about."""
    what = "identity" if place == TRAIN else "step"
    return digest(_plain(plan.content(arm, what)))
