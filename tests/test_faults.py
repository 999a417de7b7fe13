"""The fault matrix: a row a fault, in the order of its table. Whatever is done to a run, the same
command again ends where an undisturbed run ends, to the last bit of weights, optimizer and rows; or
it is refused in one line, and nothing is lost.

There is no random state beside these: the order of the data is a function of seed and step, and no
layer draws numbers. Faults that need a moment inside a step are injected by
`tests/faults/sitecustomize.py`; the product knows nothing of them. Other numbers: a tracker that
dies in the middle (21) is in test_tracking.py, a secret in a config (25) and a script in a name
(26) in test_outward.py.
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
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from nocap.config.plain import load
from nocap.data.shards import write_shard
from nocap.row_keys import LINES
from nocap.store.checkpoints import name_of
from nocap.store.file_writing import delete, unfinished
from nocap.training.loading import misfit, newest_valid
from nocap.training.saving import CheckpointWriter, prune
from nocap.training.spikes import ENOUGH, SIGMAS, WINDOW, above
from tests.attempts import (
    attempt,
    digests,
    equal_within,
    in_a_child,
    killed_at,
    linux,
    processes,
    restamp,
    stamp,
    state_of,
    summary_of,
    wait_until,
)
from tests.conftest import EXPLODING, FAULTS, MEDIUM, Door, Finished, Undisturbed, rows_of, the_run
from tests.in_process import TINY, start
from tests.test_crash import trained
from tests.test_record import SEED, again, copied, made, same_end

Faulty = Callable[[str], dict[str, str]]


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    """The environment in which a run's ranks do this to themselves."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return lambda fault: {
        "PYTHONPATH": FAULTS,
        "NOCAP_FAULT": fault,
        "NOCAP_FAULT_DIR": str(folder),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The output directories of a run and of its half, with checkpoints at 4 and 5. Copy before
    changing."""
    return made(tmp_path_factory), made(tmp_path_factory, stop_after=4)


def checkpoints(run_dir: Path) -> list[Path]:
    """The newest first."""
    return sorted((run_dir / "checkpoints").iterdir(), reverse=True)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def writer(
    root: Path, *, background: bool = False
) -> tuple[torch.nn.Module, CheckpointWriter, Any]:
    """A small model, a writer of its checkpoints, and the call that saves a step."""
    if background:
        model = torch.nn.Linear(300, 200)
    else:
        model = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    its = CheckpointWriter(root, background=background)
    of_it = {"model": model, "optimizers": [optimizer], "keep": 2, "rows": b'{"step": 0}\n'}
    state = {"clock_s": {}}
    return model, its, partial(its.save, must=False, state=state, **of_it)


# --- 1, 2: killed ---------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize(("kills", "ranks"), [([10], 1), ([1, 13], 2)])
def test_01_kill_at_any_step(
    tmp_path: Path,
    door: Door,
    faulty: Faulty,
    undisturbed: Undisturbed,
    kills: list[int],
    ranks: int,
) -> None:
    """SIGKILL at these steps → restarted from the last checkpoint each time, state and rows of the
    clean run."""
    overrides = (
        f"trainer.devices={ranks}",
        "trainer.max_restarts=2",
        f"output_dir={tmp_path / 'out'}",
    )
    fault = f"kill@{','.join(map(str, kills))}:rank{ranks - 1}"
    done = door(*MEDIUM, *overrides, env=faulty(fault), timeout=300)
    assert done.code == 0, done.err
    matches = set(re.findall(r"ended with signal 9 at step (\d+)", done.err))
    assert sorted(map(int, matches)) == kills
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)
    summary = summary_of(the_run(tmp_path / "out"))
    assert summary["attempts"] == len(kills) + 1


def test_02_kill_during_save(tmp_path: Path) -> None:
    """SIGKILL at any of a save's calls to the disk → the newest valid one is found, and what was
    left is known."""
    outcomes = set()
    for call in range(1, 99):
        root = tmp_path / str(call)
        _, _, save = writer(root)
        save(step=4)

        def saved(call: int = call, root: Path = root, save: Any = save) -> int:
            killed_at(call, root)
            return len(save(step=8))

        if in_a_child(saved, tmp_path / "told") == 0:
            break
        newest = newest_valid(root)
        assert newest.invalid == []
        paths = root.glob(".step-*.tmp")
        outcomes.add((newest.step, any(paths)))
        save(step=12)
        delete(unfinished(root))  # as the next attempt does
        names = [path.name for path in sorted(root.iterdir())]
        expected = [name_of(newest.step or 0), name_of(12)]
        assert names == expected
    assert call > 12  # that many calls has a save
    assert outcomes >= {(4, True), (8, False)}


def test_02_save_in_the_background_is_of_its_moment(tmp_path: Path) -> None:
    """Written while training goes on, as on a GPU → what is on disk is the step's own state; a
    failure is a line at the next save."""
    model, its, save = writer(tmp_path / "checkpoints", background=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert save(step=4) == []
    for p in model.parameters():
        p.data.zero_()
    assert its.settle() == []
    saved = load_file(its.root / name_of(4) / "model.safetensors")
    assert saved.keys() == before.keys()
    for name, tensor in before.items():
        assert saved[name].equal(tensor)
    shutil.rmtree(its.root)
    its.root.write_text("a file where the folder should be")
    assert save(step=8) == []
    (line,) = save(step=12)
    assert line.startswith("checkpoint of step 8 not saved: ")
    with pytest.raises(OSError, match="step 16 not saved"):
        save(step=16, must=True)


# --- 3 to 7: the disk -----------------------------------------------------------------------------


def test_03_corrupt_checkpoint_is_named_and_the_one_before_is_used(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    this = copied(runs[1], tmp_path)
    said = list[str]()
    newest = this.run_dir / "checkpoints" / name_of(5)
    flip(newest / "optimizer.safetensors")
    start(this, log=said.append)
    assert (
        f"checkpoint not used: {newest}: optimizer.safetensors does not match its checksum" in said
    )
    assert any("resuming from step 4" in line for line in said)
    same_end(this, runs[0])


def test_03_04_flipped_cut_or_missing_files_are_named(tmp_path: Path) -> None:
    """One bit anywhere in a checkpoint, a file cut or missing → it is named, and the one before is
    used."""
    _, _, save = writer(tmp_path)
    save(step=4)
    save(step=8)
    newest = tmp_path / name_of(8)
    chance = random.Random(3)
    files = sorted(newest.iterdir())
    assert len(files) == 5
    for file in 40 * files:
        sound = file.read_bytes()
        flipped = bytearray(sound)
        flipped[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        for damaged in (bytes(flipped), sound[: len(sound) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            usable = newest_valid(tmp_path)
            assert usable.step == 4, file
            assert len(usable.invalid) == 1, file
            assert usable.invalid[0].startswith(f"{newest}: ")
            assert damaged == bytes(flipped) or file.name in usable.invalid[0]
        file.write_bytes(sound)
    assert newest_valid(tmp_path).step == 8


def test_05_only_valid_checkpoints_are_counted(tmp_path: Path) -> None:
    _, _, save = writer(tmp_path)
    for step in (1, 2, 3, 4):
        save(step=step, keep=9)
    (tmp_path / name_of(3) / "manifest.json").unlink()
    flip(tmp_path / name_of(4) / "model.safetensors")
    said = prune(tmp_path, keep=1)
    steps_said = [line.partition("step-")[2][:8] for line in said]
    assert steps_said == ["00000004", "00000003"]
    names = {name_of(step) for step in (2, 3, 4)}
    assert {path.name for path in tmp_path.iterdir()} == names


def of_another_model(file: Path) -> None:
    """Whole, and not of this run: no parameter may keep a fresh value in silence."""
    tensors = load_file(file)
    fewer = {name: tensors[name] for name in sorted(tensors)[1:]}
    save_file(fewer, file)
    stamp(file.parent)


DAMAGES = [
    (flip, 1, "model.safetensors does not match its checksum"),
    (of_another_model, 1, "model.safetensors must hold "),
    pytest.param(flip, 2, "model.safetensors does not match its checksum", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("damage", "ranks", "reason"), DAMAGES)
def test_06_without_a_valid_checkpoint_it_refuses_and_deletes_nothing(
    damage: Callable[[Path], None],
    ranks: int,
    reason: str,
    runs: tuple[Path, Path],
    tmp_path: Path,
    door: Door,
    here: Door,
) -> None:
    run_dir = copied(runs[1], tmp_path).run_dir
    for path in checkpoints(run_dir):
        damage(path / "model.safetensors")
    before = digests(run_dir / "checkpoints")
    rows = rows_of(run_dir)
    words = (*TINY, SEED, f"trainer.devices={ranks}", f"output_dir={tmp_path / 'out'}")
    done = (here if ranks == 1 else door)(*words)

    assert done.code == 2, done
    assert done.err.count("\n") == 1, done
    assert done.out.count(reason) == 2, done
    assert "must hold a valid checkpoint" in done.err
    assert digests(run_dir / "checkpoints") == before
    assert rows_of(run_dir) == rows


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")
def test_07_disk_full_at_a_row(
    tmp_path: Path, door: Door, here: Door, faulty: Faulty, undisturbed: Undisturbed
) -> None:
    """ENOSPC at a row → the run stops with a line and exit code 1; with room again, it ends as the
    clean run."""
    words = (*MEDIUM, f"output_dir={tmp_path / 'out'}")
    done = door(*words, env=faulty("full@17"))
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "the row of step 17 cannot be written: [Errno 28] No space left on device" in done.err
    summary = summary_of(the_run(tmp_path / "out"))
    assert summary["status"] == "failed"
    assert here(*words).code == 0
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)


def test_07_disk_full_at_the_start(tmp_path: Path) -> None:
    """No room for the first file → one line, exit code 1."""
    with attempt(tmp_path / "out", limits={resource.RLIMIT_FSIZE: 0}) as running:
        code, _, err = running.end()
    assert code == 1
    assert err.count("\n") == 1
    assert "File too large" in err or "No usable temporary directory" in err


def test_07_disk_full_at_a_checkpoint(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """No room for a checkpoint → a line, and training goes on; none for the last → an error. The
    old one stays, and is resumed from."""
    this = copied(runs[1], tmp_path)
    told = tmp_path / "told"
    stat = (this.run_dir / "checkpoints" / name_of(5) / "model.safetensors").stat()
    limit = stat.st_size - 1
    assert in_a_child(lambda: trained(tmp_path / "out", SEED, full_at=limit, log=print), told) == 1
    lines = [line for line in told.read_text().splitlines() if "not saved: " in line]
    matches = [re.findall(r"checkpoint of step (\d) ", line) for line in lines]
    assert matches == [["6"], ["7"]]
    assert "File too large" in lines[1]
    names = [path.name for path in checkpoints(this.run_dir)]
    assert names == [name_of(5)]  # room for the second try
    assert newest_valid(this.run_dir / "checkpoints").invalid == []
    start(again(this))
    same_end(this, runs[0])


# --- 8, 9: asked to stop --------------------------------------------------------------------------


def stops_and_goes_on(
    out: Path,
    undisturbed: Undisturbed,
    door: Door,
    *words: str,
    signals: tuple[int, ...],
    keeps: int,
) -> None:
    for _ in range(3):  # on a machine that stands still for a second the run may finish first
        with attempt(out, *words) as running:
            running.wait_for_row(17)
            for number in signals:
                running.process.send_signal(number)
            stopped = Finished(*running.end())
        if stopped.code:
            break
        shutil.rmtree(out)
    assert stopped.code == 75
    assert stopped.err == ""
    run_dir = the_run(out)
    summary = summary_of(the_run(out))
    steps = summary["steps"]
    assert summary["status"] == "preempted"
    assert f"preempted at step {steps}" in stopped.out
    assert (
        stopped.out.splitlines()[-1]
        == "stopped and saved; to continue, type the same command again"
    )
    name = checkpoints(run_dir)[0].name
    assert name == name_of(steps)
    assert len(checkpoints(run_dir)) == keeps
    expected = list(range(steps))
    assert [row["step"] for row in rows_of(run_dir)] == expected
    done = door(*MEDIUM, *words, f"output_dir={out}")
    assert done.code == 0
    assert f"resuming from step {steps}" in done.out
    assert state_of(run_dir) == state_of(undisturbed.run_dir)
    after = summary_of(run_dir)["clock_s"]
    assert after["wall"] > summary["clock_s"]["wall"]
    assert after["other"] < 0.2 * after["wall"]  # nothing was lost


@pytest.mark.slow
def test_08_stop_reaches_every_rank(tmp_path: Path, door: Door, undisturbed: Undisturbed) -> None:
    """Slurm's warning and a SIGTERM to a run of two ranks → one checkpoint of one step, exit code
    75, and an exact resume."""
    words = ("trainer.devices=2", "trainer.checkpoint_every=0")
    signals = (signal.SIGUSR2, signal.SIGTERM)
    stops_and_goes_on(tmp_path / "out", undisturbed, door, *words, signals=signals, keeps=1)


@pytest.mark.gate
def test_09_signals_on_signals_are_one_stop_that_resumes(
    tmp_path: Path, here: Door, undisturbed: Undisturbed
) -> None:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
    stops_and_goes_on(tmp_path / "out", undisturbed, here, signals=signals, keeps=2)


# --- 10, 11, 22: ranks ----------------------------------------------------------------------------


@pytest.mark.slow
@linux
def test_10_22_dead_rank_without_restarts_and_another_number_of_ranks(
    tmp_path: Path, door: Door, here: Door, faulty: Faulty
) -> None:
    """A rank dies, no restart is allowed → soon a failure that names rank and step; no process
    stays. Ended on one rank → the same batches, losses within 1e-6, and the record says so."""
    four = ("trainer.batch_tokens=4096", "trainer.steps=16")  # micro-batches a step
    words = (*MEDIUM, *four, "trainer.max_restarts=0", f"output_dir={tmp_path / 'out'}")
    done = door(*words, "trainer.devices=2", env=faulty("kill@10:rank1"))
    run_dir = the_run(tmp_path / "out")
    cause = "rank 1 ended with signal 9 at step 10"
    summary = summary_of(run_dir)
    assert done.code == 1
    assert cause in done.err
    assert processes(run_dir) == {}
    assert summary["status"] == "failed"
    assert summary["error"] == cause
    assert here(*MEDIUM, *four, f"output_dir={tmp_path / 'one'}").code == 0
    done = here(*words, "trainer.devices=1")
    assert done.code == 0
    assert "resuming from step 8" in done.out
    equal_within(run_dir, the_run(tmp_path / "one"), 1e-6)
    text = (run_dir / "manifest.json").read_text()
    attempts = json.loads(text)["attempts"]
    devices = [each["devices"] for each in attempts]
    assert devices == [2, 1]


@pytest.mark.slow
def test_the_terminal_shows_the_cause_of_the_rank_that_failed_first(
    tmp_path: Path, door: Door, faulty: Faulty
) -> None:
    """Also where the ranks start beside other work, and a connection breaks for the others."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    words = (*MEDIUM, "trainer.devices=2", f"output_dir={tmp_path / 'out'}")
    try:
        done = door(*words, env=faulty("error@3:rank1"))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    run_dir = the_run(tmp_path / "out")
    cause = "rank 1: ArithmeticError: this rank's own fault"

    assert done.code == 1
    assert done.err == f"nocap: {cause}; see {run_dir / 'train.log'}\n"
    assert summary_of(run_dir)["status"] == "failed"
    assert summary_of(run_dir)["error"] == cause
    assert "Traceback (most recent call last)" in (run_dir / "train.log").read_text()


@pytest.mark.slow
@linux
def test_11_a_hung_rank_is_named_and_the_run_starts_again(
    tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed
) -> None:
    """A rank stands still, or is stopped → after the stated time it is named, with its step, and
    the run starts again and ends as the clean one."""
    words = ("trainer.devices=2", "trainer.hang_timeout_s=15", "trainer.max_restarts=2")
    faults = faulty("hang@13:rank1+stop@20:rank1")
    done = door(*MEDIUM, *words, f"output_dir={tmp_path / 'out'}", env=faults, timeout=240)
    assert done.code == 0, done.err
    for step in (13, 20):
        assert f"nocap: rank 1 at step {step} hung: no heartbeat for 15 s" in done.err
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)
    assert not processes(the_run(tmp_path / "out"))


# --- 12, 13: numbers ------------------------------------------------------------------------------


@pytest.mark.slow
def test_12_non_finite_loss_on_one_rank(tmp_path: Path, door: Door, faulty: Faulty) -> None:
    """NaN on one rank → every rank stops before the update, and the batch is named."""
    words = (*TINY, "trainer.devices=2", f"output_dir={tmp_path / 'out'}")
    assert door(*words, env=faulty("nan@5:rank1")).code == 1
    summary = summary_of(the_run(tmp_path / "out"))
    rows = rows_of(the_run(tmp_path / "out"))
    assert summary["status"] == "diverged"
    assert summary["diverged"]["step"] == 5
    assert summary["diverged"]["sequences"] == [5 * 4, 6 * 4]
    assert rows[-1]["step"] == 5
    assert rows[-1]["train/loss"] is None
    paths = (tmp_path / "faults").glob("rank*")
    assert [path.name for path in paths] == ["rank1-unchanged"]


def test_12_diverged_run_stops_before_the_update_and_names_the_batch(
    tmp_path: Path, here: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest, and no module of the option
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    words = (*TINY, *EXPLODING, "trainer.checkpoint_every=1", f"output_dir={tmp_path / 'out'}")
    done = here(*words)
    assert done.code == 1, done.err
    assert "diverged: " in done.out, done.err
    run_dir = the_run(tmp_path / "out")
    summary = summary_of(run_dir)
    last = rows_of(run_dir)[-1]
    step = last["step"]
    assert summary["status"] == "diverged"
    assert None in (last["train/loss"], last["train/grad_norm"])
    assert summary["diverged"]["step"] == step
    expected = [step * 4, step * 4 + 4]
    assert summary["diverged"]["sequences"] == expected
    names = [path.name for path in checkpoints(run_dir)]
    assert names == [name_of(step)]
    done = here(*words)
    assert done.code == 1
    assert "already diverged" in done.out
    assert summary_of(run_dir) == summary  # it was not trained again
    # a last validation that is not finite is no finish
    assert here(*words, "trainer.steps=1", f"output_dir={tmp_path / 'one'}").code == 1
    summary = summary_of(the_run(tmp_path / "one"))
    assert summary["status"] == "diverged"
    assert summary["val_loss"] is None
    assert summary["val_step"] == 1


def test_13_spikes_are_those_of_the_definition() -> None:
    """Over 6 standard deviations above the last 128 losses; none before 32 are known."""
    rng = np.random.default_rng(0)
    losses = 4.0 + 0.1 * rng.standard_normal(400)
    losses[[20, 60, 61, 300]] += 9.0
    spikes = {}
    expected = {}
    for step, loss in enumerate(losses):
        window = losses[max(0, step - WINDOW) : step]
        if (sigmas := above(window.tolist(), float(loss))) > SIGMAS:
            spikes[step] = sigmas
        if step >= ENOUGH and (sigmas := (loss - window.mean()) / window.std()) > SIGMAS:
            expected[step] = pytest.approx(sigmas)

    assert spikes == expected
    assert {60, 300} <= spikes.keys()
    assert 20 not in spikes


@pytest.mark.slow
def test_13_spike_is_logged_not_skipped(tmp_path: Path, door: Door, faulty: Faulty) -> None:
    """A loss ×1000 → its row, a line and the summary say so, it is trained on, and a resumed run
    sees the same."""
    words = (
        "trainer.steps=48",
        "trainer.val_every=12",
        "trainer.checkpoint_every=8",
        "trainer.log_every=100",
    )
    done = door(*TINY, *words, f"output_dir={tmp_path / 'out'}", env=faulty("spike@40!+kill@44"))
    assert done.code == 0, done.err
    run_dir = the_run(tmp_path / "out")
    assert done.out.count("spike at step 40: loss ") == 2
    assert "'sequences': [160, 164]" in done.out
    assert summary_of(run_dir)["spikes"] == [40]
    steps = [row["step"] for row in rows_of(run_dir)]
    assert steps == [0, 12, 24, 36, 40, 48]
    assert (tmp_path / "faults" / "rank0-changed").exists()


# --- 14 to 17: data -------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> tuple[str, ...]:
    """The words that train on three small shards below `tmp_path`."""
    chance = np.random.default_rng(1)
    for name, tokens in (("train_0", 60_000), ("train_1", 50_000), ("val", 10_000)):
        write_shard(tmp_path / "shards" / f"{name}.bin", chance.integers(0, 256, tokens))
    paths = (f"data.train={tmp_path}/shards/train_*.bin", f"data.val={tmp_path}/shards/val.bin")
    small = [word for word in TINY if not word.startswith("data")]
    return (*small, "data=shards", "tokenizer=bytes", *paths, f"output_dir={tmp_path / 'out'}")


def test_14_15_16_bad_shard(tmp_path: Path, here: Door, shards: tuple[str, ...]) -> None:
    """Any shard, also one that the run would reach last, is bad → refused at the start, the file
    named. Every damage: test_shards.py."""
    last = tmp_path / "shards" / "train_1.bin"
    sound = last.read_bytes()
    short = (60_000).to_bytes(2, "little")
    cases = (
        (b"\7" + sound[1:], "magic number 20240520, got "),
        (sound[: len(sound) // 2], "truncated"),
        (sound[:-2] + short, "below 257, the size of the tokenizer's vocabulary, got 60000"),
    )
    for damaged, reason in cases:
        last.write_bytes(damaged)
        done = here(*shards)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert f"{last}: " in done.err
        assert reason in done.err
    assert not (tmp_path / "out").exists()


def test_17_data_changed_before_the_resume(
    tmp_path: Path, here: Door, shards: tuple[str, ...]
) -> None:
    """A shard changes between start and resume → refused, the begun run named, nothing started
    beside it; put back, it resumes."""
    assert here(*shards).code == 0
    run_dir = the_run(tmp_path / "out")
    shard = tmp_path / "shards" / "train_0.bin"
    (run_dir / "summary.json").unlink()  # as if it had been killed after its last checkpoint
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-2] + b"\7\0")
    refused = here(*shards)
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert f"data must be the same as in the run in {run_dir} (" in refused.err
    assert the_run(tmp_path / "out") == run_dir
    shard.write_bytes(sound)
    done = here(*shards)
    assert done.code == 0
    assert "resuming from step 7" in done.out


# --- 18, 19: locks --------------------------------------------------------------------------------


@linux
@pytest.mark.gate
def test_18_19_one_writer_and_its_lock_dies_with_it(
    tmp_path: Path, here: Door, undisturbed: Undisturbed
) -> None:
    """A second process on the same run → refused at once, the holder named. The holder killed → its
    worker dies with it, the lock is free, and the time of both attempts is counted, each step
    once."""
    out = tmp_path / "out"
    with attempt(out) as running:
        running.wait_for_row(9)
        refused = here(*MEDIUM, f"output_dir={out}")
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert f"process {running.process.pid} on " in refused.err
        running.end(signal.SIGKILL)
        run_dir = running.run_dir
        wait_until(lambda: not processes(run_dir), "the worker dies with its parent")
    spent_s = rows_of(run_dir)[-1]["clock/wall_s"]
    done = here(*MEDIUM, f"output_dir={out}")
    assert done.code == 0
    assert done.err == ""
    assert state_of(run_dir) == state_of(undisturbed.run_dir)
    clock = summary_of(run_dir)["clock_s"]
    assert spent_s < clock["wall"] == pytest.approx(sum(clock[line] for line in LINES), rel=0.01)
    row_ms = sum(row.get("perf/step_ms", 0.0) for row in rows_of(run_dir))
    stepping_s = row_ms / 1e3
    assert clock["train"] == pytest.approx(stepping_s, rel=0.05)
    assert summary_of(run_dir)["attempts"] == 2


# --- 20, 21: trackers. A wandb that dies or freezes in the middle: tests/test_tracking.py ---------


@pytest.mark.slow
def test_20_21_tracker_unreachable_and_rewound(
    tmp_path: Path, door: Door, faulty: Faulty, undisturbed: Undisturbed
) -> None:
    """W&B down at the start → a warning, seconds, the record complete; the run waits on disk for a
    sync. Killed after a row, before its checkpoint → in the record and in W&B each step is there
    once."""
    from tests.test_tracking import history

    words = [word for word in MEDIUM if not word.startswith("tracker")]
    account = {
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "f" * 40,
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    env = account | faulty("kill@13")
    done = door(*words, "tracker=wandb", f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 0, done.err
    assert done.err.startswith("nocap: W&B: offline: ")
    run_dir = the_run(tmp_path / "out")
    assert state_of(run_dir) == state_of(undisturbed.run_dir)
    assert "nocap.runs sync " in str(summary_of(run_dir)["tracker"])
    steps = [row["step"] for row in history(run_dir)]
    assert steps == list(range(31))


# --- 23, 24: what somebody may have put there -----------------------------------------------------


def test_23_checkpoint_holds_tensors_and_json_only(runs: tuple[Path, Path]) -> None:
    files = list(the_run(runs[0]).rglob("step-*/*"))
    assert len(files) == 5
    for file in files:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:
            content = file.read_text().splitlines()
        assert content
        if file.suffix != ".safetensors":
            for value in content:
                json.loads(value)


class Payload:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def spoil_checkpoint(chance: random.Random, folder: Path, case: int) -> None:
    """Damage a checkpoint and make its checksums right again: only what is inside can tell."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = chance.choice(sorted(tensors))
    states = ["[]", '{"step": "x"}', "{", '{"step": 3}', "[" * 100_000]
    match case:
        case 0:
            file.write_bytes(chance.randbytes(500))
        case 1:
            content = (1 << 60).to_bytes(8, "little") + b"{}"
            file.write_bytes(content)  # a header longer than any file
        case 2:
            rest = {key: value for key, value in tensors.items() if key != name}
            save_file(rest, file)
        case 3:
            more = {**tensors, f"{name}/more": tensors[name].clone()}
            save_file(more, file)
        case 4:
            damaged = {**tensors, name: tensors[name].new_zeros(3, 3, 3)}
            save_file(damaged, file)
        case 5:
            path = folder.with_name("proof")
            file.write_bytes(pickle.dumps(Payload(path)))
        case _:
            (folder / "state.json").write_text(states[case - 6])
    restamp(folder)


def test_23_malformed_checkpoints_are_each_one_line(tmp_path: Path) -> None:
    """Checkpoints with right checksums, each with something else wrong, such as a pickle → each
    refused in one line that names it, and nothing of it runs."""
    chance = random.Random(100)
    for case in range(11):
        model, its, save = writer(tmp_path / str(case))
        save(step=4)
        path = its.root / name_of(4)
        of_run = partial(misfit, model=model)
        assert of_run(path) is None
        spoil_checkpoint(chance, path, case)
        usable = newest_valid(its.root, misfit=of_run)
        assert usable.path is None, case
        assert len(usable.invalid) == 1, case
        assert usable.invalid[0].startswith(f"{path}: ")
        assert "\n" not in usable.invalid[0]
        assert len(usable.invalid[0]) < 400
    assert not list(tmp_path.rglob("proof"))


@pytest.mark.parametrize(
    "word",
    [
        "+model._target_=os.system",
        "+trainer={_target_: pathlib.Path.unlink}",
        "+_target_=builtins.exec",
    ],
)
def test_24_target_in_a_command(word: str, tmp_path: Path, here: Door) -> None:
    """`_target_` on the command line → no key, refused."""
    done = here(*TINY, word, f"output_dir={tmp_path / 'out'}")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "_target_" in done.err


def test_24_target_in_a_record(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_target_`, a yaml tag, or an interpolation of the environment in a record's config →
    refused, nothing runs, nothing is read."""
    monkeypatch.setenv("MY_TOKEN", "abcdefgh")
    sound = (the_run(runs[0]) / "config.yaml").read_text()
    path = tmp_path / "config.yaml"
    proof = tmp_path / "proof"
    path.write_text(sound)
    load(path)
    plain = yaml.safe_load(sound)
    call = {"_target_": "os.system", "_args_": [f"touch {proof}"]}
    cases = (
        yaml.safe_dump({**plain, **call}),
        yaml.safe_dump({**plain, "model": {**plain["model"], **call}}),
        yaml.safe_dump({**plain, "output_dir": "${oc.env:MY_TOKEN}"}),
        f"{sound}\nextra: !!python/object/apply:os.system ['touch {proof}']\n",
        "&a [*a]",
    )
    for evil in cases:
        path.write_text(evil)
        with pytest.raises(ValueError, match=r"must be a run's config\.yaml") as caught:
            load(path)
        assert "abcdefgh" not in str(caught.value)
    assert not proof.exists()
