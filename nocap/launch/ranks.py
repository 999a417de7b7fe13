"""A run's ranks on this machine, one a device: started together, stopped together, and which of them was lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nocap.config.exits import EXIT_CODES, LOST
from nocap.config.run import Run
from nocap.launch.head import RANKS
from nocap.training.heartbeat import Heartbeat
from nocap.training.summary import cut_short
from nocap.training.terminal import ending

LOOK_S = 0.1  # between looks at the ranks
GRACE_S = 10.0  # for the others to say what they lost when one has died
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def train_in_ranks(run: Run, run_dir: Path) -> int:
    """Start a rank per device, pass a request to stop on, and wait for their end. The exit code for the parent."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    failures, told = os.pipe()  # of the ranks, in the order in which they failed; it needs no disk, which may be full
    os.set_blocking(failures, False)
    with _store(run_dir) as store:
        ranks = [_start(rank, run, run_dir, store, told) for rank in range(run.trainer.devices)]
        asked = False
        while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
            if stops and not asked:
                asked = True
                for rank in ranks:
                    rank.send_signal(signal.SIGTERM)
            time.sleep(LOOK_S)
        codes = _end(ranks)
    if stops:
        return EXIT_CODES["preempted"]
    return _failed(run, run_dir, codes, failures) if codes else 0


@contextmanager
def _store(run_dir: Path) -> Iterator[Path]:
    """A new file in which the ranks find each other, in a folder that nobody else can enter."""
    folder = run_dir / RANKS
    folder.mkdir(mode=0o700)  # that of a worker that was killed is gone: see `nocap.launch.head.leftovers`
    try:
        yield folder / str(os.getpid())  # a rank of that worker, if one still dies, writes to another
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(rank: int, run: Run, run_dir: Path, store: Path, told: int) -> subprocess.Popen[bytes]:
    size = str(run.trainer.devices)
    env = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "NOCAP_STORE": str(store),
        "NOCAP_PARENT": str(os.getpid()),
        "NOCAP_FAILURES": str(told),
        "GLOO_SOCKET_IFNAME": LOOPBACK,  # no other machine may connect
        "NCCL_SOCKET_IFNAME": LOOPBACK,
        "TORCH_GLOO_LAZY_INIT": "0",  # all connections at once: then nobody can make another (training/sockets.py)
    }
    return subprocess.Popen([sys.executable, "-m", "nocap.launch.worker", str(run_dir)], env=env, pass_fds=[told])


def _end(ranks: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Wait a little for the ranks that are left, then kill them. Rank → exit code of those that failed by themselves."""
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.wait(timeout=max(0.0, deadline - time.monotonic()))
    codes = {number: rank.returncode for number, rank in enumerate(ranks) if rank.returncode}
    for rank in ranks:
        rank.kill()
        rank.wait()
    return codes


def _failed(run: Run, run_dir: Path, codes: dict[int, int], failures: int) -> int:
    """Report which rank was killed, and where, or what the rank said that failed first. The others only lost it."""
    heartbeat, status, message = Heartbeat(run_dir), "failed", ""
    killed = {rank: code for rank, code in codes.items() if code < 0}
    with suppress(BlockingIOError):  # none said anything
        status, _, message = os.read(failures, 1 << 16).split(b"\0")[0].decode(errors="replace").partition(" ")
    if killed or not message:
        ends = (killed or codes).items()
        status, message = "failed", ", ".join(f"rank {rank} ended with {ending(code)} {heartbeat.where(rank)}" for rank, code in ends)
    print(f"nocap: {message}" + ("" if status == "refused" else f"; see {run_dir / 'train.log'}"), file=sys.stderr)
    if not (run_dir / "summary.json").exists():  # rank 0 has not come to the run's end
        stage, attempt_s = Path(os.environ["NOCAP_STAGE"]), time.monotonic() - float(os.environ["NOCAP_STARTED"])
        cut_short(run, run_dir, status="failed", attempt_s=attempt_s, error=message, stage=stage)
    return LOST if killed else EXIT_CODES[status]
