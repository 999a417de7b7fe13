"""What fails runs once more, alone. A test that passes then is named as unsteady."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO

SOUND = "def test_sound(): pass\n"
BROKEN = "def test_broken(): assert False\n"
# It fails where no other try of it has been.
UNSTEADY = """
from pathlib import Path

def test_unsteady():
    tried = Path(__file__).with_name("tried")
    before = tried.exists()
    tried.touch()
    assert before
"""


def retried(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests as the gate runs its own."""
    (folder / "test_made.py").write_text(text)
    command = [sys.executable, "-m", "tests.tools.retry", "-p", "xdist", *words, "test_made.py"]
    env = {**os.environ, "PYTHONPATH": str(REPO), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def named(output: str) -> list[str]:
    """Return the lines that name an unsteady test."""
    return [line for line in output.splitlines() if line.startswith("unsteady: ")]


@pytest.mark.slow
def test_a_first_try_that_fails_is_unsteady(tmp_path: Path) -> None:
    done = retried(tmp_path, SOUND + UNSTEADY, "-n", "1")
    assert done.returncode == 0
    assert named(done.stdout) == ["unsteady: test_made.py::test_unsteady failed, and passed alone"]
    assert "--- the end of the first log ---" in done.stdout
    assert "--- the end of the second log ---" in done.stdout


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    done = retried(tmp_path, SOUND + UNSTEADY + BROKEN, "-n", "0")
    assert done.returncode == 1
    assert named(done.stdout) == ["unsteady: test_made.py::test_unsteady failed, and passed alone"]
    assert "2 failed, 1 passed" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_what_passes_runs_once(tmp_path: Path) -> None:
    done = retried(tmp_path, SOUND, "-n", "0")
    assert done.returncode == 0
    assert "once more" not in done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [("import nothing_of_this_name\n", 2), ("", 5)],
    ids=["cannot be imported", "no test"],
)
def test_tests_that_do_not_run_are_no_pass(tmp_path: Path, text: str, code: int) -> None:
    assert retried(tmp_path, text, "-n", "0").returncode == code
