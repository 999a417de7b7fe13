"""The strangers' ideas through the doors that `nocap check` does not go through: all of them in a study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Door
from tests.test_outside import NAMES, WORDS, flags, without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("numbers")]

PLAIN = {"attention": "flash", "mlp": "gelu4x", "optimizer": "adamw", "schedule": "cosine", "ideas": "[]"}
PLAIN |= {"model": "nano", "tracker": "none"}
BESIDE = ("power_law", "jsonl", "sqlite_rows")  # no part of a step's time: beside each of the others
USED = [word for name in BESIDE for word in WORDS[name]]


@pytest.mark.parametrize("name", ["jsonl", "sqlite_rows", "parallel"])
def test_a_grid_and_its_comparison(here: Door, tmp_path: Path, name: str):
    group, _, chosen = WORDS[name][0].partition("=")
    base = without({group})
    sweep = f"{group}={PLAIN.get(group)},{chosen}"
    if name == "jsonl":  # its path is a key of no other source
        base, sweep = [*base, *WORDS[name]], "data.val_every=10,20"
    done = here(*flags(name), *base, "--multirun", sweep, "seed=0,1")
    assert done.code == 0, done.err
    (folder,) = (tmp_path / "outputs" / "grids").iterdir()
    allowed = ("--allow", "data") if name == "jsonl" else ()
    compared = here(str(folder), *flags(name), "--json", "out.json", *allowed, module="nocap.compare")
    assert compared.code == 0, compared.err
    arms = json.loads((tmp_path / "out.json").read_text())["arms"]
    # a tracker: the same runs
    assert [arm["n"] for arm in arms] == ([2] if name == "sqlite_rows" else [2, 2])
    if len(arms) == 2 and name != "jsonl":
        assert not arms[1]["difference"]["verdict"].startswith("confounded")


def test_profile_and_bench(here: Door, tmp_path: Path):
    name = "ngram_loss"
    group = WORDS[name][0].partition("=")[0]
    words = [*flags(name, *BESIDE), "trainer.precision=fp32", "trainer.threads=1", *USED]
    words += [] if group == "model" else ["model=nano"]
    profile = ["--repeats", "1", "--json", "profile.json"]
    profiled = here(*words, *WORDS[name], *profile, module="nocap.profile")
    assert profiled.code == 0, profiled.err
    assert json.loads((tmp_path / "profile.json").read_text())["flops_per_token"] > 0
    arms = ["--arm", f"{group}={PLAIN[group]}", "--arm", WORDS[name][0]]
    timed = here(*words, *arms, "--rounds", "3", "--json", "bench.json", module="nocap.bench")
    assert timed.code == 0, timed.err
    assert [arm["status"] for arm in json.loads((tmp_path / "bench.json").read_text())["arms"]] == [
        "measured",
        "measured",
    ]


ARMS = {
    "plain": ["model=nano"],
    "block": WORDS["parallel"],
    "layer": ["model=nano", *WORDS["head_temperature"], *WORDS["scaled_relu2"]],
    "ideas": ["model=nano", "ideas=[first_values,ngram_loss]"],
    "sophia": ["model=nano", *WORDS["sophia"]],
}


def claim(arm: str) -> dict[str, object]:
    return {
        "id": f"T.{arm}",
        "statement": "it ends lower",
        "source": "a test",
        "arm": arm,
        "metric": "val_loss",
        "scale": "difference",
        "expected": [-10, 10],
        "mechanism": {"rule": "given", "formula": "none", "bound": None},
    }


def test_a_study_of_all(here: Door, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    study = {
        "question": "Is one of them lower?",
        "baseline": "plain",
        "overrides": [*without({"data", "tracker", "schedule", "model"}), *USED],
        "arms": ARMS,
        "seeds": [0, 1, 2],
        "scales": {"cpu": {"train": ["trainer.val_every=5"], "bench": ["trainer.val_every=5"], "rounds": 2}},
        "claims": [claim(arm) for arm in ARMS if arm != "plain"],
    }
    (tmp_path / "mine" / "study.yaml").write_text(json.dumps(study))
    refused = here("mine", "scale=cpu", module="nocap.study")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    done = here("mine", "scale=cpu", *flags(*NAMES), module="nocap.study")
    assert done.code == 0, done.err
    assert all(f"T.{arm} confirmed" in done.out for arm in ARMS if arm != "plain"), done.out
