"""`trainer.malloc`: what the pool saves, what stays equal, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.config import defaults, hardware
from nocap.config.compose import composed
from nocap.config.trainer import Device, Malloc
from nocap.judge.compare import compare
from nocap.store.runs import load_runs
from tests.conftest import Door
from tests.grids import CELL

GLIBC = pytest.mark.skipif(not hardware.has_glibc(), reason="the C library is not glibc")
STEPS = """\
import json, resource
from nocap.config.trainer import Malloc
from nocap.training import allocator
allocator.use(Malloc.pooled)
import torch
torch.set_num_threads(1)

def step():
    torch.ones(12, 1024, 1024).mul(2.0).add(1.0).sum()  # blocks of 48 MiB

def faults():
    counts = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)  # the heap grows now and then

pooled = faults()
allocator.use(Malloc.system)
print(json.dumps([pooled, faults()]))
"""


@GLIBC
@pytest.mark.slow
def test_the_pool_saves_page_faults_and_can_be_left_again() -> None:
    """A page may be a large one, so that only the shares are known."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=300
    )
    pooled, system = json.loads(done.stdout)
    assert 4 * pooled < system


def trained(here: Door, out: Path, malloc: str) -> str:
    done = here(*CELL, f"output_dir={out / malloc}", f"trainer.malloc={malloc}")
    assert done.code == 0
    return done.out


@GLIBC
def test_no_number_depends_on_it_and_times_across_it_are_refused(
    tmp_path: Path, here: Door
) -> None:
    assert "memory pooled" in trained(here, tmp_path, "pooled")
    assert "memory system" in trained(here, tmp_path, "system")
    pooled = load_runs([tmp_path / "pooled"]).records[0]
    system = load_runs([tmp_path / "system"]).records[0]
    assert pooled.identity == system.identity
    assert pooled.curve.val_loss == system.curve.val_loss
    assert pooled.hardware["malloc"] == "pooled"
    assert pooled.machine != system.machine
    gqa = here(*CELL, "attention=gqa", f"output_dir={tmp_path / 'system'}", "trainer.malloc=system")
    assert gqa.code == 0
    both = load_runs([tmp_path / "pooled", tmp_path / "system" / "runs"])
    arms = compare(both).arms
    row = next(row for row in arms if "gqa" in row.arm.id)
    refused = row.times["token_us"].refused
    assert refused is not None
    assert refused.startswith("other hardware: ")
    assert ", pooled)" in refused


@GLIBC
def test_a_cpu_pools_by_default_and_a_gpu_does_not() -> None:
    assert defaults.malloc(Device.cpu) is Malloc.pooled
    assert defaults.malloc(Device.cuda) is Malloc.system
    run = composed([*CELL]).run
    assert run.trainer.malloc is Malloc.pooled


def test_another_c_library_has_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_glibc", lambda: False)
    run = composed([*CELL]).run
    assert run.trainer.malloc is Malloc.system
    with pytest.raises(
        ValueError,
        match=r"trainer\.malloc must be system, because this machine's C library is not glibc",
    ):
        composed([*CELL, "trainer.malloc=pooled"])
