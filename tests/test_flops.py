"""FLOPs a token: the known figures, torch's own counter component by component, and the window's average by
direct count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.gpt import GPT

D12 = ["model=d12", "attention=flash", "trainer.micro_batch=1"]


def test_gpt2_124m():
    run = compose(D12)
    assert f"{flops_per_token(run, vocab_size=50257)[0] / 1e6:.1f}" == "797.8"
    assert f"{flops_per_token(run, vocab_size=50257, causal=False)[0] / 1e6:.1f}" == "854.4"
    assert flops_per_token(run, vocab_size=50257, causal=False) == (
        6 * 123_532_032 + 12 * 12 * 1024 * 768,
        "arithmetic",
    )


def counted(run: Run, vocab_size: int) -> dict[str, float]:
    """FLOPs a token of a forward and backward on the meta device, by torch's counter and by component."""
    with torch.device("meta"):
        model = GPT(run, vocab_size=vocab_size)
        tokens = torch.zeros(3, run.model.seq_len, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens, tokens).total.backward()
    counts = {
        name: {str(op): n / tokens.numel() for op, n in ops.items()}
        for name, ops in counter.get_flop_counts().items()
    }

    def of(last: str, *, products: bool = False) -> float:
        """FLOPs of the modules whose path ends so, batched matrix products (the scores' alone) or all
        others."""
        modules = [ops for name, ops in counts.items() if name.split(".")[-1] == last]
        return sum(n for ops in modules for op, n in ops.items() if ("bmm" in op) == products)

    # The three projections share an input, and the counter gives all their backwards to each of them: taken
    # together, as a remainder.
    return {
        "qkv": of("attention") - of("out_proj"),
        "scores": of("attention", products=True),
        "attention_out": of("out_proj"),
        "mlp": of("mlp"),
        "head": of("unembed"),
        "total": sum(counts["Global"].values()),
    }


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
    counts = counted(run, vocab_size=70)
    assert counts.pop("total") == flops_per_token(run, vocab_size=70, causal=False)[0]
    assert counts == component_flops(run, vocab_size=70, causal=False)


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
