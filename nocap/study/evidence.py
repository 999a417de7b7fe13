"""What a study's runs and sessions measured, as measurements of a claim; its bound; and what is older than its registration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from nocap.judge import stats
from nocap.judge.claim import BASELINE, Claim, Rule
from nocap.store.measurement import HELD, Ending, Measurement, Metric
from nocap.store.runs import Record, dig
from nocap.study.spec import Study

Seen = Mapping[str, Any]  # what a session measured of one arm, as its file has it
Session = Mapping[str, Any]  # a session's whole file
FIELD_OF = {"steps": "bench", "parts": "parts", "lengths": "curve", "decoding": "decoding"}  # instrument → field of the evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was measured at one scale. A run or session that is not there is not in its mapping."""

    runs: Mapping[tuple[str, int], Record] = field(default_factory=dict)  # (arm, seed)
    shorter: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)  # (arm, seed) → steps → the run of so many
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # arm → the steps of all its shorter runs, also of missing ones
    pace: Mapping[int, Session] = field(default_factory=dict)  # seed → steps of the training shape
    bench: Mapping[int, Session] = field(default_factory=dict)  # steps of the claim's shape
    parts: Mapping[tuple[str, int], Session] = field(default_factory=dict)  # (arm, seed)
    curve: Mapping[int, Session] = field(default_factory=dict)
    decoding: Mapping[int, Session] = field(default_factory=dict)

    def seen(self, place: str, arm: str, seed: int) -> Seen | None:
        """What a place's session of this seed measured of the arm."""
        session = self.parts.get((arm, seed)) if place == "parts" else getattr(self, place).get(seed)
        return dig(session, "measured", "arms", arm)

    def first(self, place: str, arm: str) -> Seen | None:
        """The first session's; what is counted is equal in all."""
        seeds = [key[1] for key in self.parts if key[0] == arm] if place == "parts" else getattr(self, place)
        return next((seen for seed in seeds if (seen := self.seen(place, arm, seed)) is not None), None)


# --- measurements ------------------------------------------------------------------------------------------------------------------


def measurements(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Of the claim's arm and of the one it is compared with, in each metric, seed by seed; what is missing is left out."""
    sides = dict.fromkeys((claim.arm, study.against(claim)))
    return [
        found
        for arm in sides
        for metric in claim.metrics
        for seed in claim.seeds
        if (found := _measured(claim, metric, arm, seed, study, evidence)) is not None
    ]


def _measured(claim: Claim, metric: Metric, arm: str, seed: int, study: Study, evidence: Evidence) -> Measurement | None:
    if metric.made_by == "train":
        return _trained(claim, metric, arm, seed, study, evidence)
    place = FIELD_OF[metric.made_by]
    if (seen := evidence.seen(place, arm, seed)) is None:
        return None
    value = (
        _of_parts(seen, claim, metric)
        if place == "parts"
        else dig(seen, *(("memory_mib", "peak") if metric.name == "memory_mib" else (metric.name,)))
    )
    session = evidence.parts[arm, seed] if place == "parts" else getattr(evidence, place)[seed]
    where, when = str(dig(session, "hardware", "fingerprint") or ""), str(session.get("started", ""))
    return None if value is None else Measurement(arm=arm, repeat=seed, metric=metric, value=float(value), where=where, when=when)


def _of_parts(seen: Seen, claim: Claim, metric: Metric) -> float:
    key = {"part_mib": "mib", "held_mib": "memory_mib", "part_params": "params"}.get(metric.name, "ms")
    spent = float(sum(seen[key].get(part, 0) for part in claim.parts))
    if metric.name != "share":
        return spent
    return spent / (sum(seen["ms"].get(part, 0.0) for part in claim.of) if claim.of else seen["step_ms"])


def _trained(claim: Claim, metric: Metric, arm: str, seed: int, study: Study, evidence: Evidence) -> Measurement | None:
    run = evidence.runs.get((arm, seed))
    if run is None:
        return None

    def measured(value: float | None, ending: Ending = Ending.measured) -> Measurement:
        where, when = run.machine[0], run.started
        return Measurement(arm=arm, repeat=seed, metric=metric, value=value, ending=ending, where=where, when=when)

    if metric.name in ("val_loss", "val_bpb"):
        value = run.number(metric.name)
        return measured(None, Ending.diverged) if run.status == "diverged" else None if value is None else measured(value)
    steps = steps_to_target(claim, arm, seed, study, evidence)
    if steps is None:
        return None
    value, ending = steps
    if metric.name == "time_to_target_s" and value is not None:
        seen = evidence.seen("pace", arm, seed)
        if seen is None or seen["step_ms"] is None:
            return None
        value *= seen["step_ms"] / 1e3
    return measured(value, ending)


# --- steps to a loss ---------------------------------------------------------------------------------------------------------------

Steps = tuple[float | None, Ending]


def steps_to_target(claim: Claim, arm: str, seed: int, study: Study, evidence: Evidence) -> Steps | None:
    """Steps that a run took to the claim's target, or of the shortest schedule that ends at the baseline's own final loss."""
    run, against = evidence.runs[(arm, seed)], study.against(claim)
    theirs = evidence.runs.get((against, seed)) if claim.target == BASELINE else run
    if theirs is None:
        return None
    if "diverged" in (run.status, theirs.status):
        return None, Ending.diverged
    if claim.target != BASELINE:
        at = stats.crossing([float(x) for x in run.curve.step], run.curve.val_loss, target=claim.target)
        return (float(run.curve.step[-1]), Ending.censored) if at is None else (at, Ending.measured)
    if arm == against:
        return float(steps_of(run)), Ending.measured
    shorter = evidence.shorter.get((arm, seed), {})
    if any(steps not in shorter for steps in evidence.lengths.get(arm, ())):
        return None  # a length that is missing might have been the one
    assert theirs.val_loss is not None
    return shortest([*shorter.values(), run], target=theirs.val_loss)


def shortest(runs: list[Record], *, target: float) -> Steps:
    """The shortest schedule that ends at the target: log-linear between the two run lengths around it. Censored at the longest where none
    does. Where the shortest run already does, its length, which is more than was needed."""
    ends = sorted((steps_of(run), run.val_loss) for run in runs if run.val_loss is not None and run.status == "finished")
    losses = np.minimum.accumulate([loss for _, loss in ends])  # noise can make a longer run end higher
    reached = [i for i, loss in enumerate(losses) if loss <= target]
    if not reached:
        return float(ends[-1][0]), Ending.censored
    i = reached[0]
    if i == 0:
        return float(ends[0][0]), Ending.measured
    (before, after), (high, low) = (math.log(ends[i - 1][0]), math.log(ends[i][0])), (losses[i - 1], losses[i])
    return math.exp(float(np.interp(target, [low, high], [after, before]))), Ending.measured


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
        seen = [evidence.seen("parts", arm, seed) for arm, seed in evidence.parts if arm == sides[0]]
        shares = [sum(one["ms"].get(part, 0.0) for part in claim.mechanism.parts) / one["step_ms"] for one in seen if one]
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


def older(claim: Claim, study: Study, evidence: Evidence, *, registered: Mapping[str, datetime]) -> Older:
    """Each run and session that a claim uses and that began before it, or at no known time."""
    at = registered.get(claim.hash())
    found = Older(arm=[], baseline=[])
    for name, arm, started in _used(claim, study, evidence):
        if at is None or not started or datetime.fromisoformat(started) < at:
            (found.baseline if arm not in (None, claim.arm) else found.arm).append(name)
    return found


def _used(claim: Claim, study: Study, evidence: Evidence) -> Iterator[tuple[str, str | None, str]]:
    """Name, arm and start of each run and session; the arm is None where a session has several."""
    instruments = {metric.made_by for metric in claim.metrics}
    for (arm, seed), run in evidence.runs.items():
        if arm in study.sides(claim) and seed in claim.seeds and "train" in instruments:
            yield f"{arm}, seed {seed}", arm, run.started
            for steps, short in evidence.shorter.get((arm, seed), {}).items():
                if claim.target == BASELINE:
                    yield f"{arm}, seed {seed}, {steps} steps", arm, short.started
    places = [FIELD_OF[instrument] for instrument in instruments - {"train"}]
    places += ["pace"] if any(metric.name == "time_to_target_s" for metric in claim.metrics) else []
    for place in places:
        for key, session in getattr(evidence, place).items():
            arm, seed = key if isinstance(key, tuple) else (None, key)
            if seed in claim.seeds and arm in (None, *study.sides(claim)):
                yield f"a {place} session", arm, str(session.get("started", ""))
