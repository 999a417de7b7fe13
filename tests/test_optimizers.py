"""Each optimizer, and what surrounds the step, against its paper's algorithm written naively; neutral
settings against their parents."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.keys import InputError
from nocap.config.plain import dump, to_plain
from nocap.config.run import Run
from nocap.measure.generation import load
from nocap.measure.profile import measurable
from nocap.model.gpt import GPT, build_model
from nocap.options.optimizer import muon
from nocap.store.identity import config_that_counts
from nocap.store.record import digest
from nocap.training import checkpoint, memory
from nocap.training.ledger import Ledger
from nocap.training.loop import val_loss
from nocap.training.optimizer import ByRule, build_optimizers, set_lr, undecorated
from nocap.training.step import Trainee, clip, take_step, validate
from tests.attempts import state_of
from tests.conftest import SMALL, Door, the_run
from tests.test_ideas import V, saved_and_loaded, trainee_of

pytestmark = pytest.mark.usefixtures("atlas_ideas")
SHAPES = ((6, 4), (3, 5))
RATES = (0.01, 0.02, 0.05, 0.05, 0.03)
DECAY = 0.3
EVERYTHING = [
    "model=nano",
    "norm=layernorm",
    "position=learned",
    "model.tie_head=false",
    "trainer.device=cpu",
]


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


def option(kind: str, **keys: Any) -> Any:
    words = [f"optimizer.{key}={value}" for key, value in keys.items()]
    return compose([*SMALL, f"optimizer={kind}", "schedule=constant", *words]).optimizer


def stepped(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
) -> tuple[list[list[Tensor]], list[list[Tensor]], Any]:
    """Five steps in fp64 with a rate for each: the parameters before and after every step, its gradients, and
    the optimizer."""
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]
    optimizer = make([{"params": params, "weight_decay": DECAY}])
    weights, grads = [[p.detach().clone() for p in params]], []
    for rate in RATES:
        grads.append([torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params])
        for p, g in zip(params, grads[-1], strict=True):
            p.grad = g.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        weights.append([p.detach().clone() for p in params])
    return weights, grads, optimizer


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# --- AdamW --------------------------------------------------------------------------------------------------


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
        x = x - spec.lr * factor * (
            spec.weight_decay * x + m / (1 - 0.8**t) / ((v / (1 - 0.9**t)).sqrt() + spec.eps)
        )
    torch.testing.assert_close(dict(model.named_parameters())[name].double(), x, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("kind", "spares"), [("matrices", True), ("all", False)])
def test_decay_of_matrices_spares_gains_and_shifts(kind: str, spares: bool):
    run, model = small(f"optimizer.decay={kind}")
    decays = {
        name: g["weight_decay"]
        for g in build_optimizers(run, model)[0].param_groups
        for name in names_of(model, g["params"])
    }
    expected = {
        name: 0.0 if spares and p.ndim == 1 else run.optimizer.weight_decay
        for name, p in model.named_parameters()
    }
    assert decays == expected


# --- the others ---------------------------------------------------------------------------------------------


def test_lion_is_the_papers():
    weights, grads, _ = stepped(partial(ByRule, option("lion", beta1=0.9, beta2=0.6)))
    for i, p in enumerate(weights[0]):
        m = torch.zeros_like(p)
        for t, lr in enumerate(RATES):
            g = grads[t][i]
            update = torch.sign(0.9 * m + 0.1 * g)
            p = p - lr * (update + DECAY * p)
            m = 0.6 * m + 0.4 * g
            close(weights[t + 1][i], p)


def test_ademamix_is_the_papers():
    """Three steps of the ramp, then the final α and β₃."""
    betas, alpha, ramp, eps = (0.9, 0.8, 0.99), 3.0, 3, 1e-3
    beta1, beta2, last = betas
    rule = option("ademamix", beta1=beta1, beta2=beta2, beta3=last, alpha=alpha, ramp_steps=ramp, eps=eps)
    weights, grads, _ = stepped(partial(ByRule, rule))
    for i, p in enumerate(weights[0]):
        m1, m2, v = (torch.zeros_like(p) for _ in range(3))
        for t, lr in enumerate(RATES, start=1):
            g = grads[t - 1][i]
            mixed = (1 - t / ramp) * math.log(last) + t / ramp * math.log(beta1)
            beta3 = min(math.exp(math.log(beta1) * math.log(last) / mixed), last) if t < ramp else last
            m1, m2, v = (
                beta1 * m1 + (1 - beta1) * g,
                beta3 * m2 + (1 - beta3) * g,
                beta2 * v + (1 - beta2) * g**2,
            )
            m1_hat, v_hat = m1 / (1 - beta1**t), v / (1 - beta2**t)
            p = p - lr * ((m1_hat + min(t * alpha / ramp, alpha) * m2) / (v_hat.sqrt() + eps) + DECAY * p)
            close(weights[t][i], p)


def test_without_a_ramp_ademamix_is_constant():
    rule = option("ademamix", beta1=0.9, beta2=0.95, beta3=0.999, alpha=5, ramp_steps=100)
    assert replace(rule, ramp_steps=0).ramped(1) == rule.ramped(100) == rule.ramped(500) == (5.0, 0.999)
    assert 0 < replace(rule, beta1=0.0).ramped(1)[1] < 0.999
    with pytest.raises(ValueError, match=r"^optimizer.beta3 must be at least optimizer.beta1=0.9, got 0.5"):
        option("ademamix", beta1=0.9, beta3=0.5)


def test_schedule_free_is_the_papers():
    beta1, beta2, eps = 0.8, 0.9, 1e-3
    rule = option("schedule_free", beta1=beta1, beta2=beta2, eps=eps)
    weights, grads, optimizer = stepped(partial(ByRule, rule, sum=0.0))
    with rule.validating([optimizer]):
        averages = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
    for i, p in enumerate(weights[0]):
        x = y = z = p
        v, squares = torch.zeros_like(p), 0.0
        for t, lr in enumerate(RATES, start=1):
            g = grads[t - 1][i]
            v = beta2 * v + (1 - beta2) * g**2
            gamma = lr * math.sqrt(1 - beta2**t)
            z = z - gamma * g / (v.sqrt() + eps) - gamma * DECAY * y
            squares += gamma**2
            c = gamma**2 / squares
            x = (1 - c) * x + c * z
            y = (1 - beta1) * z + beta1 * x
            close(weights[t][i], y)
        close(averages[i], x)


def test_soap_is_the_papers(monkeypatch: pytest.MonkeyPatch):
    """The bases from the first gradient, then one step of orthogonal iteration every second update. A basis
    vector's sign is free. The average of the gradients turns with the bases: no other than the one that is
    turned at each step."""
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    beta1, beta2, eps, every = 0.8, 0.9, 1e-3, 2
    weights, grads, _ = stepped(
        partial(ByRule, option("soap", beta1=beta1, beta2=beta2, eps=eps, basis_every=every))
    )
    for i, w in enumerate(weights[0]):
        first = grads[0][i]
        left, right = (1 - beta2) * (first @ first.T), (1 - beta2) * (first.T @ first)
        q_left, q_right = (torch.linalg.eigh(side).eigenvectors.flip(1) for side in (left, right))
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        close(weights[1][i], w)
        for t, lr in enumerate(RATES[1:], start=1):
            g = grads[t][i]
            turned = q_left.T @ g @ q_right
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * turned**2
            m_hat, v_hat = q_left.T @ m @ q_right / (1 - beta1**t), v / (1 - beta2**t)
            w = w - lr * (q_left @ (m_hat / (v_hat.sqrt() + eps)) @ q_right.T + DECAY * w)
            close(weights[t + 1][i], w)
            left, right = beta2 * left + (1 - beta2) * g @ g.T, beta2 * right + (1 - beta2) * g.T @ g
            if t % every == 0:
                q_left, q_right = torch.linalg.qr(left @ q_left).Q, torch.linalg.qr(right @ q_right).Q


def test_soap_with_products_in_bf16_steps_almost_the_same_way(monkeypatch: pytest.MonkeyPatch):
    moved = []
    for bf16 in (False, True):
        monkeypatch.setattr(hardware, "native_bf16", lambda bf16=bf16: bf16)
        weights, _, optimizer = stepped(partial(ByRule, option("soap", eps=1e-3, basis_every=2)))
        moved.append([after - before for before, after in zip(weights[1], weights[-1], strict=True)])
        bases = {state["left_basis"].dtype for state in optimizer.state.values()}
        assert bases == {torch.bfloat16 if bf16 else torch.float64}
    for exact, rounded in zip(*moved, strict=True):
        error = float((rounded - exact).norm() / exact.norm())
        assert 0 < error < 0.03, error


# --- the gradient's norm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e-7, 1.0, 1e9])
def test_clipping_leaves_out_what_changes_nothing_and_is_torchs_own(limit: float):
    _, model = small()
    parameters, clipped = list(model.parameters()), []
    for ratio in (0.0, 0.5, 0.998, 0.9999, 1 - 1e-7, 1.0, 1.0001, 3.0):
        set_grads(model, seed=0)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        grads = [p.grad * (ratio * limit / norm) for p in parameters if p.grad is not None]
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad.clone()
        norm = nn.utils.get_total_norm(grads)
        clip(parameters, limit, norm)
        ours = [p.grad.clone() for p in parameters if p.grad is not None]
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad.clone()
        nn.utils.clip_grad_norm_(parameters, limit)
        assert all(map(torch.equal, ours, (p.grad for p in parameters)))
        clipped.append(any(not torch.equal(*pair) for pair in zip(ours, grads, strict=True)))
    assert (clipped[0], clipped[-1]) == (False, True)


# --- Muon ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["true", "false"])
@pytest.mark.parametrize("kind", ["muon", "soap"])
def test_matrices_of_the_blocks_get_one_optimizer_and_adamw_the_rest(kind: str, tie: str):
    run, model = small(f"optimizer={kind}", "attention=gqa", "mlp=swiglu", f"model.tie_head={tie}")
    adamw, own = optimizers = build_optimizers(run, model)
    assert isinstance(adamw, torch.optim.AdamW)
    assert isinstance(own, ByRule)
    parts = [f"attention.f.{part}_proj" for part in ("q", "k", "v", "out")] + [
        f"mlp.f.{part}" for part in ("gate", "up", "down")
    ]
    matrices = {f"blocks.{layer}.{part}.weight" for layer in range(2) for part in parts}
    assert names_of(model, held([own])) == matrices
    assert names_of(model, held([adamw])) == {name for name, _ in model.named_parameters()} - matrices
    assert sorted(map(id, held(optimizers))) == sorted(map(id, model.parameters())), "each parameter once"


def newton_schulz(g: Tensor, steps: int) -> Tensor:
    """X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, from X = G/‖G‖ (Keller Jordan, 2024), in fp64 where torch's is
    bf16."""
    x = g / g.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("at_once", [1, 3 * 64 * 64, 2**20])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_muon_in_stacks_is_torchs_own_bit_for_bit(monkeypatch: pytest.MonkeyPatch, at_once: int, scale: str):
    """Matrices alone, in stacks of three with a rest, and all of a shape at once; one has no gradient."""
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    monkeypatch.setitem(muon.AT_ONCE, "cpu", at_once)
    weights, states = [], []
    for ours in (False, True):
        run, model = small(
            "attention=gqa", "optimizer=muon", f"optimizer.scale={scale}", "optimizer.momentum=0.9"
        )
        matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
        how = {"lr": 0.02, "weight_decay": 0.1}
        kind = (
            partial(ByRule, run.optimizer)
            if ours
            else partial(torch.optim.Muon, momentum=0.9, adjust_lr_fn=scale)
        )
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


# --- Muon's options -----------------------------------------------------------------------------------------


def best_polynomial(low: float, high: float) -> np.ndarray[Any, Any]:
    """a, b and c of the odd polynomial of degree 5 that is nearest to 1 on [low, high], by Remez: at four
    points its errors are equal, and of changing sign."""
    inner = low + (high - low) * np.array([1 / 3, 2 / 3])
    for _ in range(100):
        points = np.array([low, *inner, high])
        rows = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, _ = np.linalg.solve(rows, np.ones(4))
        inner = np.sqrt((-3 * b + np.array([-1, 1]) * math.sqrt(9 * b * b - 20 * a * c)) / (10 * c))
    return np.array([a, b, c])


def test_polar_express_has_the_papers_polynomials():
    low, high, cushion = 1e-3, 1.0, 0.02407327424182761
    for stated in muon.POLAR_EXPRESS[:6]:  # the last two are the limit, where the four points fall together
        derived = best_polynomial(max(low, cushion * high), high)
        ends = [derived @ [x, x**3, x**5] for x in (max(low, cushion * high), high)]
        derived *= 2 / sum(ends) if low >= cushion * high else 2 / (derived @ [low, low**3, low**5] + ends[1])
        assert stated == pytest.approx(derived, rel=1e-4)
        low = derived @ [low, low**3, low**5]
        high = 2 - low
    assert muon.POLAR_EXPRESS[-1] == (15 / 8, -10 / 8, 3 / 8)


@pytest.mark.parametrize("steps", [5, 6, 10])
def test_polar_express_brings_singular_values_nearer_to_1(steps: int):
    """Of a matrix with values from 1 down to 0.003, at as many iterations."""
    generator = torch.Generator().manual_seed(0)
    u, v = (
        torch.linalg.qr(torch.randn(24, 24, generator=generator, dtype=torch.float64)).Q for _ in range(2)
    )
    x = u @ torch.diag(torch.logspace(-2.5, 0, 24, dtype=torch.float64)) @ v
    errors = {}
    for kind in ("newton_schulz", "polar_express"):
        polynomials = option("muon", iteration=kind, ns_steps=steps).polynomials()
        (orthogonal,) = muon.orthogonalized(x[None].clone(), polynomials, torch.float64)
        errors[kind] = (torch.linalg.svdvals(orthogonal) - 1).abs()
    newton, polar = errors.values()
    assert polar.mean() < 0.7 * newton.mean()
    assert polar.max() < newton.max()
    if steps == 10:
        assert polar.max() < 1e-6 < 0.1 < newton.max()


def test_normuon_is_the_papers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    lr, beta1, beta2, decay = 0.1, 0.9, 0.8, 0.3
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((16, 6), (16, 6), (6, 16))]
    optimizer = ByRule(
        option("muon", momentum=beta1, row_beta2=beta2, scale="match_rms_adamw"),
        params,
        lr=lr,
        weight_decay=decay,
    )
    w = [p.detach().double() for p in params]
    m, v = [torch.zeros_like(p) for p in w], [torch.zeros(len(p), dtype=torch.float64) for p in w]
    for _ in range(4):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator) * torch.linspace(1, 20, len(p))[:, None]
        optimizer.step()
        for i, p in enumerate(params):
            m[i] = beta1 * m[i] + (1 - beta1) * p.grad.double()
            ahead = beta1 * m[i] + (1 - beta1) * p.grad.double()
            o = newton_schulz(ahead.T, 5).T if len(p) > p.shape[1] else newton_schulz(ahead, 5)
            v[i] = beta2 * v[i] + (1 - beta2) * o.square().mean(1)
            o_hat = o / v[i].sqrt()[:, None]
            w[i] = w[i] - lr * decay * w[i] - 0.2 * lr * math.sqrt(p.numel()) / o_hat.norm() * o_hat
            torch.testing.assert_close(p.detach().double(), w[i], rtol=0, atol=1e-5)


def muon_weights(*words: str) -> list[Tensor]:
    """The weights after four steps."""
    run = compose([*SMALL, "optimizer=muon", *words])
    model = build_model(run, vocab_size=V)
    optimizers = build_optimizers(run, model)
    for step in range(4):
        set_grads(model, seed=step)
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_momentum_warms_up_in_a_straight_line():
    rule = option("muon", momentum=0.95, momentum_start=0.85, momentum_warmup_steps=4)
    momenta = [rule.momentum_at(step) for step in (1, 2, 3, 4, 5, 500)]
    assert momenta == pytest.approx([0.85, 0.875, 0.9, 0.925, 0.95, 0.95])
    assert momenta[-2:] == [0.95, 0.95]


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["optimizer.momentum_warmup_steps=9", "optimizer.momentum_start=0.95"], True),
        (["optimizer.momentum_warmup_steps=9"], False),
        (["optimizer.iteration=polar_express"], False),
        (["optimizer.row_beta2=0.95"], False),
        (["optimizer.cautious_decay=true"], False),
    ],
    ids=str,
)
def test_muons_options_change_what_they_are_for(words: list[str], same: bool):
    assert all(map(torch.equal, muon_weights(), muon_weights(*words))) == same


# --- cautious decay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["optimizer=adamw"], ["optimizer=muon"]], ids=str)
def test_cautious_decay_is_the_papers(words: list[str]):
    """Against the same optimizer's update without decay, from the same weights and state."""
    words = [*SMALL, *words, "optimizer.decay=matrices", "norm=rmsnorm_gain"]
    models = []
    for more in (
        ["optimizer.weight_decay=0.5", "optimizer.cautious_decay=true"],
        ["optimizer.weight_decay=0"],
    ):
        run = compose([*words, *more])
        models.append((run, model := build_model(run, vocab_size=V), build_optimizers(run, model)))
    (run, cautious, its), (_, plain, others) = models
    for step in range(3):
        before = {name: p.detach().clone() for name, p in cautious.named_parameters()}
        for model, optimizers in ((cautious, its), (plain, others)):
            for name, p in model.named_parameters():
                p.data.copy_(before[name])
            set_grads(model, seed=step)
            for optimizer in optimizers:
                optimizer.step()
        undecayed, shares = dict(plain.named_parameters()), set[float]()
        rates = {
            id(p): (g["lr"], g["weight_decay"])
            for optimizer in its
            for g in optimizer.param_groups
            for p in g["params"]
        }
        for name, p in cautious.named_parameters():
            lr, decay = rates[id(p)]
            assert decay == (0.5 if p.ndim == 2 else 0.0)
            x, u = before[name], before[name] - undecayed[name].detach()
            mask = (u * x >= 0).float()
            shares.add(float(mask.mean()))
            torch.testing.assert_close(p.detach(), x - u - lr * decay * mask * x, rtol=0, atol=1e-7)
        assert any(0.2 < share < 0.8 for share in shares)
    assert run.optimizer.cautious_decay


def test_cautious_decay_needs_a_decay_that_it_can_see(monkeypatch: pytest.MonkeyPatch):
    run = compose([*SMALL, "optimizer.cautious_decay=true"])
    monkeypatch.setattr(
        type(run.optimizer), "build", lambda self, model: [torch.optim.Adagrad(model.parameters(), lr=0.1)]
    )
    with pytest.raises(
        InputError, match=r"optimizer.cautious_decay must be false beside optimizer.kind=adamw"
    ):
        build_optimizers(run, build_model(run, vocab_size=V))


# --- the half-life of β₂ ------------------------------------------------------------------------------------


def losses(*words: str, folder: Path, steps: int = 3) -> list[float]:
    job, trainee = trainee_of(compose([*SMALL, *words]), folder)
    return [take_step(job, trainee, Ledger(started=0.0), step=i).loss for i in range(steps)]


@pytest.mark.parametrize("optimizer", ["adamw", "soap"])
def test_a_half_life_is_the_beta2_that_follows(optimizer: str, tmp_path: Path):
    """Half of the weight of the gradients so many tokens ago is gone: in two steps of 2,048 with 4,096."""
    words = (f"optimizer={optimizer}", "optimizer.beta2_half_life_tokens=4096")
    beta2 = to_plain(compose([*SMALL, *words]))["optimizer"]["beta2"]
    assert beta2 == pytest.approx(0.5**0.5)
    assert to_plain(compose([*SMALL, *words, "trainer.batch_tokens=4096"]))["optimizer"]["beta2"] == 0.5
    if optimizer == "adamw":
        assert losses(*words, folder=tmp_path) == losses(
            words[0], f"optimizer.beta2={beta2!r}", folder=tmp_path
        )


def test_a_half_life_goes_through_a_record_and_a_shorter_step(tmp_path: Path):
    run = compose([*SMALL, "optimizer.beta2_half_life_tokens=4096", "trainer.micro_batch=2"])
    (tmp_path / "config.yaml").write_text(dump(to_plain(run)))
    from nocap.config.plain import load as load_config

    assert to_plain(load_config(tmp_path / "config.yaml")) == to_plain(run)
    shorter = measurable(run)
    assert shorter.trainer.batch_tokens == 512
    assert shorter.optimizer.beta2 == 0.5 ** (512 / 4096)


# --- averages of the weights --------------------------------------------------------------------------------


def test_two_of_them_are_refused() -> None:
    with pytest.raises(
        ValueError, match="ideas must leave out averaged_weights beside optimizer=schedule_free"
    ):
        compose([*SMALL, "optimizer=schedule_free", "schedule=constant", "ideas=[averaged_weights]"])


def test_the_tail_average_is_the_mean_of_the_last_weights(tmp_path: Path):
    """Of the last 3 of 6 steps; before them, the weights themselves."""
    run = compose([*SMALL, "ideas=[tail_average]", "ideas.tail_average.share=0.5", "trainer.steps=6"])
    job, trainee = trainee_of(run, tmp_path)
    history = []
    for step in range(6):
        with trainee.model.validating():
            assert step > 3 or all(map(torch.equal, trainee.model.parameters(), own(trainee)))
        take_step(job, trainee, Ledger(started=0.0), step=step)
        history.append(own(trainee))
    with trainee.model.validating():
        for i, p in enumerate(trainee.model.parameters()):
            torch.testing.assert_close(
                p.detach(), torch.stack([weights[i] for weights in history[3:]]).mean(0), rtol=0, atol=1e-7
            )
    assert all(map(torch.equal, trainee.model.parameters(), history[-1]))


def own(trainee: Trainee) -> list[Tensor]:
    return [p.detach().clone() for p in trainee.model.parameters()]


AVERAGED = [
    ("ideas=[averaged_weights]",),
    ("ideas=[tail_average]", "ideas.tail_average.share=1"),
    ("optimizer=schedule_free", "schedule=constant"),
]


@pytest.mark.parametrize("words", AVERAGED, ids="-".join)
def test_what_is_validated_is_generated_from(words: tuple[str, ...], tmp_path: Path):
    run = compose([*SMALL, *words, "trainer.steps=4", "trainer.val_tokens=1024"])
    job, trainee = trainee_of(run, tmp_path)
    for step in range(4):
        take_step(job, trainee, Ledger(started=0.0), step=step)
    weights = own(trainee)
    loss = val_loss(job, trainee, Ledger(started=0.0), step=4)
    assert all(map(torch.equal, trainee.model.parameters(), weights))
    checkpoint.Writer(tmp_path / "checkpoints", background=False).save(
        step=4, model=trainee.model, optimizers=trainee.optimizers, state={}, keep=1, must=True
    )
    (tmp_path / "config.yaml").write_text(dump(to_plain(run)))
    parts = {"config": config_that_counts(run)}
    (tmp_path / "manifest.json").write_text(json.dumps({"identity": digest(parts), "parts": parts}))
    model = load(tmp_path, device=torch.device("cpu"), log=print).model
    model.joined_around = ()  # what it has now is what generates
    assert validate(model, trainee.val, run=run, world=job.world) == loss
    trainee.model.joined_around = ()
    assert validate(trainee.model, trainee.val, run=run, world=job.world) != loss


# --- what a run needs of each -------------------------------------------------------------------------------

OPTIONS = [
    ("optimizer=lion",),
    ("optimizer=ademamix",),
    ("optimizer=soap", "optimizer.basis_every=2"),
    ("optimizer=schedule_free", "schedule=constant"),
    (
        "optimizer=muon",
        "optimizer.iteration=polar_express",
        "optimizer.row_beta2=0.9",
        "optimizer.momentum_warmup_steps=5",
    ),
    (
        "optimizer=muon",
        "optimizer.cautious_decay=true",
        "optimizer.beta2_half_life_tokens=9e4",
        "ideas=[tail_average]",
    ),
]


SIMPLE = [pytest.param(words, marks=pytest.mark.slow, id="-".join(words)) for words in OPTIONS[:2]]


@pytest.mark.parametrize(
    "words", [*SIMPLE, *(pytest.param(words, id="-".join(words)) for words in OPTIONS[2:])]
)
def test_saved_and_loaded_it_goes_on_bit_for_bit(words: tuple[str, ...], tmp_path: Path):
    run = compose([*SMALL, *words, "trainer.steps=6"])
    job, trainee = trainee_of(run, tmp_path)
    for step in range(5):
        take_step(job, trainee, Ledger(started=0.0), step=step)
    again = saved_and_loaded(trainee, run, tmp_path, step=5)
    for each in (trainee, again):
        take_step(job, each, Ledger(started=0.0), step=5)
    for (name, tensor), other in zip(
        trainee.model.state_dict().items(), again.model.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, other), name


def test_what_ideas_keep_around_the_step_is_counted(tmp_path: Path):
    run = compose([*SMALL, "ideas=[averaged_weights]"])
    model = trainee_of(run, tmp_path)[1].model
    kept = sum(4 * p.numel() for p in model.parameters())
    assert memory.n_bytes(model.kept_around()) == kept
    assert memory.parts_mib((), (), model.kept_around())["optimizer"] * memory.MIB == kept


@pytest.mark.slow
@pytest.mark.parametrize("words", OPTIONS[2::2], ids="-".join)
def test_two_ranks_are_one(words: tuple[str, ...], door: Door, here: Door, tmp_path: Path):
    states = []
    for devices, train in ((1, here), (2, door)):
        done = train(*SMALL, *words, f"trainer.devices={devices}", f"output_dir={tmp_path / str(devices)}")
        assert done.code == 0, done.err
        states.append(state_of(the_run(tmp_path / str(devices))))
    assert states[0] == states[1]


# --- torch's decorators -------------------------------------------------------------------------------------

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


@pytest.mark.slow
def test_an_optimizer_imports_no_compiler():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(("kind", "more"), [(torch.optim.AdamW, {"fused": True}), (torch.optim.Muon, {})])
def test_without_its_decorators_an_optimizer_steps_as_torchs_own(
    kind: type[torch.optim.Optimizer], more: dict[str, bool]
):
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
