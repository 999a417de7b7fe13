"""The benchmarks, shortened, and what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nocap import hardware
from nocap.schema import Device, Precision
from tests.conftest import REPO


@pytest.mark.slow
@pytest.mark.skipif(hardware.default_precision(Device.cpu) is Precision.fp32, reason="this CPU has no native bf16")
def test_bf16_with_regional_compilation_doubles_the_step(shared: Path) -> None:
    prose = shared / "data" / "prose"
    words = ["--train", str(prose / "prose_train_*.bin"), "--val", str(prose / "prose_val_*.bin"), "--rounds", "4", "--steps", "2"]
    done = subprocess.run([sys.executable, str(REPO / "benchmarks" / "step_speed.py"), *words], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["speedup_bf16_regional"]["median"] >= 2.0
    assert report["losses"]["largest_difference"] < 0.01


@pytest.mark.slow
def test_a_cache_multiplies_decoding(tmp_path: Path) -> None:
    """Twelvefold at T=1024, threefold for the small engine that fills its block: CPU time, all engines in one process."""
    words = ["--texts", "2", "--json", str(tmp_path / "decode.json")]
    done = subprocess.run([sys.executable, str(REPO / "benchmarks" / "decode.py"), *words], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    shapes = json.loads((tmp_path / "decode.json").read_text())["shapes"]
    least = {"long": 12.0, "smallmind, full block": 3.0, "smallmind": 2.0}
    best = {name: max(min(row["times_no_cache"]) for row in shape["engines"]) for name, shape in shapes.items()}
    assert all(best[name] >= bar for name, bar in least.items()), best
