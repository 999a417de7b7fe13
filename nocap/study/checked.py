"""What a study asks now, worked out of its file and its log. Stored measurements are checked against it.

Its arms are composed again. Where that cannot be done here, as their data are not on this machine, the hash
of a claim is the stored one, if what was stored asks the same.
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
from nocap.sessions.figures import PLACES, place_of
from nocap.store.metrics import Measurement, moment
from nocap.study.log import RunLine, SessionLine, StudyLog
from nocap.study.plan import StudyPlan, more, prepare
from nocap.study.registration import content_of, registrations
from nocap.study.spec import Study, select_claims


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedClaims:
    """The claims of a study at one scale, as they are asked now."""

    claims: Mapping[str, Claim]
    hashes: Mapping[str, str]  # claim → its hash; empty: the arms cannot be composed here
    trained: Mapping[str, str]  # arm → the digest of its content as it is trained
    problem: str = ""  # why they cannot be composed

    def check(self, claim: Claim, rows: Iterable[Measurement], log: StudyLog, *, scale: str) -> None:
        """Refuse losses that the study's log has otherwise.

        Errors:
            ValueError: the first such loss.
        """
        for row in rows:
            if row.metric.name == "val_loss" and row.value is not None:
                lines = log.of(RunLine, scale=scale, short=0, seed=row.repeat)
                known = [line.val_loss for line in lines if self._is_of(row.arm, line)]
                fits = not known or row.value in known
                require(fits, f"claim {claim.id}", f"have the losses of its study's log, {known}", row.value)

    def _is_of(self, arm: str, line: RunLine) -> bool:
        content = self.trained.get(arm)
        return line.arm == arm if content is None else line.content == content


def otherwise(verdict: Verdict, rows: Iterable[Measurement], log: StudyLog, *, scale: str) -> list[str]:
    """Name the sessions of which the study's log has another figure than a measurement that a verdict rests
    on."""
    used = {gain.metric: len(gain.least) for gain in (verdict.primary, *verdict.guards)}
    names = dict[str, None]()
    for row in rows:
        name = place_of(row.metric)
        place = PLACES.get(name)
        if place is None or place.logged != row.metric.name or row.repeat > used.get(row.metric, 0):
            continue
        held = log.of(SessionLine, scale=scale, place=name)
        lines = [line for line in held if _is_from(line, row)]
        if lines and not _tells(lines, row):
            names[f"{name} session {lines[0].number}"] = None
    return [*names]


def _is_from(line: SessionLine, row: Measurement) -> bool:
    """Say whether a session has the measurement's arm, and began with it or later."""
    began, at = moment(line.started), moment(row.when)
    return row.arm in line.measured and began is not None and at is not None and began >= at


def _tells(lines: Sequence[SessionLine], row: Measurement) -> bool:
    """Say whether a measurement is what these sessions' first has, or the geometric mean of several: before
    2026-11-24 those that were near in time counted as one."""
    logs = list[float]()
    for line in lines:
        figure = line.measured[row.arm]
        logs.append(math.log(figure) if figure else math.nan)
        if row.value and math.isclose(row.value, math.exp(fmean(logs)), rel_tol=ROUNDING):
            return True
    return False


def asked(study: Study, scale: str, picked: Mapping[str, Sequence[str]]) -> AskedClaims:
    """Work out what a study asks at a scale. `picked`: arm → the overrides that its search chose."""
    claims = {claim.id: claim for claim in select_claims(study, scale).claims}
    try:
        plan = prepare(study, scale, output_dir="outputs")
        hashes = {name: each.hash for name, each in registrations(plan).items()}
        trained = _trained(plan, picked)
    except (ValueError, OSError) as error:
        return AskedClaims(claims=claims, hashes={}, trained={}, problem=str(error))
    return AskedClaims(claims=claims, hashes=hashes, trained=trained)


def _trained(plan: StudyPlan, picked: Mapping[str, Sequence[str]]) -> dict[str, str]:
    trained = {name: more(arm, *picked.get(name, ())) for name, arm in plan.train.items()}
    return {name: content_of(plan, arm, "train") for name, arm in trained.items()}
