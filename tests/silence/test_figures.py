"""Figures that would mislead: memory of more than the model, a profile's wrong names, times of a busy
machine."""

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

# --- memory -------------------------------------------------------------------------------------------------

SHORT = (*SMALL, "trainer.steps=4", "trainer.checkpoint_every=0", "trainer.device=cpu", "trainer.compile=off")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of equal models: `plain`, and `mirrored`, whose process holds a tracker's client too."""
    folder = tmp_path_factory.mktemp("runs")
    words = {"plain": ["tracker=none"], "mirrored": ["tracker=tensorboard", "optimizer.lr=0.002"]}
    for arm, own in words.items():
        command = [sys.executable, "-m", "nocap.train", *SHORT, *own, f"output_dir={arm}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    return folder


def summaries(folder: Path) -> dict[str, Path]:
    return {arm: next((folder / arm / "runs").glob("*/summary.json")) for arm in ("plain", "mirrored")}


def compared(door: Door, folder: Path) -> tuple[dict[str, Any], str]:
    """The arm beside the baseline, and what the terminal shows."""
    path = folder / "c.json"
    done = door(str(folder / "plain"), str(folder / "mirrored"), "--json", str(path), module="nocap.compare")
    assert done.code == 0, done.err
    content = json.loads(path.read_text())
    return next(arm for arm in content["arms"] if arm["difference"] is not None), done.out


@pytest.mark.slow
def test_another_tracker_is_no_more_memory(trained: Path, door: Door) -> None:
    plain, mirrored = (json.loads(path.read_text())["memory_mib"] for path in summaries(trained).values())
    assert plain["model"] < plain["peak"] != mirrored["peak"]  # kept, not compared
    parts = ("parameters", "gradients", "optimizer", "activations")
    assert plain["model"] == mirrored["model"] == pytest.approx(sum(plain[part] for part in parts))
    arm, said = compared(door, trained)
    assert arm["model_mib"]["mean"] == plain["model"]
    assert arm["model_mib"]["ratio"]["mean"] == 1
    assert "memory_mib" not in arm
    assert not re.search(r"(less|more) memory", said)
    listed = door("--output-dir", str(trained / "plain"), "--columns", "run,model_mib", module="nocap.runs")
    assert listed.out.splitlines()[1].split()[-1] == f"{plain['model']:.0f}", listed


# --- a profile ----------------------------------------------------------------------------------------------

Profiled = tuple[dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def busy_profile(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """The template's block, profiled on a core that another process wants too: the record and the lines."""
    folder = tmp_path_factory.mktemp("profile")

    def command(*words: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        whole = [sys.executable, "-m", *words]
        done = subprocess.run(whole, cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    command("nocap.new", "model", "side")
    words = ["--config-dir", "side", "model=side", "model.n_layer=2", "model.d_model=64", "model.n_head=4"]
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
    inner = ("", ".q_proj", ".k_proj", ".v_proj", ".mixer", ".out_proj")
    block = {"blocks.*", "blocks.*.norm", "blocks.*.mlp", "blocks.*.mlp.up", "blocks.*.mlp.down"}
    block |= {f"blocks.*.attention{name}" for name in inner}
    parts = {row["part"]: row for row in profile["parts"]}
    around = {"accumulate", "reduction", "clip", "optimizer", "data", "other"}
    assert parts.keys() - around == {"embedding", "norm", "head", "loss", *block}
    assert {row["part"] for row in profile["layers"]} == block
    products = {"q_proj", "k_proj", "v_proj", "mixer", "out_proj", "up", "down"}
    assert {part.rpartition(".")[2] for part in block if parts[part]["flops"]} == products
    assert parts["embedding"]["bytes"] < min(parts[part]["bytes"] for part in block)
    assert any(line.startswith("blocks.*.attention.q_proj ") for line in said)


@pytest.mark.slow
def test_a_profile_beside_a_busy_process_says_so_first_and_names_no_winner(busy_profile: Profiled) -> None:
    profile, said = busy_profile
    core = profile["doubts"]["core"]
    assert not profile["trusted"]
    assert 0 < core < 0.8
    assert said[0].startswith("not to be trusted")
    assert f"{core:.2f} of its core" in said[0]
    by_step = {line.split()[-3] for line in said if line.startswith("attention=gqa ")}
    assert by_step == {"–"}
