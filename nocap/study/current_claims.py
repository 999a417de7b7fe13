"""What a study asks now, worked out of its file and its log; stored measurements are checked
against it.

Its arms are composed again. Where that cannot be done here, as their data are not on this machine,
the hash of a claim is the stored one, if what was stored asks the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nocap.config.keys import require
from nocap.judge.claim import Claim
from nocap.judge.interval import ROUNDING
from nocap.judge.verdict import Verdict
from nocap.sessions.places import PLACES, TRAIN, place_of
from nocap.store.measurement import Measurement
from nocap.store.times import moment
from nocap.study.log import RunLine, SessionLine, StudyLog
from nocap.study.registration import content_of, registrations
from nocap.study.spec import Study, select_claims
from nocap.study.study_plan import StudyPlan, more, prepare


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentClaims:
    """The claims of a study at one scale, as it asks them now."""

    claims: Mapping[str, Claim]
    hashes: Mapping[str, str]  # claim → its hash; empty: the arms cannot be composed here
    contents: Mapping[str, str]  # arm → the digest of its content as it is trained
    problem: str = ""  # why they cannot be composed

    def check(
        self,
        claim: Claim,
        rows: Iterable[Measurement],
        log: StudyLog,
        *,
        scale: str,
        machine: str,
    ) -> None:
        """Refuse losses that the study's log has otherwise of the machine on which they were
        measured: the same arm may have read another text elsewhere.

        Errors:
            ValueError: the first such loss.
        """
        for row in rows:
            if row.metric.name != "val_loss" or row.value is None:
                continue
            lines = log.of(RunLine, machine=machine, scale=scale, short=0, seed=row.repeat)
            losses = [line.val_loss for line in lines if self._is_of(row.arm, line)]
            rule = f"have a loss that is also in the study's log ({losses})"
            require(not losses or row.value in losses, f"claim {claim.id}", rule, row.value)

    def _is_of(self, arm: str, line: RunLine) -> bool:
        content = self.contents.get(arm)
        if content is None:
            return line.arm == arm
        return line.content == content


def current_claims(study: Study, scale: str, picked: Mapping[str, Sequence[str]]) -> CurrentClaims:
    """Return what a study asks at a scale. `picked`: arm → the overrides that its search chose."""
    claims = {claim.id: claim for claim in select_claims(study, scale).claims}
    try:
        plan = prepare(study, scale, output_dir="outputs")
        hashes = {name: each.hash for name, each in registrations(plan).items()}
        contents = _contents(plan, picked)
    except (ValueError, OSError) as error:
        return CurrentClaims(claims=claims, hashes={}, contents={}, problem=str(error))
    return CurrentClaims(claims=claims, hashes=hashes, contents=contents)


def _contents(plan: StudyPlan, picked: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the digest of each arm as it is trained, after its search."""
    contents = dict[str, str]()
    for name, arm in plan.train.items():
        tuned = more(arm, *picked.get(name, ()))
        contents[name] = content_of(plan, tuned, TRAIN)
    return contents


def sessions_unlike(
    verdict: Verdict, rows: Iterable[Measurement], log: StudyLog, *, scale: str, machine: str
) -> list[str]:
    """Name the sessions on a machine of which the study's log has another figure than a measurement
    that a verdict rests on."""
    n_used = {gain.metric: len(gain.least) for gain in (verdict.primary, *verdict.guards)}
    names = dict[str, None]()
    for row in rows:
        name = place_of(row.metric)
        place = PLACES.get(name)
        is_logged = place is not None and place.logged == row.metric.name
        if not is_logged or row.repeat > n_used.get(row.metric, 0):
            continue
        sessions = log.of(SessionLine, machine=machine, scale=scale, place=name)
        lines = [line for line in sessions if _has(line, row)]
        if lines and not _agree(lines, row):
            names[f"{name} session {lines[0].number}"] = None
    return [*names]


def _has(line: SessionLine, row: Measurement) -> bool:
    """Say whether a session has the measurement's arm, and began with it or later."""
    began = moment(line.started)
    measured = moment(row.when)
    if began is None or measured is None:
        return False
    return row.arm in line.measured and began >= measured


def _agree(lines: Sequence[SessionLine], row: Measurement) -> bool:
    """Say whether a measurement is what these sessions' first has, or the geometric mean of
    several: before 2026-11-24 those that were near in time counted as one."""
    if not row.value:
        return False
    logs = list[float]()
    for line in lines:
        figure = line.measured[row.arm]
        logs.append(math.log(figure) if figure else math.nan)
        if math.isclose(row.value, math.exp(fmean(logs)), rel_tol=ROUNDING):
            return True
    return False
