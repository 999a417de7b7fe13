"""A lease on a shared folder: one holder among machines, the dead give way, and who was asleep
cannot write."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nocap.launch.record_head import write_record_head
from nocap.store import lease
from nocap.store.file_writing import write_file
from nocap.store.record_files import read_ended
from nocap.training import saving
from nocap.training.saving import write_checkpoint
from tests.attempts import attempt, digests, processes, state_of, wait_until
from tests.conftest import MEDIUM, REPO, Door, Undisturbed
from tests.in_process import planned

HOLDING = (
    "import sys; from pathlib import Path; from nocap.store import lease; "
    "lease.machine = lambda: {machine!r}; lease.BEAT_S = 0.05; "
    "held = lease.acquire(Path(sys.argv[1])); print(held.stage(), flush=True); "
)


@contextmanager
def holder(
    folder: Path, *, machine: str, then: str = "sys.stdin.read()"
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, which holds the folder, and its stage."""
    command = [sys.executable, "-c", HOLDING.format(machine=machine) + then, str(folder)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen(command, env=env, text=True, bufsize=1, **pipes)
    assert process.stdout is not None
    try:
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def old(folder: Path, seconds: float = lease.LEASE_S + 1) -> None:
    """Make the heartbeats below a folder that much older, by the file system's clock."""
    (path,) = folder.glob(f"{lease.NAME}/*/{lease.HOLDER}")
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_one_holder_at_a_time_and_nothing_stays(tmp_path: Path) -> None:
    with lease.acquire(tmp_path) as acquired:
        assert acquired.beat()
        line = (
            rf"{tmp_path} must have one writer, and process {os.getpid()} on .* is training there"
        )
        with pytest.raises(lease.HeldError, match=line):
            lease.acquire(tmp_path)
    lease.acquire(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):  # no folder to wait for
        lease.acquire(tmp_path / "gone", wait_s=math.inf)


def test_on_one_machine_the_kernel_decides_at_once(tmp_path: Path) -> None:
    """Whatever the heartbeats say: a stopped process keeps its lease, a killed one loses it."""
    with holder(tmp_path, machine=lease.machine()) as (process, stage):
        process.send_signal(signal.SIGSTOP)
        old(tmp_path)
        with pytest.raises(lease.HeldError, match=f"process {process.pid} on "):
            lease.acquire(tmp_path)
        process.kill()
        process.wait()
        with lease.acquire(tmp_path):
            assert not stage.exists()


def test_of_another_machine_heartbeats_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its process nor its lock can be seen. This machine's clock is a year ahead, and is
    not asked."""
    monkeypatch.setattr(time, "time", lambda: 4e9)
    with holder(tmp_path, machine="another") as (process, _):
        process.kill()
        process.wait()
        old(tmp_path, lease.LEASE_S - 10)
        with pytest.raises(lease.HeldError, match=f"process {process.pid} on "):
            lease.acquire(tmp_path)
        old(tmp_path, 11)
        lease.acquire(tmp_path).close()


def test_a_sleeper_that_wakes_cannot_write(tmp_path: Path) -> None:
    """Stopped, taken over, woken: a file that it had prepared does not come to its place, and it
    knows why."""
    then = """
sys.stdin.readline()
stage = next(Path(sys.argv[1]).glob(".lease/*/stage-*"))
(stage / "mine").write_text("old")
print("ready", flush=True)
sys.stdin.readline()
print(held.beat())
def publish(): (stage / "mine").rename(Path(sys.argv[1]) / "checkpoint")
for write in (publish, lambda: lease.check(stage)):
    try: write(), print("not fenced")
    except (FileNotFoundError, lease.LostError) as error: print(type(error).__name__, error)
sys.stdout.flush()
sys.stdin.read()
"""
    with holder(tmp_path, machine="another", then=then) as (process, stage):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        old(tmp_path)
        with lease.acquire(tmp_path) as acquired:
            write_file(tmp_path / "checkpoint", b"new", stage=acquired.stage())
            process.stdin.write("\n")
            process.send_signal(signal.SIGCONT)
            beat, renamed, checked = (process.stdout.readline() for _ in range(3))
            assert beat == "False\n"
            assert renamed.partition(" ")[0] == "FileNotFoundError"
            line = (
                f"another process took over {tmp_path} while this process was stopped, and "
                "continues "
                "the run\n"
            )
            assert checked == f"LostError {line}"
            assert acquired.beat()
        assert not stage.exists()
        assert (tmp_path / "checkpoint").read_bytes() == b"new"


def test_a_sleeper_deletes_no_checkpoint_of_the_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept while it synced, and the other one has saved the same step."""
    (saved := tmp_path / "checkpoints" / "step-00000008").mkdir(parents=True)
    (stage := tmp_path / "stage").mkdir()
    monkeypatch.setattr(saving, "_sync", lambda path: shutil.rmtree(stage, ignore_errors=True))
    with pytest.raises(FileNotFoundError):
        write_checkpoint(saved.parent, tensors={}, state={"step": 8}, rows=b"", stage=stage)
    assert saved.exists()


def test_a_sleeper_leaves_the_summary_of_the_one_after_it(tmp_path: Path) -> None:
    this = planned(tmp_path / "out")
    this.run_dir.mkdir(parents=True)
    (this.run_dir / "summary.json").write_text("{}")
    with pytest.raises(lease.LostError):
        write_record_head(this, tmp_path / "gone" / "token" / "stage")
    paths = this.run_dir.iterdir()
    assert [path.name for path in paths] == ["summary.json"]


def test_a_worker_cannot_write_for_the_one_after_it(tmp_path: Path) -> None:
    with lease.acquire(tmp_path) as acquired:
        first = acquired.stage()
        second = acquired.stage()
        with pytest.raises(lease.LostError):
            lease.check(first)
        with pytest.raises(FileNotFoundError):
            write_file(tmp_path / "x", b"late", stage=first)
        write_file(tmp_path / "x", b"mine", stage=second)
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_of_many_at_once_one_at_a_time_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims of machines whose locks say nothing to each other: eight threads that take, look and
    give back."""
    error = OSError(38, "no locks here")
    monkeypatch.setattr(lease.fcntl, "flock", Mock(side_effect=error))
    inside = []
    most = []

    def take(number: int) -> None:
        for _ in range(4):
            with lease.acquire(tmp_path, wait_s=30):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert most == [1] * 32
    assert list(tmp_path.iterdir()) == []


def test_heartbeats_come_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.01)
    with lease.acquire(tmp_path) as acquired:
        (path,) = tmp_path.glob(f"{lease.NAME}/*/{lease.HOLDER}")
        os.utime(path, (1, 1))
        wait_until(lambda: path.stat().st_mtime > 1, "a heartbeat", limit_s=5)
        assert not acquired.lost


def test_leftovers_of_killed_processes_are_cleared(tmp_path: Path) -> None:
    root = tmp_path / lease.NAME
    for name in ("0123456789ab/stage-1", ".new-1", ".gone-2"):
        (root / name).mkdir(parents=True)
    (root / "torn").mkdir()
    (root / "torn" / lease.HOLDER).touch()
    os.utime(root / "torn" / lease.HOLDER, (1, 1))
    with lease.acquire(tmp_path):
        assert len(list(root.iterdir())) == 1


# --- runs of several machines over one outputs/ ---------------------------------------------------

MACHINE = (
    "from nocap.store import lease; lease.BEAT_S = 0.2; lease.machine = lambda: {!r}; "
    "from nocap.train import main; main()"
)


def on_machine(name: str) -> tuple[str, ...]:
    """The command as on another machine: neither sees whether the other's processes live."""
    return "-c", MACHINE.format(name)


@pytest.mark.gate
def test_a_run_of_a_machine_that_is_gone_is_finished_once(
    tmp_path: Path, here: Door, undisturbed: Undisturbed
) -> None:
    """To the bits of an undisturbed run, to which the other machine, when it wakes, adds
    nothing."""
    words = (*MEDIUM, f"output_dir={tmp_path / 'out'}")
    with attempt(tmp_path / "out", command=on_machine("gone")) as gone:
        gone.wait_for_file("checkpoints/step-*")
        run_dir = gone.run_dir
        all_of_it = [gone.process.pid, *processes(run_dir)]
        for pid in all_of_it:
            os.kill(pid, signal.SIGSTOP)
        refused = here(*words)
        assert refused.code == 2, refused
        assert f"process {gone.process.pid} on " in refused.err, refused
        old(run_dir)
        done = here(*words)
        assert done.code == 0, done.err
        before = {name: sha256 for name, sha256 in digests(run_dir).items() if name != "train.log"}
        for pid in all_of_it:
            os.kill(pid, signal.SIGCONT)
        code, _, err = gone.end()
    assert code == 1, err
    assert "while this process was stopped" in err, err
    assert before.items() <= digests(run_dir).items()
    assert state_of(run_dir) == state_of(undisturbed.run_dir)
    assert read_ended(run_dir) is not None
    assert not list(run_dir.glob(".*lease*"))
