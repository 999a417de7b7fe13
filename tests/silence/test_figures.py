"""Figures that would mislead: memory of more than the model, a profile's wrong names, times of a
busy machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO, SMALL, Door

# --- memory ---------------------------------------------------------------------------------------

SHORT = (
    *SMALL,
    "trainer.steps=4",
    "trainer.checkpoint_every=0",
    "trainer.device=cpu",
    "trainer.compile=off",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of equal models: `plain`, and `mirrored`, whose process holds a tracker's client
    too."""
    folder = tmp_path_factory.mktemp("runs")
    for arm, *own in (("plain",), ("mirrored", "tracker=tensorboard", "optimizer.lr=0.002")):
        command = [sys.executable, "-m", "nocap.train", *SHORT, *own, f"output_dir={arm}"]
        subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=240)
    return folder


@pytest.mark.slow
def test_another_tracker_is_no_more_memory(trained: Path, here: Door) -> None:

    def memory(arm: str) -> dict[str, float]:
        path = next((trained / arm / "runs").glob("*/summary.json"))
        mib: dict[str, float] = json.loads(path.read_text())["memory_mib"]
        return mib

    plain = memory("plain")
    mirrored = memory("mirrored")
    assert plain["model"] < plain["peak"] != mirrored["peak"]  # kept, not compared
    parts = ("parameters", "gradients", "optimizer", "activations")
    assert plain["model"] == mirrored["model"] == pytest.approx(sum(plain[part] for part in parts))
    path = trained / "c.json"
    folders = [str(trained / arm) for arm in ("plain", "mirrored")]
    done = here(*folders, "--json", str(path), module="nocap.compare")
    assert done.code == 0, done.err
    arms = json.loads(path.read_text())["arms"]
    (arm,) = (arm for arm in arms if arm["difference"] is not None)
    assert arm["model_mib"]["mean"] == plain["model"]
    assert arm["model_mib"]["ratio"]["mean"] == 1
    assert "memory_mib" not in arm
    assert not re.search(r"(less|more) memory", done.out)
    listed = here(
        "--output-dir", folders[0], "--columns", "run,model_mib", module="nocap.runs.__main__"
    )
    lines = listed.out.splitlines()
    words = lines[1].split()
    assert words[-1] == f"{plain['model']:.0f}", listed


# --- a profile ------------------------------------------------------------------------------------

Profiled = tuple[dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def busy_profile(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """The template's block, profiled on a core that another process wants too: the record and the
    lines."""
    folder = tmp_path_factory.mktemp("profile")

    def command(*words: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        whole = [sys.executable, "-m", *words]
        done = subprocess.run(
            whole, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.splitlines()

    command("nocap.new", "model", "side")
    words = [
        "--config-dir",
        "side",
        "model=side",
        "model.n_layer=2",
        "model.d_model=64",
        "model.n_head=4",
    ]
    words += ["model.seq_len=64", "trainer.batch_tokens=2048", "trainer.micro_batch=16"]
    words += ["trainer.device=cpu", "trainer.precision=fp32", "--repeats", "2", "--ceilings"]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # this thread's, which its children take over
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        said = command("nocap.profile", *words, "--json", "p.json")
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
    return json.loads((folder / "p.json").read_text()), said


@pytest.mark.slow
def test_the_profile_of_a_replaced_block_names_its_own_modules(busy_profile: Profiled) -> None:
    profile, said = busy_profile
    products = {f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "mixer", "out_proj")}
    products |= {"mlp.up", "mlp.down"}
    block = {"blocks.*", *(f"blocks.*.{name}" for name in ("norm", "mlp", "attention", *products))}
    parts = {row["part"]: row for row in profile["parts"]}
    around = {"accumulate", "reduction", "clip", "optimizer", "data", "other"}
    expected = {"embedding", "norm", "head", "loss", *block}
    assert parts.keys() - around == expected
    assert {row["part"] for row in profile["layers"]} == block
    expected = {f"blocks.*.{name}" for name in products}
    assert {part for part in block if parts[part]["flops"]} == expected
    least = min(parts[part]["bytes"] for part in block)
    assert parts["embedding"]["bytes"] < least
    assert any(line.startswith("  blocks.*.attention.q_proj ") for line in said)
    groups = {group["group"]: group for group in profile["groups"]}
    assert groups.keys() - {"optimizer", "rest"} == {
        *("embedding", "norms", "head", "blocks.*"),
        *(f"blocks.*.{name}" for name in ("norm", "attention", "mlp")),
    }
    names = ("attention", *(name for name in products if name.startswith("attention.")))
    attention_ms = sum(parts[f"blocks.*.{name}"]["ms"] for name in names)
    assert groups["blocks.*.attention"]["ms"] == pytest.approx(attention_ms)


@pytest.mark.slow
def test_a_profile_beside_a_busy_process_says_so_first_and_names_no_winner(
    busy_profile: Profiled,
) -> None:
    profile, said = busy_profile
    core = profile["doubts"]["core"]
    assert profile["trusted"] is False
    assert 0 < core < 0.8
    assert said[0].startswith("do not trust these times")
    assert f"{core:.2f} of its core" in said[0]
    speeds = {line.split()[-3] for line in said if line.startswith("attention=gqa ")}
    assert speeds == {"–"}
