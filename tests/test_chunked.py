"""The chunked loss against torch's own on all logits at once, and what it holds in memory;
activation checkpointing against none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from nocap.config.trainer import ActivationCheckpointing
from nocap.model import chunked
from nocap.model.build import build_model
from nocap.model.chunked import chunked_cross_entropy
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.gpt import GPT
from nocap.training import memory
from tests.attempts import equal_within
from tests.conftest import MEDIUM, Door, Undisturbed, the_run
from tests.test_model import VOCAB, nano, tokens_of

KINDS = [kind.value for kind in ActivationCheckpointing if kind is not ActivationCheckpointing.off]

# --- the function ---------------------------------------------------------------------------------


def plain(
    x: Tensor, weight: Tensor, targets: Tensor, *, softcap: float | None, z_loss: float
) -> Tensor:
    logits = F.linear(x, weight)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    dtype = torch.promote_types(x.dtype, torch.float32)
    loss = F.cross_entropy(logits.to(dtype), targets)
    squares = logits.logsumexp(-1).square()
    return loss + z_loss * squares.mean()


def inputs(
    N: int, *, V: int = 31, C: int = 9, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=g, dtype=torch.float64)
    x = draw(N, C).to(dtype).requires_grad_()
    weight = draw(V, C).to(dtype).requires_grad_()
    return x, weight, torch.randint(V, (N,), generator=g)


def both(chunks: int, *arguments: Tensor, **options: float | None) -> list[tuple[Tensor, ...]]:
    """The chunked loss and the plain one, each with its gradients."""
    in_chunks = chunked_cross_entropy(*arguments, chunks=chunks, **options)
    losses = (in_chunks[0], plain(*arguments, **options))
    rows: list[tuple[Tensor, ...]] = []
    for loss in losses:
        gradients = torch.autograd.grad(3 * loss, arguments[:2], retain_graph=True)
        rows.append((loss, *gradients))
    return rows


@pytest.mark.parametrize(("softcap", "z_loss"), [(None, 0.0), (0.7, 0.03), (15.0, 0.0)])
@pytest.mark.parametrize(("N", "chunks"), [(12, 1), (12, 4), (13, 5), (13, 40)])
def test_in_fp64_loss_and_gradients_are_those_of_all_logits_at_once(
    N: int, chunks: int, softcap: float | None, z_loss: float
) -> None:
    arguments = inputs(N)
    options = {"softcap": softcap, "z_loss": z_loss}
    got, want = both(chunks, *arguments, **options)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-14, rtol=1e-13)
    with torch.no_grad():
        loss, next_token = chunked_cross_entropy(*arguments, chunks=chunks, **options)
    torch.testing.assert_close(loss, want[0].detach(), atol=0, rtol=1e-14)
    without_z = plain(*arguments, softcap=softcap, z_loss=0.0).detach()
    torch.testing.assert_close(next_token, without_z, atol=0, rtol=1e-14)


def test_rows_that_are_no_tokens_change_nothing_and_get_no_gradient() -> None:
    """Whatever stands in them."""
    x, weight, targets = inputs(13)
    more = torch.cat([weight.detach(), torch.full((3, 9), 7.0)]).requires_grad_()
    options = {"chunks": 4, "softcap": 0.7, "z_loss": 0.03}
    want, _ = chunked_cross_entropy(x, weight, targets, **options)
    got, _ = chunked_cross_entropy(x, more, targets, vocab_size=31, **options)
    torch.testing.assert_close(got, want, atol=0, rtol=1e-14)
    by_x, by_weight = torch.autograd.grad(want, (x, weight))
    got_by_x, by_more = torch.autograd.grad(got, (x, more))
    torch.testing.assert_close(got_by_x, by_x, atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(by_more[:31], by_weight, atol=1e-14, rtol=1e-13)
    assert not by_more[31:].any()


def test_logits_too_large_for_exp_are_no_trouble() -> None:
    x, weight, targets = inputs(8, dtype=torch.float32)
    x.data.mul_(300)
    got, want = both(3, x, weight, targets, softcap=None, z_loss=0.0)
    assert want[0] > 100
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_under_bf16_autocast_it_errs_no_more_than_the_plain_loss(
    softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "ROWS", 150)  # of 400: the weights' gradient in three slices
    exact = inputs(256, V=400, C=64)
    options = {"softcap": softcap, "z_loss": 1e-3}
    exact[1].data.mul_(0.125)
    x, weight = (t.detach().float().requires_grad_() for t in exact[:2])
    with torch.autocast("cpu", torch.bfloat16):
        pairs = both(5, x, weight, exact[2], **options)
    reference = both(1, *exact, **options)
    for in_chunks, whole, want in zip(*pairs, reference[1], strict=True):
        errors = [((each - want).norm() / want.norm()).item() for each in (in_chunks, whole)]
        assert in_chunks.dtype is torch.float32
        # gradients are rounded to bf16, and not more
        assert errors[0] < 2e-3 if want.ndim == 0 else 1e-4 < errors[0] < 1.1 * errors[1]


def test_a_second_backward_is_an_error_and_not_another_gradient() -> None:
    x, weight, targets = inputs(8)
    loss, _ = chunked_cross_entropy(x, weight, targets, chunks=2, softcap=None, z_loss=0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- the model ------------------------------------------------------------------------------------


def backward(model: GPT, tokens: Tensor) -> Tensor:
    """The loss, its gradients accumulated in the model's parameters."""
    step = model(tokens[:, :-1], tokens[:, 1:])
    loss: Tensor = step.total
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize(
    "overrides",
    [
        "model.tie_head=true",
        "model.tie_head=false model.logit_softcap=2 objective.z_loss=0.01",
        "model.pad_logits=true",
        "model.pad_logits=true model.tie_head=false model.logit_softcap=2 objective.z_loss=0.01",
    ],
)
def test_a_chunked_model_accumulates_the_gradients_of_the_plain_one(overrides: str) -> None:
    run = nano("norm=layernorm", *overrides.split())  # LayerNorm, unlike rms_norm, computes in fp64
    objective = replace(run.objective, loss_chunks=7)
    models = []
    for each in (run, replace(run, objective=objective)):
        models.append(build_model(each, vocab_size=VOCAB).double())
    tokens = tokens_of()
    for batch in (tokens, tokens.flip(0)):
        want, got = (backward(model, batch) for model in models)
        torch.testing.assert_close(got, want, atol=0, rtol=1e-13)
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-13, rtol=1e-11)
    # validation is the plain loss
    outputs = models[1].eval()
    logits = outputs.logits(tokens[:, :-1])
    flat = tokens[:, 1:].flatten()
    want = F.cross_entropy(logits.flatten(0, 1), flat)
    loss = models[1](tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(loss.total, want, atol=0, rtol=1e-13)


def head_peak_mib(chunks: int, *, training: bool) -> float:
    """Of final norm, unembedding and loss at GPT-2's vocabulary, 512 tokens and 64 channels."""
    run = nano("model.seq_len=512", "trainer.micro_batch=1", f"objective.loss_chunks={chunks}")
    head = build_model(run, vocab_size=50257).head.train(training)
    x = torch.randn(1, 512, 64)
    targets = torch.zeros(1, 512, dtype=torch.long)

    def once() -> None:
        with torch.set_grad_enabled(training):
            loss = head(x, targets).total
        if training:
            loss.backward()
            head.zero_grad()

    once()  # what is cached at the first call is no part of it
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        once()
    all_events = trace.profiler.kineto_results.events()
    events = sorted(all_events, key=lambda event: event.start_ns())
    allocated = accumulate(event.nbytes() for event in events if event.name() == "[memory]")
    return max(allocated) / memory.MIB


@pytest.mark.slow
def test_the_logits_of_one_chunk_and_the_weights_gradient_are_all_it_holds() -> None:
    logits = 512 * 50257 * 4 / memory.MIB
    weights = 64 * 50257 * 4 / memory.MIB
    assert head_peak_mib(1, training=True) == pytest.approx(3 * logits, rel=0.02)
    assert head_peak_mib(8, training=True) == pytest.approx(logits / 8 + weights, rel=0.03)
    assert head_peak_mib(1, training=False) == pytest.approx(2 * logits, rel=0.02)
    assert head_peak_mib(8, training=False) == pytest.approx(logits / 8, rel=0.03)


# --- activation checkpointing ---------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["mha", "sliding"])
def test_recomputed_activations_change_no_bit_and_are_not_kept(attention: str) -> None:
    run = nano("model.n_layer=4", f"attention={attention}")
    tokens = tokens_of()
    kept = {}
    gradients = {}
    for kind in ["off", *KINDS]:
        run.trainer.activation_checkpointing = ActivationCheckpointing(kind)
        model = build_model(run, vocab_size=VOCAB)
        with memory.saved_for_backward(model.parameters()) as saved:
            step = model(tokens[:, :-1], tokens[:, 1:])
            loss = step.total
        kept[kind] = sum(saved.values())
        loss.backward()
        gradients[kind] = [loss.detach(), *(p.grad for p in model.parameters())]
    for kind in KINDS:
        for a, b in zip(gradients[kind], gradients["off"], strict=True):
            assert torch.equal(a, b)
    stream = tokens[:, 1:].numel() * run.model.d_model * 4

    assert kept["block"] < kept["off"] / 4
    # a layer's up-projection and what GELU makes of it, 4·d each
    assert kept["off"] - kept["mlp"] > 4 * 8 * stream
    assert kept["block"] < kept["attention"] < kept["off"]


def test_model_flops_count_neither_recomputation_nor_chunks() -> None:
    counts = []
    ran = []
    for words in ((), ("objective.loss_chunks=5",), ("trainer.activation_checkpointing=block",)):
        run = nano("attention=mha", *words)
        model = build_model(run, vocab_size=VOCAB)
        tokens = tokens_of()
        with FlopCounterMode(display=False) as counter:  # of the products that run
            backward(model, tokens)
        flops = flops_per_token(run, vocab_size=VOCAB, causal=False)
        counts.append(flops[0])
        ran.append(counter.get_total_flops() / tokens[:, 1:].numel())
    parts = component_flops(run, vocab_size=VOCAB, causal=False)
    # a block's forward but for its last product, whose result nobody asks for
    half = parts["mlp"] / 2
    again = (counts[0] - parts["head"] - half) / 3
    assert counts == [counts[0]] * 3
    expected = [counts[0], counts[0], counts[0] + again]
    assert ran == expected


# --- together -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_with_both_train_as_one_without(
    tmp_path: Path, door: Door, undisturbed: Undisturbed
) -> None:
    out = tmp_path / "out"
    both = ("objective.loss_chunks=3", "trainer.activation_checkpointing=block")
    done = door(*MEDIUM, *both, "trainer.devices=2", f"output_dir={out}")
    assert done.code == 0, done.err
    equal_within(the_run(out), undisturbed.run_dir, 2e-6)
