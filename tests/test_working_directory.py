"""Modules in the working directory: an option may import them, and none takes the place of
another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.__main__ import COMMANDS
from tests.conftest import REPO, SMALL, Door

NAMES = ("random", "token", "statistics", "yaml", "torch")
OPTION = """
from dataclasses import dataclass
import beside
from nocap.options.mlp import Mlp

@dataclass(kw_only=True)
class Mine(Mlp):
    kind: str = "mine"
    width: int = beside.WIDTH
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Return the file that is there once a module of the folder was run in place of another."""
    mark = tmp_path / "ran"
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    return mark


def test_the_folder_holds_what_python_would_run(ran: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import random"], cwd=tmp_path, check=True)
    assert ran.read_text() == "random"


def test_an_option_imports_what_lies_there_and_nothing_else_does(
    ran: Path, door: Door, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("WIDTH = 77\n")
    (tmp_path / "mine" / "mlp").mkdir(parents=True)
    (tmp_path / "mine" / "mlp" / "mine.py").write_text(OPTION)
    (tmp_path / "mine" / "mlp" / "mine.yaml").write_text("kind: mine\n")
    done = door("--config-dir", "mine", *SMALL, "mlp=mine", "--cfg", "job")

    assert done.code == 0
    assert done.err == ""
    assert "width: 77" in done.out
    assert not ran.exists()


def test_the_console_runs_none(ran: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "nocap"
    script.parent.mkdir()
    script.write_text("import sys\nfrom nocap.__main__ import console\nsys.exit(console())\n")
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, str(script), "runs", "--help"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_them(ran: Path, door: Door, name: str) -> None:
    assert door("--help", module=f"nocap.{name}").code == 0
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("nocap.train", SMALL),
        ("nocap.train", (*SMALL, "trainer.devices=2")),
        ("nocap.train", (*SMALL, "--multirun", "seed=0,1")),
        (
            "nocap.bench",
            ("model=nano", "--arm", "attention=flash", "--arm", "attention=gqa", "--seconds", "2"),
        ),
    ],
)
def test_no_worker_runs_them(ran: Path, door: Door, module: str, words: tuple[str, ...]) -> None:
    done = door(*words, module=module)
    assert done.code == 0, done.err
    assert not ran.exists()
