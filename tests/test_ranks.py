"""Ranks of somebody else's torchrun give what one device gives; nobody else's pickle is read. nocap's own
ranks: tests/test_faults.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attempts import attempt, processes, state_of, wait_until
from tests.conftest import MEDIUM, REPO, Door, Undisturbed, the_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nocap.train")


@pytest.mark.slow
@linux
def test_outer_torchrun_gives_the_same(tmp_path: Path, undisturbed: Undisturbed) -> None:
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2", command=TORCHRUN) as running:
        code, printed, err = running.end()
    assert code == 0, err
    assert printed.count("finished at step 30") == 1
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_outer_torchrun_of_another_size_is_refused(tmp_path: Path, door: Door) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = door(*MEDIUM, f"output_dir={tmp_path / 'out'}", env=env)
    assert (done.code, done.err) == (2, "nocap: trainer.devices must be torchrun's 2 ranks, got 1\n")
    assert not (tmp_path / "out").exists()


@linux
@pytest.mark.slow
def test_killed_agent_leaves_no_rank(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2", "trainer.steps=2000", command=TORCHRUN) as running:
        running.wait_for_row(3)
        ranks = {
            pid
            for entry in Path("/proc").iterdir()
            if (pid := entry.name).isdigit() and str(out) in cmdline(entry)
        } - {str(running.process.pid)}
        assert len(ranks) == 2
        running.end(signal.SIGKILL)
        wait_until(
            lambda: not any(Path("/proc", pid).exists() for pid in ranks), "the ranks end with their agent"
        )


def cmdline(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended while we looked
        return ""


GRAPHS = """
import dataclasses, os, sys, tempfile, torch, torch.distributed as dist
from torch._dynamo.utils import counters
from nocap.config.compose import compose
from nocap.measure.timed import random_tokens
from nocap.training.step import build

run = compose(["model=small", "trainer.device=cpu", "trainer.compile=regional", "data=synthetic",
    "trainer.micro_batch=1"])
with tempfile.TemporaryDirectory() as folder, random_tokens(run) as job:
    if ranks := int(sys.argv[1]):
        dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 1), rank=0, world_size=1)
        job = dataclasses.replace(job, world=dataclasses.replace(job.world, size=2))
    trainee = build(job)
    tokens = torch.zeros(1, run.model.seq_len + 1, dtype=torch.long)
    trainee.forward(tokens[:, :-1], tokens[:, 1:]).total.backward()
print(counters["aot_autograd"]["total"], flush=True)
os._exit(0)  # gloo's teardown aborts now and then
"""


@pytest.mark.slow
def test_ddp_cuts_no_compiled_region():
    graphs = [
        subprocess.run([sys.executable, "-c", GRAPHS, ranks], capture_output=True, text=True).stdout
        for ranks in "01"
    ]
    assert graphs == ["2\n", "2\n"]  # the blocks, which are one graph, and the head


# --- other users of the machine -----------------------------------------------------------------------------


def listening(run_dir: Path) -> set[str]:
    """Addresses, as /proc/net/tcp writes them, on which the run's processes listen."""
    inodes = set()
    for pid in processes(run_dir):
        with suppress(OSError):  # it ended while we looked
            inodes |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


@linux
@pytest.mark.slow
def test_nobody_can_connect_once_the_ranks_have_met(tmp_path: Path, undisturbed: Undisturbed) -> None:
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
    assert (code, err) == (0, "")
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_nothing_of_another_rank_is_unpickled() -> None:
    pickled = re.compile(
        r"object_list|(gather|scatter)_object|\b(import|from) pickle\b|pickle\.|\btorch\.load\b|TCPStore"
    )
    assert [str(path) for path in (REPO / "nocap").rglob("*.py") if pickled.search(path.read_text())] == []
