"""Killed, stopped, torn or corrupted at any moment: the same command again ends where an undisturbed run ends."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from nocap.run.ledger import LINES
from nocap.run.record import Metrics
from tests.attempts import Attempt, attempt, processes, state_of, steady, wait_until
from tests.conftest import MEDIUM, SMALL, Door, Finished, Undisturbed, rows_of, the_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def summary_of(run_dir: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((run_dir / "summary.json").read_text())
    return content


def kill_worker(running: Attempt) -> None:
    for pid in processes(running.run_dir):
        os.kill(pid, signal.SIGKILL)


# --- killed ------------------------------------------------------------------------------------------------------------------------


@linux
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(tmp_path: Path, undisturbed: Undisturbed, door: Door) -> None:
    out, spent = tmp_path / "out", []

    def last_wall() -> float:
        rows = Metrics(the_run(out) / "metrics.jsonl").rows()
        return float(rows[-1]["clock/wall_s"])

    with attempt(out) as running:  # in its start-up
        running.wait_for_file("manifest.json")
        running.wait_for(lambda: processes(running.run_dir), "a worker")
        second = door(*MEDIUM, f"output_dir={out}")
        assert second.code == 2
        assert second.err.count("\n") == 1
        assert f"process {running.process.pid} on " in second.err
        workers = processes(running.run_dir)
        assert workers
        running.end(signal.SIGKILL)
        wait_until(lambda: not processes(running.run_dir), "the worker dies with its parent")
    with attempt(out) as running:  # before the first checkpoint
        running.wait_for_row(1)
        running.end(signal.SIGKILL)
        spent.append(last_wall())
    with attempt(out) as running:  # while it writes a checkpoint, or just after
        running.wait_for_file("checkpoints/.step-*.tmp")
        running.end(signal.SIGKILL)
    with attempt(out) as running:  # between checkpoints, the worker alone
        running.wait_for_row(9)
        kill_worker(running)
        code, _, err = running.end()
        assert code == 1
        assert err.startswith("nocap: the worker ended with signal 9")
        assert summary_of(running.run_dir)["status"] == "failed"
        spent.append(summary_of(running.run_dir)["clock_s"]["wall"])  # type: ignore[index]
    with (the_run(out) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 29, "tok')
    done = door(*MEDIUM, f"output_dir={out}")
    assert (done.code, done.err) == (0, "")
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)

    clock = summary_of(the_run(out))["clock_s"]
    assert isinstance(clock, dict)
    assert spent == sorted(spent)
    assert clock["wall"] > spent[-1] + 1  # the last attempt alone starts for longer
    assert sum(clock[line] for line in LINES) == pytest.approx(clock["wall"], rel=0.01)
    stepping_s = sum(row.get("perf/step_ms", 0.0) for row in rows_of(the_run(out))) / 1e3
    assert clock["train"] == pytest.approx(stepping_s, rel=0.05)  # each step once
    assert summary_of(the_run(out))["attempts"] == 5


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_killed_at_random_moments(tmp_path: Path, door: Door, optimizer: str) -> None:
    words = (f"optimizer={optimizer}",)
    assert door(*MEDIUM, *words, f"output_dir={tmp_path / 'clean'}").code == 0
    clean, chance = the_run(tmp_path / "clean"), random.Random(optimizer)
    took_s = 1.2 * summary_of(clean)["clock_s"]["wall"]  # type: ignore[index]
    for number in range(12):
        out = tmp_path / f"out{number}"
        for _ in range(2):
            with attempt(out, *words) as running:
                moment = time.monotonic() + chance.uniform(0, took_s)
                wait_until(lambda running=running, moment=moment: running.process.poll() is not None or time.monotonic() > moment, "moment")
                if chance.random() < 0.3 and any(out.glob("runs/*")):
                    kill_worker(running)
                    running.end()
                else:
                    running.end(signal.SIGKILL)
        done = door(*MEDIUM, *words, f"output_dir={out}")
        assert done.code == 0, done.err
        assert state_of(the_run(out)) == state_of(clean)


# --- stopped -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> tuple[Path, Finished]:
    """A run that was asked to stop, twice, after its second checkpoint. Copy it before going on."""
    for _ in range(3):  # on a machine that stands still for a second the run may finish first
        out = tmp_path_factory.mktemp("preempted") / "out"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NOCAP_CACHE", str(cache_dir))
            with attempt(out) as running:
                running.wait_for_row(17)
                running.process.send_signal(signal.SIGTERM)
                running.process.send_signal(signal.SIGINT)
                stopped = Finished(*running.end(signal.SIGTERM))
        if stopped.code:
            break
    return out, stopped


def copied(preempted: tuple[Path, Finished], tmp_path: Path) -> Path:
    return shutil.copytree(preempted[0], tmp_path / "out")


def checkpoints(out: Path) -> list[Path]:
    """The newest first."""
    return sorted((the_run(out) / "checkpoints").iterdir(), reverse=True)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_stop_saves_says_so_and_resumes(preempted: tuple[Path, Finished], tmp_path: Path, door: Door, undisturbed: Undisturbed) -> None:
    out, (_, stopped) = copied(preempted, tmp_path), preempted
    assert (stopped.code, stopped.err) == (75, "")
    summary = summary_of(the_run(out))
    assert summary["status"] == "preempted"
    assert f"preempted at step {summary['steps']}" in stopped.out
    assert checkpoints(out)[0].name == f"step-{summary['steps']:08d}"
    assert len(checkpoints(out)) == 2  # trainer.keep_checkpoints
    assert [row["step"] for row in rows_of(the_run(out))] == list(range(int(str(summary["steps"]))))
    done = door(*MEDIUM, f"output_dir={out}")
    assert done.code == 0
    assert f"resuming from step {summary['steps']}" in done.out
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)
    after = summary_of(the_run(out))["clock_s"]
    assert after["wall"] > summary["clock_s"]["wall"] + 1  # type: ignore[index]
    assert after["other"] < 1  # type: ignore[index]  # nothing was lost


@linux
def test_stop_during_the_start_up_is_a_preemption(tmp_path: Path) -> None:
    with attempt(tmp_path / "out") as running:
        running.wait_for_file("manifest.json")
        running.wait_for(lambda: processes(running.run_dir), "a worker")
        code, _, err = running.end(signal.SIGTERM)
        assert (code, err) == (75, "")
        assert summary_of(running.run_dir)["status"] == "preempted"


# --- corrupted ---------------------------------------------------------------------------------------------------------------------


def test_corrupt_checkpoint_is_named_and_the_one_before_is_used(
    preempted: tuple[Path, Finished], tmp_path: Path, door: Door, undisturbed: Undisturbed
) -> None:
    out = copied(preempted, tmp_path)
    newest, before = checkpoints(out)
    flip(newest / "optimizer.safetensors")
    done = door(*MEDIUM, f"output_dir={out}")
    assert done.code == 0
    assert f"checkpoint not used: {newest}: optimizer.safetensors does not match its checksum" in done.out
    assert f"resuming from step {int(before.name[5:])}" in done.out
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_without_a_valid_checkpoint_it_refuses_and_deletes_nothing(preempted: tuple[Path, Finished], tmp_path: Path, door: Door) -> None:
    out = copied(preempted, tmp_path)
    for path in checkpoints(out):
        flip(path / "model.safetensors")
    rows = rows_of(the_run(out))
    files = sorted(path for path in (the_run(out) / "checkpoints").rglob("*"))
    done = door(*MEDIUM, f"output_dir={out}")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "must hold a valid checkpoint" in line
    assert sorted(path for path in (the_run(out) / "checkpoints").rglob("*")) == files
    assert rows_of(the_run(out)) == rows


def test_every_kind_of_damage_is_seen(preempted: tuple[Path, Finished], tmp_path: Path) -> None:
    from nocap.run.checkpoint import find

    root = the_run(preempted[0]) / "checkpoints"
    sound = find(root)
    assert sound.invalid == []

    def damaged(name: str) -> tuple[Path, Path]:
        folder = shutil.copytree(root, tmp_path / name)
        return folder, sorted(folder.iterdir())[-1]

    for file in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        for kind in ("flipped", "cut", "missing"):
            folder, newest = damaged(f"{kind}-{file}")
            if kind == "missing":
                (newest / file).unlink()
            elif kind == "cut":
                (newest / file).write_bytes((newest / file).read_bytes()[: (newest / file).stat().st_size // 2])
            else:
                flip(newest / file)
            found = find(folder)
            assert found.path is not None
            assert (found.path.name, len(found.invalid)) == (sorted(root.iterdir())[0].name, 1), (kind, file)
            assert str(newest) in found.invalid[0]
            assert file in found.invalid[0]


def test_pruning_counts_only_whole_checkpoints(preempted: tuple[Path, Finished], tmp_path: Path) -> None:
    from nocap.run.checkpoint import prune

    root = tmp_path / "checkpoints"
    source = sorted((the_run(preempted[0]) / "checkpoints").iterdir())[0]
    for step in (1, 2, 3, 4):
        shutil.copytree(source, root / f"step-{step:08d}")
    for step in (3, 4):
        (root / f"step-{step:08d}" / "manifest.json").unlink()
    prune(root, keep=1)
    assert {path.name for path in root.iterdir()} == {f"step-{step:08d}" for step in (2, 3, 4)}


def test_checkpoint_holds_tensors_and_json_only(preempted: tuple[Path, Finished]) -> None:
    from safetensors.torch import load_file

    for path in checkpoints(preempted[0]):
        for file in path.iterdir():
            content = file.read_bytes()
            assert not content.startswith((b"PK", b"\x80")), file  # a zip or a pickle
            if file.suffix == ".json":
                json.loads(content)
            else:
                assert load_file(file)


# --- no number ---------------------------------------------------------------------------------------------------------------------


def test_diverged_run_stops_before_the_update_and_names_the_batch(tmp_path: Path, door: Door) -> None:
    done = door(*SMALL, "optimizer.lr=1e30", "trainer.checkpoint_every=1", "schedule=constant", f"output_dir={tmp_path}")
    assert done.code == 1
    run_dir = the_run(tmp_path)
    summary, rows = summary_of(run_dir), steady(run_dir)
    assert summary["status"] == "diverged"
    step = rows[-1]["step"]
    assert rows[-1]["train/loss"] is None or rows[-1]["train/grad_norm"] is None
    assert summary["diverged"] == {**summary["diverged"], "step": step, "sequences": [step * 16, step * 16 + 16]}  # type: ignore[dict-item]
    assert "diverged: " in done.out
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    again = door(*SMALL, "optimizer.lr=1e30", "trainer.checkpoint_every=1", "schedule=constant", f"output_dir={tmp_path}")
    assert (again.code, "already diverged" in again.out) == (1, True)
    assert summary_of(run_dir) == summary  # it was not trained again


def test_last_validation_that_is_no_number_is_no_finish(tmp_path: Path, door: Door) -> None:
    done = door(*SMALL, "trainer.steps=1", "optimizer.lr=1e300", "schedule=constant", f"output_dir={tmp_path}")
    summary = summary_of(the_run(tmp_path))
    assert (done.code, summary["status"], summary["val_loss"], summary["val_step"]) == (1, "diverged", None, 1)
