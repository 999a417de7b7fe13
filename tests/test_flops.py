"""FLOPs a token: the known figures, torch's own counter, and the window's average by
direct count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nocap.config.compose import compose
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.gpt import GPT

D12 = ["model=d12", "attention=flash", "trainer.micro_batch=1"]


@pytest.mark.slow
def test_gpt2_124m():
    run = compose(D12)
    assert f"{flops_per_token(run, vocab_size=50257)[0] / 1e6:.1f}" == "797.8"
    assert f"{flops_per_token(run, vocab_size=50257, causal=False)[0] / 1e6:.1f}" == "854.4"
    assert flops_per_token(run, vocab_size=50257, causal=False) == (
        6 * 123_532_032 + 12 * 12 * 1024 * 768,
        "arithmetic",
    )


@pytest.mark.parametrize(
    "words",
    [
        "attention=mha mlp=gelu4x",
        "attention=gqa mlp=swiglu",
        "attention=mqa mlp=relu2",
        "attention=mha mlp=gelu3x model.tie_head=false position=learned",  # which cost no more
    ],
)
def test_arithmetic_equals_torchs_counter(words: str):
    run = compose(["model=nano", "model.seq_len=32", "attention.kernel=materialized", *words.split()])
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        tokens = torch.zeros(3, run.model.seq_len, dtype=torch.long)
        GPT(run, vocab_size=70)(tokens, tokens).total.backward()
    arithmetic = flops_per_token(run, vocab_size=70, causal=False)[0]
    assert counter.get_total_flops() / tokens.numel() == arithmetic
    assert sum(component_flops(run, vocab_size=70, causal=False).values()) == arithmetic


@pytest.mark.parametrize("window", [1, 64, 127, 1000])
def test_a_windows_keys_are_those_of_a_direct_count(window: int):
    """Keys of query t: min(t + 1, window). The convention counts a query's own key as half, as T/2 for the
    causal mask does."""
    T = 128
    run = compose(["model=nano", "attention=sliding", f"attention.window={window}", "trainer.device=cpu"])
    direct = sum(min(t + 1, window) for t in range(T)) / T
    own = min(window, T) / (2 * T)
    scores = component_flops(run, vocab_size=70)["scores"]
    assert scores == pytest.approx(12 * 64 * 2 * (direct - own))


def test_a_full_window_costs_what_full_attention_costs_and_a_hybrid_lies_between():
    base = ("model=nano", "model.n_layer=4", "trainer.device=cpu")
    full, local, widest, hybrid = (
        flops_per_token(compose([*base, *words]), vocab_size=70)[0]
        for words in (
            ("attention=flash",),
            ("attention=sliding",),
            ("attention=sliding", "attention.window=128"),
            ("attention=hybrid",),
        )
    )
    assert widest == full
    assert hybrid == pytest.approx((3 * local + full) / 4)
