"""A run outlives what stands around it: its reader, its terminal, a suspension. What asks it to
stop lets it save."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from nocap.launch import attempt as launch
from nocap.launch import workers
from nocap.launch.heartbeat import HangWatch, Heartbeat
from tests.attempts import attempt, linux, processes, state_of, summary_of, wait_until
from tests.conftest import MEDIUM, REPO, Door, Undisturbed, the_run
from tests.in_process import TINY, planned

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")


def shell(script: str, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A bash script in which "$@" is the command with these words."""
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "nocap.train", *words]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


# --- readers --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        '"$@" 2>&1 >&- <&- | head -1; exit ${PIPESTATUS[0]}',
        pytest.param('"$@" trainer.devices=2 > /dev/full 2> /dev/full', marks=full),
    ],
)
def test_training_goes_on_without_a_reader(
    tmp_path: Path, undisturbed: Undisturbed, script: str
) -> None:
    done = shell(script, tmp_path, *MEDIUM, f"output_dir={tmp_path / 'out'}")
    assert done.returncode == 0
    assert done.stderr == ""
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)


@pytest.mark.slow
def test_a_grid_goes_on_without_a_reader(tmp_path: Path) -> None:
    words = (*TINY, "seed=1,2", "--multirun", f"output_dir={tmp_path / 'out'}")
    done = shell('"$@" | head -1; exit ${PIPESTATUS[0]}', tmp_path, *words)
    assert done.returncode == 0
    assert done.stderr == ""
    paths = (tmp_path / "out/runs").glob("*/summary.json")
    assert len(list(paths)) == 2


# --- terminals ------------------------------------------------------------------------------------


def its_terminal() -> None:
    """Of a new session. A hang-up stops it, even where these tests run under nohup."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))  # opening makes it the session's terminal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "code"), [((), 75), (("nohup",), 0)])
def test_a_run_whose_terminal_closes_saves_what_it_has(
    tmp_path: Path, before: tuple[str, ...], code: int
) -> None:
    """A terminal of its own closes after a row: it saves what it has; under nohup it goes on to its
    end."""
    out = tmp_path / "out"
    words = (*MEDIUM, "trainer.steps=150", "trainer.val_every=0")
    terminal, end = pty.openpty()
    command = [*before, sys.executable, "-m", "nocap.train", *words, f"output_dir={out}"]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=its_terminal,
    )
    os.close(end)
    try:
        wait_until(
            lambda: process.poll() is not None or any(out.glob("runs/*/metrics.jsonl")), "a row"
        )
        assert process.poll() is None, os.read(terminal, 4096)
        os.close(terminal)
        assert process.wait(timeout=90) == code
    finally:
        process.kill()
    assert any((the_run(out) / "checkpoints").iterdir())
    assert not processes(the_run(out))


# --- suspension -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("look_s", "hung_after_s"), [(0.25, 10.25), (3600.0, 11 * 3600.0)])
def test_a_pause_of_the_parent_is_no_hang(
    tmp_path: Path, look_s: float, hung_after_s: float
) -> None:
    """Each pause counts a second at most. A worker that stays silent while the parent looks hangs
    after the limit."""
    now = 1000.0
    heartbeat = Heartbeat.create(tmp_path, ranks=2)
    watch = HangWatch(heartbeat, limit_s=10.0, begin=now)
    heartbeat.beat(1, 3)
    assert watch.look(now + 0.2) is None
    reason: str | None = None
    while reason is None:
        now += look_s
        reason = watch.look(now)
    assert now - 1000.0 == pytest.approx(hung_after_s, abs=1.01 * look_s)
    assert reason == "rank 0 while it started hung: no heartbeat for 10 s (trainer.hang_timeout_s)"


def test_where_a_rank_cannot_be_started_the_others_do_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[int]()
    plan = planned(tmp_path / "out", "trainer.devices=2")

    def start(*command: object, env: dict[str, str], **more: object) -> SimpleNamespace:
        if env["RANK"] == "1":
            raise OSError("no more processes")
        return SimpleNamespace(pid=0, send_signal=sent.append)

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=start))
    with launch.hold(plan) as acquired, pytest.raises(OSError, match="no more processes"):
        launch.Attempt(plan, acquired).start_workers(0.0)
    assert sent == [signal.SIGKILL]


@linux
@pytest.mark.slow
def test_suspended_for_longer_than_a_hang(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Ctrl-Z or `scontrol suspend`, then on: nothing is killed."""
    words = ("trainer.devices=2", "trainer.hang_timeout_s=20", "trainer.max_restarts=0")
    with attempt(tmp_path / "out", *words) as running:
        running.wait_for_row(2)
        pids = [running.process.pid, *processes(running.run_dir)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(24)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        code, _, err = running.end()
    assert code == 0
    assert err == ""
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)


# --- requests to stop -----------------------------------------------------------------------------


@linux
@pytest.mark.slow
def test_storm_of_signals_in_the_start_up(
    tmp_path: Path, here: Door, undisturbed: Undisturbed
) -> None:
    """SIGTERM, SIGINT, SIGHUP and SIGUSR2 to all of its processes from its first moment: one
    preemption, no traceback, and it resumes."""
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2") as running:
        running.wait_for_file("manifest.json")
        running.wait_for(lambda: processes(running.run_dir), "a worker")
        while running.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
                running.process.send_signal(number)
                for pid in processes(running.run_dir):
                    if number != signal.SIGTERM:
                        os.kill(pid, number)
            time.sleep(0.02)
        code, _, err = running.end()
    assert code == 75
    assert err == ""
    assert summary_of(the_run(out))["status"] == "preempted"
    assert not processes(the_run(out))
    assert here(*MEDIUM, f"output_dir={out}").code == 0
    state = state_of(the_run(out))
    assert state == state_of(undisturbed.run_dir)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("too", [False, True])
def test_a_request_to_stop_does_not_wait_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, too: bool
) -> None:
    """Ctrl-C and `timeout` signal the whole process group: where the C++ compiler dies of it, too,
    Inductor raises, and that is a preemption as well."""
    path = tmp_path / "g++"
    called = tmp_path / "called"
    stopped = tmp_path / "stopped"
    first = f"[ -e {stopped} ] && exit 1; echo $$ >> {called}; exec sleep 1000"
    path.write_text(f'#!/bin/sh\ncase "$*" in *.cpp*) {first};; esac\nexec g++ "$@"\n')
    path.chmod(0o700)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with attempt(tmp_path / "out", "trainer.compile=regional") as running:
        wait_until(called.exists, "the compiler runs")
        running.process.send_signal(signal.SIGTERM)
        stopped.touch()
        for pid in called.read_text().split() if too else ():
            with suppress(ProcessLookupError):  # the run may have stopped its compilers before
                os.kill(int(pid), signal.SIGTERM)
        code, _, err = running.end()
        assert code == 75
        assert err == ""
    summary = summary_of(running.run_dir)
    assert summary["status"] == "preempted"
    assert summary["steps"] == 0


@linux
@pytest.mark.gate
def test_no_rank_outlives_its_parent(tmp_path: Path) -> None:
    """Also where the other one is suspended."""
    with attempt(tmp_path / "out", "trainer.devices=2", "trainer.steps=2000") as running:
        running.wait_for_row(2)
        ranks = {what: pid for pid, what in processes(running.run_dir).items()}
        assert sorted(ranks) == ["rank 0", "rank 1"]
        os.kill(ranks["rank 1"], signal.SIGSTOP)
        running.end(signal.SIGKILL)
        wait_until(lambda: not processes(running.run_dir), "the ranks end with their parent")


STALLS = """
import importlib.abc, os, pathlib, signal, sys

class Stall(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("nocap.config.compose", "nocap.training.loop") and "-m" in sys.orig_argv:
            if MODULE in sys.orig_argv:
                pathlib.Path(FOLDER, f"importing-{os.getpid()}").touch()
                signal.pause()

sys.meta_path.insert(0, Stall())
"""


def stalled(module: str, folder: Path) -> str:
    """Make a PYTHONPATH with which `python -m MODULE` never ends its imports, and says so."""
    stalls = STALLS.replace("MODULE", repr(module))
    text = stalls.replace("FOLDER", repr(str(folder)))
    (folder / "sitecustomize.py").write_text(text)
    return os.pathsep.join([str(folder), str(REPO)])


@linux
@pytest.mark.parametrize(
    "module", ["nocap.launch.worker", "nocap.launch.cluster_cell", "nocap.sessions.worker"]
)
def test_a_process_whose_parent_died_before_it_began_imports_nothing(
    tmp_path: Path, module: str
) -> None:
    env = {**os.environ, "PYTHONPATH": stalled(module, tmp_path), "NOCAP_PARENT": "1"}
    command = [sys.executable, "-m", module, "nothing", "nobody"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr == b""
    assert not list(tmp_path.glob("importing-*"))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_that_still_imports_does_not_outlive_its_parent(
    tmp_path: Path, ranks: int
) -> None:
    path = stalled("nocap.launch.worker", tmp_path)
    with attempt(tmp_path / "out", f"trainer.devices={ranks}", path=path) as running:
        running.wait_for(
            lambda: len([*tmp_path.glob("importing-*")]) == ranks, "the workers import"
        )
        assert len(processes(running.run_dir)) == ranks
        running.end(signal.SIGKILL)
        wait_until(lambda: not processes(running.run_dir), "the workers end with their parent")
