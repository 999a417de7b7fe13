"""Where a claim stands by its study's ledger: when it was registered, what had been seen by then, what was measured again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nocap.judge.claim import Claim
from nocap.store.formats import listed, plural, shorten
from nocap.store.record import digest
from nocap.study.evidence import Evidence, name_of_run, name_of_session, older, places
from nocap.study.ledger import ENDED, Ledger, Line
from nocap.study.plan import StudyPlan
from nocap.study.registration import content


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a claim stands."""

    hash: str
    at: str | None  # when it was registered
    exploratory: str | None  # why its verdict is
    older_baseline: str | None
    notes: list[str]  # short ones, for people


def standing(plan: StudyPlan, claim: Claim, evidence: Evidence, ledger: Ledger, *, machine: str, analysis: int) -> Standing:
    """`analysis`: the number of its last."""
    study, hashed = plan.study, digest(content(plan, claim))
    lines = [line for line in ledger.lines if line["scale"] == plan.scale]
    mine = ledger.of("registration", scale=plan.scale, hash=hashed)
    at = mine[0]["at"] if mine else None
    began = None if at is None else datetime.fromisoformat(at)
    before = older(claim, study, evidence, registered=began)
    seen = sorted({*before.arm, *_seen_before(mine[0] if mine else None, claim, lines)}, key=lambda name: (_timing(name), len(name), name))
    how = "registered" if at else "not registered"
    reasons = [f"{how} after {_counts(seen)}"] if seen else [] if at else ["not registered"]
    notes = [f"its ledger's line {number} does not follow: edited, or one is gone" for number in ledger.broken[:1]]
    here = [line for line in lines if line["machine"] == machine and _concerns(line, claim, study.sides(claim))]
    hashed_so = {line["hash"] for line in ledger.of("registration", scale=plan.scale, claim=claim.id)} | {hashed}
    registrations = [f"one of {len(hashed_so)} registrations"] if len(hashed_so) > 1 else []
    said = sorted({line["n"] for line in ledger.of("look", scale=plan.scale, hash=hashed, machine=machine, look=analysis)})
    looked = [f"{analysis} analyses"] if analysis > 1 else []
    looked += [f"looked at with {listed(list(map(str, said)))} pairs"] if len(said) > 1 else []
    return Standing(
        hash=hashed,
        at=at,
        exploratory="; ".join([*(f"{reason}{_named(seen)}" for reason in reasons), *notes]) or None,
        older_baseline=f"{shorten(before.baseline, most=2)} began before the claim was registered" if before.baseline else None,
        notes=[*reasons, *notes, *registrations, *_again(here), *looked],
    )


def _seen_before(registration: Line | None, claim: Claim, lines: Sequence[Line]) -> list[str]:
    """Names of the arm's runs and sessions of these seeds that had shown something when the claim was registered."""
    first = len(lines) if registration is None else next(i for i, line in enumerate(lines) if line is registration)
    when = None if registration is None else datetime.fromisoformat(registration["at"])
    stopped = {(line["identity"], line["arm"]) for line in lines[:first] if line.get("status", "begun") != "begun"}

    def showed(line: Line) -> bool:
        """All did but a run that stopped before its first step. One of which no end is known was killed at some step."""
        killed = line.get("status") == "begun" and (line["identity"], line["arm"]) not in stopped
        return line["event"] == "session" or line["status"] in ENDED or line["step"] > 0 or killed

    used = [(i, line) for i, line in enumerate(lines) if line["event"] in ("run", "session") and _concerns(line, claim, [claim.arm])]
    began = {i: datetime.fromisoformat(line["started"]) for i, line in used if line["started"]}
    return [_name(line) for i, line in used if showed(line) and (i < first or (when is not None and i in began and began[i] < when))]


def _concerns(line: Line, claim: Claim, arms: Sequence[str]) -> bool:
    """Whether it is about a run or session of these arms that the claim uses."""
    kind, used = line.get("of", line["event"]), places(claim)
    if line.get("seed") not in claim.seeds:
        return False
    if kind == "run":
        return line["arm"] in arms and "train" in used and (not line["short"] or claim.races)
    place, _, arm = str(line["what"]).partition("-")
    return place in used and any(one in arms for one in ([arm] if arm else line["arms"]))


def _name(line: Line) -> str:
    if line.get("of", line["event"]) == "run":
        return name_of_run(line["arm"], line["seed"], line["short"])
    return name_of_session(line["what"], line["seed"])


def _again(lines: Sequence[Line]) -> list[str]:
    """`second timing of seed 0`, `third training of seeds 1 and 2`; `a session was deleted`."""
    found = []
    for kind, noun in (("session", "timing"), ("run", "training")):
        repeats: Counter[str] = Counter(_name(line) for line in lines if line["event"] == "repeat" and line["of"] == kind)
        seeds: dict[int, set[int]] = {}
        for line in lines:
            if line["event"] == "repeat" and line["of"] == kind:
                seeds.setdefault(repeats[_name(line)], set()).add(line["seed"])
        found += [f"{_ordinal(n + 1)} {noun} of {_seeds(of)}" for n, of in sorted(seeds.items())]
        if gone := {_name(line) for line in lines if line["event"] == "deletion" and line["of"] == kind}:
            found.append(f"{plural(len(gone), kind)} deleted")
    return found


def _seeds(seeds: set[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {listed(map(str, sorted(seeds)))}"


def _ordinal(n: int) -> str:
    return {2: "second", 3: "third"}.get(n, f"{n}th")


def _counts(names: Sequence[str]) -> str:
    """`3 runs and 1 session`."""
    sessions = sum(map(_timing, names))
    return listed(plural(n, noun) for n, noun in ((len(names) - sessions, "run"), (sessions, "session")) if n)


def _timing(name: str) -> bool:
    return " session, seed " in name


def _named(names: Sequence[str]) -> str:
    return f" ({shorten(names, most=2)})" if names else ""
