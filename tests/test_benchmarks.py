"""The speed in the README, shortened: what it promises on a CPU with native bf16."""

from __future__ import annotations

import pytest

from nocap import hardware
from nocap.schema import Device, Precision
from nocap.speed.arms import compose_arms
from nocap.speed.clock import Clock
from nocap.speed.contestant import Contestant
from nocap.speed.measure import bench

BASE = ["model=tiny", "tokenizer=gpt2", "trainer.device=cpu", "trainer.micro_batch=4", "trainer.batch_tokens=1024"]
ARMS = ["trainer.precision=fp32 trainer.compile=off", "trainer.precision=bf16 trainer.compile=regional"]


@pytest.mark.slow
@pytest.mark.skipif(hardware.default_precision(Device.cpu) is Precision.fp32, reason="this CPU has no native bf16")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_bf16_with_regional_compilation_doubles_the_step():
    """And steps of both, from the same weights over the same tokens, lose the same."""
    arms = compose_arms(BASE, ARMS)
    result = bench(arms, seconds=120, rounds=8)
    assert [arm["reason"] for arm in result["arms"]] == [None, None]
    assert result["arms"][1]["speed"]["ratio"] >= 2.0
    plain, quick = (Contestant(arm, clock=Clock.cpu) for arm in arms)
    assert max(abs(plain.step().loss - quick.step().loss) for _ in range(8)) < 0.01
