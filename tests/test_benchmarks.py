"""The benchmark in the README, shortened: what it promises on a CPU with native bf16."""

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
