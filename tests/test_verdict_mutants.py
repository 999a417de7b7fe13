"""The tests of verdicts notice each of the judge's mutants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import REPO
from tests.tools import mutants


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", ["interval", "verdict", "compare"])
def test_every_mutant_dies(module: str) -> None:
    """In a process of its own, which has imported nothing of nocap yet."""
    command = [sys.executable, "-m", "tests.tools.mutants", module]
    done = subprocess.run(
        command,
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_each_mutant_is_a_change_of_the_source() -> None:
    for mutant in mutants.MUTANTS:
        mutants.Mutated(*mutant)  # says which one is not in the source any more
    assert all(mutant in mutants.MUTANTS for mutant in mutants.EQUIVALENT)
