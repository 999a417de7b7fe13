"""What only a GPU shows: kernels by name, losses that agree with the CPU's, compilation, memory as its
allocator counts it."""

import json
from functools import partial

import pytest

from tests.conftest import SMALL, rows_of, the_run

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
def test_gpu_learns_what_the_cpu_learns(tmp_path, door, attention, compiled):
    words = (*CUDA, f"attention={attention}")
    gpu = (
        f"trainer.compile={compiled}",
        "trainer.device=cuda",
        "trainer.precision=bf16",
        "trainer.val_precision=bf16",
    )
    done = door(*words, *gpu, f"output_dir={tmp_path / 'gpu'}", timeout=280)
    assert done.code == 0, done.err
    assert (
        door(*words, "trainer.device=cpu", "trainer.precision=fp32", f"output_dir={tmp_path / 'cpu'}").code
        == 0
    )
    on_gpu, on_cpu = (
        {row["step"]: row["val/loss"] for row in rows_of(the_run(tmp_path / where)) if "val/loss" in row}
        for where in ("gpu", "cpu")
    )
    assert on_gpu == pytest.approx(on_cpu, abs=0.03)  # bf16 has three digits
    summary = json.loads((the_run(tmp_path / "gpu") / "summary.json").read_text())
    assert summary["memory_notes"]["peak"] == "allocated on the GPU after warm-up"
    assert 0 < summary["memory_mib"]["model"] == summary["memory_mib"]["peak"] < 2000
    config = (the_run(tmp_path / "gpu") / "config.yaml").read_text()
    for key, kernel in KERNELS[attention].items():
        assert f"  {key}: {kernel}\n" in config or f"  {key}: fused\n" in config
    assert summary["mfu"] is None or 0 < summary["mfu"] < 1


@pytest.mark.parametrize(
    "words",
    [
        ("attention=flash", "attention.kernel=flex"),
        ("attention=flash", "attention.kernel=efficient"),
        ("attention=sliding", "attention.window=40", "attention.kernel=flex"),
    ],
)
def test_documents_on_a_gpu_are_those_on_the_cpu(tmp_path, door, words):
    words = (*CUDA, "attention.document_start=98", *words)
    on_cpu = [word for word in words if not word.startswith("attention.kernel")]
    gpu = ("trainer.device=cuda", "trainer.precision=bf16", "trainer.compile=regional")
    for name, asked in (
        ("gpu", (*words, *gpu)),
        ("cpu", (*on_cpu, "trainer.device=cpu", "trainer.precision=fp32")),
    ):
        done = door(*asked, f"output_dir={tmp_path / name}", timeout=280)
        assert done.code == 0, done.err
    losses = [
        [row["val/loss"] for row in rows_of(the_run(tmp_path / name)) if "val/loss" in row]
        for name in ("gpu", "cpu")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.03)


def test_killed_on_a_gpu_it_ends_within_tolerance(tmp_path, door):
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


@pytest.mark.parametrize("shape", [(768, 768), (3072, 768), (768, 3072)])
def test_muon_in_stacks_is_torchs_own_within_rounding(shape):
    """A product of a stack may be summed in another order than that of a matrix, and each of its 15 products
    is rounded to bf16."""
    from nocap.config.compose import compose
    from nocap.training.optimizer import ByRule

    option = compose(["model=nano", "optimizer=muon", "optimizer.scale=match_rms_adamw"]).optimizer
    generator, updates = torch.Generator("cuda").manual_seed(0), []
    grads = torch.randn(4, *shape, generator=generator, device="cuda")
    for kind in (
        partial(torch.optim.Muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        partial(ByRule, option),
    ):
        matrices = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for _ in grads]
        optimizer = kind(matrices, lr=0.01)
        for p, grad in zip(matrices, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        updates.append(torch.stack([p.detach() for p in matrices]))
    assert (updates[0] - updates[1]).norm() < 0.01 * updates[0].norm()


def test_with_cuda_graphs_the_losses_are_the_same(tmp_path, door):
    """Atomics in the embedding's backward make two runs differ in the last digits. The graph's memory is in
    the peak."""
    words = (*CUDA, "trainer.device=cuda", "trainer.precision=bf16")
    rows, peaks = [], []
    for name, on in (("plain", "false"), ("graphed", "true")):
        done = door(*words, f"trainer.cuda_graphs={on}", f"output_dir={tmp_path / name}", timeout=280)
        assert done.code == 0, done.err
        rows.append([row["train/loss"] for row in rows_of(the_run(tmp_path / name)) if "train/loss" in row])
        peaks.append(
            json.loads((the_run(tmp_path / name) / "summary.json").read_text())["memory_mib"]["peak"]
        )
    assert rows[1] == pytest.approx(rows[0], abs=5e-3)
    assert peaks[1] > 0.8 * peaks[0]
