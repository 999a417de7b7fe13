"""Each optimizer, and what surrounds the step, against its paper's algorithm written naively; neutral settings against their parents."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
from nocap.measure.generation import load
from nocap.measure.profile import measurable
from nocap.model.gpt import build_model
from nocap.store.identity import config_that_counts
from nocap.store.record import digest
from nocap.training import checkpoint, memory, muon
from nocap.training.ademamix import AdEMAMix, ramped
from nocap.training.ledger import Ledger
from nocap.training.lion import Lion
from nocap.training.loop import val_loss
from nocap.training.optimizer import build_optimizers
from nocap.training.schedule_free import ScheduleFree
from nocap.training.soap import Soap
from nocap.training.step import Trainee, take_step, validate
from tests.attempts import state_of
from tests.conftest import SMALL, Door, the_run
from tests.test_ideas import V, saved_and_loaded, trainee_of
from tests.test_optimizer import newton_schulz, set_grads

SHAPES = ((6, 4), (3, 5))
RATES = (0.01, 0.02, 0.05, 0.05, 0.03)
DECAY = 0.3


def stepped(make: Callable[[list[dict[str, Any]]], Any]) -> tuple[Any, list[list[Tensor]], list[list[Tensor]]]:
    """Five steps in fp64 with a rate for each: the optimizer, the parameters before and after every step, and its gradients."""
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
    return optimizer, weights, grads


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# --- optimizers ----------------------------------------------------------------------------------------------------------------------


def test_lion_is_the_papers():
    _, weights, grads = stepped(lambda groups: Lion(groups, lr=1.0, betas=(0.9, 0.6)))
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
    _, weights, grads = stepped(lambda groups: AdEMAMix(groups, lr=1.0, betas=betas, alpha=alpha, ramp_steps=ramp, eps=eps))
    beta1, beta2, last = betas
    for i, p in enumerate(weights[0]):
        m1, m2, v = (torch.zeros_like(p) for _ in range(3))
        for t, lr in enumerate(RATES, start=1):
            g = grads[t - 1][i]
            mixed = (1 - t / ramp) * math.log(last) + t / ramp * math.log(beta1)
            beta3 = min(math.exp(math.log(beta1) * math.log(last) / mixed), last) if t < ramp else last
            m1, m2, v = beta1 * m1 + (1 - beta1) * g, beta3 * m2 + (1 - beta3) * g, beta2 * v + (1 - beta2) * g**2
            m1_hat, v_hat = m1 / (1 - beta1**t), v / (1 - beta2**t)
            p = p - lr * ((m1_hat + min(t * alpha / ramp, alpha) * m2) / (v_hat.sqrt() + eps) + DECAY * p)
            close(weights[t][i], p)


def test_ademamix_without_the_slow_average_is_adamw():
    _, mixed, _ = stepped(lambda groups: AdEMAMix(groups, lr=1.0, betas=(0.9, 0.8, 0.99), alpha=0.0, ramp_steps=3, eps=1e-3))
    _, adamw, _ = stepped(lambda groups: torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.8), eps=1e-3))
    for ours, torchs in zip(mixed[-1], adamw[-1], strict=True):
        close(ours, torchs)


def test_the_ramp_makes_the_half_life_rise_in_a_straight_line():
    group = {"betas": (0.9, 0.95, 0.999), "alpha": 5.0, "ramp_steps": 100}
    alphas, betas = zip(*(ramped(group, step) for step in (50, 100, 500)), strict=True)
    assert alphas == (2.5, 5.0, 5.0)
    assert betas[1:] == (0.999, 0.999)
    half_lives = [math.log(0.5) / math.log(beta) for beta in (betas[0], 0.9, 0.999)]
    assert half_lives[0] == pytest.approx((half_lives[1] + half_lives[2]) / 2)
    assert ramped({**group, "ramp_steps": 0}, 1) == (5.0, 0.999)
    assert 0 < ramped({**group, "betas": (0.0, 0.95, 0.999)}, 1)[1] < 0.999


def test_schedule_free_is_the_papers():
    beta1, beta2, eps = 0.8, 0.9, 1e-3
    optimizer, weights, grads = stepped(lambda groups: ScheduleFree(groups, lr=1.0, betas=(beta1, beta2), eps=eps))
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
        close(optimizer.averages()[i][1], x)


def test_soap_is_the_papers():
    """The bases from the first gradient, then one step of orthogonal iteration every second update. A basis vector's sign is free."""
    beta1, beta2, eps, every = 0.8, 0.9, 1e-3, 2
    _, weights, grads = stepped(lambda groups: Soap(groups, lr=1.0, betas=(beta1, beta2), eps=eps, basis_every=every))
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


def test_soap_gets_the_matrices_of_the_blocks():
    run = compose([*SMALL, "optimizer=soap"])
    model = build_model(run, vocab_size=V)
    adamw, soap = build_optimizers(run, model)
    names = {id(p): name for name, p in model.named_parameters()}
    held = [{names[id(p)] for group in one.param_groups for p in group["params"]} for one in (adamw, soap)]
    assert held[1] == {name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    assert held[0] == set(names.values()) - held[1]


# --- Muon's options ------------------------------------------------------------------------------------------------------------------


def best_polynomial(low: float, high: float) -> np.ndarray[Any, Any]:
    """a, b and c of the odd polynomial of degree 5 that is nearest to 1 on [low, high], by Remez: at four points its errors are equal, and
    of changing sign."""
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
    u, v = (torch.linalg.qr(torch.randn(24, 24, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    x = u @ torch.diag(torch.logspace(-2.5, 0, 24, dtype=torch.float64)) @ v
    errors = {}
    for polar in (False, True):
        group = {"polar_express": polar, "ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": steps}
        (found,) = muon.orthogonalized(x[None].clone(), muon._polynomials(group), 1e-7, dtype=torch.float64)
        errors[polar] = (torch.linalg.svdvals(found) - 1).abs()
    assert errors[True].mean() < 0.7 * errors[False].mean()
    assert errors[True].max() < errors[False].max()
    if steps == 10:
        assert errors[True].max() < 1e-6 < 0.1 < errors[False].max()


def test_normuon_is_the_papers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    lr, beta1, beta2, decay = 0.1, 0.9, 0.8, 0.3
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((16, 6), (16, 6), (6, 16))]
    how = {"lr": lr, "weight_decay": decay, "momentum": beta1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
    optimizer = muon.Muon(params, row_beta2=beta2, **how)
    w = [p.detach().double() for p in params]
    m, v = [torch.zeros_like(p) for p in w], [torch.zeros(len(p), dtype=torch.float64) for p in w]
    for _ in range(4):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator) * torch.linspace(1, 20, len(p))[:, None]
        optimizer.step()
        for i, p in enumerate(params):
            m[i] = beta1 * m[i] + (1 - beta1) * p.grad.double()
            o = newton_schulz(m[i].T, 5).T if len(p) > p.shape[1] else newton_schulz(m[i], 5)
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
    found = [muon._momentum({"momentum": 0.95, "warmup": (0.85, 4), "step": step}) for step in (1, 2, 3, 4, 5, 500)]
    assert found == pytest.approx([0.85, 0.875, 0.9, 0.925, 0.95, 0.95])
    assert found[-2:] == [0.95, 0.95]


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


# --- cautious decay --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["optimizer=adamw"], ["optimizer=muon"]], ids=str)
def test_cautious_decay_is_the_papers(words: list[str]):
    """Against the same optimizer's update without decay, from the same weights and state."""
    words = [*SMALL, *words, "optimizer.decay=matrices", "norm=rmsnorm_gain"]
    models = []
    for more in (["optimizer.weight_decay=0.5", "optimizer.cautious_decay=true"], ["optimizer.weight_decay=0"]):
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
        undecayed, seen = dict(plain.named_parameters()), set[float]()
        rates = {id(p): (g["lr"], g["weight_decay"]) for optimizer in its for g in optimizer.param_groups for p in g["params"]}
        for name, p in cautious.named_parameters():
            lr, decay = rates[id(p)]
            assert decay == (0.5 if p.ndim == 2 else 0.0)
            x, u = before[name], before[name] - undecayed[name].detach()
            mask = (u * x >= 0).float()
            seen.add(float(mask.mean()))
            torch.testing.assert_close(p.detach(), x - u - lr * decay * mask * x, rtol=0, atol=1e-7)
        assert any(0.2 < share < 0.8 for share in seen)
    assert run.optimizer.cautious_decay


def test_cautious_decay_needs_a_decay_that_it_can_see(monkeypatch: pytest.MonkeyPatch):
    run = compose([*SMALL, "optimizer.cautious_decay=true"])
    monkeypatch.setattr(type(run.optimizer), "build", lambda self, model: [torch.optim.Adagrad(model.parameters(), lr=0.1)])
    with pytest.raises(InputError, match=r"optimizer.cautious_decay must be false beside optimizer.kind=adamw"):
        build_optimizers(run, build_model(run, vocab_size=V))


# --- the half-life of β₂ ---------------------------------------------------------------------------------------------------------------


def losses(*words: str, folder: Path, steps: int = 3) -> list[float]:
    job, trainee = trainee_of(compose([*SMALL, *words]), folder)
    return [take_step(job, trainee, Ledger(started=0.0), step=i).loss for i in range(steps)]


@pytest.mark.parametrize("optimizer", ["adamw", "soap"])
def test_a_half_life_is_the_beta2_that_follows(optimizer: str, tmp_path: Path):
    """Half of the weight of the gradients so many tokens ago is gone: in two steps of 2,048 with 4,096."""
    words = (f"optimizer={optimizer}", "optimizer.beta2_half_life_tokens=4096")
    found = to_plain(compose([*SMALL, *words]))["optimizer"]["beta2"]
    assert found == pytest.approx(0.5**0.5)
    assert to_plain(compose([*SMALL, *words, "trainer.batch_tokens=4096"]))["optimizer"]["beta2"] == 0.5
    if optimizer == "adamw":
        assert losses(*words, folder=tmp_path) == losses(words[0], f"optimizer.beta2={found!r}", folder=tmp_path)


def test_a_half_life_goes_through_a_record_and_a_shorter_step(tmp_path: Path):
    run = compose([*SMALL, "optimizer.beta2_half_life_tokens=4096", "trainer.micro_batch=2"])
    (tmp_path / "config.yaml").write_text(dump(to_plain(run)))
    from nocap.config.plain import load as load_config

    assert to_plain(load_config(tmp_path / "config.yaml")) == to_plain(run)
    shorter = measurable(run)
    assert shorter.trainer.batch_tokens == 512
    assert shorter.optimizer.beta2 == 0.5 ** (512 / 4096)


# --- averages of the weights -----------------------------------------------------------------------------------------------------------


def test_the_tail_average_is_the_mean_of_the_last_weights(tmp_path: Path):
    """Of the last 3 of 6 steps; before them, the weights themselves."""
    run = compose([*SMALL, "ideas=[tail_average]", "ideas.tail_average.share=0.5", "trainer.steps=6"])
    job, trainee = trainee_of(run, tmp_path)
    seen = []
    for step in range(6):
        with trainee.model.validating():
            assert step > 3 or all(map(torch.equal, trainee.model.parameters(), own(trainee)))
        take_step(job, trainee, Ledger(started=0.0), step=step)
        seen.append(own(trainee))
    with trainee.model.validating():
        for i, p in enumerate(trainee.model.parameters()):
            torch.testing.assert_close(p.detach(), torch.stack([weights[i] for weights in seen[3:]]).mean(0), rtol=0, atol=1e-7)
    assert all(map(torch.equal, trainee.model.parameters(), seen[-1]))


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


# --- what a run needs of each ----------------------------------------------------------------------------------------------------------

OPTIONS = [
    ("optimizer=lion",),
    ("optimizer=ademamix",),
    ("optimizer=soap", "optimizer.basis_every=2"),
    ("optimizer=schedule_free", "schedule=constant"),
    ("optimizer=muon", "optimizer.iteration=polar_express", "optimizer.row_beta2=0.9", "optimizer.momentum_warmup_steps=5"),
    ("optimizer=muon", "optimizer.cautious_decay=true", "optimizer.beta2_half_life_tokens=9e4", "ideas=[tail_average]"),
]


SIMPLE = [pytest.param(words, marks=pytest.mark.slow, id="-".join(words)) for words in OPTIONS[:2]]


@pytest.mark.parametrize("words", [*SIMPLE, *(pytest.param(words, id="-".join(words)) for words in OPTIONS[2:])])
def test_saved_and_loaded_it_goes_on_bit_for_bit(words: tuple[str, ...], tmp_path: Path):
    run = compose([*SMALL, *words, "trainer.steps=6"])
    job, trainee = trainee_of(run, tmp_path)
    for step in range(5):
        take_step(job, trainee, Ledger(started=0.0), step=step)
    again = saved_and_loaded(trainee, run, tmp_path, step=5)
    for each in (trainee, again):
        take_step(job, each, Ledger(started=0.0), step=5)
    for (name, tensor), other in zip(trainee.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name


def test_what_ideas_keep_around_the_step_is_counted(tmp_path: Path):
    run = compose([*SMALL, "ideas=[averaged_weights]"])
    model = trainee_of(run, tmp_path)[1].model
    held = sum(4 * p.numel() for p in model.parameters())
    assert memory.n_bytes(model.kept_around()) == held
    assert memory.parts_mib((), (), model.kept_around())["optimizer"] * memory.MIB == held


@pytest.mark.slow
@pytest.mark.parametrize("words", OPTIONS, ids="-".join)
def test_two_ranks_are_one(words: tuple[str, ...], door: Door, tmp_path: Path):
    states = []
    for devices in (1, 2):
        done = door(*SMALL, *words, f"trainer.devices={devices}", f"output_dir={tmp_path / str(devices)}")
        assert done.code == 0, done.err
        states.append(state_of(the_run(tmp_path / str(devices))))
    assert states[0] == states[1]
