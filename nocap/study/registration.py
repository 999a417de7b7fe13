"""What binds a claim, and where it stands by its study's log: what was known when it was registered."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nocap.config.compose import Composed
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.sessions.figures import PACE, TRAIN
from nocap.store.formats import listed, plural, shorten
from nocap.store.metrics import moment
from nocap.store.record import digest
from nocap.study.evidence import Evidence, places
from nocap.study.log import AnalysisLine, LogLine, RegistrationLine, RunLine, SessionLine, StudyLog
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
    measured: dict[str, object] = {
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


AS_TRAINED = {TRAIN, PACE}


def _side(plan: StudyPlan, arm: str, used: set[str]) -> list[Any]:
    """Return an arm where it is trained, with its search, and where it is timed."""
    tune = plan.study.tune
    side = list[Any]()
    if arm in plan.train and used & AS_TRAINED:
        side.append(plan.content(plan.train[arm], "identity"))
        if tune.trials:
            trials = compose_trials(plan.study, {arm: plan.train[arm]})
            side.append([tune.seeds, [plan.content(made, "identity") for made in trials.values()]])
    if arm in plan.bench and used - AS_TRAINED:
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
    plan: StudyPlan, claim: Claim, evidence: Evidence, logs: Sequence[StudyLog], *, machine: str
) -> Provenance:
    """Return where a claim stands. `logs`: the study's own, then those of the studies beside it."""
    own = logs[0]
    registration = _registration(plan, claim)
    same = own.of(RegistrationLine, hash=registration.hash)
    first = same[0] if same else None
    at = first.at if first else None
    contents = _contents(plan, claim, evidence)
    known = list[str]()
    others = set[str]()
    first_place = own.lines.index(first) if first is not None else 0
    for log in logs:
        for place, line in enumerate(log.lines):
            is_above = log is own and place < first_place
            if first is not None and not _came_before(line, first, is_above=is_above):
                continue
            # What is timed is timed anew in each study; what another study trained is the same run.
            if isinstance(line, RunLine) or (isinstance(line, SessionLine) and log is own):
                if _is_of(line, claim, contents):
                    # by the name that it has now, as evidence has it
                    known.append(name_of(line, claim.arm))
            elif (
                isinstance(line, RegistrationLine)
                and line.subject == registration.subject
                and line.hash != registration.hash
                # those written together knew nothing of each other
                and (first is None or (line.at, line.machine) != (first.at, first.machine))
            ):
                others.add(line.hash)
    older = [(name, arm) for name, arm, started in evidence.used(claim, plan.study) if _before(started, at)]
    known += [name for name, arm in older if arm == claim.arm]
    baseline = sorted({name for name, arm in older if arm != claim.arm})
    notes = list[str]()
    if baseline:
        notes.append(f"older baseline: {shorten(baseline, most=2)}")
    here = [line for line in own.lines if line.machine == machine]
    notes += _again(claim, here, contents)
    notes += _said(own.of(AnalysisLine, hash=registration.hash), machine)
    return Provenance(hash=registration.hash, at=at, exploratory=_exploratory(at, known, others), notes=notes)


def _exploratory(at: str | None, known: Sequence[str], others: Collection[str]) -> str | None:
    """Say why a verdict is exploratory; `None`: it is not. `known`: results that were there before the
    registration; `others`: hashes that the same arms and metric were registered with before."""
    reasons = list[str]()
    if at is None:
        reasons.append("not registered")
    if known:
        late = f"{'registered after' if at else 'after'} {_counts(known)}"
        reasons.append(f"{late} ({shorten(sorted(set(known)), most=2)})")
    if others:
        reasons.append(
            f"its arms and metric were registered before with other ends, margins or seeds ({len(others)})"
        )
    return "; ".join(reasons) or None


def _contents(plan: StudyPlan, claim: Claim, evidence: Evidence) -> dict[str, set[str]]:
    """Return the digests of a claim's arm, as it is trained and timed, by place."""
    contents = dict[str, set[str]]()
    for place in places(claim):
        arms = evidence.arms.get(place, {}).get(claim.arm, ())
        contents[place] = {content_of(plan, arm, place) for arm in arms}
    return contents


def _came_before(line: LogLine, registration: LogLine, *, is_above: bool) -> bool:
    """Say whether a line was written before a registration. `is_above`: it stands above it in one log, which
    decides where both have one second."""
    if is_above:
        return not _before(registration.at, line.at)
    return _before(line.at, registration.at)


def _again(claim: Claim, lines: Sequence[LogLine], contents: Mapping[str, set[str]]) -> list[str]:
    """Name what was measured more than once on a machine, and did not come out alike."""
    outcomes: dict[str, set[str]] = {}
    for line in lines:
        if isinstance(line, RunLine | SessionLine) and _is_of(line, claim, contents):
            figures = line.val_loss if isinstance(line, RunLine) else line.measured
            outcomes.setdefault(name_of(line, claim.arm), set()).add(str(figures))
    again = [name for name, some in outcomes.items() if len(some) > 1]
    return [f"measured again, and otherwise: {shorten(again, most=2)}"] if again else []


def _said(analyses: Sequence[AnalysisLine], machine: str) -> list[str]:
    """Say how often a claim was analysed here, and what came out on other machines."""
    here = {line.number for line in analyses if line.machine == machine}
    elsewhere = {line.machine: line.word for line in analyses if line.machine != machine}
    notes = [f"{word} on another machine ({name})" for name, word in elsewhere.items()]
    return [f"{len(here)} analyses", *notes] if len(here) > 1 else notes


def _before(started: str, at: str | None) -> bool:
    if at is None:
        return False
    began, registered = moment(started), moment(at)
    return began is None or (registered is not None and began < registered)


def _is_of(line: RunLine | SessionLine, claim: Claim, contents: Mapping[str, set[str]]) -> bool:
    """Say whether a line is of a result of the claim's arm and seeds, under whatever name."""
    if isinstance(line, RunLine):
        return line.seed in claim.seeds and line.content in contents.get("train", ())
    return bool({*line.contents.values()} & contents.get(line.place, set()))


def name_of(line: RunLine | SessionLine, arm: str) -> str:
    """Name a result for people. `arm`: as it is called now."""
    if isinstance(line, SessionLine):
        return f"{line.place} session {line.number}"
    steps = f", {line.short} steps" if line.short else ""
    return f"{arm}, seed {line.seed}{steps}"


def _counts(names: Sequence[str]) -> str:
    """`3 runs and 1 session`."""
    timed = sum(" session " in name for name in set(names))
    return listed(plural(n, noun) for n, noun in ((len(set(names)) - timed, "run"), (timed, "session")) if n)
