"""What only a GPU shows: kernels by name, losses that agree with the CPU's, compilation, memory as its allocator counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SMALL, Door, rows_of, the_run

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

KERNELS = {
    "mha": {"kernel": "materialized"},
    "flash": {"kernel": "flash"},
    "gqa": {"kernel": "flash"},
    "sliding": {"kernel": "flex"},
    "hybrid": {"kernel": "flash", "local_kernel": "flex"},
}
CUDA = [word for word in SMALL if not word.startswith("trainer.precision")]


@pytest.mark.parametrize("compiled", ["off", "regional"])
@pytest.mark.parametrize("attention", KERNELS)
def test_gpu_learns_what_the_cpu_learns(tmp_path: Path, door: Door, attention: str, compiled: str) -> None:
    words = (*CUDA, f"attention={attention}")
    gpu = (f"trainer.compile={compiled}", "trainer.device=cuda", "trainer.precision=bf16", "trainer.val_precision=bf16")
    done = door(*words, *gpu, f"output_dir={tmp_path / 'gpu'}", timeout=280)
    assert done.code == 0, done.err
    assert door(*words, "trainer.device=cpu", "trainer.precision=fp32", f"output_dir={tmp_path / 'cpu'}").code == 0
    on_gpu, on_cpu = (
        {row["step"]: row["val/loss"] for row in rows_of(the_run(tmp_path / where)) if "val/loss" in row} for where in ("gpu", "cpu")
    )
    assert on_gpu == pytest.approx(on_cpu, abs=0.03)  # bf16 has three digits
    summary = json.loads((the_run(tmp_path / "gpu") / "summary.json").read_text())
    assert summary["memory_notes"]["peak"] == "allocated on the GPU"
    assert 0 < summary["memory_mib"]["peak"] < 2000
    config = (the_run(tmp_path / "gpu") / "config.yaml").read_text()
    for key, kernel in KERNELS[attention].items():
        assert f"  {key}: {kernel}\n" in config or f"  {key}: fused\n" in config
    assert summary["mfu"] is None or 0 < summary["mfu"] < 1


def test_killed_on_a_gpu_it_ends_within_tolerance(tmp_path: Path, door: Door) -> None:
    """Checkpoints are written in the background there; atomics make two runs differ in the last digits."""
    from tests.conftest import FAULTS

    words = (*CUDA, "trainer.device=cuda")
    assert door(*words, f"output_dir={tmp_path / 'clean'}").code == 0
    faults = tmp_path / "faults"
    faults.mkdir()
    env = {"PYTHONPATH": FAULTS, "NOCAP_FAULT": "kill@10", "NOCAP_FAULT_DIR": str(faults)}
    done = door(*words, f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 0, done.err
    assert "resuming from step 8" in done.out or "resuming from step 4" in done.out
    last, clean = (rows_of(the_run(tmp_path / name))[-1]["val/loss"] for name in ("out", "clean"))
    assert last == pytest.approx(clean, abs=1e-3)
