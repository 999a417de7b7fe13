"""Ranks of somebody else's torchrun give what one device gives; nobody else's pickle is read.
nocap's own ranks: tests/test_faults.py."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attempts import attempt, linux, processes, state_of, wait_until
from tests.conftest import MEDIUM, REPO, Door, Undisturbed, the_run

TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "nocap.train",
)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("trainer.devices=1",),
            "nocap: trainer.devices must be 2, the number of processes that torchrun starts, "
            "got 1\n",
        ),
        (("--multirun", "seed=0,1"), "nocap: --multirun must not run under torchrun"),
    ],
)
def test_under_torchrun_is_refused(
    words: tuple[str, ...], line: str, tmp_path: Path, here: Door
) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = here(*MEDIUM, *words, f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 2, done
    assert done.err.startswith(line), done
    assert done.err.count("\n") == 1, done
    assert not (tmp_path / "out").exists()


SRUN = """#!/bin/sh
# its words as two tasks
for task in 0 1; do PYTHONPATH=$PWD/node$task:$PYTHONPATH "$@" & tasks="$tasks $!"; done
for task in $tasks; do wait $task || failed=1; done
exit ${failed:-0}
"""


# on a node that does not see the other's disk
BLIND = """import pathlib
real = pathlib.Path.exists
pathlib.Path.exists = lambda self, **how: self.name != "manifest.json" and real(self, **how)
"""


def by_slurm(folder: Path) -> subprocess.CompletedProcess[str]:
    """docs/nodes.sbatch on a Slurm of two nodes, which are processes here."""
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho localhost\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(REPO), "RANKS_PER_NODE": "1", "PORT": port}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_NUM_NODES": "2"}
    words = ["bash", str(REPO / "docs" / "nodes.sbatch"), *MEDIUM, f"output_dir={folder / 'out'}"]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@linux
def test_two_nodes_are_one_run(tmp_path: Path, undisturbed: Undisturbed) -> None:
    done = by_slurm(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished at step 30") == 1
    state = state_of(the_run(tmp_path / "out"))
    assert state == state_of(undisturbed.run_dir)


@pytest.mark.slow
@linux
def test_nodes_that_share_no_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "sitecustomize.py").write_text(BLIND)
    done = by_slurm(tmp_path)
    assert done.returncode != 0
    assert "nocap: output_dir must be a folder that all nodes share, got " in done.stderr


@linux
@pytest.mark.slow
def test_killed_agent_leaves_no_rank(tmp_path: Path) -> None:
    with attempt(
        tmp_path / "out", "trainer.devices=2", "trainer.steps=2000", command=TORCHRUN
    ) as running:
        running.wait_for_row(3)
        output_dir = str(running.output_dir)
        ranks = with_words(output_dir) - {running.process.pid}
        assert len(ranks) == 2
        running.end(signal.SIGKILL)
        wait_until(
            lambda: not ranks & with_words(str(running.output_dir)),
            "the ranks end with their agent",
        )


def with_words(word: str) -> set[int]:
    """Processes with this in their command."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            text = (entry / "cmdline").read_text(errors="replace")
            pids |= {int(entry.name)} if word in text else set()
    return pids


# --- other users of the machine -------------------------------------------------------------------


def listening(run_dir: Path) -> set[str]:
    """Addresses, as /proc/net/tcp writes them, on which the run's processes listen."""
    inodes = set()
    for pid in processes(run_dir):
        with suppress(OSError):  # it ended while we looked
            paths = Path(f"/proc/{pid}/fd").iterdir()
            inodes |= {os.readlink(fd) for fd in paths}
    text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in text.splitlines() if "sl" not in line]
    values: set[str] = set()
    for row in rows:
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
            values.add(row[1].rpartition(":")[0])
    return values


@linux
@pytest.mark.slow
def test_nobody_can_connect_once_the_ranks_have_met(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """While the ranks of a run meet they listen on loopback, and after that nowhere."""
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2") as running:
        running.wait_for_file("manifest.json")
        running.wait_for(lambda: "rank 1" in processes(running.run_dir).values(), "a second rank")
        late = next(pid for pid, what in processes(running.run_dir).items() if what == "rank 1")
        os.kill(late, signal.SIGSTOP)
        running.wait_for(lambda: listening(running.run_dir), "a socket")
        assert listening(running.run_dir) == {"0100007F"}  # 127.0.0.1
        os.kill(late, signal.SIGCONT)
        running.wait_for_row(2)
        assert listening(running.run_dir) == set()
        code, _, err = running.end()
    assert code == 0
    assert err == ""
    state = state_of(the_run(out))
    assert state == state_of(undisturbed.run_dir)


def test_nothing_of_another_rank_is_unpickled() -> None:
    pickled = re.compile(
        r"object_list|(gather|scatter)_object|\b(import|from) "
        r"pickle\b|pickle\.|\btorch\.load\b|TCPStore"
    )
    paths = (REPO / "nocap").rglob("*.py")
    pickles = [str(path) for path in paths if pickled.search(path.read_text())]
    assert pickles == []
