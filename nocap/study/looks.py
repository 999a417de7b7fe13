"""The analyses of a study's claims: which seeds each needs, what it said, and whether another follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nocap.judge.claim import Claim, Rule
from nocap.judge.interval import analyses, analysis_of
from nocap.judge.verdict import Reason, Verdict
from nocap.judge.verdict import judge as verdict_on
from nocap.study.evidence import Evidence, bound
from nocap.study.measured import measurements
from nocap.study.plan import StudyPlan
from nocap.study.spec import Study


def judge(claim: Claim, study: Study, at: str, evidence: Evidence) -> Verdict:
    """The verdict, with the claim's bound as it was computed."""
    limit = bound(claim, study, evidence)
    claim = replace(claim, mechanism=replace(claim.mechanism, rule=Rule.given, parts=[], saved={}, bound=limit))
    noise = study.scales[at].noise
    return verdict_on(claim, measurements(claim, study, evidence), against=study.against(claim), at=at, noise=noise)


def up_to(plan: StudyPlan, numbers: Mapping[str, int]) -> StudyPlan:
    """The plan of no more than these analyses need: claim → number of its analysis, from 1."""
    claims = [replace(claim, seeds=claim.seeds[: analyses()[numbers[claim.id] - 1]]) for claim in plan.study.claims]
    return replace(plan, study=replace(plan.study, claims=claims, max_seeds=None))


def onward(plan: StudyPlan, numbers: Mapping[str, int], evidence: Evidence) -> dict[str, int]:
    """The analyses after these: the next one of each claim that its last has not decided, while it has seeds for it."""
    found = dict(numbers)
    for claim in plan.study.claims:
        verdict = judge(claim, plan.study, plan.scale, evidence)
        if verdict.reason is Reason.undecided and numbers[claim.id] < analysis_of(len(claim.seeds)):
            found[claim.id] += 1
    return found
