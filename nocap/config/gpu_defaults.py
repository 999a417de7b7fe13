"""What a run gets on a GPU where it does not choose, each rule beside the figures that it follows
from.

The figures are of one H200 at GPT-2 d12, T=1024 (experiments/gpu_day/h200-2026-11-27). The rules
count the model's shape with as many key/value heads as query heads, scores that are materialised,
and an MLP of four times the width, whatever a run has in their place: no option that is compared
decides, and the card does not. So all arms get the same, and so do all cards.
"""

from __future__ import annotations

from nocap.options.model import Model
from nocap.options.tokenizer import Tokenizer

PEAK_FLOPS = 665e12  # FLOP/s of a large product in bf16
REGIONAL_FLOPS = 0.53 * PEAK_FLOPS  # of a step that is compiled by regions
# Of that step's time, what `trainer.compile=full` saves: 462,271 tokens/s for 439,672, which is
# 5.1% [3.4, 6.9] faster.
SAVED_BY_FULL = 0.049
# Seconds a layer to compile so: 30.2 of twelve, which is the warm-up of that arm alone. All three
# warm-ups of that bench (compile.json) took 45.9: by regions 13.5 with nothing in the cache, again
# 2.1, and this. What regions take is not subtracted, as a run compiles its validation too, which no
# bench does.
FULL_S = 30.2 / 12
# To launch a layer's part of a step by regions: one of 2,048 tokens took 28.3 ms, and 7.7 as a CUDA
# graph.
LAUNCH_MS = 28.3 / 12
ROOM_MIB = 40 * 1024  # for a step: what a card of 48 GB has left
MIB = 2**20


def weights(model: Model, tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the weights of the blocks' products, and those of the head's."""
    return 12 * model.n_layer * model.d_model**2, tokenizer.vocab_size * model.d_model


def flops_per_token(model: Model, tokenizer: Tokenizer) -> float:
    """Return the FLOPs of a training token. A query meets half of the keys."""
    return 6.0 * (sum(weights(model, tokenizer)) + model.n_layer * model.d_model * model.seq_len)


def step_mib(model: Model, tokenizer: Tokenizer, sequences: int, *, scores: bool = True) -> float:
    """Return the MiB of a step in bf16 with a micro-batch of so many sequences. It was 10,349 for
    16 of d12 and 17,970 for 32, both without scores, and 19,527 for 16 with them.

    A weight takes 18 bytes: itself, its gradient and AdamW's two averages in fp32, and a copy in
    bf16. Of a token each layer keeps two residuals in fp32, and in bf16 a norm, queries, keys,
    values, what the heads gave, and the MLP before and after its activation; with scores also the
    probabilities of each head. The head keeps the logits and their gradient.
    """
    layer = 34 * model.d_model
    if scores:
        layer += 4 * model.n_head * model.seq_len
    token = model.n_layer * layer + 6 * model.d_model + 4 * tokenizer.vocab_size
    return (18 * sum(weights(model, tokenizer)) + sequences * model.seq_len * token) / MIB


def micro_batch(model: Model, tokenizer: Tokenizer, sequences: int) -> tuple[int, str]:
    """Return the largest power of two that divides so many sequences and whose step has room, and
    why."""
    size = 1
    while sequences % (2 * size) == 0 and step_mib(model, tokenizer, 2 * size) <= ROOM_MIB:
        size *= 2
    counted_mib = step_mib(model, tokenizer, size)
    return size, (
        f"even if attention stored its scores, a step would take {counted_mib:,.0f} MiB; the "
        f"limit is {ROOM_MIB:,}"
    )


def compiles_whole(model: Model, tokenizer: Tokenizer, tokens: int) -> tuple[bool, str]:
    """Return whether a run of so many tokens a GPU gains by `trainer.compile=full`, and why."""
    full_s = FULL_S * model.n_layer
    saved_s = SAVED_BY_FULL * flops_per_token(model, tokenizer) * tokens / REGIONAL_FLOPS
    return (
        saved_s > full_s,
        f"compiling the whole model takes {full_s:,.0f} s, and would save {saved_s:,.1f} s",
    )


def is_short(model: Model, tokenizer: Tokenizer, tokens: int) -> tuple[bool, str]:
    """Return whether a step of so many tokens takes longer to launch than to compute, and why."""
    launch_ms = LAUNCH_MS * model.n_layer
    step_ms = 1e3 * flops_per_token(model, tokenizer) * tokens / PEAK_FLOPS
    return (
        step_ms < launch_ms,
        (
            f"the GPU computes a step in {step_ms:,.1f} ms, and its kernels take {launch_ms:,.0f} "
            "ms to launch"
        ),
    )
