"""What only a GPU shows: kernels by name, losses that agree with the CPU's, compilation, memory as
its allocator counts it.

On a pretended GPU (tests/pretend.py) the same runs go to their ends, and no number is compared."""

import json
import os
from collections.abc import Sequence
from functools import partial

import pytest

from tests.conftest import FAULTS, SMALL, rows_of, the_run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

# where nothing computes: see tests/pretend.py
PRETENDED = "PRETEND_CC" in os.environ
computed = pytest.mark.skipif(PRETENDED, reason="needs a GPU that computes")

KERNELS = {
    "mha": {"kernel": "materialized"},
    "flash": {"kernel": "flash"},
    "gqa": {"kernel": "flash"},
    "flash attention.kernel=flex": {"kernel": "flex"},
    "sliding": {"kernel": "flex"},
    "hybrid": {"kernel": "flash", "local_kernel": "flex"},
}
CUDA = [word for word in SMALL if not word.startswith("trainer.precision")]


def trained(door, out, *words, env=None):
    """What the command printed, and the run's folder."""
    done = door(*words, f"output_dir={out}", timeout=280, env=env)
    assert done.code == 0, done.err
    return done.out, the_run(out)


def losses(run_dir, key="val/loss"):
    return [row[key] for row in rows_of(run_dir) if key in row]


def assert_near(losses: Sequence[float], others: Sequence[float], *, within: float) -> None:
    """Assert that both are as many, and near to each other where a GPU computes them."""
    assert len(losses) == len(others) > 0
    if not PRETENDED:
        assert losses == pytest.approx(others, abs=within)


@pytest.mark.parametrize("compiled", ["off", "regional"])
@pytest.mark.parametrize("attention", KERNELS)
def test_gpu_learns_what_the_cpu_learns(tmp_path, door, attention, compiled):
    option, *more = f"attention={attention}".split()
    words = (*CUDA, option)
    bf16 = (*more, "trainer.device=cuda", "trainer.precision=bf16", "trainer.val_precision=bf16")
    _, on_gpu = trained(door, tmp_path / "gpu", *words, *bf16, f"trainer.compile={compiled}")
    _, on_cpu = trained(
        door, tmp_path / "cpu", *words, "trainer.device=cpu", "trainer.precision=fp32"
    )
    assert_near(losses(on_gpu), losses(on_cpu), within=0.03)  # bf16 has three digits
    summary = json.loads((on_gpu / "summary.json").read_text())
    config = (on_gpu / "config.yaml").read_text()
    assert summary["memory_notes"]["peak"] == "allocated on the GPU after warm-up"
    assert 0 < summary["memory_mib"]["model"] == summary["memory_mib"]["peak"] < 2000
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
    documents = ("data=stdlib", "data.document_mask=true", "position.restart=true")
    words = (*[word for word in CUDA if not word.startswith("data")], *documents, *words)
    plain = [word for word in words if not word.startswith("attention.kernel")]
    gpu = ("trainer.device=cuda", "trainer.precision=bf16", "trainer.compile=regional")
    _, on_gpu = trained(door, tmp_path / "gpu", *words, *gpu)
    _, on_cpu = trained(
        door, tmp_path / "cpu", *plain, "trainer.device=cpu", "trainer.precision=fp32"
    )
    assert_near(losses(on_gpu), losses(on_cpu), within=0.03)


def test_killed_on_a_gpu_it_ends_within_tolerance(tmp_path, door):
    """Checkpoints are written in the background there; atomics make two runs differ in the last
    digits."""
    words = (*CUDA, "trainer.device=cuda")
    _, clean = trained(door, tmp_path / "clean", *words)
    (tmp_path / "faults").mkdir()
    env = {
        "PYTHONPATH": FAULTS,
        "NOCAP_FAULT": "kill@10",
        "NOCAP_FAULT_DIR": str(tmp_path / "faults"),
    }
    said, killed = trained(door, tmp_path / "out", *words, env=env)
    assert "resuming from step 8" in said or "resuming from step 4" in said
    assert_near(losses(killed)[-1:], losses(clean)[-1:], within=1e-3)


@computed
@pytest.mark.parametrize("shape", [(768, 768), (3072, 768), (768, 3072)])
def test_muon_in_stacks_is_torchs_own_within_rounding(shape):
    """A product of a stack may be summed in another order than that of a matrix, and each of its 15
    products is rounded to bf16."""
    from nocap.config.compose import compose
    from nocap.training.optimizer import ByRule

    option = compose(["model=nano", "optimizer=muon", "optimizer.scale=match_rms_adamw"]).optimizer
    generator = torch.Generator("cuda").manual_seed(0)
    updates = []
    grads = torch.randn(4, *shape, generator=generator, device="cuda")
    cases = (
        partial(torch.optim.Muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        partial(ByRule, option),
    )
    for kind in cases:
        matrices = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for _ in grads]
        optimizer = kind(matrices, lr=0.01)
        for p, grad in zip(matrices, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        values = [p.detach() for p in matrices]
        updates.append(torch.stack(values))
    distance = (updates[0] - updates[1]).norm()
    assert distance < 0.01 * updates[0].norm()


def test_with_cuda_graphs_the_losses_are_the_same(tmp_path, door):
    """Atomics in the embedding's backward make two runs differ in the last digits. The graph's
    memory is in the peak."""
    words = (*CUDA, "trainer.device=cuda", "trainer.precision=bf16")
    runs = []
    for on in ("false", "true"):
        runs.append(trained(door, tmp_path / on, *words, f"trainer.cuda_graphs={on}")[1])
    plain, graphed = (losses(run, "train/loss") for run in runs)
    peaks = [json.loads((run / "summary.json").read_text())["memory_mib"]["peak"] for run in runs]
    assert_near(graphed, plain, within=5e-3)
    assert peaks[1] > 0.8 * peaks[0]
