"""What a study's runs and sessions say about one metric of one arm with one seed, and whether they began under the claim as it is now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nocap.judge import stats
from nocap.store.record import read_json
from nocap.store.runs import Record, dig
from nocap.study.claim import BASELINE, HELD, Claim, Metric, Rule
from nocap.study.spec import DECODED, PROFILED, TIMED, TRAINED, Study, metrics
from nocap.study.verdict import Ending, Outcome, Outcomes

Facts = Mapping[str, Any]
Said = Mapping[int, Facts]  # seed → what a session measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was measured at one scale. A run or session that is not there is not in its mapping."""

    runs: Mapping[tuple[str, int], Record] = field(default_factory=dict)  # (arm, seed)
    shorter: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)  # (arm, seed) → steps → the run of so many
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # arm → the steps of all its shorter runs, also of missing ones
    pace: Said = field(default_factory=dict)  # steps of the training shape
    bench: Said = field(default_factory=dict)  # steps of the claim's shape
    parts: Mapping[tuple[str, int], Facts] = field(default_factory=dict)  # (arm, seed)
    curve: Said = field(default_factory=dict)
    decoding: Said = field(default_factory=dict)
    registered: Mapping[str, list[Mapping[str, str]]] = field(default_factory=dict)  # kind of session → the claims each was begun under


# --- outcomes ----------------------------------------------------------------------------------------------------------------------


def outcomes(claim: Claim, study: Study, evidence: Evidence) -> tuple[Outcomes, Outcomes]:
    """Of the claim's arm, and of what it is compared with."""
    sides = []
    for arm in (claim.arm, study.against(claim)):
        by_metric: dict[Metric, dict[int, Outcome]] = {}
        for metric in metrics(claim):
            found = {seed: outcome(claim, metric, arm, seed, study, evidence) for seed in claim.seeds}
            by_metric[metric] = {seed: one for seed, one in found.items() if one is not None}
        sides.append(by_metric)
    return sides[0], sides[1]


def outcome(claim: Claim, metric: Metric, arm: str, seed: int, study: Study, evidence: Evidence) -> Outcome | None:
    """`None`: it was not measured."""
    if metric in TIMED:
        return _number(_timed(dig(evidence.bench.get(seed, {}), "arms", arm), metric))
    if metric in PROFILED:
        return _number(_profiled(evidence.parts.get((arm, seed)), claim, metric))
    if metric is Metric.exponent:
        return _number(dig(evidence.curve.get(seed, {}), "arms", arm, "exponent"))
    if metric in DECODED:
        return _number(dig(evidence.decoding.get(seed, {}), "arms", arm, metric.value))
    return _trained(claim, metric, arm, seed, study, evidence)


def _number(value: float | None) -> Outcome | None:
    return None if value is None else Outcome(value=float(value))


def _timed(facts: Facts | None, metric: Metric) -> float | None:
    if facts is None:
        return None
    return dig(facts, "memory_mib", "peak") if metric is Metric.memory_mib else facts.get(metric.value)


def _profiled(facts: Facts | None, claim: Claim, metric: Metric) -> float | None:
    if facts is None:
        return None
    if metric is Metric.part_mib:
        return sum(facts["mib"].get(part, 0.0) for part in claim.parts)
    if metric is Metric.held_mib:
        return sum(facts["memory_mib"][part] for part in claim.parts)
    if metric is Metric.part_params:
        return sum(facts["params"].get(part, 0) for part in claim.parts)
    ms: Facts = facts["ms"]
    of = sum(ms.get(part, 0.0) for part in claim.of) if claim.of else facts["step_ms"]
    spent = sum(ms.get(part, 0.0) for part in claim.parts)
    return spent / of if metric is Metric.share else spent


def _trained(claim: Claim, metric: Metric, arm: str, seed: int, study: Study, evidence: Evidence) -> Outcome | None:
    run = evidence.runs.get((arm, seed))
    if run is None:
        return None
    if metric in (Metric.val_loss, Metric.val_bpb):
        value = run.number(metric.value)
        return Outcome(value=None, ending=Ending.diverged) if run.status == "diverged" else _number(value)
    steps = _steps_to_target(claim, arm, seed, study, evidence)
    if steps is None or metric is Metric.steps_to_target or steps.value is None:
        return steps
    step_ms = dig(evidence.pace.get(seed, {}), "arms", arm, "step_ms")
    return None if step_ms is None else Outcome(value=steps.value * step_ms / 1e3, ending=steps.ending)


# --- steps to a loss ---------------------------------------------------------------------------------------------------------------


def _steps_to_target(claim: Claim, arm: str, seed: int, study: Study, evidence: Evidence) -> Outcome | None:
    run = evidence.runs[(arm, seed)]
    if claim.target != BASELINE:
        if run.status == "diverged":
            return Outcome(value=None, ending=Ending.diverged)
        at = stats.crossing([float(x) for x in run.curve.step], run.curve.val_loss, target=claim.target)
        return Outcome(value=float(run.curve.step[-1]), ending=Ending.censored) if at is None else Outcome(value=at)
    theirs = evidence.runs.get((study.against(claim), seed))
    if theirs is None:
        return None
    if theirs.status == "diverged":
        return Outcome(value=None, ending=Ending.diverged)
    if arm == study.against(claim):
        return Outcome(value=float(steps_of(run)))
    if run.status == "diverged":
        return Outcome(value=None, ending=Ending.diverged)
    assert theirs.val_loss is not None
    shorter = evidence.shorter.get((arm, seed), {})
    if any(steps not in shorter for steps in evidence.lengths.get(arm, ())):
        return None  # a length that is missing might have been the one
    return shortest([*shorter.values(), run], target=theirs.val_loss)


def shortest(runs: list[Record], *, target: float) -> Outcome:
    """The shortest schedule that ends at the target: log-linear between the two run lengths around it. Censored at the longest where none
    does; where the shortest run already does, its length, which is more than was needed."""
    ends = sorted((steps_of(run), run.val_loss) for run in runs if run.val_loss is not None and run.status == "finished")
    losses = np.minimum.accumulate([loss for _, loss in ends])  # noise can make a longer run end higher
    reached = [i for i, loss in enumerate(losses) if loss <= target]
    if not reached:
        return Outcome(value=float(ends[-1][0]), ending=Ending.censored)
    i = reached[0]
    if i == 0:
        return Outcome(value=float(ends[0][0]))
    (before, after), (high, low) = (math.log(ends[i - 1][0]), math.log(ends[i][0])), (losses[i - 1], losses[i])
    return Outcome(value=math.exp(float(np.interp(target, [low, high], [after, before]))))


def steps_of(run: Record) -> int:
    return int(run.config["trainer.steps"])


# --- bounds ------------------------------------------------------------------------------------------------------------------------


def bound(claim: Claim, study: Study, evidence: Evidence) -> float | None:
    """What arithmetic allows, by the claim's rule; `None` where it allows anything, or what it needs was not measured."""
    rule = claim.mechanism.rule
    if rule is Rule.given:
        return claim.mechanism.bound
    sides = (study.against(claim), claim.arm)
    if rule is Rule.amdahl:
        found = [facts for (arm, _), facts in evidence.parts.items() if arm == sides[0]]
        share = max((sum(f["ms"].get(part, 0.0) for part in claim.mechanism.parts) / f["step_ms"] for f in found), default=None)
        return None if share is None or share >= 1 else 1 / (1 - share)
    read: dict[Rule, Callable[[Facts], float]] = {
        Rule.flops: lambda facts: _flops(facts["component_flops"], claim.parts),
        Rule.params: lambda facts: float(facts["params"]),
        Rule.memory: lambda facts: sum(facts["memory_mib"][part] for part in HELD),  # a GPU's peak has its slack in it, too
        Rule.kv: lambda facts: float(facts["kv_bytes"]),
    }
    apart = rule is Rule.flops and bool(claim.parts)
    found = _one_of_each(evidence, sides, from_parts=apart)
    if not apart and any(facts.get("status", "measured") != "measured" for facts in found):
        return None  # an arm that did not fit says nothing
    values = [read[rule](facts) for facts in found]
    return values[0] / values[1] if len(values) == 2 and values[1] > 0 else None


def _one_of_each(evidence: Evidence, arms: tuple[str, str], *, from_parts: bool) -> list[Facts]:
    if from_parts:
        firsts = [next((facts for (arm, _), facts in evidence.parts.items() if arm == name), None) for name in arms]
    else:
        said = evidence.bench or evidence.pace
        firsts = [next((facts["arms"][name] for facts in said.values() if name in facts["arms"]), None) for name in arms]
    return [facts for facts in firsts if facts is not None]


COMPONENT = {"qkv": "qkv", "scores": "scores", "attention_out": "attention_out", "mlp_up": "mlp", "mlp_down": "mlp", "head": "head"}


def _flops(components: Mapping[str, float], parts: list[str]) -> float:
    """Of a token; of these parts of the step where there are some. Both MLP matrices are one component."""
    named = dict.fromkeys(COMPONENT[part] for part in parts if part in COMPONENT)
    return sum(components[name] for name in named) if parts else sum(components.values())


# --- registration ------------------------------------------------------------------------------------------------------------------


def exploratory(claim: Claim, study: Study, evidence: Evidence) -> str | None:
    """Why a claim's results are not confirmatory: something they rest on began without it, or under other words."""
    late = [name for name, claims in _begun_under(claim, study, evidence) if claims.get(claim.id) != claim.hash()]
    if not late:
        return None
    return f"exploratory: {late[0]}{f' and {len(late) - 1} more' if len(late) > 1 else ''} began under another claim, or none"


def _begun_under(claim: Claim, study: Study, evidence: Evidence) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each run and session that the claim rests on, with the hashes that it was begun under."""
    for (arm, seed), run in evidence.runs.items():
        if arm in study.sides(claim) and seed in claim.seeds and claim_needs_runs(claim):
            yield f"{arm}, seed {seed}", first_claims(run)
            for steps, short in evidence.shorter.get((arm, seed), {}).items():
                if claim.target == BASELINE:
                    yield f"{arm}, seed {seed}, {steps} steps", first_claims(short)
    for name in sessions_for(claim):
        for claims in evidence.registered.get(name, []):
            yield f"the session {name}", claims


def first_claims(run: Record) -> Mapping[str, str]:
    """What the run's first attempt was begun under: later ones found results."""
    attempts = run.manifest.get("attempts") or [{}]
    return attempts[0].get("claims") or {}


def claim_needs_runs(claim: Claim) -> bool:
    return any(metric in TRAINED for metric in metrics(claim))


def sessions_for(claim: Claim) -> list[str]:
    """Kinds of session that a claim rests on."""
    kinds = {"bench": TIMED, "parts": PROFILED, "curve": (Metric.exponent,), "decoding": DECODED, "pace": (Metric.time_to_target_s,)}
    return [kind for kind, of in kinds.items() if set(metrics(claim)) & set(of)]


def read_claims(path: Any) -> Mapping[str, str]:
    found = read_json(path) or {}
    return found.get("claims") or {}
