"""What binds a claim, and where it stands by its study's log: what was known when it was registered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nocap.config.compose import Composed
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.store.formats import listed, plural, shorten
from nocap.store.metrics import moment
from nocap.store.record import digest
from nocap.study.evidence import Evidence, places
from nocap.study.log import Line, Log
from nocap.study.plan import StudyPlan, compose_trials
from nocap.study.spec import engine_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A claim's hash is of its composed arms, metric, ends, margins and the rule that lists its seeds. No
    name is in it."""

    hash: str
    subject: str  # of the arms and the metric alone


def registrations(plan: StudyPlan) -> dict[str, Registration]:
    """Of each claim at the plan's scale."""
    return {claim.id: _registration(plan, claim) for claim in plan.study.claims}


def _registration(plan: StudyPlan, claim: Claim) -> Registration:
    study, at, used = plan.study, plan.at, places(claim)
    seeds, metrics = study.seeds, {metric.name for metric in claim.metrics}
    in_turn = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    measured: dict[str, Any] = {
        "arms": [_side(plan, arm, used) for arm in study.sides(claim)],
        "metric": [claim.metric, claim.parts, claim.of, claim.scale.value, claim.target],
        "lengths": at.lengths if claim.races else None,
        "curve": at.curve if "curve" in used else None,
        "decode": asdict(at.decode) if at.decode and "decoding" in used else None,
    }
    if claim.at_equal_loss:
        measured["equal_loss"] = SHARES
    decides = {
        "ends": [claim.expected, claim.two_sided],
        "guards": sorted(
            [guard.metric, guard.scale.value, guard.margin(plan.scale)] for guard in claim.guards
        ),
        "noise": {name: noise.json() for name, noise in at.noise.items() if name in metrics},
        "seeds": seeds[0] if in_turn else seeds,  # what lists them, not how many
    }
    subject = _plain(measured)
    return Registration(hash=digest([subject, _plain(decides)]), subject=digest(subject))


def _side(plan: StudyPlan, arm: str, used: set[str]) -> list[Any]:
    """An arm where it is trained, with its search, and where it is timed."""
    tune, side = plan.study.tune, list[Any]()
    if arm in plan.train and used & {"train", "pace"}:
        side.append(plan.content(plan.train[arm], "identity"))
        if tune.trials:
            trials = compose_trials(plan.study, {arm: plan.train[arm]})
            side.append([tune.seeds, [plan.content(made, "identity") for made in trials.values()]])
    if arm in plan.bench and used - {"train", "pace"}:
        side.append(plan.content(plan.bench[arm], "step"))
        side.append(engine_of(plan.study, plan.at, arm) if "decoding" in used else None)
    return side


def _plain(tree: Any) -> Any:
    """As JSON has it, options by their values."""
    return json.loads(json.dumps(tree, default=lambda option: option.value))


def content_of(plan: StudyPlan, arm: Composed, place: str) -> str:
    """The digest of an arm as it is trained, or timed: what a line of the log says of whom it is about."""
    return digest(_plain(plan.content(arm, "identity" if place == "train" else "step")))


# --- what stands --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a claim stands."""

    hash: str
    at: str | None  # when it was registered
    exploratory: str | None  # why its verdict is
    notes: list[str]  # short ones, for people


def provenance(
    plan: StudyPlan, claim: Claim, evidence: Evidence, logs: Sequence[Log], *, machine: str
) -> Provenance:
    """`logs`: the study's own, then those of the studies beside it."""
    own, registration, known, others = logs[0], _registration(plan, claim), list[str](), set[str]()
    kept = {
        i
        for i, line in enumerate(own.lines)
        if line["event"] == "registration" and line["hash"] == registration.hash
    }
    first: Line = own.lines[min(kept)] if kept else {}
    at = first.get("at")
    contents = {
        place: {content_of(plan, arm, place) for arm in evidence.arms.get(place, {}).get(claim.arm, ())}
        for place in places(claim)
    }
    for log in logs:
        for line, after in zip(log.lines, log.after, strict=True):
            # A line of its own log knew of the registration by the chain, one of another study's by its date.
            if after & kept if log is own else at is not None and not _before(line["at"], at):
                continue
            # What is timed is timed anew in each study; what another study trained is the same run.
            if _is_of(line, claim, contents) and (log is own or line["event"] == "run"):
                # by the name that it has now, as evidence has it
                known.append(name_of({**line, "arm": claim.arm}))
            elif (
                line["event"] == "registration"
                and line["subject"] == registration.subject
                and line["hash"] != registration.hash
                # those written together knew nothing of each other
                and (line["at"], line["machine"]) != (at, first.get("machine"))
            ):
                others.add(line["hash"])
    older = [(name, arm) for name, arm, started in evidence.used(claim, plan.study) if _before(started, at)]
    known += [name for name, arm in older if arm == claim.arm]
    baseline = sorted({name for name, arm in older if arm != claim.arm})
    late = f"{'registered after' if at else 'after'} {_counts(known)}"
    before = "its arms and metric were registered before with other ends, margins or seeds"
    reasons: dict[str, object] = {
        "not registered": not at,
        f"{late} ({shorten(sorted(set(known)), most=2)})": known,
        f"{before} ({len(others)})": others,
        f"its log's line {min(own.broken, default=0)} does not follow: edited, or one is gone": own.broken,
    }
    notes = [
        *([f"older baseline: {shorten(baseline, most=2)}"] if baseline else []),
        *_again(claim, own.of("run", "session", machine=machine), contents),
        *_said(own.of("analysis", hash=registration.hash), machine),
    ]
    exploratory = "; ".join(reason for reason, holds in reasons.items() if holds) or None
    return Provenance(hash=registration.hash, at=at, exploratory=exploratory, notes=notes)


def _again(claim: Claim, lines: Sequence[Line], contents: Mapping[str, set[str]]) -> list[str]:
    """What was measured more than once on a machine, and did not come out alike."""
    outcomes: dict[str, set[str]] = {}
    for line in lines:
        if _is_of(line, claim, contents):
            outcomes.setdefault(name_of({**line, "arm": claim.arm}), set()).add(
                str(line.get("val_loss", line.get("measured")))
            )
    again = [name for name, some in outcomes.items() if len(some) > 1]
    return [f"measured again, and otherwise: {shorten(again, most=2)}"] if again else []


def _said(analyses: Sequence[Line], machine: str) -> list[str]:
    """How often a claim was analysed here, and what came out on other machines."""
    here = {line["number"] for line in analyses if line["machine"] == machine}
    elsewhere = {line["machine"]: line["word"] for line in analyses if line["machine"] != machine}
    return [
        *([f"{len(here)} analyses"] if len(here) > 1 else []),
        *(f"{word} on another machine ({name})" for name, word in elsewhere.items()),
    ]


def _before(started: str, at: str | None) -> bool:
    if at is None:
        return False
    began, registered = moment(started), moment(at)
    return began is None or (registered is not None and began < registered)


def _is_of(line: Line, claim: Claim, contents: Mapping[str, set[str]]) -> bool:
    """Whether it is a result of the claim's arm and seeds, under whatever name."""
    if line["event"] == "run":
        return line["seed"] in claim.seeds and line["content"] in contents.get("train", ())
    return line["event"] == "session" and bool(
        {*line["contents"].values()} & contents.get(line["place"], set())
    )


def name_of(line: Line) -> str:
    """Of a result, for people."""
    if line["event"] == "session":
        return f"{line['place']} session {line['number']}"
    return f"{line['arm']}, seed {line['seed']}" + (f", {line['short']} steps" if line["short"] else "")


def _counts(names: Sequence[str]) -> str:
    """`3 runs and 1 session`."""
    timed = sum(" session " in name for name in set(names))
    return listed(plural(n, noun) for n, noun in ((len(set(names)) - timed, "run"), (timed, "session")) if n)
