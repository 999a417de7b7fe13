"""Each optimizer, and what surrounds the step, against its paper's algorithm written naively;
neutral settings against their parents."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from nocap.config.plain import load as load_config
from nocap.config.run import Run
from nocap.generation.sampling import load
from nocap.measure.profiler_timing import measurable
from nocap.model.build import build_model
from nocap.model.gpt import GPT
from nocap.options.optimizer.muon import AT_ONCE, POLAR_EXPRESS
from nocap.training import memory
from nocap.training.build import Trainee
from nocap.training.build_optimizers import build_optimizers
from nocap.training.optimizer import ByRule, undecorated
from nocap.training.step import clip
from nocap.training.validation import validate
from tests.in_process import planned, start
from tests.test_ideas import V, advance, composed, saved_and_loaded, trainee_of

pytestmark = pytest.mark.usefixtures("atlas_ideas")
SHAPES = ((6, 4), (3, 5))
RATES = (0.01, 0.02, 0.05, 0.05, 0.03)
DECAY = 0.3
EVERYTHING = ("norm=layernorm", "position=learned", "model.tie_head=false", "trainer.device=cpu")
Reference = Callable[[Tensor, list[Tensor]], Iterator[Tensor]]


def small(*overrides: str) -> tuple[Run, GPT]:
    run = compose(["model=nano", *EVERYTHING, *overrides])
    return run, build_model(run, vocab_size=50)


def set_grads(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def stepped(kind: str, **keys: Any) -> tuple[list[list[Tensor]], list[list[Tensor]], Any]:
    """Five steps in fp64 with a rate for each: the parameters before and after every step, its
    gradients, and the optimizer."""
    words = [f"optimizer.{key}={value}" for key, value in {"weight_decay": DECAY, **keys}.items()]
    run = composed(f"optimizer={kind}", "schedule=constant", *words)
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    params = [nn.Parameter(draw(shape)) for shape in SHAPES]
    head = nn.ParameterList([torch.ones(2, 2)])
    parts = {"blocks": nn.ParameterList(params), "head": head}
    optimizer = build_optimizers(run, nn.ModuleDict(parts))[-1]
    copies = [p.detach().clone() for p in params]
    weights = [copies]
    grads = []
    for rate in RATES:
        grads.append([draw(p.shape) for p in params])
        for p, g in zip(params, grads[-1], strict=True):
            p.grad = g.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        copies = [p.detach().clone() for p in params]
        weights.append(copies)
    return weights, grads, optimizer


close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)

# --- from a parameter and its gradients to the parameter after each step --------------------------


def adamw(p: Tensor, grads: list[Tensor], *, cautious: bool = False) -> Iterator[Tensor]:
    """Cautious, its decay is only where it goes the update's way (arXiv:2510.12402)."""
    m = torch.zeros_like(p)
    v = torch.zeros_like(p)
    for t, (lr, g) in enumerate(zip(RATES, grads, strict=True), start=1):
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g * g
        root = (v / (1 - 0.9**t)).sqrt()
        u = m / (1 - 0.8**t) / (root + 1e-3)
        decayed = DECAY * p
        p = p - lr * (u + decayed * ((u * p >= 0) if cautious else 1))
        yield p


def lion(p: Tensor, grads: list[Tensor], *, cautious: bool = False) -> Iterator[Tensor]:
    m = torch.zeros_like(p)
    for lr, g in zip(RATES, grads, strict=True):
        u = torch.sign(0.9 * m + 0.1 * g)
        decayed = DECAY * p
        p = p - lr * (u + decayed * ((u * p >= 0) if cautious else 1))
        m = 0.6 * m + 0.4 * g
        yield p


def ademamix(p: Tensor, grads: list[Tensor], *, ramp: int) -> Iterator[Tensor]:
    beta1 = 0.9
    beta2 = 0.8
    last = 0.99
    alpha = 3.0
    m1, m2, v = (torch.zeros_like(p) for _ in range(3))
    for t, (lr, g) in enumerate(zip(RATES, grads, strict=True), start=1):
        share = min(1.0, t / max(1, ramp))  # of the way to the final α and β₃
        power = (1 - share) * math.log(last) / math.log(beta1)
        beta3 = last ** (1 / (power + share))
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = beta3 * m2 + (1 - beta3) * g
        v = beta2 * v + (1 - beta2) * g**2
        m1_hat = m1 / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        moments = m1_hat + share * alpha * m2
        decayed = DECAY * p
        p = p - lr * (moments / (v_hat.sqrt() + 1e-3) + decayed)
        yield p


def schedule_free(p: Tensor, grads: list[Tensor]) -> Iterator[Tensor]:
    """At the end, the average too."""
    beta1 = 0.8
    beta2 = 0.9
    x = y = z = p
    v = torch.zeros_like(p)
    squares = 0.0
    for t, (lr, g) in enumerate(zip(RATES, grads, strict=True), start=1):
        v = beta2 * v + (1 - beta2) * g**2
        gamma = lr * math.sqrt(1 - beta2**t)
        z = z - gamma * g / (v.sqrt() + 1e-3) - gamma * DECAY * y
        squares += gamma**2
        x = (1 - gamma**2 / squares) * x + gamma**2 / squares * z
        y = (1 - beta1) * z + beta1 * x
        yield y
    yield x


def soap(w: Tensor, grads: list[Tensor]) -> Iterator[Tensor]:
    """The bases from the first gradient, then one step of orthogonal iteration every second update.
    A basis vector's sign is free. The average of the gradients turns with the bases: no other than
    the one that is turned at each step."""
    beta1 = 0.8
    beta2 = 0.9
    first = grads[0]
    left = (1 - beta2) * (first @ first.T)
    right = (1 - beta2) * (first.T @ first)
    q_left = torch.linalg.eigh(left).eigenvectors.flip(1)
    q_right = torch.linalg.eigh(right).eigenvectors.flip(1)
    m = torch.zeros_like(w)
    v = torch.zeros_like(w)
    yield w
    later = zip(RATES[1:], grads[1:], strict=True)
    for t, (lr, g) in enumerate(later, start=1):
        turned = q_left.T @ g @ q_right
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * turned**2
        m_hat = q_left.T @ m @ q_right / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        directions = m_hat / (v_hat.sqrt() + 1e-3)
        w = w - lr * (q_left @ directions @ q_right.T + DECAY * w)
        yield w
        left = beta2 * left + (1 - beta2) * g @ g.T
        right = beta2 * right + (1 - beta2) * g.T @ g
        if t % 2 == 0:
            q_left = torch.linalg.qr(left @ q_left).Q
            q_right = torch.linalg.qr(right @ q_right).Q


def iterated(g: Tensor, polar: bool) -> Tensor:
    """X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, from X = G/‖G‖ (Keller Jordan, 2024); Polar Express's
    polynomials but the last are of X/1.01."""
    x = g / g.norm()
    if polar:
        coefficients = [*POLAR_EXPRESS, POLAR_EXPRESS[-1]]
    else:
        coefficients = [(3.4445, -4.7750, 2.0315)] * 9
    for a, b, c in coefficients:
        if (a, b, c) in POLAR_EXPRESS[:-1]:
            x = x / 1.01
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon(
    w: Tensor, grads: list[Tensor], *, polar: bool = False, beta2: float | None = None
) -> Iterator[Tensor]:
    """Nine iterations. The momentum rises in a straight line for three steps."""
    m = torch.zeros_like(w)
    v = torch.zeros_like(w[:, :1])
    tall = len(w) > w.shape[1]
    for lr, g, beta1 in zip(RATES, grads, (0.6, 0.7, 0.8, 0.9, 0.9), strict=True):
        m = beta1 * m + (1 - beta1) * g
        ahead = beta1 * m + (1 - beta1) * g
        if tall:
            o = iterated(ahead.T, polar).T
        else:
            o = iterated(ahead, polar)
        if beta2 is not None:  # NorMuon
            square = o.square().mean(1, keepdim=True)
            v = beta2 * v + (1 - beta2) * square
            o = o / v.sqrt()
            o = o * math.sqrt(min(w.shape)) / o.norm()
        decay = lr * DECAY * w
        w = w - decay - 0.2 * lr * math.sqrt(max(w.shape)) * o
        yield w


ADAMW = {"beta1": 0.8, "beta2": 0.9, "eps": 1e-3}
ADEMAMIX = {"beta1": 0.9, "beta2": 0.8, "beta3": 0.99, "alpha": 3, "eps": 1e-3}
MUON = {"momentum_start": 0.6, "momentum": 0.9, "momentum_warmup_steps": 3, "ns_steps": 9}


PAPERS = [
    ("adamw", adamw, ADAMW),
    ("adamw", partial(adamw, cautious=True), {**ADAMW, "cautious_decay": True}),
    ("lion", lion, {"beta1": 0.9, "beta2": 0.6}),
    ("lion", partial(lion, cautious=True), {"beta1": 0.9, "beta2": 0.6, "cautious_decay": True}),
    ("ademamix", partial(ademamix, ramp=3), {**ADEMAMIX, "ramp_steps": 3}),
    ("ademamix", partial(ademamix, ramp=0), {**ADEMAMIX, "ramp_steps": 0}),
    ("schedule_free", schedule_free, ADAMW),
    ("soap", soap, {**ADAMW, "basis_every": 2}),
    ("muon", muon, {**MUON, "scale": "match_rms_adamw"}),
    ("muon", partial(muon, beta2=0.8), {**MUON, "scale": "match_rms_adamw", "row_beta2": 0.8}),
    (
        "muon",
        partial(muon, polar=True),
        {**MUON, "scale": "match_rms_adamw", "iteration": "polar_express"},
    ),
]


@pytest.mark.parametrize(("kind", "reference", "keys"), PAPERS)
def test_each_step_is_the_papers(
    kind: str, reference: Reference, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Without products in bf16, which are 1e-2 away."""
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    weights, grads, optimizer = stepped(kind, **keys)
    if kind == "schedule_free":
        with optimizer.option.validating([optimizer]):
            params = optimizer.param_groups[0]["params"][: len(SHAPES)]
            copies = [p.detach().clone() for p in params]
            weights.append(copies)
    for i, p in enumerate(weights[0]):
        steps = reference(p, [g[i] for g in grads])
        for taken, expected in zip(weights[1:], steps, strict=True):
            close(taken[i], expected)


@pytest.mark.parametrize(("kind", "spares"), [("matrices", True), ("all", False)])
def test_decay_of_matrices_spares_gains_and_shifts(kind: str, spares: bool):
    run, model = small(f"optimizer.decay={kind}")
    for group in build_optimizers(run, model)[0].param_groups:
        for p in group["params"]:
            assert group["weight_decay"] == (
                0.0 if spares and p.ndim == 1 else run.optimizer.weight_decay
            )


def test_soap_begins_with_a_gradient_that_is_not_finite_as_a_gpu_does_before_its_loss_is_seen() -> (
    None
):
    option: Any = compose(["model=nano", "optimizer=soap"]).optimizer
    broken = option._first(torch.full((4, 6), torch.nan))
    assert broken["left_basis"].shape == (4, 4)


def test_soap_with_products_in_bf16_steps_almost_the_same_way(monkeypatch: pytest.MonkeyPatch):
    moved = []
    for dtype in (torch.float64, torch.bfloat16):
        monkeypatch.setattr(hardware, "native_bf16", lambda dtype=dtype: dtype is torch.bfloat16)
        weights, _, optimizer = stepped("soap", eps=1e-3, basis_every=2)
        moves = [after - before for before, after in zip(weights[1], weights[-1], strict=True)]
        moved.append(moves)
        dtypes = {state["left_basis"].dtype for state in optimizer.state.values()}
        assert dtypes == {dtype}
    for exact, rounded in zip(*moved, strict=True):
        distance = (rounded - exact).norm()
        assert 0 < float(distance / exact.norm()) < 0.03


# --- the gradient's norm --------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e-7, 1.0, 1e9])
def test_clipping_leaves_out_what_changes_nothing_and_is_torchs_own(limit: float):
    ps = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    clipped = []
    start = [torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) for p in ps]
    for ratio in (0.0, 0.5, 0.998, 0.9999, 1 - 1e-7, 1.0, 1.0001, 3.0):
        grads = [grad * (ratio * limit / nn.utils.get_total_norm(start)) for grad in start]
        results = []
        norm = nn.utils.get_total_norm(grads)
        for clips in (partial(clip, norm=norm), nn.utils.clip_grad_norm_):
            for p, grad in zip(ps, grads, strict=True):
                p.grad = grad.clone()
            clips(ps, limit)
            results.append([p.grad for p in ps])
        assert all(map(torch.equal, *results))
        clipped.append(not all(map(torch.equal, results[0], grads)))
    assert clipped[0] is False
    assert clipped[-1] is True


# --- Muon -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "tie"), [("muon", "true"), ("muon", "false"), ("soap", "true")])
def test_matrices_of_the_blocks_get_one_optimizer_and_adamw_the_rest(kind: str, tie: str):
    """And not tables of embeddings."""
    words = ("attention=gqa", "mlp=swiglu", "ideas=[value_embeddings]", f"model.tie_head={tie}")
    run, model = small(f"optimizer={kind}", *words)
    adamw, own = build_optimizers(run, model)
    assert type(adamw) is undecorated(torch.optim.AdamW)
    assert type(own) is ByRule
    parts = [f"attention.f.{part}_proj" for part in ("q", "k", "v", "out")]
    parts += [f"mlp.f.{part}" for part in ("gate", "up", "down")]
    matrices = set()
    for layer in range(2):
        for part in parts:
            matrices.add(f"blocks.{layer}.{part}.weight")
    matrices.add("blocks.1.ideas.value_embeddings.gate")
    names = {id(p): name for name, p in model.named_parameters()}
    groups = (each.param_groups for each in (adamw, own))
    rest, of_own = ([names[id(p)] for group in each for p in group["params"]] for each in groups)
    assert set(of_own) == matrices
    expected = sorted(set(names.values()) - matrices)
    assert sorted(rest) == expected, "each parameter once"


STACKS = [
    ("original", 3 * 64 * 64),
    pytest.param("match_rms_adamw", 1, marks=pytest.mark.slow),
    pytest.param("match_rms_adamw", 2**20, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("scale", "at_once"), STACKS)
def test_muon_in_stacks_is_torchs_own_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, at_once: int, scale: str
):
    """Matrices alone, in stacks of three with a rest, and all of a shape at once; one has no
    gradient."""
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    monkeypatch.setitem(AT_ONCE, "cpu", at_once)
    weights = []
    states = []
    run = composed("optimizer=muon", f"optimizer.scale={scale}", "optimizer.momentum=0.9")
    cases = (
        partial(ByRule, run.optimizer),
        partial(torch.optim.Muon, momentum=0.9, adjust_lr_fn=scale),
    )
    for kind in cases:
        _, model = small("attention=gqa")
        parameters = model.blocks.parameters()
        matrices = [p for p in parameters if p.ndim == 2]
        optimizer = kind(matrices, lr=0.02, weight_decay=0.1)
        for step in range(3):
            set_grads(model, seed=step)
            matrices[1].grad = None
            optimizer.step()
        weights.append([p.detach() for p in matrices])
        momentum_buffers = []
        for p in matrices:
            if p.grad is not None:
                momentum_buffers.append(optimizer.state[p]["momentum_buffer"])
        states.append(momentum_buffers)
    assert all(map(torch.equal, *weights))
    assert all(map(torch.equal, *states))


def best_polynomial(low: float, high: float) -> np.ndarray[Any, Any]:
    """a, b and c of the odd polynomial of degree 5 that is nearest to 1 on [low, high], by Remez:
    at four points its errors are equal, and of changing sign."""
    thirds = np.array([1 / 3, 2 / 3])
    inner = low + (high - low) * thirds
    for _ in range(100):
        points = np.array([low, *inner, high])
        signs = [1, -1, 1, -1]
        rows = np.stack([points, points**3, points**5, signs], axis=1)
        a, b, c, _ = np.linalg.solve(rows, np.ones(4))
        root_of_both = math.sqrt(9 * b * b - 20 * a * c)
        inner = np.sqrt((-3 * b + np.array([-1, 1]) * root_of_both) / (10 * c))
    return np.array([a, b, c])


def test_polar_express_has_the_papers_polynomials():
    low = 1e-3
    high = 1.0
    cushion = 0.02407327424182761
    for stated in POLAR_EXPRESS[
        :6
    ]:  # the last two are the limit, where the four points fall together
        derived = best_polynomial(max(low, cushion * high), high)
        ends = [derived @ [x, x**3, x**5] for x in (max(low, cushion * high), high)]
        derived *= (
            2 / sum(ends)
            if low >= cushion * high
            else 2 / (derived @ [low, low**3, low**5] + ends[1])
        )
        assert stated == pytest.approx(derived, rel=1e-4)
        low = derived @ [low, low**3, low**5]
        high = 2 - low
    expected = (15 / 8, -10 / 8, 3 / 8)
    assert POLAR_EXPRESS[-1] == expected


def test_cautious_decay_needs_a_decay_that_it_can_see(monkeypatch: pytest.MonkeyPatch):
    run = composed("optimizer.cautious_decay=true")
    monkeypatch.setattr(
        type(run.optimizer),
        "build",
        lambda self, model: [torch.optim.Adagrad(model.parameters(), lr=0.1)],
    )
    rule = r"optimizer.cautious_decay must be false with optimizer.kind=adamw"
    with pytest.raises(InputError, match=rule):
        build_optimizers(run, build_model(run, vocab_size=V))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("optimizer=ademamix", "optimizer.beta1=0.9", "optimizer.beta3=0.5"),
            r"optimizer.beta3 must be at least optimizer.beta1=0.9, got 0.5",
        ),
        (
            ("optimizer=schedule_free", "schedule=constant", "ideas=[averaged_weights]"),
            "ideas must not include averaged_weights with optimizer=schedule_free",
        ),
    ],
)
def test_a_wrong_value_of_an_optimizer_is_refused(words: tuple[str, ...], line: str):
    with pytest.raises(ValueError, match=f"^{line}"):
        composed(*words)


# --- the half-life of β₂ --------------------------------------------------------------------------


def beta2_of(*words: str) -> float:
    return to_plain(composed(*words, "optimizer.beta2_half_life_tokens=4096"))["optimizer"]["beta2"]


def test_a_half_life_is_the_beta2_that_follows(tmp_path: Path):
    """Half of the weight of the gradients so many tokens ago is gone: in two steps of 2,048 with
    4,096. It goes through a record and a shorter step."""
    assert beta2_of() == beta2_of("optimizer=soap") == pytest.approx(0.5**0.5)
    assert beta2_of("trainer.batch_tokens=4096") == 0.5
    run = composed("optimizer.beta2_half_life_tokens=4096", "trainer.micro_batch=2")
    (group,) = trainee_of(run, tmp_path)[1].optimizers[0].param_groups
    assert group["betas"][1] == run.optimizer.beta2
    (tmp_path / "config.yaml").write_text(dump(to_plain(run)))
    assert to_plain(load_config(tmp_path / "config.yaml")) == to_plain(run)
    shorter = measurable(run)
    assert shorter.trainer.batch_tokens == 512
    assert shorter.optimizer.beta2 == 0.5 ** (512 / 4096)


# --- averages of the weights ----------------------------------------------------------------------


def own(trainee: Trainee) -> list[Tensor]:
    parameters = trainee.model.parameters()
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("words", ["averaged_weights decay=0.7", "tail_average share=0.5"])
def test_an_average_is_that_of_its_formula(words: str, tmp_path: Path):
    """The decaying one from the first weights on; the mean of the last 3 of 6 steps, and before
    them the weights themselves."""
    name, key = words.split()
    run = composed(f"ideas=[{name}]", f"ideas.{name}.{key}", "trainer.steps=6")
    job, trainee = trainee_of(run, tmp_path)
    average = own(trainee)
    for step in range(6):
        advance(job, trainee, step)
        # the n-th of the last three has 1/n
        if name == "averaged_weights":
            share = 0.3
        else:
            share = 1 / max(1, step - 2)
        now = own(trainee)
        average = [(1 - share) * a + share * p for a, p in zip(average, now, strict=True)]
        with trainee.model.validating():
            torch.testing.assert_close(own(trainee), average, rtol=0, atol=1e-6)
        assert all(map(torch.equal, own(trainee), now))


@pytest.mark.parametrize(
    ("words", "averages"),
    [
        (("ideas=[tail_average]", "ideas.tail_average.share=0.1"), True),
        (("ideas=[averaged_weights]",), True),
        ((), False),
    ],
)
def test_a_step_is_timed_as_the_last_ones_are(
    words: tuple[str, ...], averages: bool, tmp_path: Path
):
    """By the first steps an average of the last ones would cost nothing."""
    run = composed(*words, "trainer.steps=100").in_the_end()
    job, trainee = trainee_of(run, tmp_path)
    first = own(trainee)
    for step in range(2):
        advance(job, trainee, step)
    with trainee.model.validating():
        averaged = own(trainee)
    equal = all(map(torch.equal, averaged, own(trainee)))
    assert equal is not averages
    assert not all(map(torch.equal, averaged, first))


AVERAGED = [
    ("ideas=[averaged_weights]",),
    ("ideas=[tail_average]", "ideas.tail_average.share=1"),
    ("optimizer=schedule_free", "schedule=constant"),
]


@pytest.mark.parametrize("words", AVERAGED, ids="-".join)
def test_what_is_validated_is_generated_from(words: tuple[str, ...], tmp_path: Path):
    this = planned(tmp_path, *words)
    start(this)
    loaded = load(this.run_dir, device=torch.device("cpu"), log=print)
    loaded.model.joined_around = ()  # what it has now is what generates
    job, trainee = trainee_of(loaded.run, tmp_path)
    text = (this.run_dir / "summary.json").read_text()
    loss = json.loads(text)["val_loss"]
    assert validate(loaded.model, trainee.val, run=loaded.run, world=job.world) == loss


def test_what_ideas_keep_around_the_step_is_counted():
    model = build_model(composed("ideas=[averaged_weights]"), vocab_size=V)
    kept = sum(4 * p.numel() for p in model.parameters())
    assert memory.n_bytes(model.kept_around()) == kept
    optimizer = memory.parts_mib((), (), model.kept_around())["optimizer"]
    assert optimizer * memory.MIB == kept


# --- what a run needs of each ---------------------------------------------------------------------

POLAR = (
    "optimizer.iteration=polar_express optimizer.row_beta2=0.9 optimizer.momentum_warmup_steps=5"
)
OPTIONS = [
    "optimizer=lion",
    "optimizer=ademamix",
    "optimizer=soap optimizer.basis_every=2",
    "optimizer=schedule_free schedule=constant",
    f"optimizer=muon {POLAR}",
    "optimizer=muon optimizer.cautious_decay=true optimizer.beta2_half_life_tokens=9e4 "
    "ideas=[tail_average]",
]


@pytest.mark.parametrize("words", OPTIONS)
def test_saved_and_loaded_it_goes_on_bit_for_bit(words: str, tmp_path: Path):
    run = composed(*words.split(), "trainer.steps=4", "trainer.batch_tokens=1024")
    job, trainee = trainee_of(run, tmp_path)
    advance(job, trainee, *range(3))
    again = saved_and_loaded(trainee, run, tmp_path, step=3)
    states = []
    for each in (trainee, again):
        advance(job, each, 3)
        states.append(each.model.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])


# --- torch's decorators ---------------------------------------------------------------------------

STEPS = """
import sys
import torch
from nocap.config.compose import compose
from nocap.training.build_optimizers import build_optimizers

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
    assert done.stdout == "False\n"
    assert done.stderr == ""
