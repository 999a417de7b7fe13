"""What `nocap check` runs on options from outside, on nocap's own: each that a yaml chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from nocap import outside
from nocap.checks.contract import CHECKS, TRAINED, compiles, grid
from nocap.checks.trial import SkippedError, Trial

FAR = ("fineweb", "gpt2")  # their bytes are not on this machine
BESIDE = {"schedule_free": ("schedule=constant",)}
# a trial gives every model one shape: d12 stands for them
SHAPES = ("d24", "d36", "d48", "nano", "small", "tiny")
OPTIONS = [(group, name) for group in CHECKS for name in outside.yamls(group) if name not in (*FAR, *SHAPES)]
IN_GRAPH = ("mlp", "norm", "position")


def passes(trial: Trial, *checks: object) -> None:
    for check in CHECKS[trial.group]:
        if check in checks:
            try:
                print(check.__name__, check(trial))
            except SkippedError as error:
                pytest.skip(f"{check.__name__}: {error}")


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda word: word)
def test_an_option_of_nocaps_own_passes(group: str, name: str, tmp_path: Path) -> None:
    """Without the checks that train in processes, which sets of ideas and the strangers' options take, and
    without compilation, which takes some options at once."""
    trial = Trial(group=group, name=name, more=BESIDE.get(name, ()), folder=tmp_path)
    passes(trial, *({*CHECKS[group]} - {*TRAINED, grid, compiles}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
@pytest.mark.parametrize("at", range(len(outside.yamls("attention"))))
def test_options_compile(at: int, tmp_path: Path) -> None:
    """Each attention, beside each other part of a block in turn; ideas: tests/test_together.py."""
    names = {group: sorted(outside.yamls(group)) for group in ("attention", *IN_GRAPH)}
    assert max(map(len, names.values())) == len(names["attention"])
    more = tuple(f"{group}={names[group][at % len(names[group])]}" for group in IN_GRAPH)
    passes(Trial(group="attention", name=names["attention"][at], more=more, folder=tmp_path), compiles)
