"""AdamW against its closed form, Muon against its definition, and which parameters each of them gets."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.model.gpt import GPT, build_model
from nocap.options.optimizer import muon
from nocap.training.optimizer import ByRule, build_optimizers, set_lr, undecorated

EVERYTHING = ["model=nano", "norm=layernorm", "position=learned", "model.tie_head=false", "trainer.device=cpu"]


def small(*overrides: str) -> tuple[Run, GPT]:
    run = compose([*EVERYTHING, *overrides])
    return run, build_model(run, vocab_size=50)


def names_of(model: nn.Module, params: list[Tensor]) -> set[str]:
    ids = {id(p) for p in params}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def held(optimizers: list[torch.optim.Optimizer]) -> list[Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def set_grads(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    return {name: p.grad.double() for name, p in model.named_parameters()}


# --- AdamW -------------------------------------------------------------------------------------------------------------------------


def test_one_adamw_step_is_the_sign_of_the_gradient():
    """After one step both moments are bias-corrected to g and g², so that the update is lr·g / (|g| + eps), beside the decay."""
    run, model = small("optimizer.lr=0.01", "optimizer.weight_decay=0.3", "optimizer.decay=all", "optimizer.eps=0.5")
    optimizers = build_optimizers(run, model)
    before = {name: p.detach().double() for name, p in model.named_parameters()}
    grads = set_grads(model, seed=0)
    set_lr(optimizers, 0.5)
    optimizers[0].step()
    lr = 0.005
    for name, p in model.named_parameters():
        want = before[name] * (1 - lr * 0.3) - lr * grads[name] / (grads[name].abs() + 0.5)
        torch.testing.assert_close(p.double(), want, atol=1e-6, rtol=1e-6)


def test_three_adamw_steps_are_the_papers():
    run, model = small("optimizer.beta1=0.8", "optimizer.beta2=0.9", "optimizer.decay=all")
    (optimizer,) = optimizers = build_optimizers(run, model)
    spec, name = run.optimizer, "blocks.0.mlp.f.up.weight"
    x = dict(model.named_parameters())[name].detach().double()
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, factor in enumerate((0.1, 1.0, 0.3), start=1):
        g = set_grads(model, seed=t)[name]
        set_lr(optimizers, factor)
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        x = x - spec.lr * factor * (spec.weight_decay * x + m / (1 - 0.8**t) / ((v / (1 - 0.9**t)).sqrt() + spec.eps))
    torch.testing.assert_close(dict(model.named_parameters())[name].double(), x, atol=1e-6, rtol=1e-6)


def test_decay_of_matrices_spares_gains_and_shifts():
    run, model = small("optimizer.decay=matrices")
    decayed, spared = build_optimizers(run, model)[0].param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (run.optimizer.weight_decay, 0.0)
    assert names_of(model, decayed["params"]) == {name for name, p in model.named_parameters() if p.ndim == 2}
    assert names_of(model, spared["params"]) == {name for name, p in model.named_parameters() if p.ndim == 1} != set()


def test_decay_of_all_is_one_group():
    run, model = small("optimizer.decay=all")
    (group,) = build_optimizers(run, model)[0].param_groups
    assert names_of(model, group["params"]) == {name for name, _ in model.named_parameters()}
    assert group["weight_decay"] == run.optimizer.weight_decay


# --- Muon --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["true", "false"])
def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest(tie: str):
    run, model = small("optimizer=muon", "attention=gqa", "mlp=swiglu", f"model.tie_head={tie}")
    adamw, muon = optimizers = build_optimizers(run, model)
    assert isinstance(adamw, torch.optim.AdamW)
    assert isinstance(muon, ByRule)
    parts = [f"attention.f.{part}_proj" for part in ("q", "k", "v", "out")] + [f"mlp.f.{part}" for part in ("gate", "up", "down")]
    matrices = {f"blocks.{layer}.{part}.weight" for layer in range(2) for part in parts}
    assert names_of(model, held([muon])) == matrices
    assert names_of(model, held([adamw])) == {name for name, _ in model.named_parameters()} - matrices
    assert sorted(map(id, held(optimizers))) == sorted(map(id, model.parameters())), "each parameter once"


def newton_schulz(g: Tensor, steps: int) -> Tensor:
    """X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, from X = G/‖G‖ (Keller Jordan, 2024), in fp64 where torch's is bf16."""
    x = g / g.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize(("scale", "factor"), [("match_rms_adamw", 0.2 * 16.0), ("original", 2.0)])
def test_muon_steps_are_the_definitions(scale: str, factor: float):
    """Two steps, so that the momentum and Nesterov's look ahead show. `up` is 256 × 64: 0.2·√256, or √(256/64)."""
    run, model = small("optimizer=muon", f"optimizer.scale={scale}")
    optimizers = build_optimizers(run, model)
    spec, name = run.optimizer, "blocks.0.mlp.f.up.weight"
    p = dict(model.named_parameters())[name]
    assert p.shape == (256, 64)
    momentum = torch.zeros_like(p, dtype=torch.float64)
    for step, multiple in enumerate((0.5, 1.0)):
        before = p.detach().double()
        g = set_grads(model, seed=step)[name]
        set_lr(optimizers, multiple)
        optimizers[1].step()
        momentum = spec.momentum * momentum + (1 - spec.momentum) * g
        ahead = spec.momentum * momentum + (1 - spec.momentum) * g
        lr = multiple * spec.muon_lr
        update = (before * (1 - lr * spec.weight_decay) - p.detach().double()) / (lr * factor)
        assert (update - newton_schulz(ahead, spec.ns_steps)).norm() < 0.03 * update.norm()
        singular = torch.linalg.svdvals(update)
        assert 0.5 < singular.min() <= singular.max() < 1.5


@pytest.mark.parametrize("at_once", [1, 3 * 64 * 64, 2**20])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_muon_in_stacks_is_torchs_own_bit_for_bit(monkeypatch: pytest.MonkeyPatch, at_once: int, scale: str):
    """Matrices alone, in stacks of three with a rest, and all of a shape at once; one has no gradient."""
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    monkeypatch.setitem(muon.AT_ONCE, "cpu", at_once)
    weights, states = [], []
    for ours in (False, True):
        run, model = small("attention=gqa", "optimizer=muon", f"optimizer.scale={scale}", "optimizer.momentum=0.9")
        matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
        how = {"lr": 0.02, "weight_decay": 0.1}
        kind = partial(ByRule, run.optimizer) if ours else partial(torch.optim.Muon, momentum=0.9, adjust_lr_fn=scale)
        optimizer = kind(matrices, **how)
        for step in range(3):
            set_grads(model, seed=step)
            matrices[1].grad = None
            optimizer.step()
        weights.append([p.detach() for p in matrices])
        states.append([optimizer.state[p]["momentum_buffer"] for p in matrices if p.grad is not None])
    assert all(map(torch.equal, *weights))
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 48), (2, 48, 16)])
def test_without_bf16_products_muon_iterates_in_fp32(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    matrices = [nn.Parameter(torch.zeros(shape[1:])) for _ in range(shape[0])]
    run, _ = small("optimizer=muon", "optimizer.momentum=0", "optimizer.scale=original")
    optimizer = ByRule(run.optimizer, matrices, lr=1.0)
    generator = torch.Generator().manual_seed(0)
    for p in matrices:
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    for p in matrices:
        update = -p.detach().double() / max(1, shape[1] / shape[2]) ** 0.5
        assert (update - newton_schulz(p.grad.double(), 5)).norm() < 1e-5 * update.norm()  # bf16 is 1e-2 away


def test_muons_step_has_the_size_of_adamws():
    """What match_rms_adamw promises: root-mean-square updates of about 0.2·lr, whatever the matrix's shape."""
    run, model = small("optimizer=muon", "optimizer.weight_decay=0")
    _, muon = optimizers = build_optimizers(run, model)
    before = [p.detach().clone() for p in held([muon])]
    set_grads(model, seed=0)
    set_lr(optimizers, 1.0)
    muon.step()
    for p, old in zip(held([muon]), before, strict=True):
        assert (p - old).square().mean().sqrt().item() / run.optimizer.muon_lr == pytest.approx(0.2, rel=0.25)


def test_the_schedule_multiplies_each_optimizers_own_peak():
    run, model = small("optimizer=muon", "optimizer.lr=0.1", "optimizer.muon_lr=0.02")
    optimizers = build_optimizers(run, model)
    for factor in (0.5, 0.25, 1.0):
        set_lr(optimizers, factor)
        rates = [{group["lr"] for group in optimizer.param_groups} for optimizer in optimizers]
        assert rates == [{0.1 * factor}, {0.02 * factor}]
    assert math.isclose(optimizers[0].param_groups[0]["peak_lr"], 0.1)


# --- torch's decorators ------------------------------------------------------------------------------------------------------------

STEPS = """
import sys
import torch
from nocap.config.compose import compose
from nocap.training.optimizer import build_optimizers

model = torch.nn.Module()
model.blocks, model.head = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
for kind in ("adamw", "muon", "soap", "lion"):
    for optimizer in build_optimizers(compose(["model=nano", f"optimizer={kind}"]), model):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})
        for p in model.parameters():
            p.grad = torch.ones(2, 2)
        optimizer.step()
        optimizer.zero_grad()
print("torch._dynamo" in sys.modules)
"""


def test_an_optimizer_imports_no_compiler():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(("kind", "more"), [(torch.optim.AdamW, {"fused": True}), (torch.optim.Muon, {})])
def test_without_its_decorators_an_optimizer_steps_as_torchs_own(kind: type[torch.optim.Optimizer], more: dict[str, bool]):
    weights = []
    for made in (kind, undecorated(kind)):
        generator = torch.Generator().manual_seed(0)
        p = nn.Parameter(torch.randn(8, 4, generator=generator))
        optimizer = made([p], lr=0.01, weight_decay=0.1, **more)
        for _ in range(4):
            p.grad = torch.randn(8, 4, generator=generator)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        weights.append(p.detach())
    assert torch.equal(*weights)
