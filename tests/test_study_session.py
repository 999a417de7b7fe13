"""Sessions: what is timed together, what is counted without a clock, and that a session is run
once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nocap.config.compose import compose, composed
from nocap.config.errors import FailedError
from nocap.config.run import Run
from nocap.measure.bench_result import Bench
from nocap.sessions import worker as session
from nocap.sessions.session import Session
from tests.attempts import spawn, wait_until
from tests.conftest import REPO
from tests.soak import processes

NANO = (
    "model=nano",
    "model.seq_len=32",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "trainer.micro_batch=2",
)
BATCH = (*NANO, "trainer.batch_tokens=64")
HEADS = 4  # of the nano model


def runs(**overrides: str) -> dict[str, Run]:
    return {name: compose([*BATCH, *own.split()]) for name, own in overrides.items()}


@pytest.mark.slow
def test_arms_with_the_same_step_are_timed_once(monkeypatch: pytest.MonkeyPatch):
    asked = []
    real = session.carry_out

    def carry_out(arms: Any, **how: Any) -> Bench:
        asked.append([arm.label for arm in arms])
        return real(arms, **how)

    monkeypatch.setattr(session, "carry_out", carry_out)
    twins = {
        "late": "attention=flash schedule=cosine seed=7",
        "few": "attention=mqa data=synthetic",
    }
    both = runs(mha="attention=flash", mqa="attention=mqa", **twins)
    rows = session.time_steps(both, rounds=1)
    assert asked == [["mha", "mqa"]]
    timed = ("tokens_per_s", "step_ms", "params", "memory_mib", "flops_per_token", "kernel")
    for name, twin in (("mha", "late"), ("mqa", "few")):
        expected = [getattr(rows[twin], key) for key in timed]
        assert [getattr(rows[name], key) for key in timed] == expected
    mha = rows["mha"]
    mqa = rows["mqa"]
    assert mha.step_ms == pytest.approx(64 / mha.tokens_per_s * 1e3)
    assert mha.kv_bytes == 2 * 2 * 64 * 4  # layers · (K and V) · d_model · fp32
    assert mha.kv_bytes == HEADS * mqa.kv_bytes
    assert sum(mqa.component_flops.values()) < sum(mha.component_flops.values())


def test_what_is_counted_without_a_clock():
    near = session.kv_bytes(compose([*BATCH, "attention=sliding", "attention.window=8"]))
    whole = session.kv_bytes(compose([*BATCH, "attention=flash"]))
    uncached = session.kv_bytes(compose([*BATCH, "attention=mha", "data.document_mask=true"]))
    assert whole == 2 * 2 * 64 * 4
    assert near == whole  # the cache keeps what a window no longer sees
    assert uncached is None
    d = 64
    V = 257
    h = 256
    by_part = session.part_params(compose([*BATCH, "attention=flash", "mlp=gelu4x"]))
    exact = {
        "qkv": 2 * 3 * d * d,
        "attention_out": 2 * d * d,
        "mlp_up": 2 * d * h,
        "mlp_down": 2 * d * h,
    }
    assert exact.items() <= by_part.items()
    assert by_part["embedding"] >= V * d


@pytest.mark.slow
def test_a_step_taken_apart_and_attention_over_lengths():
    row = session.profile_parts(runs(mha="attention=mha"), repeats=1)["mha"]
    assert {"qkv", "scores", "attention_out", "mlp_up", "mlp_down", "head", "loss"} <= set(row.ms)
    for x in row.ms.values():
        assert math.isfinite(x)
        assert x >= 0
    assert row.step_ms > 0
    total_ms = sum(row.ms.values()) + row.unattributed_ms
    assert total_ms == pytest.approx(row.step_ms, rel=0.05)
    assert set(row.memory_mib) >= {"parameters", "gradients", "optimizer", "activations"}
    assert row.mib["scores"] > 0
    both = runs(mha="attention=mha", near="attention=sliding attention.window=8")
    time_lengths = session.time_lengths(both, T=[32, 64, 128])
    for row, window in zip(time_lengths.values(), (None, 8), strict=True):
        assert row.T == [32, 64, 128]
        assert row.window == window
        for ms in row.attention_ms:
            assert ms > 0
        assert math.isfinite(row.exponent)


@pytest.mark.slow
def test_decoding_writes_one_text_with_every_engine_or_refuses(monkeypatch: pytest.MonkeyPatch):
    from nocap.generation import engines as engine

    engines = {"again": "no cache", "cached": "cache", "mqa": "cache"}
    arms = runs(again="attention=flash", cached="attention=flash", mqa="attention=mqa")
    rows = session.time_decoding(arms, engines=engines, prompt=4, new=6, vocab_size=64)
    assert {name: row.engine for name, row in rows.items()} == engines
    for row in rows.values():
        assert min(row.decode_tokens_per_s, row.decode_ms, row.decode_mb) > 0
        assert row.collections >= 0
    real = engine.Recompute.prefill
    monkeypatch.setattr(engine.Recompute, "prefill", lambda self, tokens_BT: -real(self, tokens_BT))
    with pytest.raises(AssertionError, match="engines of one model must write the same text"):
        session.time_decoding(arms, engines=engines, prompt=4, new=6, vocab_size=64)


def asked(*overrides: str, place: str = "parts") -> Session:
    if place == "parts":
        how = {"repeats": 1}
    else:
        how = {}
    arms = {"mha": composed([*BATCH, *overrides])}
    return Session(place=place, how=how, arms=arms)


def test_a_session_is_run_again_when_its_result_could_differ():
    original = asked()
    assert (
        original.key
        == asked("schedule=cosine").key
        == asked("data=synthetic").key
        == asked("seed=3").key
    )
    others = (asked("attention=mqa"), asked(place="bench"), replace(original, how={"rounds": 2}))
    keys = {original.key, *(other.key for other in others)}
    assert len(keys) == 4


@pytest.mark.slow
def test_a_session_is_run_once_and_knows_when_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    now = lambda: datetime.now().astimezone().replace(microsecond=0)  # noqa: E731
    before = now()
    first = asked().run(tmp_path)
    started = datetime.fromisoformat(first.started)
    ended = datetime.fromisoformat(first.ended)
    assert before <= started <= ended <= now()
    assert first.figures["mha"].step_ms > 0
    paths = (tmp_path / "sessions").iterdir()
    assert [path.name for path in paths] == [f"parts-mha-1-{asked().key}.json"]
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("it was run again"))
    assert [asked().run(tmp_path)] == [first]
    assert asked().results(tmp_path) == [first]


def test_a_session_that_fails_names_its_cause_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nocap.sessions.session.WORKER", "nocap.sessions.nowhere")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    with pytest.raises(
        FailedError, match=r"parts-mha, session 1: .*No module named nocap.sessions.nowhere; see "
    ):
        asked().run(tmp_path)


@pytest.mark.slow
def test_a_session_does_not_outlive_a_killed_study(tmp_path: Path):
    """Or the same command would time its arms beside it; also one that was killed before it
    began."""
    body = f"from tests.test_study_session import *; asked().run(Path({str(tmp_path)!r}))"
    study = spawn("-c", body, cwd=tmp_path)
    wait_until(lambda: "session" in processes(tmp_path).values(), "a session")
    study.kill()
    study.communicate()
    wait_until(lambda: not processes(tmp_path), "its end")
    assert asked().results(tmp_path) == []
    environment = {**os.environ, "PYTHONPATH": str(REPO), "NOCAP_PARENT": "1"}
    command = [sys.executable, "-m", "nocap.sessions.worker", "no result"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr == b""
