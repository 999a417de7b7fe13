"""Speeds that the README states, measured on a CPU: shorter than there, with looser bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.config import hardware
from nocap.measure.arms import compose_arms
from nocap.measure.bench import bench
from nocap.measure.timed import Clock, TimedArm
from tests.conftest import REPO

BASE = ["model=tiny", "tokenizer=gpt2", "trainer.device=cpu", "trainer.micro_batch=4", "trainer.batch_tokens=1024"]
ARMS = ["trainer.precision=fp32 trainer.compile=off", "trainer.precision=bf16 trainer.compile=regional"]


@pytest.mark.slow
@pytest.mark.skipif(not hardware.native_bf16(), reason="this CPU has no native bf16")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_bf16_with_regional_compilation_doubles_the_step():
    """And steps of both, from the same weights over the same tokens, lose the same."""
    arms = [TimedArm(label, run) for label, run in compose_arms(BASE, ARMS).items()]
    result = bench(arms, seconds=120, rounds=8)
    assert [arm["reason"] for arm in result["arms"]] == [None, None]
    assert result["arms"][1]["speed"]["ratio"] >= 2.0
    for arm in arms:
        arm.at = 0
        arm.warm(Clock.cpu)
    plain, quick = arms
    assert max(abs(plain.step() - quick.step()) for _ in range(8)) < 0.01


@pytest.mark.slow
def test_a_cache_multiplies_decoding(tmp_path: Path) -> None:
    """Twelvefold at T=1024, threefold for the small engine that fills its block: CPU time, all engines in one process."""
    words = ["--texts", "2", "--json", str(tmp_path / "decode.json")]
    script = REPO / "experiments" / "smallmind" / "decode.py"
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    shapes = json.loads((tmp_path / "decode.json").read_text())["shapes"]
    least = {"long": 12.0, "smallmind, full block": 3.0, "smallmind": 2.0}
    best = {name: max(min(row["times_no_cache"]) for row in shape["engines"]) for name, shape in shapes.items()}
    assert all(best[name] >= bar for name, bar in least.items()), best
