"""What the tests of studies share: a small study as a dict, its folder, and evidence that nobody measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nocap.store.runs import Curve, Record
from nocap.study.spec import Study, load
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
STUDY: Json = {
    "question": "Does one key/value head do?",
    "method": "Made for a test.",
    "words": [*SMALL, "model.seq_len=32", "trainer.device=cpu", "trainer.val_tokens=1024", "trainer.batch_tokens=512"],
    "baseline": "mha",
    "arms": {"mha": ["attention=flash"], "mqa": ["attention=mqa"]},
    "seeds": [0, 1, 2],
    "scales": {"cpu": {"train": ["trainer.val_every=6"], "bench": ["trainer.steps=12"], "rounds": 1}},
    "claims": [SPEED, LOSS],
}


def study(**changed: Any) -> Json:
    """`STUDY` with other top-level keys; None takes one away."""
    return {key: value for key, value in {**copy.deepcopy(STUDY), **changed}.items() if value is not None}


def at(**changed: Any) -> Json:
    """`scales` of one, cpu, with other keys."""
    return {"cpu": {**copy.deepcopy(STUDY["scales"]["cpu"]), **changed}}


def claim(base: Mapping[str, Any], **changed: Any) -> Json:
    return {**copy.deepcopy(dict(base)), **changed}


def written(folder: Path, content: Mapping[str, Any]) -> Path:
    """The folder, with this study in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return folder


def loaded(folder: Path, content: Mapping[str, Any]) -> Study:
    return load(written(folder, content))


def record(arm: str, seed: int, steps: int, val_loss: float | None, *, curve: Sequence[tuple[int, float]] = (), **more: Any) -> Record:
    """A run as its folder would tell it; a loss of null diverged, after a validation at its start."""
    status = "diverged" if val_loss is None else "finished"
    points = curve or ([(0, FIRST)] if val_loss is None else [(0, FIRST), (steps, val_loss)])
    return Record(
        folder=Path(f"/nowhere/{arm}-{seed}-{steps}"),
        identity=f"{arm}-{seed}-{steps}",
        name=arm,
        arm=arm,
        seed=seed,
        status=status,
        started="",
        config={"trainer.steps": steps},
        parts={},
        manifest={"attempts": [{"claims": more.pop("claims", {})}]},
        summary={"val_loss": points[-1][1], "status": status, **more},
        curve=Curve(step=[step for step, _ in points], val_loss=[loss for _, loss in points]),
    )


def timed(seeds: Sequence[int], arms: Mapping[str, Mapping[str, Any]]) -> dict[int, Json]:
    """Sessions that said the same with every seed."""
    return {seed: {"arms": {name: dict(facts) for name, facts in arms.items()}} for seed in seeds}


def tree(*folders: Path) -> dict[str, int]:
    """Path → time of the last change, of every file: who trains, times or writes changes this."""
    return {str(path): path.stat().st_mtime_ns for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}
