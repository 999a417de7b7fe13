"""A fault that is planted in a room is found by the tests of the gate."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import REPO
from tests.tools import planted


@pytest.mark.parametrize("room", planted.rooms())
def test_each_fault_is_a_change_of_the_source(room: str) -> None:
    """Where a line that it changes has moved, the patch is made again."""
    check = ["git", "apply", "--check", str(planted.PLANTED / f"{room}.patch")]
    done = subprocess.run(check, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("room", planted.rooms())
def test_the_gate_finds_it(room: str) -> None:
    assert planted.found_by(room) is not None
