"""Real records, made once: a finished run, half a run with two checkpoints, a grid of two cells, a
study with its results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from unittest.mock import patch

import yaml

from nocap.config.compose import composed
from nocap.config.errors import refusals
from nocap.launch import attempt
from nocap.launch.plan import plan
from nocap.study import __main__ as study
from tests import studies
from tests.fuzz.process import Answer, Worker, answer, workers_here

# A run of a fifth of a second: one layer, six steps, checkpoints at 2, 4 and 6.
TINY = (
    "model=nano",
    "model.n_layer=1",
    "model.d_model=16",
    "model.n_head=2",
    "model.seq_len=16",
    "data=synthetic",
    "data.train_tokens=4000",
    "data.val_tokens=600",
    "tracker=none",
    "schedule=constant",
    "trainer.steps=6",
    "trainer.val_every=2",
    "trainer.checkpoint_every=2",
    "trainer.batch_tokens=64",
    "trainer.micro_batch=4",
    "trainer.val_tokens=128",
    "trainer.precision=fp32",
    "trainer.threads=1",
    "trainer.device=cpu",
    "trainer.max_restarts=0",
)
DONE = ("seed=1",)
HALF = ("seed=2", "trainer.steps=8")
GRID = ("attention=flash,gqa", "seed=3")
STUDY = studies.study(
    overrides=list(TINY),
    seeds=[10, 11, 12],
    scales=studies.at(train=["trainer.val_every=3"]),
    claims=[studies.LOSS, {key: value for key, value in studies.SPEED.items() if key != "guards"}],
)
STUDY_FOLDER = Path("experiments/tiny")
CANARY = Path("outside/canary.txt")


def train(*words: str) -> int:
    """The command, its overrides composed once a process."""
    with refusals():
        composition = composed((*TINY, *words))
        composed_plan = plan(composition.run, choices=composition.choices)
        return attempt.run_and_report(composed_plan, started=time.monotonic())


def make(root: Path, *, whole: bool = True) -> None:
    """The library below an empty folder, by real trainings in this process; not the `whole` one:
    without the study."""
    from tests.fuzz.doors import grid

    root.mkdir(parents=True)
    with chdir(root), workers_here():
        _made(answer(lambda: train(*DONE), limit_s=60))
        with patch.object(Worker, "stop_after", 5):
            _made(answer(lambda: train(*HALF), limit_s=60), code=75)
        _made(answer(grid, limit_s=60))
        if whole:
            _study()
        for report in Path("outputs/grids").glob("*/report.html"):
            # nothing reads it, and it would be copied with each case
            report.write_bytes(report.read_bytes()[:2000])
        CANARY.parent.mkdir()
        CANARY.write_text("sings\n")
        (CANARY.parent / "step-00000099").mkdir()
        (CANARY.parent / "step-00000099" / "kept.txt").write_text("kept\n")


def _study() -> None:
    STUDY_FOLDER.mkdir(parents=True)
    text = yaml.safe_dump(STUDY, sort_keys=False)
    (STUDY_FOLDER / "study.yaml").write_text(text)
    _made(answer(lambda: study.main([str(STUDY_FOLDER), "scale=cpu"]), limit_s=120))


def _made(done: Answer, *, code: int = 0) -> None:
    assert done.code == code, done
    assert done.crash is None, done


@contextmanager
def copy_of(library: Path, place: Path, *, without: Collection[str] = ()) -> Iterator[Path]:
    """A copy of the library to damage, without some of its runs, which is the working directory
    inside the block."""
    left_out = shutil.ignore_patterns(*without)
    shutil.copytree(library, place, symlinks=True, ignore=left_out)
    try:
        with chdir(place):
            yield place
    finally:
        for folder, _, _ in os.walk(place):
            os.chmod(folder, 0o700)
        shutil.rmtree(place)
