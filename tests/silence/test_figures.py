"""Figures that would mislead: memory that is not the model's, a profile's wrong names, and times taken on a busy machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO, Door

# --- a profile ---------------------------------------------------------------------------------------------------------------------

Profiled = tuple[dict[str, Any], list[str], Path]


@pytest.fixture(scope="module")
def busy_profile(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """A profile of the template's block, on a core that another process wants too: the record, the lines, the folder."""
    folder = tmp_path_factory.mktemp("profile")

    def command(*words: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    command("nocap.new", "model", "side")
    words = ["--config-dir", "side", "model=side", "model.n_layer=2", "model.d_model=64", "model.n_head=4", "model.seq_len=64"]
    words += ["trainer.device=cpu", "trainer.precision=fp32", "trainer.batch_tokens=2048", "trainer.micro_batch=16"]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # this thread's, which its children take over
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        said = command("nocap.profile", *words, "--repeats", "2", "--ceilings", "--json", "p.json", "--html", "p.html")
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
    return json.loads((folder / "p.json").read_text()), said, folder


def test_the_profile_of_a_replaced_block_names_its_own_modules(busy_profile: Profiled) -> None:
    found, said, _ = busy_profile
    attention = {f"blocks.*.attention{inner}" for inner in ("", ".q_proj", ".k_proj", ".v_proj", ".mixer", ".out_proj")}
    block = {"blocks.*", "blocks.*.norm", "blocks.*.mlp", "blocks.*.mlp.up", "blocks.*.mlp.down", *attention}
    parts = {row["part"]: row for row in found["parts"]}
    around = {"accumulate", "reduction", "clip", "optimizer", "data", "other"}
    assert parts.keys() - around == {"embedding", "norm", "head", "loss", *block}
    assert {row["part"] for row in found["layers"]} == block
    products = {"q_proj", "k_proj", "v_proj", "mixer", "out_proj", "up", "down"}
    assert {part.rpartition(".")[2] for part in block if parts[part]["flops"]} == products
    assert parts["embedding"]["bytes"] < min(parts[part]["bytes"] for part in block)
    assert any(line.startswith("blocks.*.attention.q_proj ") for line in said)


def test_a_profile_beside_a_busy_process_says_so_first_and_names_no_winner(busy_profile: Profiled) -> None:
    found, said, folder = busy_profile
    doubts = {doubt["doubt"]: doubt for doubt in found["doubts"]}
    assert not found["trusted"]
    assert 0 < doubts["core"]["value"] < doubts["core"]["limit"] == 0.8
    assert said[0].startswith("not to be trusted")
    assert f"{doubts['core']['value']:.2f} of its core" in said[0]
    page = (folder / "p.html").read_text()
    assert said[0].partition(":")[0] in page
    assert "of a step" not in page.partition("<h1>")[2].partition("</h1>")[0]
    assert {line.split()[-3] for line in said if line.startswith("attention=gqa ")} == {"–"}  # by the measured step


def test_times_of_a_doubted_profile_are_not_compared(busy_profile: Profiled, door: Door) -> None:
    path = str(busy_profile[2] / "p.json")
    done = door("--diff", path, path, module="nocap.profile")
    assert done.code == 0, done.err
    assert "times not compared" in done.out
