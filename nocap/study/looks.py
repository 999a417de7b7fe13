"""The looks at a study's claims: which seeds each needs, what it said, and whether another follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nocap.judge.claim import LEAST_PAIRS, Claim, Rule
from nocap.judge.noise import Prior
from nocap.judge.verdict import Judge, Reason, Verdict
from nocap.show.table import plural
from nocap.store.measurement import Measurement, Per
from nocap.study.evidence import Evidence, bound
from nocap.study.exchange import translated
from nocap.study.measured import measurements
from nocap.study.plan import StudyPlan
from nocap.study.spec import Study


def judge(claim: Claim, study: Study, at: str, evidence: Evidence) -> Judge:
    """A judge of the claim with its bound and its margins as they were computed."""
    found, limit = measurements(claim, study, evidence), bound(claim, study, evidence)
    claim = replace(claim, mechanism=replace(claim.mechanism, rule=Rule.given, parts=[], saved={}, bound=limit))
    claim, lacking = translated(claim, study, at, evidence)
    noise = {**_between(found, evidence), **study.scales[at].noise}
    return Judge(claim, found, against=study.against(claim), at=at, noise=noise, lacking=lacking)


def _between(found: Sequence[Measurement], evidence: Evidence) -> dict[str, Prior]:
    """Metric → this machine's noise between sittings, of what was timed in fewer sittings than have a spread of their own."""
    known, held = evidence.between, {m.metric.name: 0 for m in found if m.per is Per.sitting}
    for m in found:
        if m.per is Per.sitting:
            held[m.metric.name] = max(held[m.metric.name], m.repeat)
    if known is None or known.sd <= 0:
        return {}
    prior = Prior(sd=known.sd, df=known.df, source=f"{plural(known.sittings, 'sitting')} of this machine")
    return {name: prior for name, n in held.items() if n < LEAST_PAIRS}


def taken(judging: Judge) -> list[Verdict]:
    """Look by look, up to the decision or the last one that has all its seeds; none where the first has not."""
    found = list[Verdict]()
    for look in range(1, (len(judging.claim.looks) or 1) + 1):
        verdict = judging.verdict(look=look)
        if verdict.reason in (Reason.missing, Reason.sittings):
            break
        found.append(verdict)
        if verdict.reason is not Reason.undecided:
            break
    return found


def at_its_look(judging: Judge) -> Judge:
    """The same of the pairs of the last look that was taken, or of the first: for what is shown beside the verdict."""
    claim = judging.claim
    seeds, _ = claim.at_look(len(taken(judging)) or 1)
    found = [one for one in judging.found.values() if one.repeat in judging.repeats(one.metric, seeds)]
    only = replace(claim, seeds=seeds, looks=[])
    return Judge(only, found, against=judging.against, at=judging.at, noise=judging.noise, lacking=judging.lacking)


def up_to(plan: StudyPlan, looks: Mapping[str, int]) -> StudyPlan:
    """The plan of no more than these looks need: claim → number of its look, from 1."""
    claims = [replace(claim, seeds=claim.at_look(looks[claim.id])[0], looks=[]) for claim in plan.study.claims]
    return replace(plan, study=replace(plan.study, claims=claims, max_seeds=None, looks=[]))


def onward(plan: StudyPlan, looks: Mapping[str, int], evidence: Evidence) -> dict[str, int]:
    """The looks after these: the next one of each claim that its last look has not decided."""
    found = dict(looks)
    for claim in plan.study.claims:
        verdicts = taken(judge(claim, plan.study, plan.scale, evidence))
        undecided = len(verdicts) == looks[claim.id] and verdicts[-1].reason is Reason.undecided
        if undecided and looks[claim.id] < len(claim.looks):
            found[claim.id] += 1
    return found
