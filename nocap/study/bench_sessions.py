"""Benches of other days as sessions of a study: each file that `nocap.bench --json` wrote is one.

An arm is found in a file by what its step executes, whatever its label. So a study need not be
carried out where its sessions were: a rented machine leaves a file a day, and the third tells.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.config.trainer import Device, Precision
from nocap.judge.claim import Claim
from nocap.measure.bench_schema import BenchArmJson, BenchFile
from nocap.sessions.figures import StepFigures
from nocap.sessions.places import BENCH, PLACES
from nocap.sessions.session_file import SessionFile
from nocap.store.record_files import digest, read_json
from nocap.store.times import moment
from nocap.study.evidence import places
from nocap.study.study_plan import StudyPlan

FLAG = "--sessions-from"


def read(path: Path) -> BenchFile:
    """Read a bench's file.

    Errors:
        ValueError: it is none.
    """
    try:
        return msgspec.convert(read_json(path), BenchFile)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"{path} must be a file that nocap.bench --json wrote, got other content ({error})"
        ) from error


def sessions_of(plan: StudyPlan, paths: Sequence[Path]) -> tuple[StudyPlan, list[SessionFile]]:
    """Return the sessions that these files are, in order of time, and the plan of the claims that
    they say something about, with the arms as they were timed.

    Errors:
        ValueError: files of several chips or versions of torch, two that are not apart, or no claim
            whose arms one file has.
    """
    benches = [read(path) for path in paths]
    benches.sort(key=lambda bench: bench.started)
    _check_alike(benches)
    arms = dict(plan.bench)
    files = list[SessionFile]()
    for number, bench in enumerate(benches, start=1):
        found = _arms_of(plan, bench)
        for name, arm in found.items():
            arms[name] = _on_machine(plan.bench[name], arm)
        files.append(_session(plan, bench, found, number))
    claims = [claim for claim in plan.study.claims if _has_sides(plan, claim, files)]
    rule = "name a file with all arms of a claim, measured with the settings of the study's scale"
    require(bool(claims), FLAG, rule, ", ".join(map(str, paths)))
    _check_apart(plan, files)
    return replace(plan, study=replace(plan.study, claims=claims), bench=arms), files


def _check_alike(benches: Sequence[BenchFile]) -> None:
    """Refuse files of several chips or versions of torch."""
    for fact in ("name", "torch"):
        values = list(dict.fromkeys(str(bench.hardware.get(fact)) for bench in benches))
        require(
            len(values) == 1, FLAG, f"name files with the same hardware.{fact}", ", ".join(values)
        )


def _check_apart(plan: StudyPlan, files: Sequence[SessionFile]) -> None:
    """Refuse sessions that share an arm and do not lie apart as the study's own do."""
    for before, after in pairwise(files):
        ended = moment(before.ended)
        began = moment(after.started)
        if ended is None or began is None or not before.figures.keys() & after.figures.keys():
            continue
        minutes = (began - ended) / 60
        rule = f"name files whose sessions are at least {plan.at.apart_min:g} minutes apart"
        require(minutes >= plan.at.apart_min, FLAG, rule, f"{minutes:.1f} minutes")


def _arms_of(plan: StudyPlan, bench: BenchFile) -> dict[str, BenchArmJson]:
    """Return the arms of a study that a file has, by the study's names."""
    found = dict[str, BenchArmJson]()
    for name, composed in plan.bench.items():
        content = plan.content(composed, "step")
        for arm in bench.arms:
            timed = copy.deepcopy(arm.config)
            plan.settle_machine(composed, timed["trainer"])
            if timed == content:
                found[name] = arm
    return found


def _on_machine(arm: Composed, timed: BenchArmJson) -> Composed:
    """Return an arm with the device and the precision that it was timed with."""
    keys = timed.config["trainer"]
    device = Device[str(keys["device"])]
    precision = Precision[str(keys["precision"])]
    trainer = replace(arm.run.trainer, device=device, precision=precision)
    return replace(arm, run=arm.run.varied(trainer=trainer))


def _session(
    plan: StudyPlan, bench: BenchFile, arms: Mapping[str, BenchArmJson], number: int
) -> SessionFile:
    """Return a file as a session of the study."""
    measured = dict[str, object]()
    for name, arm in arms.items():
        measured[name] = msgspec.to_builtins(_figures(plan.bench[name], arm))
    content = {
        "kind": PLACES[BENCH].kind,
        "place": BENCH,
        "key": digest({"started": bench.started, "machine": bench.hardware["fingerprint"]}),
        "number": number,
        "how": {"rounds": bench.rounds},
        "started": bench.started,
        "ended": bench.ended,
        "hardware": bench.hardware,
        "arms": {name: list(plan.bench[name].overrides) for name in arms},
        "measured": {"arms": measured},
    }
    return msgspec.convert(content, SessionFile)


def _figures(composed: Composed, arm: BenchArmJson) -> StepFigures:
    """Return the figures of an arm with what is counted of its run."""
    from nocap.model.flops import component_flops  # torch
    from nocap.sessions.worker import kv_bytes

    run = composed.run
    flops: dict[str, float | None] = dict(component_flops(run, vocab_size=run.tokenizer.vocab_size))
    figures = msgspec.convert(msgspec.to_builtins(arm), StepFigures)
    return msgspec.structs.replace(figures, component_flops=flops, kv_bytes=kv_bytes(run))


def _has_sides(plan: StudyPlan, claim: Claim, files: Sequence[SessionFile]) -> bool:
    """Say whether a file has all arms of a claim about timed steps."""
    if BENCH not in places(claim):
        return False
    sides = set(plan.study.sides(claim))
    return any(sides <= file.figures.keys() for file in files)
