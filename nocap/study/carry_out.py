"""A study is carried out: its claims are registered, what is missing is trained and timed, and
everything there is becomes its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from nocap.config import hardware
from nocap.judge.claim import Claim
from nocap.judge.interval import analyses, analysis_of
from nocap.judge.verdict import Verdict
from nocap.sessions.places import TRAIN
from nocap.sessions.session_file import SessionFile
from nocap.study.arm_facts import TuningTrial
from nocap.study.claim_measurements import verdict_of
from nocap.study.conductor import Conductor
from nocap.study.evidence import Evidence, places
from nocap.study.log_writer import LogWriter
from nocap.study.spec import Study
from nocap.study.standing import Standing
from nocap.study.study_plan import StudyPlan

PRINT: Callable[[str], None] = partial(print, flush=True)  # a study may then wait for minutes


@dataclass(kw_only=True)
class StudyOutcome:
    """What there is after a study was carried out, or as far as it was."""

    plan: StudyPlan  # of the last analyses
    evidence: Evidence
    standings: dict[str, Standing]  # claim → what its study's log says
    trials: list[TuningTrial] = field(default_factory=list)  # of the search
    # sessions that failed, records that cannot be read whole
    problems: list[str] = field(default_factory=list)


def carry_out(
    plan: StudyPlan,
    *,
    may_run: bool,
    say: Callable[[str], None] = PRINT,
    files: Sequence[SessionFile] = (),
) -> StudyOutcome:
    """Train and time what is missing, analysis by analysis until each claim is decided, or with
    `may_run=False` only collect what there is. `files`: sessions from elsewhere, which are all that
    counts then: nothing runs here.

    Errors:
        ValueError: an invalid run, a damaged log.
        StoppedError: somebody asked to stop; everything that finished is kept.
        FailedError: a run failed that all else depends on.
    """
    machine = str(machine_of(plan, files)["fingerprint"])
    writer = LogWriter(plan, machine=machine, wanted=may_run or bool(files), say=say)
    conductor = Conductor(plan, writer, may_run=may_run and not files, say=say, files=files)
    writer.register()
    trials = conductor.tune()
    numbers = {claim.id: 1 for claim in plan.study.claims}  # of the next analysis of each
    most = analysis_of(len(plan.study.seeds))
    while True:
        part = up_to(plan, numbers)
        evidence = conductor.measure(part, trials)
        verdicts = dict[str, Verdict]()
        for claim in part.study.claims:
            verdicts[claim.id] = verdict_of(claim, part.study, plan.scale, evidence)
        standings = writer.analyse(part, evidence, verdicts)
        undecided = list[str]()
        for claim in part.study.claims:
            # more seeds say nothing of what is timed
            may_go_on = TRAIN in places(claim) and numbers[claim.id] < most
            if may_go_on and verdicts[claim.id].is_open and _has_all(evidence, claim, part.study):
                undecided.append(claim.id)
        if not undecided:
            break
        if may_run:
            say(f"not decided yet; another analysis follows for {', '.join(undecided)}")
        for name in undecided:
            numbers[name] += 1
    return StudyOutcome(
        plan=part,
        evidence=evidence,
        standings=standings,
        trials=trials,
        problems=list(dict.fromkeys(conductor.problems)),
    )


def machine_of(plan: StudyPlan, files: Sequence[SessionFile]) -> dict[str, hardware.Fact]:
    """Describe the machine of sessions from elsewhere; where there are none, this one."""
    if files:
        return dict(files[0].hardware)
    return hardware.describe(plan.trainer.device, plan.trainer.threads)


def _has_all(evidence: Evidence, claim: Claim, study: Study) -> bool:
    """Say whether all runs are there: pairs count in their order, and none is passed over."""
    for arm, seed in product(study.sides(claim), claim.seeds):
        if (arm, seed) not in evidence.runs:
            return False
    if not claim.at_equal_loss:
        return True
    base = study.against(claim)
    return all(evidence.has_other_lengths(base, seed) for seed in claim.seeds)


def up_to(plan: StudyPlan, numbers: Mapping[str, int]) -> StudyPlan:
    """Return the plan of no more than these analyses need: claim → number of its analysis, from
    1."""
    claims = list[Claim]()
    for claim in plan.study.claims:
        seeds = analyses()[numbers[claim.id] - 1]
        claims.append(replace(claim, seeds=claim.seeds[:seeds]))
    return replace(plan, study=replace(plan.study, claims=claims))
