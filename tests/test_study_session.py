"""Sessions: what is timed together, what is counted without a clock, and that a session is run once."""

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
from nocap.config.run import Run
from nocap.study import session
from nocap.study.tasks import Session
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
    asked, real = [], session.bench

    def bench(arms: Any, **how: Any) -> dict[str, Any]:
        asked.append([arm.label for arm in arms])
        return real(arms, **how)

    monkeypatch.setattr(session, "bench", bench)
    rows = session.steps(
        runs(
            mha="attention=flash",
            late="attention=flash schedule=cosine seed=7",
            mqa="attention=mqa",
            few="attention=mqa data=synthetic",
        ),
        rounds=1,
    )
    assert asked == [["mha", "mqa"]]
    timed = ("tokens_per_s", "step_ms", "params", "memory_mib", "flops_per_token", "kernel")
    for name, twin in (("mha", "late"), ("mqa", "few")):
        assert [rows[name][key] for key in timed] == [rows[twin][key] for key in timed]
    assert all(math.isfinite(row["tokens_per_s"]) and row["tokens_per_s"] > 0 for row in rows.values())
    assert rows["mha"]["step_ms"] == pytest.approx(64 / rows["mha"]["tokens_per_s"] * 1e3)
    assert rows["mha"]["kv_bytes"] / rows["mqa"]["kv_bytes"] == HEADS
    assert rows["mha"]["kv_bytes"] == 2 * 2 * 64 * 4  # layers · (K and V) · d_model · fp32
    assert sum(rows["mqa"]["component_flops"].values()) < sum(rows["mha"]["component_flops"].values())


def test_a_windows_cache_is_its_window():
    counted = session.counts(compose([*BATCH, "attention=sliding", "attention.window=8"]))
    assert counted["kv_bytes"] == pytest.approx(
        session.counts(compose([*BATCH, "attention=flash"]))["kv_bytes"] * 8 / 32
    )


def test_parameters_by_part_are_all_parameters():
    d, V, h = 64, 257, 256
    by_part = session.part_params(compose([*BATCH, "attention=flash", "mlp=gelu4x"]))
    assert by_part["embedding"] >= V * d
    assert by_part["qkv"] == 2 * 3 * d * d
    assert by_part["attention_out"] == 2 * d * d
    assert by_part["mlp_up"] == by_part["mlp_down"] == 2 * d * h


@pytest.mark.slow
def test_a_step_taken_apart():
    row = session.parts(runs(mha="attention=mha"), repeats=1)["mha"]
    assert {"qkv", "scores", "attention_out", "mlp_up", "mlp_down", "head", "loss"} <= set(row["ms"])
    assert all(math.isfinite(x) and x >= 0 for x in row["ms"].values())
    assert 0 < sum(row["ms"].values()) + row["unattributed_ms"] == pytest.approx(row["step_ms"], rel=0.05)
    assert set(row["memory_mib"]) >= {"parameters", "gradients", "optimizer", "activations"}
    assert row["mib"]["scores"] > 0


@pytest.mark.slow
def test_attention_over_lengths():
    rows = session.lengths(
        runs(mha="attention=mha", near="attention=sliding attention.window=8"), T=[32, 64, 128]
    )
    for row, window in zip(rows.values(), (None, 8), strict=True):
        assert row["T"] == [32, 64, 128]
        assert all(ms > 0 for ms in row["attention_ms"])
        assert math.isfinite(row["exponent"])
        assert row["window"] == window


def test_decoding_writes_one_text_with_every_engine():
    engines = {"again": "no cache", "cached": "cache", "mqa": "cache"}
    asked = runs(again="attention=flash", cached="attention=flash", mqa="attention=mqa")
    rows = session.decoding(asked, engines=engines, prompt=4, new=6, vocab_size=64)
    assert {name: row["engine"] for name, row in rows.items()} == engines
    for row in rows.values():
        assert row["decode_tokens_per_s"] > 0
        assert row["decode_ms"] > 0
        assert row["decode_mb"] > 0
        assert row["collections"] >= 0


def test_decoding_refuses_engines_that_disagree(monkeypatch: pytest.MonkeyPatch):
    from nocap.measure import generation as engine

    real = engine.Recompute.prefill
    monkeypatch.setattr(engine.Recompute, "prefill", lambda self, tokens_BT: -real(self, tokens_BT))
    with pytest.raises(AssertionError, match="engines of one model must write the same text"):
        session.decoding(
            runs(again="attention=flash", cached="attention=flash"),
            engines={"again": "no cache", "cached": "cache"},
            prompt=4,
            new=6,
            vocab_size=64,
        )


def asked(*overrides: str, place: str = "parts") -> Session:
    return Session(
        place=place,
        how={"repeats": 1} if place == "parts" else {},
        arms={"mha": composed([*BATCH, *overrides])},
    )


def test_a_session_is_run_again_when_its_result_could_differ():
    original = asked()
    assert original.key == asked("schedule=cosine").key == asked("data=synthetic").key == asked("seed=3").key
    assert (
        len(
            {
                original.key,
                asked("attention=mqa").key,
                asked(place="bench").key,
                replace(original, how={"rounds": 2}).key,
            }
        )
        == 4
    )


@pytest.mark.slow
def test_a_session_is_run_once_and_knows_when_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    before = datetime.now().astimezone().replace(microsecond=0)
    first = asked().run(tmp_path)
    assert (
        before
        <= datetime.fromisoformat(first["started"])
        <= datetime.fromisoformat(first["ended"])
        <= datetime.now().astimezone()
    )
    assert first["measured"]["arms"]["mha"]["step_ms"] > 0
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == [f"parts-mha-1-{asked().key}.json"]
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("it was run again"))
    assert [asked().run(tmp_path)] == asked().results(tmp_path) == [first]


@pytest.mark.slow
def test_a_session_does_not_outlive_a_killed_study(tmp_path: Path):
    """Or the same command would time its arms beside it."""
    body = f"from tests.test_study_session import *; asked().run(Path({str(tmp_path)!r}))"
    study = spawn("-c", body, cwd=tmp_path)
    wait_until(lambda: "session" in processes(tmp_path).values(), "a session")
    study.kill()
    study.communicate()
    wait_until(lambda: not processes(tmp_path), "its end")
    assert asked().results(tmp_path) == []


@pytest.mark.slow
def test_a_session_whose_study_was_killed_before_it_began_ends(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(REPO), "NOCAP_PARENT": "1"}
    command = [sys.executable, "-m", "nocap.study.session", "no result"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
