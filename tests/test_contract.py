"""What `nocap check` runs on options from outside, on nocap's own, each that a yaml chooses, and on
what `nocap new` writes: without the checks that train in processes (tests/test_new_and_check.py)
and without compilation, which takes several options at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from nocap import new, outside
from nocap.checks.contract import CHECKS, TRAINED, Check, compiles, grid
from nocap.checks.trial import OptionTrial, SkippedError
from nocap.config.trainer import ActivationCheckpointing

FAR = ("fineweb", "gpt2")  # their bytes are not on this machine
BESIDE = {"schedule_free": ("schedule=constant",)}
OPTIONS = []
for own_group in CHECKS:
    # a trial gives every model one shape
    names = ["d12"] if own_group == "model" else outside.yamls(own_group)
    OPTIONS += [(own_group, name) for name in names if name not in FAR]
IN_GRAPH = ("mlp", "norm", "position")
KINDS = [kind.value for kind in ActivationCheckpointing]


def passes(trial: OptionTrial, *, without: Collection[Check] = (*TRAINED, grid, compiles)) -> None:
    for check in CHECKS[trial.group]:
        if check not in without:
            try:
                print(check.__name__, check(trial))
            except SkippedError as error:
                pytest.skip(f"{check.__name__}: {error}")


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda word: word)
def test_an_option_of_nocaps_own_passes(group: str, name: str, tmp_path: Path) -> None:
    more = BESIDE.get(name, ())
    passes(OptionTrial(group=group, name=name, more=more, folder=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("group", outside.groups())
def test_what_nocap_new_writes_passes(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outside.VARIABLE, "")
    monkeypatch.delenv(outside.VARIABLE)  # what is in use after this is out of use after the test
    assert new.main([group, "brand_new", "--dir", str(tmp_path / "mine")]) == 0
    outside.use([str(tmp_path / "mine")])
    passes(OptionTrial(group=group, name="brand_new", folder=tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
@pytest.mark.parametrize("at", range(len(outside.yamls("attention"))))
def test_options_compile(at: int, tmp_path: Path) -> None:
    """Each attention, beside each other part of a block, each kind of activation checkpointing and
    a loss in chunks in turn; ideas: tests/test_together.py."""
    names = {group: sorted(outside.yamls(group)) for group in ("attention", *IN_GRAPH)}
    expected = len(names["attention"])
    assert max(map(len, names.values())) == expected
    more = [f"{group}={names[group][at % len(names[group])]}" for group in IN_GRAPH]
    more += [
        "model.logit_softcap=5",
        "objective.z_loss=0.01",
        f"objective.loss_chunks={1 + at % 3}",
    ]
    more += [f"trainer.activation_checkpointing={KINDS[at % len(KINDS)]}"]
    attention = names["attention"][at]
    trial = OptionTrial(group="attention", name=attention, more=tuple(more), folder=tmp_path)
    passes(trial, without={*CHECKS["attention"]} - {compiles})
