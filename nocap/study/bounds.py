"""The bound of a claim: the gain that arithmetic allows, from what a study's sessions counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nocap.judge.claim import Claim, Rule
from nocap.sessions.figures import Figures, PartFigures, StepFigures
from nocap.sessions.places import BENCH, PACE, PARTS
from nocap.sessions.session_file import SessionFile
from nocap.step_parts import HELD
from nocap.study.evidence import Evidence
from nocap.study.spec import Study

# Parts of a step → of the FLOP count; both MLP matrices are one component.
COMPONENT = {
    "qkv": "qkv",
    "scores": "scores",
    "attention_out": "attention_out",
    "mlp_up": "mlp",
    "mlp_down": "mlp",
    "head": "head",
}


def bound(claim: Claim, study: Study, evidence: Evidence) -> float | None:
    """Return the gain that arithmetic allows, by the claim's rule; `None`: it sets no bound, or
    something that it needs was not measured."""
    rule = claim.mechanism.rule
    base = study.against(claim)
    if rule is Rule.given:
        return claim.mechanism.bound
    if rule is Rule.amdahl:
        return _amdahl(claim, evidence.parts_of_arm(base))
    place = _counting_place(claim, evidence)
    before = _counted_first(rule, claim, evidence.of_arm(place, base))
    after = _counted_first(rule, claim, evidence.of_arm(place, claim.arm))
    if before is None or not after:
        return None
    return before / after


def _counting_place(claim: Claim, evidence: Evidence) -> str:
    """Return the place of the sessions whose counts bound a claim."""
    if claim.mechanism.rule is Rule.flops and claim.parts:
        return PARTS
    if evidence.sessions.get(BENCH):
        return BENCH
    return PACE


def _amdahl(claim: Claim, profiles: Sequence[PartFigures]) -> float | None:
    """Return the gain of a step without the parts that a claim saves, the largest over the
    profiles."""
    mechanism = claim.mechanism
    shares = list[float]()
    for profile in profiles:
        spared_ms = list[float]()
        for part in mechanism.parts:
            share = mechanism.saved.get(part, 1.0)
            spared_ms.append(share * profile.ms.get(part, 0.0))
        shares.append(sum(spared_ms) / profile.step_ms)
    largest = max(shares, default=1.0)
    if largest >= 1:
        return None
    return 1 / (1 - largest)


def _counted_first(
    rule: Rule, claim: Claim, of_arm: Sequence[tuple[SessionFile, Figures]]
) -> float | None:
    """Return a count of the first session, as all have the same; `None`: there is no session, or
    the arm did not fit."""
    if not of_arm:
        return None
    _, row = of_arm[0]
    if not row.is_measured:
        return None
    return _counted(rule, row, claim)


def _counted(rule: Rule, row: Figures, claim: Claim) -> float | None:
    """Return what a rule counts of an arm's step."""
    if isinstance(row, PartFigures):
        return _flops(row.component_flops or {}, claim.parts)
    assert isinstance(row, StepFigures), "only steps and their parts are counted"
    if rule is Rule.flops:
        return _flops(row.component_flops or {}, claim.parts)
    if rule is Rule.params:
        return row.params
    if rule is Rule.kv:
        return row.kv_bytes
    # a GPU's peak has the allocator's slack in it, too
    held = row.memory_mib or {}
    return sum(held.get(part) or 0.0 for part in HELD)


def _flops(components: Mapping[str, float | None], parts: list[str]) -> float | None:
    """Sum the FLOPs of a token, or of these parts of a step. `None`: one of them was not counted,
    as those of a model of its own are not one by one."""
    names = list(components)
    if parts:
        names = [COMPONENT[part] for part in parts if part in COMPONENT]
    total: float = 0
    for name in dict.fromkeys(names):
        flops = components.get(name)
        if flops is None:
            return None
        total += flops
    return total
