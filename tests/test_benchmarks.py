"""Speeds that the README states, measured on a CPU: shorter than there, with looser bounds."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.measure.arms import compose_arms
from nocap.measure.bench import bench
from nocap.measure.generation import Cached, Engine, Recompute, Sampler, generate
from nocap.measure.timed import Clock, TimedArm
from nocap.model.gpt import build_model

BASE = [
    "model=tiny",
    "tokenizer=gpt2",
    "trainer.device=cpu",
    "trainer.micro_batch=4",
    "trainer.batch_tokens=1024",
]
ARMS = ["trainer.precision=fp32 trainer.compile=off", "trainer.precision=bf16 trainer.compile=regional"]


@pytest.mark.slow
@pytest.mark.skipif(not hardware.native_bf16(), reason="this CPU has no native bf16")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_bf16_with_regional_compilation_doubles_the_step():
    """And steps of both, from the same weights over the same tokens, lose the same."""
    arms = [TimedArm(label, run) for label, run in compose_arms(BASE, ARMS).items()]
    result = bench(arms, seconds=60, rounds=3)
    assert [arm["reason"] for arm in result["arms"]] == [None, None]
    assert result["arms"][1]["speed"]["ratio"] >= 2.0
    for arm in arms:
        arm.at = 0
        arm.warm(Clock.cpu)
    plain, quick = arms
    assert max(abs(plain.step() - quick.step()) for _ in range(8)) < 0.01


def seconds(engine: Engine, prompt_1T: Tensor, new: int) -> float:
    """CPU time of a text's last tokens, which the prompt and the first token are none of."""
    sampler = Sampler(temperature=0.0, top_k=0, seed=0, sequences=1, max_tokens=new + 1)
    text = generate(engine, prompt_1T, sampler, max_tokens=new + 1)
    next(text)
    began = time.process_time()
    list(text)
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "new", "least"),
    [
        ("model.n_layer=6 model.n_head=6 model.d_model=384 model.seq_len=1024", 12, 12.0),
        ("model.n_layer=4 model.n_head=8 model.d_model=256 model.seq_len=128", 50, 2.5),
    ],
    ids=("long", "smallmind"),
)
def test_a_cache_multiplies_decoding(shape: str, new: int, least: float) -> None:
    """At the end of a block."""
    run = compose(["trainer.device=cpu", "trainer.precision=fp32", *shape.split()])
    T = run.model.seq_len - new
    model = build_model(run, vocab_size=512).eval()
    engines = Recompute(model), Cached(model, run, batch=1, capacity=T + new)
    prompt_1T = torch.randint(512, (1, T), generator=torch.Generator().manual_seed(0))
    plain, cached = (min(seconds(engine, prompt_1T, new) for _ in range(2)) for engine in engines)
    assert plain / cached >= least
