"""What a study's runs and sessions measured; the bound of a claim; and what is older than its registration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nocap.judge.claim import BASELINE, Claim, Rule
from nocap.judge.sittings import APART_MIN, Span, sittings
from nocap.store.metrics import HELD
from nocap.store.runs import Record, dig
from nocap.study.spec import Study

Seen = Mapping[str, Any]  # what a session measured of one arm, as its file has it
Session = Mapping[str, Any]  # a session's whole file
FIELD_OF = {"steps": "bench", "parts": "parts", "lengths": "curve", "decoding": "decoding"}  # instrument → field of the evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One arm in one session."""

    sitting: int  # from 1, in the order of time
    session: Session
    seen: Seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was measured at one scale. A run or session that is not there is left out."""

    runs: Mapping[tuple[str, int], Record] = field(default_factory=dict)  # (arm, seed)
    shorter: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)  # (arm, seed) → steps → the run of so many
    damaged: frozenset[tuple[str, int]] = frozenset()  # (arm, seed) of runs whose record was changed
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # arm → the steps of all its shorter runs, also of missing ones
    pace: Sequence[Session] = ()  # steps of the training shape
    bench: Sequence[Session] = ()  # steps of the claim's shape
    parts: Sequence[Session] = ()  # of one arm each
    curve: Sequence[Session] = ()
    decoding: Sequence[Session] = ()
    apart_min: float = APART_MIN  # sessions of a place with less between them are one sitting

    def held(self, place: str, arm: str, seeds: Collection[int] | None = None) -> list[Held]:
        """What a place's sessions, of these seeds or of all, measured of an arm, in the order of time."""
        of = [one for one in getattr(self, place) if seeds is None or one["seed"] in seeds]
        numbers = sittings([span(one) for one in of], apart_min=self.apart_min)
        found = [
            Held(sitting=n, session=one, seen=seen) for n, one in zip(numbers, of, strict=True) if (seen := _seen(one, arm)) is not None
        ]
        return sorted(found, key=lambda one: span(one.session))

    def first(self, place: str, arm: str) -> Seen | None:
        """The first session's; what is counted is equal in all."""
        return next((one.seen for one in self.held(place, arm)), None)

    def has_lengths(self, arm: str, seed: int) -> bool:
        """Whether all shorter runs are there: one that is missing might have been the one."""
        return all(steps in self.shorter.get((arm, seed), {}) for steps in self.lengths.get(arm, ()))


def span(session: Session) -> Span:
    """Its start and end; of a file from before ends were kept, its start."""
    began = datetime.fromisoformat(session["started"])
    return began, datetime.fromisoformat(session["ended"]) if "ended" in session else began


def _seen(session: Session, arm: str) -> Seen | None:
    seen = dig(session, "measured", "arms", arm)
    return seen if isinstance(seen, Mapping) else None


def steps_of(run: Record) -> int:
    return int(run.config["trainer.steps"])


def check_targets(study: Study, evidence: Evidence) -> None:
    """Refuse a target that the first validation already met: every run would reach it at once.

    Errors:
        ValueError: that, with claim and losses.
    """
    firsts = [run.curve.val_loss[0] for run in evidence.runs.values() if run.curve.val_loss]
    for claim in study.claims:
        for first in firsts if claim.target not in (None, BASELINE) else []:
            if claim.target >= first:
                raise ValueError(f"claim {claim.id}: target must be below the first validation loss, {first:.4f}, got {claim.target}")


# --- bounds ------------------------------------------------------------------------------------------------------------------------

# Parts of a step → of the FLOP count; both MLP matrices are one component.
COMPONENT = {"qkv": "qkv", "scores": "scores", "attention_out": "attention_out", "mlp_up": "mlp", "mlp_down": "mlp", "head": "head"}


def bound(claim: Claim, study: Study, evidence: Evidence) -> float | None:
    """What arithmetic allows, by the claim's rule; `None` where it sets no bound, or what it needs was not measured."""
    rule, sides = claim.mechanism.rule, (study.against(claim), claim.arm)
    if rule is Rule.given:
        return claim.mechanism.bound
    if rule is Rule.amdahl:
        seen = [one.seen for one in evidence.held("parts", sides[0])]
        parts = {part: claim.mechanism.saved.get(part, 1.0) for part in claim.mechanism.parts}
        shares = [sum(saved * one["ms"].get(part, 0.0) for part, saved in parts.items()) / one["step_ms"] for one in seen]
        return 1 / (1 - max(shares)) if shares and max(shares) < 1 else None
    read: dict[Rule, Callable[[Seen], float]] = {
        Rule.flops: lambda seen: _flops(seen["component_flops"], claim.parts),
        Rule.params: lambda seen: float(seen["params"]),
        Rule.memory: lambda seen: sum(seen["memory_mib"][part] for part in HELD),  # a GPU's peak has the allocator's slack in it, too
        Rule.kv: lambda seen: float(seen["kv_bytes"]),
    }
    place = "parts" if rule is Rule.flops and claim.parts else "bench" if evidence.bench else "pace"
    both = [one for arm in sides if (one := evidence.first(place, arm)) is not None]
    if len(both) < 2 or any(one.get("status", "measured") != "measured" for one in both):
        return None  # an arm that did not fit gives no bound
    theirs, mine = (read[rule](one) for one in both)
    return theirs / mine if mine > 0 else None


def _flops(components: Mapping[str, float], parts: list[str]) -> float:
    """Of a token; of these parts of the step where there are some."""
    named = dict.fromkeys(COMPONENT[part] for part in parts if part in COMPONENT)
    return sum(components[name] for name in named) if parts else sum(components.values())


# --- registration ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Older:
    """What began before its claim was registered."""

    arm: list[str]  # with the claim's arm in them: its verdict is exploratory
    baseline: list[str]  # with the baseline alone, which may serve


def older(claim: Claim, study: Study, evidence: Evidence, *, registered: datetime | None) -> Older:
    """Each run and session that a claim uses and that began before it was registered, or at no known time."""
    found = Older(arm=[], baseline=[])
    for name, arm, started in _used(claim, study, evidence):
        if registered is None or not started or datetime.fromisoformat(started) < registered:
            (found.baseline if arm not in (None, claim.arm) else found.arm).append(name)
    return found


def _used(claim: Claim, study: Study, evidence: Evidence) -> Iterator[tuple[str, str | None, str]]:
    """Name, arm and start of each run and session; the arm is None where a session has several."""
    for (arm, seed), run in evidence.runs.items():
        if arm in study.sides(claim) and seed in claim.seeds and "train" in places(claim):
            yield name_of_run(arm, seed), arm, run.started
            for steps, short in evidence.shorter.get((arm, seed), {}).items():
                if claim.races:
                    yield name_of_run(arm, seed, steps), arm, short.started
    for place in sorted(places(claim) - {"train"}):
        for session in getattr(evidence, place):
            arms = session["measured"]["arms"]
            if session["seed"] in claim.seeds and any(arm in arms for arm in study.sides(claim)):
                alone = next(iter(arms)) if len(arms) == 1 else None
                yield name_of_session(f"{place}-{alone}" if alone else place, session["seed"]), alone, str(session.get("started", ""))


def places(claim: Claim) -> set[str]:
    """The fields of the evidence that a claim uses, `train` for the runs."""
    paced = any(metric.name == "time_to_target_s" for metric in claim.metrics)
    return {FIELD_OF.get(metric.made_by, metric.made_by) for metric in claim.metrics} | ({"pace"} if paced else set())


def name_of_run(arm: str, seed: int, short: int = 0) -> str:
    """For people. `short`: the steps of a shorter schedule."""
    return f"{arm}, seed {seed}" + (f", {short} steps" if short else "")


def name_of_session(what: str, seed: int) -> str:
    return f"{what} session, seed {seed}"
