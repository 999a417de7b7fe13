"""What the tests of grids share: a small grid, one in the background, and what grids leave
behind."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nocap.config.compose import composed
from nocap.launch.grid import Grid, plan_grid
from tests.attempts import spawn, steady
from tests.conftest import REPO, SMALL, Finished, called

Json = dict[str, Any]
CELL = (
    *SMALL,
    "trainer.steps=3",
    "trainer.val_every=0",
    "trainer.checkpoint_every=2",
    "trainer.max_restarts=0",
)
ARMS = "attention=flash,gqa"


def summaries(out: Path) -> dict[str, Json]:
    """Run's folder name → its summary."""
    paths = sorted(out.glob("runs/*/summary.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def trained(printed: str) -> list[str]:
    """What the cells that were started vary, in the order of their starts."""
    matches = re.findall(r"^\[ *\d+/\d+\] start +(.*)$", printed, re.M)
    return [label.rstrip() for label in matches]


def records(out: Path) -> dict[str, list[Json]]:
    """Run's folder name → its rows without clocks."""
    paths = sorted(out.glob("runs/*"))
    return {path.name: steady(path) for path in paths}


class Background:
    """A grid in a process of its own. Where its test fails, `grids_end_with_their_test` ends it."""

    STARTED: ClassVar[list[Background]] = []

    def __init__(self, out: Path, *words: str, path: str = str(REPO)) -> None:
        command = ("-m", "nocap.train", "--multirun", *words, f"output_dir={out}")
        self.process = spawn(*command, cwd=out.parent, path=path)
        self.STARTED.append(self)

    def end(self, number: int | None = None) -> Finished:
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=900)
        return Finished(self.process.returncode, out, err)


@dataclass(frozen=True)
class Trained:
    out: Path
    process: Finished


def grid_of(tmp_path: Path, *cells: tuple[str, ...]) -> Grid:
    """A grid whose cells nobody has trained."""
    words = [[*SMALL, f"output_dir={tmp_path}", *cell] for cell in cells]
    return plan_grid(words, swept=("seed",), compose=composed, log=print)


@pytest.fixture(scope="session")
def small_grid(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Trained:
    """Two arms, two seeds, trained one at a time, in this process. Copy it before changing it."""
    out = tmp_path_factory.mktemp("grid") / "out"
    env = {"NOCAP_CACHE": str(cache_dir)}
    done = called(
        *CELL, ARMS, "--multirun", "seed=0,1", f"output_dir={out}", cwd=out.parent, env=env
    )
    assert done.code == 0
    assert done.err == ""
    return Trained(out, done)
