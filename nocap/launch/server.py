"""A server that workers are forked from: it has imported torch and nocap, and nothing else.

An import of torch takes as long as some hundred steps of a small model. A command that trains several runs
pays for it once: the first worker takes seconds to begin, each later one some milliseconds. A worker is still
a process of its own.

The server ends with the process that started it, and each worker with the server, also where that was killed.
`fork` of a process without threads is safe on Linux; elsewhere each worker is a fresh process.
"""

from __future__ import annotations

import os
import sys

from nocap.training.process import die_with_parent

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(int(os.environ["NOCAP_PARENT"]))

import gc
import json
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from nocap.launch.signals import shielded_child

AVAILABLE = sys.platform == "linux"
MESSAGE_BYTES = 1 << 16  # the most that a request or an answer has
# Set before the server's imports: a library that starts threads as it is imported could not be forked. A
# worker sets its own number of threads for torch.
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# --- the side of the command --------------------------------------------------------------------------------


class Server:
    """Starts workers by `start`. It begins with the first of them, and again where it was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}
        self._workers: dict[int, Worker] = {}  # that have not ended

    def start(self, run_dir: Path, *, env: Mapping[str, str], told: int, log: int) -> Worker:
        """Fork a worker of the run in this folder. `env`: its environment; `told`: the file in which it says
        why it failed; `log`: its stderr.

        Errors:
            OSError: the server has ended.
        """
        self._begin(env)
        assert self._socket is not None
        changed = {name: value for name, value in env.items() if self._env.get(name) != value}
        removed = [name for name in self._env if name not in env]
        asked = {"run_dir": str(run_dir), "set": changed, "unset": removed, "cwd": os.getcwd()}
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [told, log])
            while (pid := self._read(block=True)) is None:
                pass
        except OSError as error:
            self._lose()
            raise OSError("the server of workers has ended; the same command goes on") from error
        self._workers[pid] = Worker(pid, self)
        return self._workers[pid]

    def look(self) -> None:
        """Read how workers have ended. Those of a server that was killed have been killed with it."""
        try:
            while self._socket is not None and self._ready():
                self._read(block=False)
        except OSError:
            self._lose()

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a worker, unless it has ended."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(json.dumps({"signal": number, "pid": pid}).encode())

    def close(self) -> None:
        """End the server, and with it workers that still run."""
        if self._process is not None:
            self._lose()

    def _begin(self, env: Mapping[str, str]) -> None:
        self.look()
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = {**env, **QUIET, "NOCAP_PARENT": str(os.getpid())}
        command = [sys.executable, "-m", "nocap.launch.server", str(theirs.fileno())]
        nowhere = subprocess.DEVNULL
        with shielded_child(), theirs:
            self._process = subprocess.Popen(
                command, env=self._env, pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere
            )
        self._socket = ours

    def _ready(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock(), selectors.EVENT_READ)
            return bool(selector.select(timeout=0))

    def _sock(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _read(self, *, block: bool) -> int | None:
        """Read one message. Returns the pid of a worker that was forked."""
        content = self._sock().recv(MESSAGE_BYTES)
        if not content:
            raise OSError("the server's end was closed")
        message = json.loads(content)
        if "code" not in message:
            return int(message["pid"])
        if (worker := self._workers.pop(message["pid"], None)) is not None:
            worker.code = message["code"]
        return None

    def _lose(self) -> None:
        assert self._process is not None
        assert self._socket is not None
        self._process.kill()
        self._process.wait()
        self._socket.close()
        for worker in self._workers.values():
            worker.code = -signal.SIGKILL
        self._process = None
        self._socket = None
        self._workers = {}


class Worker:
    """A process that the server forked, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, server: Server) -> None:
        self.pid = pid
        self.code: int | None = None  # once it has ended; a killed one's is the signal's number below 0
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, once it has one."""
        if self.code is None:
            self._server.look()
        return self.code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            self._server.signal(self.pid, number)


# --- the server's process -----------------------------------------------------------------------------------


def serve(sock: socket.socket, work: Callable[[list[str]], NoReturn]) -> None:
    """Fork a worker for each request until the other side closes: `work` is what it does, with its command
    line."""
    # no worker copies a page of the imports because a collection of garbage has touched it
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        pids: dict[int, int] = {}  # by the file that tells their end
        while True:
            for key, _ in selector.select():
                if key.fileobj is sock:
                    content, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 2)
                    if not content:
                        return
                    asked = json.loads(content)
                    if "signal" in asked:
                        if asked["pid"] in pids.values():
                            os.kill(asked["pid"], asked["signal"])
                        continue
                    pid = _forked(asked, fds, work)
                    ends = os.pidfd_open(pid)
                    pids[ends] = pid
                    selector.register(ends, selectors.EVENT_READ)
                    sock.send(json.dumps({"pid": pid}).encode())
                else:
                    pid = pids.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(pid, 0)
                    sock.send(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _forked(asked: Mapping[str, Any], fds: list[int], work: Callable[[list[str]], NoReturn]) -> int:
    """Fork a worker, and return its pid. The worker itself does not return."""
    told, log = fds
    parent = os.getpid()
    if (pid := os.fork()) != 0:
        os.close(told)
        os.close(log)
        return pid
    try:
        die_with_parent(parent)
        os.dup2(log, 2)
        _close_all_but(0, 1, 2, told)
        os.chdir(asked["cwd"])
        for name in asked["unset"]:
            os.environ.pop(name, None)
        os.environ.update(asked["set"], NOCAP_PARENT=str(parent), NOCAP_FAILURES=str(told))
        work([asked["run_dir"]])
    finally:
        os._exit(1)  # never back into the server's loop


def _close_all_but(*kept: int) -> None:
    for fd in map(int, os.listdir("/dev/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(fd)


def main() -> None:
    """Import what a worker needs, then serve."""
    import torch._dynamo  # noqa: F401  # as torch's optimizers do

    from nocap.launch import worker

    def work(words: list[str]) -> NoReturn:
        sys.argv = [sys.argv[0], *words]
        worker.begin()

    serve(socket.socket(fileno=int(sys.argv[1])), work)


if __name__ == "__main__":
    main()
