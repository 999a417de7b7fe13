"""Bad input at the real door: exit code 2, a line that names key, rule and value, no traceback, and nothing
written."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import nocap
from nocap import __main__ as console
from nocap.config.hardware import cuda_devices
from nocap.data.shards import write_shard
from tests.conftest import MEDIUM, SMALL, Door, Undisturbed

SHARDS = ("data=shards", "data.val=val.bin")
REFUSALS = {
    "unknown option": (["attention=flsh"], ["attention", "flsh", "flash"]),
    "misspelled key": (["trainer.stepz=10"], ["trainer.stepz", "trainer", "steps"]),
    "misspelled key, added": (["+trainer.stepz=10"], ["trainer.stepz", "steps"]),
    "key of another option, added": (["+attention.window=16"], ["attention.window", "attention=sliding"]),
    "misspelled group": (["atention=flash"], ["atention"]),
    "wrong type": (["trainer.steps=many"], ["trainer.steps", "many"]),
    "wrong choice": (["trainer.precision=fp17"], ["trainer.precision", "fp17", "fp32", "bf16"]),
    "null": (["trainer.steps=null"], ["trainer.steps"]),
    "malformed": (["trainer.steps"], ["trainer.steps"]),
    "no steps": (["trainer.steps=0"], ["trainer.steps must be at least 1, got 0"]),
    "heads": (
        ["attention=gqa", "attention.n_kv_heads=3"],
        ["attention.n_kv_heads must divide model.n_head=4, got 3"],
    ),
    "window": (["attention=sliding", "attention.window=0"], ["attention.window must be at least 1, got 0"]),
    "batch": (
        ["trainer.batch_tokens=2049"],
        ["trainer.batch_tokens must be divisible by", "8 × 128 × 1 = 1024, got 2049"],
    ),
    "batch over devices": (
        ["trainer.devices=4"],
        ["trainer.batch_tokens must be divisible by", "8 × 128 × 4 = 4096, got 2048"],
    ),
    "schedule": (
        ["schedule.warmup_steps=13"],
        ["schedule.warmup_steps must be at most trainer.steps=12, got 13"],
    ),
    "too little validation data": (
        ["trainer.val_tokens=102400"],
        ["trainer.val_tokens must be at most", "got 102400"],
    ),
    "no data to train on": (["data.train_tokens=100"], ["data must hold at least", "129 tokens", "got 100"]),
    "missing text": (["data=text", "data.path=missing.txt"], ["data.path", "missing.txt"]),
    "empty text": (["data=text", "data.path=empty"], ["data.path", "empty"]),
    "no path": (["data=text"], ["data.path"]),
    "missing shards": (
        [*SHARDS, "data.train=none_*.bin"],
        ["data.train must match at least one shard", "none_*.bin"],
    ),
    "truncated shard": ([*SHARDS, "data.train=cut.bin"], ["cut.bin", "truncated", "3024"]),
    "wrong magic": ([*SHARDS, "data.train=magic.bin"], ["magic.bin", "20240520", "got 7"]),
    "id beyond the vocabulary": (
        [*SHARDS, "data.train=ids.bin", "tokenizer=bytes"],
        ["ids.bin", "below 257", "got 300 at token 5"],
    ),
    "output_dir": (
        ["output_dir=file/below"],
        ["output_dir must be a folder that can be written", "file/below"],
    ),
    "output_dir of a grid": (
        ["--multirun", "seed=0,1", "output_dir=file/below"],
        ["output_dir", "file/below"],
    ),
}


@pytest.fixture
def material(tmp_path: Path) -> Path:
    """Things that cannot be trained on."""
    (tmp_path / "file").write_text("a file, no folder\n" * 4000)
    (tmp_path / "empty").mkdir()
    tokens = np.arange(1000) % 257
    for name in ("val", "cut", "magic"):
        write_shard(tmp_path / f"{name}.bin", np.roll(tokens, len(name)))
    write_shard(tmp_path / "ids.bin", np.where(np.arange(1000) == 5, 300, tokens))
    with (tmp_path / "cut.bin").open("r+b") as file:
        file.truncate(2000)
    with (tmp_path / "magic.bin").open("r+b") as file:
        file.write(np.array([7], "<i4").tobytes())
    return tmp_path


def refused(
    material: Path, door: Door, words: list[str], expected: list[str], env: dict[str, str] | None = None
) -> None:
    before = sorted(material.rglob("*"))
    flags, overrides = [w for w in words if w.startswith("--")], [w for w in words if not w.startswith("--")]
    words = [
        word for word in SMALL if not word.startswith("data") or not any(w.startswith("data=") for w in words)
    ]
    done = door(*flags, *words, *overrides, env=env)
    assert done.code == 2, done
    assert 1 <= len(done.err.splitlines()) <= 2, done.err
    assert "Traceback" not in done.err
    for word in expected:
        assert word in done.err, done.err
    assert sorted(material.rglob("*")) == before


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(material: Path, here: Door, case: str) -> None:
    refused(material, here, *REFUSALS[case])


def test_a_process_refuses_in_the_same_way(material: Path, door: Door) -> None:
    for case in ("misspelled key", "output_dir of a grid"):
        refused(material, door, *REFUSALS[case])


def test_cuda_that_is_not_there_is_refused(material: Path, here: Door) -> None:
    if cuda_devices():
        pytest.skip("there is a GPU")
    refused(material, here, ["trainer.device=cuda", "trainer.precision=fp32"], ["trainer.device=cuda"])


def test_compilation_without_a_compiler_is_refused(material: Path, here: Door) -> None:
    expected = ["trainer.compile=regional on the CPU needs a C++ compiler", "/nonexistent"]
    refused(
        material,
        here,
        ["trainer.compile=regional", "trainer.device=cpu"],
        expected,
        env={"CXX": "/nonexistent"},
    )


def test_vocabulary_that_cannot_be_fetched_is_refused_with_the_remedy(material: Path, door: Door) -> None:
    """In a process of its own: this one may have the vocabulary from another test."""
    closed = "http://127.0.0.1:9"
    env = {
        "TIKTOKEN_CACHE_DIR": str(material / "empty"),
        "http_proxy": closed,
        "https_proxy": closed,
        "HTTPS_PROXY": closed,
    }
    refused(
        material,
        door,
        ["data=text", "data.path=file", "tokenizer=gpt2"],
        ["tokenizer=gpt2", "TIKTOKEN_CACHE_DIR"],
        env=env,
    )


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_refused(material: Path, door: Door) -> None:
    (material / "empty").chmod(0o500)
    refused(
        material, door, ["output_dir=empty"], ["output_dir must be a folder that can be written", "empty"]
    )


def test_grid_with_a_wrong_key_stops_before_its_first_cell(material: Path, here: Door) -> None:
    done = here("--multirun", *SMALL, "seed=0,1", "trainer.stepz=1,2")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "trainer.stepz" in done.err
    assert not (material / "outputs" / "runs").exists()


def test_run_of_a_damaged_record_is_refused(tmp_path: Path, here: Door, undisturbed: Undisturbed) -> None:
    run_dir = shutil.copytree(undisturbed.run_dir, tmp_path / "out" / "runs" / undisturbed.run_dir.name)
    (run_dir / "summary.json").write_text("{")
    shutil.rmtree(run_dir / "checkpoints")  # nothing knows what was in it
    done = here(*MEDIUM, f"output_dir={tmp_path / 'out'}")
    assert done.code == 2
    assert done.err.startswith(f"nocap: {run_dir / 'summary.json'} must hold a JSON object")
    assert done.err.endswith(
        "there is no valid checkpoint to mend it from: move that folder to train the run again\n"
    )


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [("--help", 0, "nocap train "), ("--version", 0, f"nocap {nocap.__version__}"), ("x", 2, "")],
)
def test_the_console_script_alone(
    word: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nocap", word])
    with pytest.raises(SystemExit) as left:
        console.main()
    said = capsys.readouterr()
    assert left.value.code == code
    assert says in said.out
    assert bool(said.err) == (code == 2)
    assert bool(said.out) == (code == 0)


def test_a_command_that_was_mistyped_is_told_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nocap", "trian"])
    with pytest.raises(SystemExit):
        console.main()
    assert capsys.readouterr().err.startswith("nocap: 'trian' is no command (did you mean train?)\n")


@pytest.mark.parametrize("code", [0, 1, None])
def test_the_console_script_passes_an_exit_code_on(code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocap.bench.main", lambda: code)
    monkeypatch.setattr("sys.argv", ["nocap", "bench"])
    with pytest.raises(SystemExit) as left:
        console.main()
    assert left.value.code == code
