"""Measurements of a claim, from what a study's runs and sessions measured: of runs seed by seed, of what is timed sitting by sitting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from nocap.judge.claim import BASELINE, TO_TARGET, Claim
from nocap.judge.time_to_target import Finish, crossing, race
from nocap.store.measurement import Ending, Measurement, Per
from nocap.store.metrics import METRICS, Metric, is_count
from nocap.store.runs import Record, dig
from nocap.study.evidence import FIELD_OF, Evidence, Held, Seen, steps_of
from nocap.study.spec import Study

Steps = tuple[float | None, Ending]


def measurements(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Of the claim's arm and of the one it is compared with, in each metric; what is missing is left out."""
    sides, found = list(dict.fromkeys((claim.arm, study.against(claim)))), list[Measurement]()
    for metric in claim.metrics:
        if metric.made_by != "train":
            found += _held(claim, metric, sides, evidence)
        elif metric.name not in TO_TARGET:
            found += _ended(claim, metric, sides, evidence)
        else:
            steps = steps_to_target(claim, study, evidence)
            found += _steps(metric, steps, evidence) if metric.name == "steps_to_target" else _times(claim, metric, sides, steps, evidence)
    return sorted(found, key=lambda one: sides.index(one.arm))


def _of_run(key: tuple[str, int], metric: Metric, evidence: Evidence, value: float | None, ending: Ending = Ending.measured) -> Measurement:
    (arm, seed), run = key, evidence.runs[key]
    return Measurement(arm=arm, repeat=seed, metric=metric, value=value, ending=ending, where=run.machine[0], when=run.started)


def _ended(claim: Claim, metric: Metric, sides: Sequence[str], evidence: Evidence) -> list[Measurement]:
    """Final losses."""
    found = []
    for key in [(arm, seed) for arm in sides for seed in claim.seeds if (arm, seed) in evidence.runs]:
        run = evidence.runs[key]
        if run.status == "diverged":
            found.append(_of_run(key, metric, evidence, None, Ending.diverged))
        elif (value := run.number(metric.name)) is not None:
            found.append(_of_run(key, metric, evidence, value))
    return found


# --- sessions ----------------------------------------------------------------------------------------------------------------------


def _held(claim: Claim, metric: Metric, sides: Sequence[str], evidence: Evidence, *, place: str = "") -> list[Measurement]:
    """What is timed, one a sitting; a count once, if all sessions agree on it."""
    held = {arm: evidence.held(place or FIELD_OF[metric.made_by], arm, claim.seeds) for arm in sides}
    read = {arm: [(one, x) for one in of if (x := _read(one.seen, claim, metric)) is not None] for arm, of in held.items()}
    sessions = [one.session for of in held.values() for one in of]
    counted = is_count(metric, on_cuda=any(dig(one, "hardware", "device") == "cuda" for one in sessions))
    if counted and all(len({x for _, x in of}) <= 1 for of in read.values()):
        return [_of_sitting(arm, metric, of[:1], repeat=1, per=Per.exact) for arm, of in read.items() if of]
    numbers = {arm: {one.sitting for one, _ in of} for arm, of in read.items() if of}
    whole = sorted(set[int].intersection(*numbers.values())) if numbers else []  # a sitting that was cut short has no pair
    places = {n: place for place, n in enumerate(whole, start=1)}
    return [_of_sitting(arm, metric, [row for row in read[arm] if row[0].sitting == n], repeat=places[n]) for arm in numbers for n in whole]


def _of_sitting(arm: str, metric: Metric, rows: Sequence[tuple[Held, float]], *, repeat: int, per: Per = Per.sitting) -> Measurement:
    first, values = rows[0][0], [x for _, x in rows]
    mean = math.exp(fmean(map(math.log, values))) if min(values) > 0 and len(values) > 1 else fmean(values)
    where, when = str(dig(first.session, "hardware", "fingerprint") or ""), str(first.session.get("started", ""))
    return Measurement(arm=arm, repeat=repeat, metric=metric, value=mean, where=where, when=when, per=per)


def _read(seen: Seen, claim: Claim, metric: Metric) -> float | None:
    if metric.made_by == "parts":
        return _of_parts(seen, claim, metric)
    value = dig(seen, *(("memory_mib", "peak") if metric.name == "memory_mib" else (metric.name,)))
    return None if value is None else float(value)


def _of_parts(seen: Seen, claim: Claim, metric: Metric) -> float:
    key = {"part_mib": "mib", "held_mib": "memory_mib", "part_params": "params"}.get(metric.name, "ms")
    spent = float(sum(seen[key].get(part, 0) for part in claim.parts))
    if metric.name != "share":
        return spent
    return spent / (sum(seen["ms"].get(part, 0.0) for part in claim.of) if claim.of else seen["step_ms"])


# --- steps and time to a loss ------------------------------------------------------------------------------------------------------


def _steps(metric: Metric, steps: Mapping[tuple[str, int], Steps], evidence: Evidence) -> list[Measurement]:
    return [_of_run(key, metric, evidence, *found) for key, found in steps.items()]


def _times(
    claim: Claim, metric: Metric, sides: Sequence[str], steps: Mapping[tuple[str, int], Steps], evidence: Evidence
) -> list[Measurement]:
    """Steps are seeds', the time of a step is a sitting's: both are dealt into as many hands as there are of the fewer."""
    step_ms = _held(claim, METRICS["step_ms"], sides, evidence, place="pace")
    paces, found = {arm: [one for one in step_ms if one.arm == arm] for arm in sides}, []
    hands = min(len(claim.seeds), *map(len, paces.values()))
    for arm, pace in paces.items():
        ends = [steps[arm, seed] for seed in claim.seeds if (arm, seed) in steps]
        if len(ends) < len(claim.seeds):
            continue
        ms = group_means([math.log(one.value) for one in pace if one.value], hands)
        for hand in range(hands):
            values, endings = [value for value, _ in ends[hand::hands]], [ending for _, ending in ends[hand::hands]]
            ending = next((ending for ending in (Ending.diverged, Ending.censored, Ending.at_most) if ending in endings), Ending.measured)
            logs = [math.log(value) for value in values if value is not None]
            value = None if ending is Ending.diverged else math.exp(fmean(logs) + ms[hand]) / 1e3
            where, when = pace[hand].where, pace[hand].when
            found.append(
                Measurement(arm=arm, repeat=hand + 1, metric=metric, value=value, ending=ending, where=where, when=when, per=Per.sitting)
            )
    return found


def steps_to_target(claim: Claim, study: Study, evidence: Evidence) -> dict[tuple[str, int], Steps]:
    """(arm, seed) → steps to the claim's target: a loss on the curve of validations, or the loss that both arms' schedules end at."""
    sides, runs = (claim.arm, study.against(claim)), evidence.runs
    if claim.target != BASELINE:
        return {(arm, seed): _crossing(runs[arm, seed], claim.target) for arm in sides for seed in claim.seeds if (arm, seed) in runs}
    there = [seed for seed in claim.seeds if all((arm, seed) in runs for arm in sides)]
    found: dict[tuple[str, int], Steps] = {}
    for seed in there:
        mine, theirs = (runs[arm, seed].status == "diverged" for arm in sides)
        if mine or theirs:
            found[sides[0], seed] = None, Ending.diverged
            found[sides[1], seed] = (None, Ending.diverged) if theirs else (float(steps_of(runs[sides[1], seed])), Ending.measured)
    seeds = [seed for seed in there if (claim.arm, seed) not in found and all(evidence.has_lengths(arm, seed) for arm in sides)]
    if seeds:
        for arm, finish in zip(sides, finishes(sides, seeds, evidence), strict=True):
            found |= {(arm, seed): (steps, finish.ending) for seed, steps in zip(seeds, finish.steps, strict=True)}
    return found


def finishes(sides: Sequence[str], seeds: Sequence[int], evidence: Evidence) -> tuple[Finish, Finish]:
    """Of the two arms over seeds that all finished. A length at which a seed diverged is left out."""
    mine, theirs = (_curve(arm, seeds, evidence) for arm in sides)
    return race(mine, theirs)


def _curve(arm: str, seeds: Sequence[int], evidence: Evidence) -> dict[int, list[float]]:
    of = [{**evidence.shorter.get((arm, seed), {}), steps_of(run := evidence.runs[arm, seed]): run} for seed in seeds]
    ends = [{steps: run.val_loss for steps, run in one.items() if run.status == "finished" and run.val_loss is not None} for one in of]
    return {steps: [one[steps] for one in ends] for steps in ends[0] if all(steps in one for one in ends)}


def _crossing(run: Record, target: float) -> Steps:
    if run.status == "diverged":
        return None, Ending.diverged
    at = crossing([float(x) for x in run.curve.step], run.curve.val_loss, target=target)
    return (float(run.curve.step[-1]), Ending.censored) if at is None else (at, Ending.measured)


def group_means(values: Sequence[float], groups: int) -> list[float]:
    """Means of so many groups, the values dealt in turns. Two samples dealt into as many as the smaller one has make independent pairs,
    whose spread has the noise of both: seeds' steps and sittings' step times."""
    return [fmean(values[group::groups]) for group in range(groups)]
