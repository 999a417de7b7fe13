"""Start workers by a server that forks them.

An import of torch takes as long as some hundred steps of a small model. A command that trains several runs
pays for it once: the first worker takes seconds to begin, each later one some milliseconds. A worker is still
a process of its own.

The server (`nocap.launch.forker`) ends with the process that started it. Each worker ends with the server,
also where that was killed. Linux can fork a process without threads safely; elsewhere each worker is a fresh
process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nocap.launch.signals import shielded_child

AVAILABLE = sys.platform == "linux"
MESSAGE_BYTES = 1 << 16  # the most that a request or an answer has
# Set before the server's imports: a library that starts threads as it is imported could not be forked. A
# worker sets its own number of threads for torch.
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Server:
    """Starts workers by `start`. It begins with the first of them, and again where it was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}
        self._workers: dict[int, Worker] = {}  # that have not ended

    def start(
        self,
        run_dir: Path,
        *,
        env: Mapping[str, str],
        told: int,
        log: int,
        cores: Collection[int] = (),
        imports: Collection[str] = (),
    ) -> Worker:
        """Fork a worker of the run in this folder. `env`: its environment; `told`: the file in which it says
        why it failed; `log`: its stderr; `cores`: the CPU cores that it stays on, where it does not have all;
        `imports`: modules that it may need, for a server that begins now.

        Errors:
            OSError: the server was killed twice, or it cannot import what a worker needs.
        """
        try:
            return self._forked(env, run_dir, [told, log], cores, imports)
        except ConnectionError:  # it was killed, and begins again
            self._lose()
            return self._forked(env, run_dir, [told, log], cores, imports)

    def _forked(
        self,
        env: Mapping[str, str],
        run_dir: Path,
        files: Sequence[int],
        cores: Collection[int],
        imports: Collection[str],
    ) -> Worker:
        self._begin(env, imports)
        changed = {name: value for name, value in env.items() if self._env.get(name) != value}
        removed = [name for name in self._env if name not in env]
        asked = {
            "run_dir": str(run_dir),
            "set": changed,
            "unset": removed,
            "cwd": os.getcwd(),
            "cores": list(cores),
        }
        socket.send_fds(self._sock(), [json.dumps(asked).encode()], files)
        while (pid := self._read()) is None:
            pass
        self._workers[pid] = Worker(pid, self)
        return self._workers[pid]

    def look(self) -> None:
        """Read how workers have ended. Those of a server that was killed have been killed with it."""
        try:
            while self._socket is not None and self._ready():
                self._read()
        except ConnectionError:
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

    def _begin(self, env: Mapping[str, str], imports: Collection[str]) -> None:
        self.look()
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = {**env, **QUIET, "NOCAP_PARENT": str(os.getpid())}
        command = [sys.executable, "-m", "nocap.launch.forker", str(theirs.fileno()), *imports]
        nowhere = subprocess.DEVNULL
        with shielded_child(), theirs:
            self._process = subprocess.Popen(
                command, env=self._env, pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere
            )
        self._socket = ours
        self._read()  # that it has imported what it needs

    def _ready(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock(), selectors.EVENT_READ)
            return bool(selector.select(timeout=0))

    def _sock(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _read(self) -> int | None:
        """Read one message. Returns the pid of a worker that was forked.

        Errors:
            ConnectionError: the server was killed.
            OSError: it has ended, and said why.
        """
        content = self._sock().recv(MESSAGE_BYTES)
        if not content:
            raise ConnectionError("the server of workers was killed")
        message = json.loads(content)
        if "failed" in message:
            self._lose()
            raise OSError(f"the server of workers has ended: {message['failed']}")
        if "code" not in message:
            return message.get("pid")
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
