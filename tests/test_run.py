"""One run, from the command to its record: what it writes, what it is, and when it is the same run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nocap.config.compose import compose
from nocap.store.identity import config_that_counts, digest, identity_parts
from nocap.training.ledger import LINES
from tests.attempts import on_a_terminal
from tests.conftest import MEDIUM, REPO, SMALL, Door, Undisturbed, rows_of, the_run

Json = dict[str, Any]


def summary_of(run_dir: Path) -> Json:
    content: Json = json.loads((run_dir / "summary.json").read_text())
    return content


# --- the record ---------------------------------------------------------------------------------------------


def test_record_has_the_files_of_the_contract(undisturbed: Undisturbed) -> None:
    names = {path.name for path in undisturbed.run_dir.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "summary.json",
        "train.log",
        "checkpoints",
    }
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
        assert all(value is not None for part, value in summary[key].items() if part in parts), key
    assert (summary["status"], summary["seed"], summary["steps"], summary["tokens"]) == (
        "finished",
        0,
        30,
        30 * 2048,
    )
    assert undisturbed.run_dir.name.endswith(f"-{summary['identity']}")


def test_rows_are_each_step_once_with_what_was_done_before_it(undisturbed: Undisturbed) -> None:
    rows = rows_of(undisturbed.run_dir)
    assert [row["step"] for row in rows] == list(range(31))
    assert [row["tokens"] for row in rows] == [step * 2048 for step in range(31)]
    assert [row["step"] for row in rows if "val/loss" in row] == [0, 12, 24, 30]
    assert [row["step"] for row in rows if "train/loss" not in row] == [30]
    for row in rows[:-1]:
        assert {
            "train/grad_norm",
            "train/lr",
            "perf/step_ms",
            "perf/tokens_per_s",
            "memory/peak_mib",
            "clock/wall_s",
        } <= set(row)
    assert rows[-1]["val/loss"] < rows[0]["val/loss"] - 1  # it learns
    assert summary_of(undisturbed.run_dir)["val_loss"] == rows[-1]["val/loss"]


def test_learning_rate_is_the_schedule(undisturbed: Undisturbed) -> None:
    run = compose([*MEDIUM, "output_dir=elsewhere"])
    expected = [run.optimizer.lr * run.schedule.multiplier(step=step, steps=30) for step in range(30)]
    assert [row["train/lr"] for row in rows_of(undisturbed.run_dir)[:-1]] == expected


def test_clock_sums_to_the_wall_and_the_wall_is_the_time_of_the_process(undisturbed: Undisturbed) -> None:
    clock = summary_of(undisturbed.run_dir)["clock_s"]
    assert sum(clock[line] for line in LINES) == pytest.approx(clock["wall"], rel=0.01)
    assert 0 <= undisturbed.seconds - clock["wall"] < 4  # interpreter start and end, on a busy machine
    for row in rows_of(undisturbed.run_dir):
        assert sum(row[f"clock/{line}_s"] for line in LINES) == pytest.approx(row["clock/wall_s"], rel=1e-6)


def test_manifest_says_what_the_run_is_made_of(undisturbed: Undisturbed) -> None:
    manifest = json.loads((undisturbed.run_dir / "manifest.json").read_text())
    assert {"identity", "parts", "data", "hardware", "versions", "git", "attempts"} <= set(manifest)
    assert set(manifest["parts"]) == {"config", "source", "data", "environment"}
    assert digest(manifest["parts"]) == manifest["identity"] == summary_of(undisturbed.run_dir)["identity"]
    assert {"nocap.training.loop", "nocap.model.gpt", "nocap.data.batches"} <= set(
        manifest["parts"]["source"]
    )
    assert not any(module.endswith(("terminal", ".train")) for module in manifest["parts"]["source"])
    assert {"torch", "numpy", "python"} <= set(manifest["versions"])
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


def test_a_machine_without_what_a_run_does_not_use_trains(door: Door, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPO)])}
    done = door(*SMALL, "tracker=none", "trainer.steps=2", f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 0, done.err
    versions = json.loads((the_run(tmp_path / "out") / "manifest.json").read_text())["versions"]
    assert "numpy" in versions
    assert "wandb" not in versions


# --- the same run again -------------------------------------------------------------------------------------


def test_finished_run_is_not_trained_again_and_torch_is_not_imported(undisturbed: Undisturbed) -> None:
    before = (undisturbed.run_dir / "metrics.jsonl").read_bytes()
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "nocap.train",
            *MEDIUM,
            f"output_dir={undisturbed.output_dir}",
        ],
        cwd=undisturbed.output_dir,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("already finished")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nocap.launch.plan" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("torch", "wandb")}
    assert (undisturbed.run_dir / "metrics.jsonl").read_bytes() == before


def test_same_run_under_another_name_is_found(undisturbed: Undisturbed, tmp_path: Path, here: Door) -> None:
    out = shutil.copytree(undisturbed.output_dir, tmp_path / "out")
    # model=nano has four heads: `gqa` with an explicit four is `flash`, and so is a schedule spelled out.
    words = ("attention=gqa", "attention.n_kv_heads=4", "schedule=wsd", "schedule.decay_steps=6")
    done = here(*MEDIUM, *words, f"output_dir={out}")
    assert (done.code, done.out.splitlines()[0]) == (0, "already finished: nothing to train")
    assert undisturbed.run_dir.name in done.out
    assert len(list((out / "runs").iterdir())) == 1


# --- identity -----------------------------------------------------------------------------------------------


def identity(*words: str) -> str:
    return digest(identity_parts(compose([*SMALL, *words]), data_fingerprint="the same"))


@pytest.mark.parametrize(
    "word",
    [
        "output_dir=elsewhere",
        "cache_dir=elsewhere",
        "tracker=wandb",
        "trainer.log_every=7",
        "trainer.checkpoint_every=3",
        "trainer.keep_checkpoints=5",
        "trainer.keep_steps=[3,7]",
        "trainer.init_from=elsewhere",
        "trainer.devices=2",
    ],
)
def test_presentation_does_not_change_the_identity(word: str) -> None:
    assert identity(word) == identity()


@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "optimizer.lr=0.001",
        "trainer.steps=13",
        "trainer.val_every=4",
        "trainer.threads=2",
        "trainer.micro_batch=4",
        "trainer.precision=bf16",
        "attention=mqa",
        "data.order=sequential",
    ],
)
def test_what_can_change_a_number_changes_the_identity(word: str) -> None:
    assert identity(word) != identity()


def test_equal_arms_differ_in_nothing_but_the_seed() -> None:
    first, second = (config_that_counts(compose([*SMALL, f"seed={seed}"])) for seed in (0, 1))
    assert first.pop("seed") != second.pop("seed")
    assert first == second


@pytest.mark.slow
def test_code_counts_and_comments_do_not(tmp_path: Path) -> None:
    for name in ("nocap", "conf"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    loop = tmp_path / "nocap" / "training" / "loop.py"
    original = loop.read_text()
    imports = (
        "import json; from nocap.config.compose import compose; from nocap.store.identity "
        "import source_hashes"
    )
    text = f"{imports}; print(json.dumps(source_hashes(compose({[*SMALL]}))))"

    def hashes(source: str) -> Json:
        loop.write_text(source)
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        content: Json = json.loads(done.stdout)
        return content

    plain = hashes(original)
    docstring = original.replace('"""', '"""Another word. ', 1)
    assert docstring != original
    assert hashes(docstring + "\n# a remark\n") == plain
    changed = hashes(original + "\nANSWER = 42\n")
    assert {module for module in plain if plain[module] != changed[module]} == {"nocap.training.loop"}


# --- grids --------------------------------------------------------------------------------------------------


def test_grid_is_refused_under_torchrun(tmp_path: Path, door: Door) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = door("--multirun", *SMALL, "seed=0,1", f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 2
    assert done.err.startswith("nocap: --multirun must not run under torchrun")
    assert "trainer.devices=N" in done.err
    assert not (tmp_path / "out").exists()


# --- at the terminal ----------------------------------------------------------------------------------------


def test_without_a_terminal_progress_is_plain_lines(undisturbed: Undisturbed) -> None:
    assert "\r" not in undisturbed.process.out
    assert "\x1b" not in undisturbed.process.out
    assert undisturbed.process.err == ""
    assert [line.split()[1] for line in undisturbed.process.out.splitlines() if "  val " in line] == [
        "0/30",
        "12/30",
        "24/30",
        "30/30",
    ]
    for label in ("validation", "speed", "memory", "clock", "record"):
        assert f"\n  {label} " in undisturbed.process.out


@pytest.mark.slow
def test_on_a_terminal_progress_is_a_bar(tmp_path: Path) -> None:
    code, text = on_a_terminal(
        "-m", "nocap.train", *SMALL, "trainer.steps=3", f"output_dir={tmp_path}", cwd=tmp_path
    )
    assert code == 0
    assert "3/3" in text
    assert "step/s" in text or "s/step" in text
    assert "\r" in text.replace("\r\n", "")
    assert text.count("finished at step 3") == 1
    (log,) = tmp_path.glob("runs/*/train.log")
    assert "\r" not in log.read_text()
