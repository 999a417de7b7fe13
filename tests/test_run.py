"""One run, from the command to its record: what it writes, says and is, and when it is the same
run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.defaults import reasons
from nocap.config.trainer import Precision
from nocap.display import duration, time_left
from nocap.launch import progress, run_table
from nocap.launch.first_screen import headline
from nocap.launch.progress import Reporter
from nocap.row_keys import LINES
from nocap.store.identity import config_that_counts, identity_parts
from nocap.store.record_files import digest
from tests.attempts import digests, on_a_terminal, summary_of
from tests.conftest import MEDIUM, REPO, SMALL, Door, Undisturbed, rows_of, the_run
from tests.in_process import TINY, planned

Json = dict[str, Any]


# --- the record -----------------------------------------------------------------------------------


def test_record_has_the_files_of_the_contract(undisturbed: Undisturbed) -> None:
    paths = undisturbed.run_dir.iterdir()
    names = {path.name for path in paths if not path.name.startswith(".")}
    files = {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "summary.json",
        "train.log",
        "checkpoints",
    }
    assert names == files
    assert {path.name for path in undisturbed.output_dir.iterdir()} == {"runs"}


SUMMARY_TYPES: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "status": str,
    "identity": str,
    "arm": str,
    "seed": int,
    "val_loss": float,
    "val_bpb": type(None),  # synthetic tokens stand for no text
    "val_bpb_reason": str,
    "steps": int,
    "tokens": int,
    "tokens_per_s": float,
    "epoch_s": float,
    "step_ms": dict,
    "mfu": (float, type(None)),
    "mfu_basis": str,
    "flops_per_token": float,
    "params": dict,
    "memory_mib": dict,
    "clock_s": dict,
    "kernel": dict,
    "hardware": dict,
    "data": dict,
}
PARTS = {
    "step_ms": {"median", "p10", "p90"},
    "params": {"total", "non_embedding"},
    "memory_mib": {"peak", "model", "parameters", "gradients", "optimizer", "activations"},
    "clock_s": {*LINES, "wall"},
    "kernel": {"train", "val"},
    "hardware": {"device", "name", "fingerprint"},
    "data": {"manifest"},
}


def test_summary_has_the_keys_of_the_contract(undisturbed: Undisturbed) -> None:
    summary = summary_of(undisturbed.run_dir)
    for key, kind in SUMMARY_TYPES.items():
        assert isinstance(summary[key], kind), (key, summary[key])
    for key, parts in PARTS.items():
        assert parts <= set(summary[key]), key
        assert None not in [summary[key][part] for part in parts], key
    expected = ["finished", 0, 30, 30 * 2048]
    values = [summary[key] for key in ("status", "seed", "steps", "tokens")]
    assert values == expected
    assert undisturbed.run_dir.name.endswith(f"-{summary['identity']}")


def test_rows_are_each_step_once_with_what_was_done_before_it(undisturbed: Undisturbed) -> None:
    rows = rows_of(undisturbed.run_dir)
    assert [row["step"] for row in rows] == list(range(31))
    tokens = [row["tokens"] for row in rows]
    assert tokens == [step * 2048 for step in range(31)]
    steps = [row["step"] for row in rows if "val/loss" in row]
    assert steps == [0, 12, 24, 30]
    assert [row["step"] for row in rows if "train/loss" not in row] == [30]
    numbers = "train/grad_norm train/lr perf/step_ms perf/tokens_per_s memory/peak_mib clock/wall_s"
    for row in rows[:-1]:
        assert set(numbers.split()) <= set(row)
    run = compose([*MEDIUM, "output_dir=elsewhere"])
    expected = []
    for step in range(30):
        multiplier = run.schedule.multiplier(step=step, steps=30)
        expected.append(run.optimizer.lr * multiplier)
    assert [row["train/lr"] for row in rows[:-1]] == expected
    assert rows[-1]["val/loss"] < rows[0]["val/loss"] - 1  # it learns
    losses = summary_of(undisturbed.run_dir)["val_loss"]
    assert losses == rows[-1]["val/loss"]


def test_clock_sums_to_the_wall_and_the_wall_is_the_time_of_the_process(
    undisturbed: Undisturbed,
) -> None:
    clock = summary_of(undisturbed.run_dir)["clock_s"]
    total = sum(clock[line] for line in LINES)
    assert total == pytest.approx(clock["wall"], rel=0.01)
    began = (undisturbed.run_dir / "manifest.json").stat().st_mtime
    last_row = (undisturbed.run_dir / "metrics.jsonl").stat().st_mtime
    assert last_row - began <= clock["wall"] <= undisturbed.seconds
    for row in rows_of(undisturbed.run_dir):
        row_total = sum(row[f"clock/{line}_s"] for line in LINES)
        assert row_total == pytest.approx(row["clock/wall_s"], rel=1e-6)


def test_manifest_says_what_the_run_is_made_of(undisturbed: Undisturbed) -> None:
    manifest = json.loads((undisturbed.run_dir / "manifest.json").read_text())
    assert {"identity", "parts", "data", "hardware", "versions", "git", "attempts"} <= set(manifest)
    parts = set(manifest["parts"])
    assert parts == {"config", "source", "data", "environment"}
    assert (
        digest(manifest["parts"])
        == manifest["identity"]
        == summary_of(undisturbed.run_dir)["identity"]
    )
    source = manifest["parts"]["source"]
    assert {"nocap.training.loop", "nocap.model.gpt", "nocap.data.batches"} <= set(source)
    for module in source:
        assert not module.endswith(("terminal", ".train"))
    versions = set(manifest["versions"])
    assert {"torch", "numpy", "python"} <= versions
    assert manifest["data"]["val_bytes_reason"]


WITHOUT = """
import importlib.metadata as metadata, sys
GONE = {"wandb", "optuna", "plotly", "huggingface_hub"}
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
there = metadata.Distribution.from_name
def from_name(name):
    if name in GONE:
        raise metadata.PackageNotFoundError(name)
    return there(name)
metadata.Distribution.from_name = staticmethod(from_name)
"""


@pytest.mark.slow
def test_a_machine_without_what_a_run_does_not_use_trains(door: Door, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPO)])}
    done = door(*TINY, f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 0, done.err
    text = (the_run(tmp_path / "out") / "manifest.json").read_text()
    versions = json.loads(text)["versions"]
    assert "numpy" in versions
    assert "wandb" not in versions


# --- the same run again ---------------------------------------------------------------------------


def test_finished_run_is_not_trained_again_and_torch_is_not_imported(
    undisturbed: Undisturbed,
) -> None:
    before = digests(undisturbed.run_dir)
    command = [sys.executable, "-X", "importtime", "-m", "nocap.train", *MEDIUM]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [*command, f"output_dir={undisturbed.output_dir}"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("the run has already finished")
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "nocap.launch.plan" in imported
    named = {name for name in imported if name.partition(".")[0] in ("torch", "wandb")}
    assert not named
    assert digests(undisturbed.run_dir) == before


def test_same_run_under_another_name_is_found(
    undisturbed: Undisturbed, tmp_path: Path, here: Door
) -> None:
    out = shutil.copytree(undisturbed.output_dir, tmp_path / "out")
    # model=nano has four heads: `gqa` with an explicit four is `flash`, and so is a schedule
    # spelled out.
    words = ("attention=gqa", "attention.n_kv_heads=4", "schedule=wsd", "schedule.decay_steps=6")
    done = here(*MEDIUM, *words, f"output_dir={out}")
    assert done.code == 0
    assert done.out.splitlines()[0] == "the run has already finished, so there is nothing to train"
    assert undisturbed.run_dir.name in done.out
    paths = (out / "runs").iterdir()
    assert len(list(paths)) == 1


# --- identity -------------------------------------------------------------------------------------


def identity(*words: str) -> str:
    run = compose([*SMALL, *words])
    return digest(identity_parts(run, data_fingerprint="the same"))


NO_OTHER_RUN = [
    "output_dir=elsewhere",
    "cache_dir=elsewhere",
    "tracker=wandb",
    "trainer.log_every=7",
    "trainer.checkpoint_every=3",
    "trainer.keep_checkpoints=5",
    "trainer.keep_steps=[3,7]",
    "trainer.init_from=elsewhere",
    "trainer.devices=2",
]
ANOTHER = [
    "seed=1",
    "optimizer.lr=0.001",
    "trainer.steps=13",
    "trainer.val_every=4",
    "trainer.threads=2",
    "trainer.micro_batch=4",
    "trainer.precision=bf16",
    "attention=mqa",
    "data.order=sequential",
]


def test_what_can_change_a_number_changes_the_identity_and_presentation_does_not() -> None:
    assert {identity(*NO_OTHER_RUN)} == {identity()}
    identities = {identity(), *map(identity, ANOTHER)}
    assert len(identities) == len(ANOTHER) + 1
    first, second = (config_that_counts(compose([*SMALL, f"seed={seed}"])) for seed in (0, 1))
    assert first.pop("seed") != second.pop("seed")
    assert first == second


# --- at the terminal ------------------------------------------------------------------------------


def test_without_a_terminal_progress_is_plain_lines(undisturbed: Undisturbed) -> None:
    assert "\r" not in undisturbed.process.out
    assert "\x1b" not in undisturbed.process.out
    assert undisturbed.process.err == ""
    lines = undisturbed.process.out.splitlines()
    steps = [line.split()[1] for line in lines if "  val " in line]
    assert steps == ["0/30", "12/30", "24/30", "30/30"]
    for label in ("validation", "speed", "epoch", "memory", "clock", "record"):
        assert f"\n  {label} " in undisturbed.process.out


def test_the_last_screen_says_what_an_epoch_takes(undisturbed: Undisturbed) -> None:
    """Of 100,000 tokens in whole windows of 128."""
    summary = summary_of(undisturbed.run_dir)
    seen = summary["epoch_s"] * summary["tokens_per_s"]
    assert seen == pytest.approx(99_968, abs=128)
    (said,) = re.findall(
        r"^  epoch +(\S+ \S+) for one pass over the training data", undisturbed.process.out, re.M
    )
    assert said == duration(summary["epoch_s"])
    unknown = run_table.table({**summary, "epoch_s": None}, run_dir=undisturbed.run_dir)
    assert "epoch" not in unknown


@pytest.mark.slow
def test_on_a_terminal_progress_is_a_bar(tmp_path: Path) -> None:
    words = ("-m", "nocap.train", *MEDIUM, f"output_dir={tmp_path}")
    code, text = on_a_terminal(*words, cwd=tmp_path)
    assert code == 0
    assert text.count("finished at step 30") == 1
    assert re.search(r"\r[^\n]*\b[1-9]\d?/30\b", text)
    assert "step/s" in text or "s/step" in text
    (log,) = tmp_path.glob("runs/*/train.log")
    assert "\r" not in log.read_text()


PACES = [
    (10, 90, 5.0, "about 45 s left"),
    (10, 90, 60.0, "about 9.0 min left"),
    (1, 1000, 60.0, "about 16.7 h left"),
    (0, 100, 5.0, ""),  # no pace yet
    (100, 0, 5.0, ""),
]


@pytest.mark.parametrize(("done", "to_do", "spent_s", "says"), PACES)
def test_what_is_left_follows_the_pace_so_far(
    done: int, to_do: int, spent_s: float, says: str
) -> None:
    assert time_left(done, to_do, spent_s) == says


def test_a_log_has_a_line_a_validation_and_one_in_five_seconds_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(log_path=tmp_path / "train.log", steps=100)
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    for step in range(50, 71):  # a resumed run: its pace is of this attempt
        row = {"step": step, "train/loss": 3.0, "perf/tokens_per_s": 1234.0}
        if step == 60:
            validation = {"val/loss": 3.5, "val/bpb": 1.25}
        else:
            validation = {}
        reporter.row(row | validation)
        now += 1.0
    reporter.row({"step": 100, "val/loss": None})
    lines = capsys.readouterr().out.splitlines()
    expected = [50, 55, 60, 65, 70, 100]
    steps = [int(re.findall(r"step +(\d+)/100", line)[0]) for line in lines]
    assert steps == expected
    assert lines[0] == "step     50/100  train 3.0000  1,234 tokens/s"
    said = "train 3.0000  val 3.5000 (1.250 bits per byte)  1,234 tokens/s  about 40 s left"
    assert lines[2] == f"step     60/100  {said}"
    assert lines[5] == "step    100/100  val not a number"
    log = (tmp_path / "train.log").read_text().splitlines()
    logged = [line.partition("step")[2] for line in log]
    assert logged == [printed[4:] for printed in lines]


@pytest.mark.parametrize(("wanted", "threads"), [("1", 2), ("64", 1), ("2,1", 2)])
def test_the_first_screen_names_a_variable_that_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    this = planned(tmp_path, f"trainer.threads={threads}")
    line = (
        f"note: nocap ignores OMP_NUM_THREADS={wanted}; trainer.threads={threads} sets the threads"
    )
    assert headline(this).splitlines()[0] == line
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    assert "OMP_NUM_THREADS" not in headline(this)


def test_the_first_screen_says_what_is_trained_and_why_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(
        hardware, "_cpu", lambda: hardware.Cpu(name="a CPU", flags=frozenset({"avx512f"}))
    )
    run = compose([*SMALL, "trainer.device=cpu", "trainer.threads=2", "trainer.steps=1200"])
    this = planned(tmp_path)
    why = reasons(run)
    head, *lines = headline(replace(this, run=run)).splitlines()
    assert re.fullmatch(
        rf"{this.run_dir.name}: 1,200 steps of [\d,]+ tokens on 1 × a CPU with 2 threads, memory "
        rf"pooled",
        head,
    )
    assert lines == ["precision fp32: this CPU has no AMX", f"compile {why['compile']}"]
    other = replace(run.trainer, compile=type(run.trainer.compile)("max"))
    another = replace(this, run=replace(run, trainer=other))
    last = headline(another).splitlines()[-1]
    assert last == f"compile max (by default {why['compile']})"


@pytest.mark.slow
def test_the_first_screen_says_what_to_try_where_bf16_may_be_faster(
    here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hardware, "_cpu", lambda: hardware.Cpu(name="a CPU", flags=frozenset({"avx512_bf16"}))
    )
    run = compose([*SMALL, "trainer.device=cpu", "trainer.threads=2"])
    assert run.trainer.precision is Precision.fp32
    this = planned(tmp_path)
    lines = headline(replace(this, run=run)).splitlines()
    assert "  trainer.precision=bf16 may be faster here; this measures it:" in lines
    (command,) = [line.strip() for line in lines if "nocap.bench" in line]
    assert command.startswith("python -m nocap.bench model.n_layer=")
    words = command.split()[3:]
    assert words[-3:] == ["trainer.precision=fp32", "--arm", "trainer.precision=bf16"]
    done = here(*words, "trainer.threads=1", "--seconds", "1", module="nocap.bench")
    assert done.code == 0
    in_bf16 = compose([*SMALL, "trainer.device=cpu", "trainer.precision=bf16"])
    assert "may be faster" not in headline(replace(this, run=in_bf16))
