"""The strangers' ideas through the doors that `nocap check` does not go through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SMALL, Door
from tests.test_outside import MINE, NAMES, STRANGERS, WORDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = [name for name in NAMES if name not in ("counting", "csv_rows")]  # those that change a training step


def flag(name: str) -> tuple[str, str]:
    return "--config-dir", str(STRANGERS / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_grid_and_its_comparison(door: Door, tmp_path: Path, name: str):
    group, _, chosen = WORDS[name][0].partition("=")
    base = [word for word in (MINE if name == "counting" else SMALL) if not word.startswith(f"{group}=")]
    plain = {"attention": "flash", "mlp": "gelu4x", "optimizer": "adamw", "ideas": "[]", "data": "synthetic", "tracker": "none"}[group]
    done = door(*flag(name), *base, "--multirun", f"{group}={plain},{chosen}", "seed=0,1", timeout=600)
    assert done.code == 0, done.err
    (folder,) = (tmp_path / "outputs" / "grids").iterdir()
    compared = door(
        str(folder), *flag(name), "--json", "out.json", *(("--allow", "data") if name == "counting" else ()), module="nocap.compare"
    )
    assert compared.code == 0, compared.err
    arms = json.loads((tmp_path / "out.json").read_text())["arms"]
    assert [arm["n"] for arm in arms] == ([2, 2] if name != "csv_rows" else [2])  # a tracker makes no other run
    if name in STEPS:
        assert not arms[1]["difference"]["verdict"].startswith("confounded")


@pytest.mark.parametrize("name", STEPS)
def test_profile_and_bench(door: Door, tmp_path: Path, name: str):
    words = ["model=nano", "tracker=none", "trainer.precision=fp32", "trainer.threads=1", *WORDS[name]]
    profiled = door(*flag(name), *words, "--repeats", "1", "--json", "profile.json", module="nocap.profile", timeout=600)
    assert profiled.code == 0, profiled.err
    parts = json.loads((tmp_path / "profile.json").read_text())
    assert parts["flops_per_token"] > 0
    arms = ["--arm", "attention=flash", "--arm", WORDS[name][0]]
    timed = door(*flag(name), *words[:-1], *arms, "--rounds", "9", "--json", "bench.json", module="nocap.bench", timeout=600)
    assert timed.code == 0, timed.err
    assert [arm["status"] for arm in json.loads((tmp_path / "bench.json").read_text())["arms"]] == ["measured", "measured"]


STUDY = """
question: Is it lower?
baseline: plain
overrides: [{words}]
arms:
  plain: []
  idea: ["{idea}"]
seeds: [0, 1, 2]
scales:
  cpu: {{train: [trainer.val_every=5], bench: [trainer.val_every=5], rounds: 2}}
claims:
  - id: T.loss
    statement: it ends lower
    source: a test
    arm: idea
    metric: val_loss
    scale: difference
    expected: [-10, 10]
    mechanism: {{rule: given, formula: none, bound: null}}
"""


@pytest.mark.parametrize("name", ["my_x0", "signum", "softcap"])
def test_a_study(door: Door, tmp_path: Path, name: str):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text(STUDY.format(words=", ".join(SMALL), idea=WORDS[name][0]))
    without = door("mine", "scale=cpu", module="nocap.study")
    assert (without.code, len(without.err.splitlines())) == (2, 1)
    done = door("mine", "scale=cpu", *flag(name), module="nocap.study", timeout=600)
    assert done.code == 0, done.err
    assert "T.loss confirmed" in done.out
