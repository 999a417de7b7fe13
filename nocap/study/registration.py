"""What binds a claim, and where it stands by its study's log: what was known when it was registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from nocap.config.compose import Composed
from nocap.judge.claim import Claim
from nocap.store.formats import listed, plural, shorten
from nocap.store.record import digest
from nocap.study.evidence import Evidence, places
from nocap.study.log import Line, Log
from nocap.study.plan import StudyPlan, compose_trials
from nocap.study.spec import engine_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A claim's hash is of its composed arms, metric, ends, margins and the rule that lists its seeds. No name is in it."""

    hash: str
    subject: str  # of the arms and the metric alone


def registrations(plan: StudyPlan) -> dict[str, Registration]:
    """Of each claim at the plan's scale."""
    return {claim.id: _registration(plan, claim) for claim in plan.study.claims}


def _registration(plan: StudyPlan, claim: Claim) -> Registration:
    study, at, used = plan.study, plan.at, places(claim)
    measured = {
        "arms": [_side(plan, arm, used) for arm in study.sides(claim)],
        "metric": [claim.metric, claim.parts, claim.of, claim.scale.value, claim.target],
        "lengths": at.lengths if claim.races else None,
        "curve": at.curve if "curve" in used else None,
        "decode": asdict(at.decode) if at.decode and "decoding" in used else None,
    }
    metrics = {metric.name for metric in claim.metrics}
    decides = {
        "ends": [claim.expected, claim.two_sided],
        "guards": sorted([guard.metric, guard.scale.value, guard.margin(plan.scale)] for guard in claim.guards),
        "noise": {name: noise.json() for name, noise in at.noise.items() if name in metrics},
        "seeds": _rule(study.seeds),
    }
    subject = _plain(measured)
    return Registration(hash=digest([subject, _plain(decides)]), subject=digest(subject))


def _rule(seeds: Sequence[int]) -> Any:
    """What lists the seeds, not how many: the first, where they follow each other."""
    return seeds[0] if list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))) else list(seeds)


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
    """As JSON has it."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    return tree.value if isinstance(tree, Enum) else tree


def content_of(plan: StudyPlan, arm: Composed, place: str) -> str:
    """The digest of an arm as it is trained, or timed: what a line of the log says of whom it is about."""
    return digest(_plain(plan.content(arm, "identity" if place == "train" else "step")))


# --- what stands ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a claim stands."""

    hash: str
    at: str | None  # when it was registered
    exploratory: str | None  # why its verdict is
    notes: list[str]  # short ones, for people


def provenance(plan: StudyPlan, claim: Claim, evidence: Evidence, logs: Sequence[Log], *, machine: str) -> Provenance:
    """`logs`: the study's own, then those of the studies beside it."""
    own, mine = logs[0], _registration(plan, claim)
    kept = {i for i, line in enumerate(own.lines) if line["event"] == "registration" and line["hash"] == mine.hash}
    first = own.lines[min(kept)] if kept else None
    at = first["at"] if first else None
    composed = {place: arms for place, arms in evidence.arms_of(claim.arm).items() if place in places(claim)}
    contents = {place: {content_of(plan, arm, place) for arm in arms} for place, arms in composed.items()}
    known, others = list[str](), set[str]()
    for number, log in enumerate(logs):
        for line in _unknowing(log, number, first, kept):
            # What is timed is timed anew in each study; what another study trained is the same run.
            if _is_of(line, claim, contents) and (number == 0 or line["event"] == "run"):
                known.append(name_of({**line, "arm": claim.arm}))  # by the name that it has now, as evidence has it
            elif line["event"] == "registration" and line["subject"] == mine.subject and line["hash"] != mine.hash:
                together = first is not None and (line["at"], line["machine"]) == (first["at"], first["machine"])  # knowing nothing
                others |= set() if together else {line["hash"]}
    known += [name for name, arm, started in evidence.used(claim, plan.study) if arm == claim.arm and _before(started, at)]
    reasons = [] if at else ["not registered"]
    if known:
        reasons.append(f"{'registered after' if at else 'after'} {_counts(known)} ({shorten(sorted(set(known)), most=2)})")
    reasons += [f"its arms and metric were registered before with other ends, margins or seeds ({len(others)})"] if others else []
    reasons += [f"its log's line {number} does not follow: edited, or one is gone" for number in own.broken[:1]]
    older = sorted({name for name, arm, started in evidence.used(claim, plan.study) if arm != claim.arm and _before(started, at)})
    notes = [f"older baseline: {shorten(older, most=2)}"] if older and at else []
    analyses = {line["number"] for line in own.of("analysis", hash=mine.hash, machine=machine)}
    notes += [*_again(claim, contents, own, machine), *([f"{len(analyses)} analyses"] if len(analyses) > 1 else [])]
    elsewhere = {line["machine"]: line["word"] for line in own.of("analysis", hash=mine.hash) if line["machine"] != machine}
    notes += [f"{word} on another machine ({name})" for name, word in elsewhere.items()]
    return Provenance(hash=mine.hash, at=at, exploratory="; ".join(reasons) or None, notes=notes)


def _before(started: str, at: str | None) -> bool:
    return at is not None and (not started or datetime.fromisoformat(started) < datetime.fromisoformat(at))


def _is_of(line: Line, claim: Claim, contents: Mapping[str, set[str]]) -> bool:
    """Whether it is a result of the claim's arm and seeds, under whatever name."""
    if line["event"] == "run":
        return line["seed"] in claim.seeds and line["content"] in contents.get("train", ())
    return line["event"] == "session" and bool({*line["contents"].values()} & contents.get(line["place"], set()))


def _unknowing(log: Log, number: int, registration: Line | None, kept: set[int]) -> Iterator[Line]:
    """The lines that do not follow the claim's registration: of its own log by the chain, of another study's (a `number` above 0) by
    date."""
    for line, after in zip(log.lines, log.after, strict=True):
        if (number == 0 and not after & kept) or (number > 0 and (registration is None or _before(line["at"], registration["at"]))):
            yield line


def _again(claim: Claim, contents: Mapping[str, set[str]], log: Log, machine: str) -> list[str]:
    """`2 outcomes of mqa, seed 0`: what was measured again and came out otherwise."""
    lines = [line for line in log.lines if line["machine"] == machine and _is_of(line, claim, contents)]
    named = [(name_of({**line, "arm": claim.arm}), line) for line in lines]
    outcomes = dict.fromkeys((name, str(line["val_loss"] if line["event"] == "run" else line["measured"])) for name, line in named)
    slots = Counter(name for name, _ in outcomes)
    times = sorted({n for n in slots.values() if n > 1})
    return [f"{n} outcomes of {shorten([slot for slot in slots if slots[slot] == n], most=2)}" for n in times]


def name_of(line: Line) -> str:
    """Of a result, for people."""
    if line["event"] == "session":
        return f"{line['place']} session {line['number']}"
    return f"{line['arm']}, seed {line['seed']}" + (f", {line['short']} steps" if line["short"] else "")


def _counts(names: Sequence[str]) -> str:
    """`3 runs and 1 session`."""
    timed = sum(" session " in name for name in set(names))
    return listed(plural(n, noun) for n, noun in ((len(set(names)) - timed, "run"), (timed, "session")) if n)
