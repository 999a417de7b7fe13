"""What the tests of studies share: a small study as a dict, its folder, and made evidence."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nocap.config.plain import dataclass_from
from nocap.judge.claim import Claim
from nocap.judge.gain import Gain
from nocap.judge.verdict import ClaimWord, Verdict
from nocap.sessions.places import PLACES
from nocap.sessions.session_file import SessionFile
from nocap.store.measurement import Ending
from nocap.store.record import Curve, Record
from nocap.study.arm_facts import ArmFacts, Speed
from nocap.study.evidence import Evidence
from nocap.study.spec import Study
from nocap.study.standing import Standing
from nocap.study.study_folder import load_study
from nocap.study.study_result import ClaimResult, StudyResult
from tests.conftest import SMALL

Json = dict[str, Any]
FIRST = 5.5  # a made run's loss before its first step

SPEED = {
    "id": "M.speed",
    "statement": "one key/value head trains 20 to 30% faster, at a loss within 10%",
    "source": "made",
    "arm": "mqa",
    "metric": "tokens_per_s",
    "scale": "ratio",
    "expected": [1.2, 1.3],
    "guards": [{"metric": "val_loss", "scale": "ratio", "margins": {"cpu": 1.1}}],
    "mechanism": {"rule": "flops", "formula": "FLOPs of a token"},
}
LOSS = {
    "id": "M.loss",
    "statement": "one key/value head costs less than 1 nat",
    "source": "made",
    "arm": "mqa",
    "metric": "val_loss",
    "scale": "difference",
    "expected": [-1.0, None],
    "mechanism": {"formula": "loss has no arithmetic"},
}
RACE = {
    **LOSS,
    "id": "M.time",
    "metric": "time_to_target_s",
    "scale": "ratio",
    "expected": [1.05, None],
    "target": "baseline",
}
STEPS = {**RACE, "id": "M.steps", "metric": "steps_to_target"}
EQUAL = {
    **LOSS,
    "id": "M.equal",
    "statement": "one key/value head takes less time for its loss",
    "metric": "time_at_equal_loss",
    "scale": "ratio",
    "expected": [None, 0.98],
}
STUDY: Json = {
    "question": "Does one key/value head do?",
    "method": "Made for a test.",
    "overrides": [
        *SMALL,
        "model.seq_len=32",
        "trainer.device=cpu",
        "trainer.val_tokens=1024",
        "trainer.batch_tokens=512",
    ],
    "baseline": "mha",
    "arms": {"mha": ["attention=flash"], "mqa": ["attention=mqa"]},
    "seeds": [0, 1, 2],
    "scales": {
        "cpu": {
            "train": ["trainer.val_every=6"],
            "bench": ["trainer.steps=12"],
            "rounds": 1,
            "apart_min": 0,
        }
    },
    "claims": [SPEED, LOSS],
}


def study(**changed: Any) -> Json:
    """`STUDY` with other top-level keys; None takes one away."""
    values = {}
    for key, value in {**copy.deepcopy(STUDY), **changed}.items():
        if value is not None:
            values[key] = value
    return values


def at(**changed: Any) -> Json:
    """`scales` of one, cpu, with other keys."""
    return {"cpu": {**copy.deepcopy(STUDY["scales"]["cpu"]), **changed}}


def claim(base: Mapping[str, Any], **changed: Any) -> Json:
    return {**copy.deepcopy(dict(base)), **changed}


def written(folder: Path, content: Mapping[str, Any]) -> Path:
    """The folder, with this study in it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(content), sort_keys=False)
    (folder / "study.yaml").write_text(text)
    return folder


def loaded(folder: Path, content: Mapping[str, Any]) -> Study:
    return load_study(written(folder, content))


# --- results --------------------------------------------------------------------------------------


def typed(content: Mapping[str, Any]) -> Claim:
    """A claim of a study's file."""
    stated: Claim = dataclass_from(Claim, {**content, "seeds": [0, 1, 2]})
    return stated


def made_arm(name: str, *, params: float | None = None, step_ms: Sequence[float] = ()) -> ArmFacts:
    pace = Speed(memory_mib=None, tokens_per_s=[None] * len(step_ms), step_ms=[*step_ms])
    return ArmFacts(
        arm=name,
        words=[],
        tuned=[],
        n_trials=0,
        params=params,
        flops_per_token=None,
        kernel=None,
        tokens=None,
        val_loss=None,
        diverged=[],
        pace=pace if step_ms else None,
        bench=None,
        runs=[],
    )


def made_verdict(word: ClaimWord, gain: Gain) -> Verdict:
    endings: dict[Ending, list[str]] = {ending: [] for ending in Ending}
    return Verdict(
        word=word,
        reason=None,
        primary=gain,
        guards=[],
        beyond_bound=False,
        missing=[],
        endings=endings,
    )


def made_judged(claim: Claim, verdict: Verdict, *, against: str) -> ClaimResult:
    standing = Standing(hash="made", at=None, exploratory=None, notes=[])
    return ClaimResult(
        claim=claim,
        against=against,
        verdict=verdict,
        margins=[],
        noise={},
        bound=None,
        standing=standing,
        where={},
        lengths=None,
        damaged=frozenset(),
    )


def made_result(
    claims: list[ClaimResult], arms: list[ArmFacts], *, scale: str = "", machine: str = ""
) -> StudyResult:
    hardware = {"name": machine, "fingerprint": machine}
    return StudyResult(
        study=Study(question="?"),
        scale=scale,
        date="",
        command="",
        commit=None,
        hardware=hardware,
        seeds=[],
        claims=claims,
        measurements={},
        arms=arms,
        trials=[],
    )


NOW = "2026-11-21T12:00:00+00:00"  # when all made runs and sessions began


def record(
    arm: str,
    seed: int,
    steps: int,
    val_loss: float | None,
    *,
    curve: Sequence[tuple[int, float]] = (),
    started: str = NOW,
    **more: Any,
) -> Record:
    """A run as if read from its folder; a loss of null diverged, after a validation at its
    start."""
    if val_loss is None:
        status = "diverged"
    else:
        status = "finished"
    points = curve or ([(0, FIRST)] if val_loss is None else [(0, FIRST), (steps, val_loss)])
    summary = {"val_loss": points[-1][1], "status": status, **more}
    parts = {"environment": {"torch": "made"}}
    folder = Path(f"/nowhere/{arm}-{seed}-{steps}")
    identity = f"{arm}-{seed}-{steps}"
    steps_seen = [step for step, _ in points]
    losses = [loss for _, loss in points]
    return Record(
        folder=folder,
        identity=identity,
        name=arm,
        arm=arm,
        seed=seed,
        status=status,
        started=started,
        config={"trainer.steps": steps},
        parts=parts,
        manifest={},
        summary=summary,
        curve=Curve(step=steps_seen, val_loss=losses),
    )


def later(minutes: float, started: str = NOW) -> str:
    return (datetime.fromisoformat(started) + timedelta(minutes=minutes)).isoformat()


def session(
    arms: Mapping[str, Mapping[str, Any]],
    *,
    number: int = 1,
    started: str = NOW,
    kind: str = "steps",
) -> SessionFile:
    """Return a session's file."""
    names = next(name for name, place in PLACES.items() if place.kind == kind)
    measured = {name: dict(row) for name, row in arms.items()}
    content = {
        "kind": kind,
        "place": names,
        "key": "",
        "number": number,
        "how": {},
        "started": started,
        "ended": started,
        "arms": {},
        "measured": {"arms": measured},
    }
    return msgspec.convert(content, SessionFile)


def timed(
    numbers: Sequence[int], arms: Mapping[str, Mapping[str, Any]], *, started: str = NOW
) -> list[SessionFile]:
    """Sessions that measured the same, ten minutes apart."""
    values: list[SessionFile] = []
    for i, number in enumerate(numbers):
        values.append(session(arms, number=number, started=later(10 * i, started)))
    return values


# --- arms by a law: a loss of A - B·ln(steps) -----------------------------------------------------

A = 8.0
B = 0.4
NOISE = {0: -0.003, 1: 0.001, 2: 0.002}  # a seed moves a whole curve
SEEN: Json = {
    "params": 10,
    "flops_per_token": 5.0,
    "kernel": "flash",
    "memory_mib": {"peak": 4.0},
    "component_flops": {"a": 1.0},
}


def law(steps: float, *, worse: float = 0.0) -> float:
    return A - B * math.log(steps) + worse


def by_law(
    arm: str, *, worse: float = 0.0, noise: Mapping[int, float] = NOISE, diverged: int | None = None
) -> dict[str, Any]:
    """Runs of 100, 200 and 400 steps of one arm, with three seeds, as `Evidence` takes them."""
    runs = {}
    for seed, x in noise.items():
        runs[(arm, seed)] = record(
            arm, seed, 400, None if seed == diverged else law(400, worse=worse) + x
        )
    shorter = {}
    for seed, x in noise.items():
        short = record(arm, seed, 100, law(100, worse=worse) + x)
        half = record(arm, seed, 200, law(200, worse=worse) + x)
        shorter[(arm, seed)] = {100: short, 200: half}
    return {"runs": runs, "shorter": shorter}


def both(arm: dict[str, Any], baseline: dict[str, Any], **sessions: list[SessionFile]) -> Evidence:
    """`sessions`: by their place."""
    runs = {**baseline["runs"], **arm["runs"]}
    shorter = {**baseline["shorter"], **arm["shorter"]}
    return Evidence(runs=runs, shorter=shorter, sessions=sessions)


def pace(
    faster: float, *, numbers: Sequence[int] = (1, 2, 3), started: str = NOW
) -> list[SessionFile]:
    faster_arm = {"tokens_per_s": 1000.0 * faster, "step_ms": 10.0 / faster}
    arms = {"mha": {"tokens_per_s": 1000.0, "step_ms": 10.0}, "mqa": faster_arm}
    rows = {name: {**SEEN, **row} for name, row in arms.items()}
    return timed(numbers, rows, started=started)


def tree(*folders: Path) -> dict[str, int]:
    """Path → time of the last change, of every file: training, timing or writing changes this."""
    times: dict[str, int] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                times[str(path)] = path.stat().st_mtime_ns
    return times
