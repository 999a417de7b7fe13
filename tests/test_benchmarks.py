"""What the README calls fast computes the same, or less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.generation.engines import Cached, Engine, Recompute
from nocap.generation.sampling import TokenSampler, generate
from nocap.measure.bench_arms import compose_arms
from nocap.measure.clock import Clock
from nocap.measure.timed_arm import TimedArm
from nocap.model.build import build_model

BASE = [
    "model=tiny",
    "tokenizer=gpt2",
    "trainer.device=cpu",
    "trainer.micro_batch=4",
    "trainer.batch_tokens=1024",
]
ARMS = [
    "trainer.precision=fp32 trainer.compile=off",
    "trainer.precision=bf16 trainer.compile=regional",
]


@pytest.mark.slow
@pytest.mark.skipif(not hardware.native_bf16(), reason="this CPU has no native bf16")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_bf16_with_regional_compilation_loses_what_fp32_loses():
    """Steps of both, from the same weights over the same tokens."""
    plain, quick = (TimedArm(label, run) for label, run in compose_arms(BASE, ARMS).items())
    for arm in (plain, quick):
        arm.warm(Clock.cpu)
    assert max(abs(plain.step() - quick.step()) for _ in range(8)) < 0.01


def flops(engine: Engine, prompt_1T: Tensor, new: int) -> int:
    """Count the arithmetic of a text's last tokens, without the prompt and the first token."""
    sampler = TokenSampler(temperature=0.0, top_k=0, seed=0, sequences=1, max_tokens=new + 1)
    text = generate(engine, prompt_1T, sampler, max_tokens=new + 1)
    next(text)
    with FlopCounterMode(display=False) as counter:
        list(text)
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "new"),
    [
        ("model.n_layer=6 model.n_head=6 model.d_model=384 model.seq_len=1024", 2),
        ("model.n_layer=4 model.n_head=8 model.d_model=256 model.seq_len=128", 8),
    ],
    ids=("long", "smallmind"),
)
def test_a_cache_computes_a_token_and_not_the_text_before_it(shape: str, new: int) -> None:
    """At the end of a block."""
    run = compose(["trainer.device=cpu", "trainer.precision=fp32", *shape.split()])
    T = run.model.seq_len - new
    model = build_model(run, vocab_size=512).eval()
    engines = Recompute(model), Cached(model, run, batch=1, capacity=T + new)
    generator = torch.Generator().manual_seed(0)
    prompt_1T = torch.randint(512, (1, T), generator=generator)
    plain, cached = (flops(engine, prompt_1T, new) for engine in engines)
    assert plain / cached > T / 2
