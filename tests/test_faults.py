"""The fault matrix: a row a fault, in the order of its table. Whatever is done to a run, the same command
again ends where an undisturbed run ends, to the last bit of weights, optimizer and rows; or it is refused in
one line, and nothing is lost.

There is no random state beside these: the order of the data is a function of seed and step, and no layer
draws numbers. Faults that need a moment inside a step are injected by `tests/faults/sitecustomize.py`; the
product knows nothing of them.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from nocap.config.compose import compose
from nocap.config.plain import load
from nocap.data.shards import write_shard
from nocap.launch.plan import plan
from nocap.report import comparison as report
from nocap.store.checkpoints import delete, unfinished
from nocap.store.record import Metrics
from nocap.training import checkpoint
from nocap.training.ledger import LINES
from nocap.training.recorder import ENOUGH, SIGMAS, WINDOW, above
from tests.attempts import Attempt, attempt, equal_within, processes, stamp, state_of, steady, wait_until
from tests.conftest import EXPLODING, FAULTS, MEDIUM, SMALL, Door, Finished, Undisturbed, rows_of, the_run
from tests.made_grid import EVIL, poisoned

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
both = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])


def summary_of(run_dir: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((run_dir / "summary.json").read_text())
    return content


def kill_worker(running: Attempt) -> None:
    for pid in processes(running.run_dir):
        os.kill(pid, signal.SIGKILL)


Faulty = Callable[[str], dict[str, str]]


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    """The environment in which a run's ranks do this to themselves."""

    def environment(fault: str) -> dict[str, str]:
        folder = tmp_path / "faults"
        folder.mkdir(exist_ok=True)
        return {"PYTHONPATH": FAULTS, "NOCAP_FAULT": fault, "NOCAP_FAULT_DIR": str(folder)}

    return environment


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


# --- 1, 2: killed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "ranks"), [([10], 1), pytest.param([1, 7, 10, 13], 2, marks=pytest.mark.slow)]
)
def test_01_kill_at_any_step(
    tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed, kills: list[int], ranks: int
) -> None:
    """SIGKILL at these steps → restarted from the last checkpoint each time, state and rows of the clean
    run."""
    overrides = (f"trainer.devices={ranks}", "trainer.max_restarts=4", f"output_dir={tmp_path / 'out'}")
    done = door(*MEDIUM, *overrides, env=faulty(f"kill@{','.join(map(str, kills))}:rank{ranks - 1}"))
    assert done.code == 0, done.err
    assert sorted(map(int, set(re.findall(r"ended with signal 9 at step (\d+)", done.err)))) == kills
    assert state_of(the_run(tmp_path / "out")) == state_of(undisturbed.run_dir)
    assert summary_of(the_run(tmp_path / "out"))["attempts"] == len(kills) + 1


@linux
@pytest.mark.slow
def test_01_killed_again_and_again_it_ends_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: Undisturbed, door: Door
) -> None:
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
        running.wait_for_file(".lease/*/stage-*/.step-*.tmp")
        running.end(signal.SIGKILL)
    with attempt(out, "trainer.max_restarts=0") as running:  # between checkpoints, the worker alone
        running.wait_for_row(9)
        kill_worker(running)
        code, _, err = running.end()
        assert code == 1
        assert err.startswith("nocap: the worker ended with signal 9 at step ")
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


def writer(root: Path) -> tuple[checkpoint.Writer, Callable[..., list[str]]]:
    """A writer of checkpoints of a small model, and the call that saves a step."""
    import torch

    model = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(7)).sum().backward()
    optimizer.step()
    made = checkpoint.Writer(root, background=False)
    return made, partial(
        made.save, model=model, optimizers=[optimizer], keep=2, must=False, rows=b'{"step": 0}\n'
    )


def test_02_kill_during_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before any of a save's calls to the disk → the newest valid one is found, and what was left is
    known."""

    class Killed(BaseException):
        pass

    calls, last = 0, 0

    def stopping(call: Callable[..., object]) -> Callable[..., object]:
        def stopped(*arguments: object) -> object:
            nonlocal calls
            if (calls := calls + 1) == last:
                raise Killed
            return call(*arguments)

        return stopped

    for name in ("save_file", "sha256", "_sync"):
        monkeypatch.setattr(checkpoint, name, stopping(getattr(checkpoint, name)))
    monkeypatch.setattr(Path, "rename", stopping(Path.rename))
    outcomes = set()
    for moment in range(1, 99):
        root = tmp_path / str(moment)
        _, save = writer(root)
        save(step=4, state={})
        calls, last = 0, moment
        try:
            save(step=8, state={})
        except Killed:
            last = 0
        else:
            break
        newest = checkpoint.find(root)
        assert newest.invalid == []
        outcomes.add((newest.step, any(root.glob(".step-*.tmp"))))
        save(step=12, state={})
        delete(unfinished(root))  # as the next attempt does
        assert [path.name for path in sorted(root.iterdir())] == [f"step-{newest.step:08d}", "step-00000012"]
    assert moment > 12  # that many calls has a save
    assert outcomes == {(4, True), (8, False)}


def test_02_save_in_the_background_is_of_its_moment(tmp_path: Path) -> None:
    """Written while training goes on, as on a GPU → what is on disk is the step's own state; a failure is a
    line at the next save."""
    import torch
    from safetensors.torch import load_file

    model = torch.nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    made = checkpoint.Writer(tmp_path / "checkpoints", background=True)
    save = partial(made.save, model=model, optimizers=[optimizer], state={}, keep=2, must=False)
    assert save(step=4) == []
    for p in model.parameters():
        p.data.zero_()
    assert made.settle() == []
    saved = load_file(checkpoint.find(made.root).path / "model.safetensors")  # type: ignore[operator]
    assert saved.keys() == before.keys()
    assert all(saved[name].equal(tensor) for name, tensor in before.items())
    shutil.rmtree(made.root)
    made.root.write_text("a file where the folder should be")
    assert save(step=8) == []
    (line,) = save(step=12)
    assert line.startswith("checkpoint of step 8 not saved: ")
    with pytest.raises(OSError, match="step 16 not saved"):
        made.save(step=16, model=model, optimizers=[optimizer], state={}, keep=2, must=True)


# --- 3 to 7: the disk ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_03_corrupt_checkpoint_is_named_and_the_one_before_is_used(
    preempted: tuple[Path, Finished], tmp_path: Path, here: Door, undisturbed: Undisturbed
) -> None:
    out = copied(preempted, tmp_path)
    newest, before = checkpoints(out)
    flip(newest / "optimizer.safetensors")
    done = here(*MEDIUM, f"output_dir={out}")
    assert done.code == 0
    assert f"checkpoint not used: {newest}: optimizer.safetensors does not match its checksum" in done.out
    assert f"resuming from step {int(before.name[5:])}" in done.out
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_03_each_of_300_flipped_bits_is_detected(tmp_path: Path) -> None:
    """One bit anywhere in a checkpoint → its file is named, and the one before is used."""
    _, save = writer(tmp_path)
    save(step=4, state={"clock_s": {}})
    save(step=8, state={"clock_s": {}})
    chance, files = random.Random(3), sorted((tmp_path / "step-00000008").iterdir())
    for _ in range(300):
        file = chance.choice(files)
        content = bytearray(sound := file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        usable = checkpoint.find(tmp_path)
        assert (usable.step, len(usable.invalid)) == (4, 1), file
        assert str(tmp_path / "step-00000008") in usable.invalid[0]
        file.write_bytes(sound)
    assert checkpoint.find(tmp_path).step == 8


def test_04_flipped_cut_or_missing_files_are_named(preempted: tuple[Path, Finished], tmp_path: Path) -> None:
    from nocap.training.checkpoint import find

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
                (newest / file).write_bytes(
                    (newest / file).read_bytes()[: (newest / file).stat().st_size // 2]
                )
            else:
                flip(newest / file)
            usable = find(folder)
            assert usable.path is not None
            assert (usable.path.name, len(usable.invalid)) == (sorted(root.iterdir())[0].name, 1), (
                kind,
                file,
            )
            assert str(newest) in usable.invalid[0]
            assert file in usable.invalid[0]


def test_05_only_valid_checkpoints_are_counted(preempted: tuple[Path, Finished], tmp_path: Path) -> None:
    from nocap.training.checkpoint import prune

    root = tmp_path / "checkpoints"
    source = sorted((the_run(preempted[0]) / "checkpoints").iterdir())[0]
    for step in (1, 2, 3, 4):
        shutil.copytree(source, root / f"step-{step:08d}")
        stamp(root / f"step-{step:08d}")
    (root / "step-00000003" / "manifest.json").unlink()
    flip(root / "step-00000004" / "model.safetensors")
    said = prune(root, keep=1)
    assert [("00000004" in line, "00000003" in line) for line in said] == [(True, False), (False, True)]
    assert {path.name for path in root.iterdir()} == {f"step-{step:08d}" for step in (2, 3, 4)}


@both
def test_06_without_a_valid_checkpoint_it_refuses_and_deletes_nothing(
    preempted: tuple[Path, Finished], tmp_path: Path, door: Door, here: Door, ranks: int
) -> None:
    out = copied(preempted, tmp_path)
    for path in checkpoints(out):
        flip(path / "model.safetensors")
    rows = rows_of(the_run(out))
    files = sorted(path for path in (the_run(out) / "checkpoints").rglob("*"))
    done = (here if ranks == 1 else door)(*MEDIUM, f"trainer.devices={ranks}", f"output_dir={out}")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "must hold a valid checkpoint" in line
    assert sorted(path for path in (the_run(out) / "checkpoints").rglob("*")) == files
    assert rows_of(the_run(out)) == rows


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")
def test_07_disk_full_at_a_row(tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed) -> None:
    """ENOSPC at a row → the run stops with a line and exit code 1; with room again, it ends as the clean
    run."""
    out = tmp_path / "out"
    done = door(*MEDIUM, f"output_dir={out}", env=faulty("full@17"))
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "the row of step 17 cannot be written: [Errno 28] No space left on device" in line
    assert summary_of(the_run(out))["status"] == "failed"
    assert door(*MEDIUM, f"output_dir={out}").code == 0
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_07_disk_full_at_the_start(tmp_path: Path) -> None:
    """No room for the first file → one line, exit code 1."""
    with attempt(tmp_path / "out", limits={resource.RLIMIT_FSIZE: 0}) as running:
        code, _, err = running.end()
    assert code == 1
    (line,) = err.splitlines()
    assert "File too large" in line or "No usable temporary directory" in line


@pytest.mark.slow
def test_07_disk_full_at_a_checkpoint(
    preempted: tuple[Path, Finished], tmp_path: Path, undisturbed: Undisturbed, door: Door
) -> None:
    """No room for a checkpoint → a line, and training goes on; none for the last → exit code 1. The old one
    stays, and is resumed from."""
    out = copied(preempted, tmp_path)
    before = checkpoints(out)
    limit = (before[0] / "model.safetensors").stat().st_size - 1  # bytes that a file may have
    with attempt(out, limits={resource.RLIMIT_FSIZE: limit}) as running:
        code, said, err = running.end()
    assert code == 1
    saves = sum(step > int(before[0].name[5:]) for step in (16, 24))
    assert said.count("not saved: ") == saves
    (line,) = err.splitlines()
    assert "checkpoint of step 30 not saved: " in line
    assert "File too large" in line
    assert [path.name for path in checkpoints(out)] == [before[0].name]  # room was made for the second try
    assert checkpoint.find(the_run(out) / "checkpoints").invalid == []
    assert door(*MEDIUM, f"output_dir={out}").code == 0
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


# --- 8, 9: asked to stop ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_09_signals_on_signals_are_one_stop_that_resumes(
    preempted: tuple[Path, Finished], tmp_path: Path, door: Door, undisturbed: Undisturbed
) -> None:
    out, (_, stopped) = copied(preempted, tmp_path), preempted
    assert (stopped.code, stopped.err) == (75, "")
    summary = summary_of(the_run(out))
    assert summary["status"] == "preempted"
    assert f"preempted at step {summary['steps']}" in stopped.out
    assert stopped.out.splitlines()[-1] == "stopped and saved; the same command goes on"
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


@pytest.mark.slow
def test_08_stop_reaches_every_rank(tmp_path: Path, door: Door, undisturbed: Undisturbed) -> None:
    """Slurm's warning and a SIGTERM to a run of two ranks → one checkpoint of one step, exit code 75, and an
    exact resume."""
    out, code = tmp_path / "out", 0
    for _ in range(3):  # on a machine that stands still for a second the run may finish first
        with attempt(out, "trainer.devices=2", "trainer.checkpoint_every=0") as running:
            running.wait_for_row(10)
            running.process.send_signal(signal.SIGUSR2)
            code, _, _ = running.end(signal.SIGTERM)
        if code:
            break
        shutil.rmtree(out)
    assert code == 75
    summary = summary_of(the_run(out))
    assert summary["status"] == "preempted"
    assert [path.name for path in checkpoints(out)] == [f"step-{summary['steps']:08d}"]
    done = door(*MEDIUM, "trainer.devices=2", f"output_dir={out}")
    assert done.code == 0
    assert f"resuming from step {summary['steps']}" in done.out
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


@linux
def test_08_stop_during_the_start_up_is_a_preemption(tmp_path: Path) -> None:
    with attempt(tmp_path / "out") as running:
        running.wait_for_file("manifest.json")
        running.wait_for(lambda: processes(running.run_dir), "a worker")
        code, _, err = running.end(signal.SIGTERM)
        assert (code, err) == (75, "")
        assert summary_of(running.run_dir)["status"] == "preempted"


# --- 10, 11: ranks ------------------------------------------------------------------------------------------


@pytest.mark.slow
@linux
def test_10_dead_rank_without_restarts(
    tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed
) -> None:
    """A rank dies, no restart is allowed → soon a failure that names rank and step; no process stays; then
    resumed by hand."""
    words = ("trainer.devices=2", f"output_dir={tmp_path / 'out'}")
    done = door(*MEDIUM, *words, "trainer.max_restarts=0", env=faulty("kill@13:rank1"))
    assert done.code == 1
    assert "rank 1 ended with signal 9 at step 13" in done.err
    run_dir = the_run(tmp_path / "out")
    assert not processes(run_dir)
    summary = summary_of(run_dir)
    assert (summary["status"], summary["error"]) == ("failed", "rank 1 ended with signal 9 at step 13")
    assert door(*MEDIUM, *words).code == 0
    assert state_of(run_dir) == state_of(undisturbed.run_dir)


@pytest.mark.slow
@linux
@pytest.mark.parametrize(("fault", "ranks"), [("hang@13:rank1", 2), ("stop@13", 1)])
def test_11_hung_rank(
    tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed, fault: str, ranks: int
) -> None:
    """A rank stands still → after the stated time it is named, with its step, and the run starts again and
    ends as the clean one."""
    words = (f"trainer.devices={ranks}", "trainer.hang_timeout_s=15", f"output_dir={tmp_path / 'out'}")
    done = door(*MEDIUM, *words, env=faulty(fault), timeout=240)
    assert done.code == 0, done.err
    assert f"nocap: rank {ranks - 1} at step 13 hung: no heartbeat for 15 s" in done.err
    assert state_of(the_run(tmp_path / "out")) == state_of(undisturbed.run_dir)
    assert not processes(the_run(tmp_path / "out"))


# --- 12, 13: numbers ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_12_non_finite_loss_on_one_rank(tmp_path: Path, door: Door, faulty: Faulty) -> None:
    """NaN on one rank → every rank stops before the update, and the batch is named."""
    done = door(
        *MEDIUM,
        "trainer.devices=2",
        f"output_dir={tmp_path / 'out'}",
        env=faulty("nan@13:rank1"),
    )
    assert done.code == 1
    summary, rows = summary_of(the_run(tmp_path / "out")), rows_of(the_run(tmp_path / "out"))
    assert summary["status"] == "diverged"
    assert summary["diverged"] == {**summary["diverged"], "step": 13, "sequences": [13 * 16, 14 * 16]}  # type: ignore[dict-item]
    assert (rows[-1]["step"], rows[-1]["train/loss"]) == (13, None)
    assert [path.name for path in (tmp_path / "faults").glob("rank*")] == ["rank1-unchanged"]


@pytest.mark.slow
def test_12_diverged_run_stops_before_the_update_and_names_the_batch(tmp_path: Path, here: Door) -> None:
    done = here(*SMALL, *EXPLODING, "trainer.checkpoint_every=1", f"output_dir={tmp_path}")
    assert done.code == 1
    run_dir = the_run(tmp_path)
    summary, rows = summary_of(run_dir), steady(run_dir)
    assert summary["status"] == "diverged"
    step = rows[-1]["step"]
    assert rows[-1]["train/loss"] is None or rows[-1]["train/grad_norm"] is None
    assert summary["diverged"] == {
        **summary["diverged"],
        "step": step,
        "sequences": [step * 16, step * 16 + 16],
    }  # type: ignore[dict-item]
    assert "diverged: " in done.out
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    again = here(*SMALL, *EXPLODING, "trainer.checkpoint_every=1", f"output_dir={tmp_path}")
    assert (again.code, "already diverged" in again.out) == (1, True)
    assert summary_of(run_dir) == summary  # it was not trained again


@pytest.mark.slow
def test_12_last_validation_that_is_not_finite_is_no_finish(tmp_path: Path, here: Door) -> None:
    done = here(*SMALL, "trainer.steps=1", *EXPLODING, f"output_dir={tmp_path}")
    summary = summary_of(the_run(tmp_path))
    assert (done.code, summary["status"], summary["val_loss"], summary["val_step"]) == (
        1,
        "diverged",
        None,
        1,
    )


def test_13_spikes_are_those_of_the_definition() -> None:
    """Over 6 standard deviations above the last 128 losses; none before 32 are known."""
    chance = np.random.default_rng(0)
    losses = 4.0 + 0.1 * chance.standard_normal(400)
    losses[[20, 60, 61, 300]] += 9.0
    deviations = {
        step: above(losses[max(0, step - WINDOW) : step].tolist(), float(loss))
        for step, loss in enumerate(losses)
    }
    spikes, expected = {step: sigmas for step, sigmas in deviations.items() if sigmas > SIGMAS}, {}
    for step in range(ENOUGH, 400):
        window = losses[max(0, step - WINDOW) : step]
        if (sigmas := (losses[step] - window.mean()) / window.std()) > SIGMAS:
            expected[step] = pytest.approx(sigmas)
    assert spikes == expected
    assert {60, 300} <= spikes.keys()
    assert 20 not in spikes


@pytest.mark.slow
def test_13_spike_is_logged_not_skipped(tmp_path: Path, door: Door, faulty: Faulty) -> None:
    """A loss ×1000 → its row, a line and the summary say so, it is trained on, and a resumed run sees the
    same."""
    words = ("trainer.steps=48", "trainer.log_every=100", f"output_dir={tmp_path / 'out'}")
    done = door(*MEDIUM, *words, env=faulty("spike@40!+kill@44"))
    assert done.code == 0, done.err
    run_dir = the_run(tmp_path / "out")
    assert done.out.count("spike at step 40: loss ") == 2
    assert "'sequences': [640, 656]" in done.out
    assert summary_of(run_dir)["spikes"] == [40]
    assert [row["step"] for row in rows_of(run_dir)] == [0, 12, 24, 36, 40, 48]
    assert (tmp_path / "faults" / "rank0-changed").exists()


# --- 14 to 17: data -----------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> tuple[str, ...]:
    """The words that train on three small shards below `tmp_path`."""
    chance = np.random.default_rng(1)
    for name, tokens in (("train_0", 60_000), ("train_1", 50_000), ("val", 10_000)):
        write_shard(tmp_path / "shards" / f"{name}.bin", chance.integers(0, 256, tokens))
    small = [word for word in MEDIUM if not word.startswith("data")]
    return (
        *small,
        "data=shards",
        "tokenizer=bytes",
        f"data.train={tmp_path}/shards/train_*.bin",
        f"data.val={tmp_path}/shards/val.bin",
    )


def header(index: int, value: int) -> Callable[[bytes], bytes]:
    return lambda content: content[: 4 * index] + value.to_bytes(4, "little") + content[4 * index + 4 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "14 magic": (header(0, 7), "magic number 20240520, got 7"),
    "14 version": (header(1, 9), "version must be 1, got 9"),
    "14 count": (header(2, 0), "at least 1 token, got 0"),
    "15 cut": (lambda content: content[: len(content) // 2], "truncated"),
    "15 odd": (lambda content: content + b"x", "too long"),
    "15 empty": (lambda content: b"", "header of 1024 bytes, got a file of 0 bytes"),
    "16 id": (
        lambda content: content[:-2] + (60_000).to_bytes(2, "little"),
        "below 257, the tokenizer's vocabulary, got 60000 at token 49999",
    ),
}


def test_14_15_16_bad_shard(tmp_path: Path, here: Door, shards: tuple[str, ...]) -> None:
    """Any shard, also one that the run would reach last, is bad → refused at the start, the file named."""
    last, lines = tmp_path / "shards" / "train_1.bin", {}
    sound = last.read_bytes()
    for damage, (change, _) in DAMAGE.items():
        last.write_bytes(change(sound))
        with pytest.raises(ValueError) as caught:
            plan(compose([*shards, f"output_dir={tmp_path / 'out'}"]), choices={})
        lines[damage] = str(caught.value)
    for damage, (_, reason) in DAMAGE.items():
        assert str(last) in lines[damage]
        assert reason in lines[damage]
        assert "\n" not in lines[damage]
    done = here(*shards, f"output_dir={tmp_path / 'out'}")
    assert (done.code, done.err) == (2, f"nocap: {lines[damage]}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_17_data_changed_before_the_resume(
    tmp_path: Path, door: Door, faulty: Faulty, shards: tuple[str, ...]
) -> None:
    """A shard changes between start and resume → refused, the begun run named, nothing started beside it; put
    back, it resumes."""
    out, shard = tmp_path / "out", tmp_path / "shards" / "train_0.bin"
    assert door(*shards, f"output_dir={out}", "trainer.max_restarts=0", env=faulty("kill@13")).code == 1
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-2] + b"\7\0")
    refused = door(*shards, f"output_dir={out}")
    assert refused.code == 2
    (line,) = refused.err.splitlines()
    assert f"data must be what {the_run(out)} began with" in line
    shard.write_bytes(sound)
    done = door(*shards, f"output_dir={out}")
    assert done.code == 0
    assert "resuming from step 8" in done.out
    with pytest.raises(ValueError, match="seq_len"):  # a wrong key is refused as ever
        plan(compose([*shards, f"output_dir={out}", "trainer.seq_len=1"]), choices={})


# --- 18, 19: locks ------------------------------------------------------------------------------------------


@pytest.mark.slow
@linux
def test_18_19_one_writer_and_its_lock_dies_with_it(tmp_path: Path, door: Door) -> None:
    """A second process on the same run → refused at once, the holder named; the holder killed → the lock is
    free."""
    out = tmp_path / "out"
    with attempt(out, "trainer.steps=2000") as running:
        running.wait_for_row(1)
        began = time.monotonic()
        second = door(*MEDIUM, "trainer.steps=2000", f"output_dir={out}")
        assert second.code == 2
        (line,) = second.err.splitlines()
        assert f"process {running.process.pid} on " in line
        assert time.monotonic() - began < 30
        running.end(signal.SIGKILL)
    with attempt(out, "trainer.steps=2000") as running:
        running.wait_for(
            lambda: len(json.loads((running.run_dir / "manifest.json").read_text())["attempts"]) == 2,
            "its manifest",
        )
        code, _, _ = running.end(signal.SIGTERM)
        assert code == 75


# --- 20, 21: trackers. A wandb that dies or freezes in the middle: tests/test_tracking.py -------------------


@pytest.mark.slow
def test_20_tracker_unreachable(tmp_path: Path, here: Door, undisturbed: Undisturbed) -> None:
    """W&B down at the start → one warning, seconds, the record complete; the run waits on disk for a sync."""
    words = [word for word in MEDIUM if not word.startswith("tracker")]
    account = {"HOME": str(tmp_path), "WANDB_API_KEY": "f" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = here(*words, "tracker=wandb", f"output_dir={tmp_path / 'out'}", env=account)
    assert done.code == 0
    assert done.err.startswith("nocap: W&B: offline: ")
    assert done.err.count("\n") == 1
    assert state_of(the_run(tmp_path / "out")) == state_of(undisturbed.run_dir)
    assert "wandb sync " in str(summary_of(the_run(tmp_path / "out"))["tracker"])


@pytest.mark.slow
def test_21_rewound_tracker(tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed) -> None:
    """Killed after a row, before its checkpoint → in the record and in W&B each step is there once."""
    from tests.test_tracking import history

    words = [word for word in MEDIUM if not word.startswith("tracker")]
    offline = {"HOME": str(tmp_path), "WANDB_MODE": "offline"}
    done = door(*words, "tracker=wandb", f"output_dir={tmp_path / 'out'}", env=offline | faulty("kill@13"))
    assert done.code == 0, done.err
    run_dir = the_run(tmp_path / "out")
    assert state_of(run_dir) == state_of(undisturbed.run_dir)
    assert [row["step"] for row in history(run_dir)] == list(range(31))


# --- 22: another number of ranks ----------------------------------------------------------------------------


FOUR = ("trainer.batch_tokens=4096", "trainer.steps=16")  # four micro-batches a step


@pytest.mark.slow
def test_22_other_number_of_ranks(tmp_path: Path, door: Door, faulty: Faulty) -> None:
    """Begun on two ranks and ended on one → the same batches, losses within 1e-6, and the
    record says so."""
    out = tmp_path / "out"
    assert door(*MEDIUM, *FOUR, f"output_dir={tmp_path / 'one'}").code == 0
    words = (*MEDIUM, *FOUR, "trainer.max_restarts=0", f"output_dir={out}")
    assert door(*words, "trainer.devices=2", env=faulty("kill@10:rank0")).code == 1
    done = door(*words, "trainer.devices=1")
    assert done.code == 0
    assert "resuming from step 8" in done.out
    equal_within(the_run(out), the_run(tmp_path / "one"), 1e-6)
    attempts = json.loads((the_run(out) / "manifest.json").read_text())["attempts"]
    assert [each["devices"] for each in attempts] == [2, 1]


# --- 23 to 26: what somebody may have put there -------------------------------------------------------------


class Payload:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def test_23_checkpoint_holds_tensors_and_json_only(preempted: tuple[Path, Finished]) -> None:
    from safetensors.torch import load_file

    for path in checkpoints(preempted[0]):
        for file in path.iterdir():
            content = file.read_bytes()
            assert not content.startswith((b"PK", b"\x80")), file  # a zip or a pickle
            if file.suffix.startswith(".json"):
                assert [
                    json.loads(line)
                    for line in (content.splitlines() if file.suffix == ".jsonl" else [content])
                ]
            else:
                assert load_file(file)


def test_23_pickle_in_a_checkpoint(preempted: tuple[Path, Finished], tmp_path: Path) -> None:
    """A pickle with a payload and the right checksums → not found, nothing of it runs; the one before is.
    Resumed from as in 03."""
    out, proof = copied(preempted, tmp_path), tmp_path / "proof"
    newest, before = checkpoints(out)
    (newest / "model.safetensors").write_bytes(pickle.dumps(Payload(proof)))
    stamp(newest)
    usable = checkpoint.find(newest.parent)
    assert usable.path == before
    assert [line.startswith(f"{newest}: model.safetensors cannot be read") for line in usable.invalid] == [
        True
    ]
    assert not proof.exists()


def test_23_checkpoint_of_another_model(preempted: tuple[Path, Finished], tmp_path: Path, here: Door) -> None:
    """Whole, and not of this run → named and not used: no parameter keeps a fresh value in silence."""
    from safetensors.torch import load_file, save_file

    out, file = copied(preempted, tmp_path), "model.safetensors"
    for folder in checkpoints(out):
        tensors = load_file(folder / file)
        save_file({name: tensors[name] for name in sorted(tensors)[1:]}, folder / file)
        stamp(folder)
    done = here(*MEDIUM, f"output_dir={out}")
    assert done.code == 2
    assert "must hold a valid checkpoint" in done.err
    assert done.out.count(f"{file} must hold ") == 2


def test_24_target_in_a_command(tmp_path: Path, here: Door) -> None:
    """`_target_` on the command line → no key, refused."""
    for override in (
        "+model._target_=os.system",
        "+trainer={_target_: pathlib.Path.unlink}",
        "+_target_=builtins.exec",
    ):
        with pytest.raises(ValueError, match="_target_") as caught:
            compose([*SMALL, override])
        assert "\n" not in str(caught.value)
    done = here(*SMALL, override, f"output_dir={tmp_path / 'out'}")
    assert (done.code, done.err) == (2, f"nocap: {caught.value}\n")


def test_24_target_in_a_record(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_target_`, a yaml tag, or an interpolation of the environment in a record's config → refused, nothing
    runs, nothing is read."""
    monkeypatch.setenv("MY_TOKEN", "abcdefgh")
    sound = (undisturbed.run_dir / "config.yaml").read_text()
    path, proof = tmp_path / "config.yaml", tmp_path / "proof"
    plain = yaml.safe_load(sound)
    path.write_text(sound)
    load(path)
    call = {"_target_": "os.system", "_args_": [f"touch {proof}"]}
    for evil in (
        yaml.safe_dump({**plain, **call}),
        yaml.safe_dump({**plain, "model": {**plain["model"], **call}}),
        yaml.safe_dump({**plain, "output_dir": "${oc.env:MY_TOKEN}"}),
        f"{sound}\nextra: !!python/object/apply:os.system ['touch {proof}']\n",
        "&a [*a]",
    ):
        path.write_text(evil)
        with pytest.raises(ValueError, match=r"must be a run's config\.yaml") as caught:
            load(path)
        assert "abcdefgh" not in str(caught.value)
    assert not proof.exists()


@pytest.mark.slow
def test_25_secret_in_a_config(tmp_path: Path, here: Door, undisturbed: Undisturbed) -> None:
    """A secret of the environment reaches the config → it is in no file of the run, W&B's included; a word of
    the schema is no secret."""
    secrets = {
        "MY_API_KEY": "k3y-of-mine",
        "OTHER_TOKEN": "shuffled",
        "HOME": str(tmp_path),
        "WANDB_MODE": "offline",
    }
    words = [word for word in MEDIUM if not word.startswith("tracker")]
    tracker = ("tracker=wandb", "tracker.tags=['${oc.env:MY_API_KEY}']", "tracker.group=${oc.env:MY_API_KEY}")
    done = here(*words, *tracker, f"output_dir={tmp_path / 'out'}", env=secrets)
    assert (done.code, done.err) == (0, "")
    assert "k3y-of-mine" not in done.out
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any("<redacted:MY_API_KEY>" in path.read_text() for path in files if path.name == "config.yaml")
    assert [path for path in files if b"k3y-of-mine" in path.read_bytes()] == []
    assert state_of(the_run(tmp_path / "out")) == state_of(undisturbed.run_dir)


def spoil_checkpoint(chance: random.Random, folder: Path) -> None:
    """Damage a checkpoint and make its checksums right again: only what is inside can tell."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = chance.choice(sorted(tensors))
    match chance.randrange(6):
        case 0:
            file.write_bytes(chance.randbytes(500))
        case 1:
            file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")  # a header longer than any file
        case 2:
            save_file(
                {
                    key: value
                    for key, value in tensors.items()
                    if key.rpartition("/")[0] != name.rpartition("/")[0]
                },
                file,
            )
        case 3:
            save_file({**tensors, f"{name}/more": tensors[name].clone()}, file)
        case 4:
            save_file({**tensors, name: tensors[name].new_zeros(3, 3, 3)}, file)
        case 5:
            (folder / "state.json").write_text(
                chance.choice(["[]", '{"step": "x"}', "{", '{"step": 3}', "[" * 100_000])
            )
            sums = {
                each.name: checkpoint.sha256(each)
                for each in folder.iterdir()
                if each.name != "manifest.json"
            }
            (folder / "manifest.json").write_text(json.dumps(sums))
            return
    stamp(folder)


def test_23_malformed_checkpoints_are_each_one_line(tmp_path: Path) -> None:
    """30 checkpoints with right checksums, each with something else wrong → each refused in one line that
    names it."""
    import torch

    chance, model = random.Random(100), torch.nn.Linear(7, 5)
    for n in range(30):
        made, save = writer(tmp_path / f"checkpoints{n}")
        save(step=4, state={})
        path = made.root / "step-00000004"
        misfit = partial(checkpoint.misfit, model=model)
        assert misfit(path) is None
        spoil_checkpoint(chance, path)
        usable = checkpoint.find(made.root, misfit=misfit)
        assert usable.path is None
        assert str(path) in usable.invalid[0]
        assert "\n" not in usable.invalid[0]
        assert len(usable.invalid[0]) < 400


def test_26_script_in_a_name(tmp_path: Path) -> None:
    """A run named `</script><img onerror=…>` → text in the report, nothing else."""
    report.write(poisoned(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>")


def test_the_table_has_all_its_rows() -> None:
    rows = {
        int(number)
        for name in globals()
        for number in re.findall(r"_(\d\d)(?=_)", name)
        if name.startswith("test_")
    }
    assert rows == set(range(1, 27))
