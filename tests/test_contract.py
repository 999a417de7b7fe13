"""What `nocap check` runs on options from outside, on nocap's own: each that a yaml chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from nocap import outside
from nocap.checks.contract import CHECKS, TRAINED, grid
from nocap.checks.trial import SkippedError, Trial

FAR = ("fineweb", "gpt2")  # their bytes are not on this machine
BESIDE = {"schedule_free": ("schedule=constant",)}
OPTIONS = [(group, name) for group in CHECKS for name in outside.yamls(group) if name not in FAR]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda word: word)
def test_an_option_of_nocaps_own_passes(group: str, name: str, tmp_path: Path) -> None:
    """Without the checks that train in processes, which sets of ideas and the strangers' options take."""
    trial = Trial(group=group, name=name, more=BESIDE.get(name, ()), folder=tmp_path)
    for check in CHECKS[group]:
        if check not in (*TRAINED, grid):
            try:
                print(check.__name__, check(trial))
            except SkippedError as error:
                pytest.skip(f"{check.__name__}: {error}")
