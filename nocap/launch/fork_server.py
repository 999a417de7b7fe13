"""Start workers by a server that forks them.

An import of torch takes as long as some hundred steps of a small model. A command that trains
several runs pays for it once: the first worker takes seconds to begin, each later one some
milliseconds. A worker is still a process of its own.

The server (`nocap.launch.forker`) ends with the process that started it. Each worker ends with the
server, also where that was killed. Linux can fork a process without threads safely; elsewhere each
worker is a fresh process.
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
from dataclasses import asdict, dataclass
from pathlib import Path

from nocap.launch import environment
from nocap.launch.signals import shielded_child

AVAILABLE = sys.platform == "linux"
MESSAGE_BYTES = 1 << 16  # the most that a message has
# Set before the server's imports: a library that starts threads as it is imported could not be
# forked. A worker sets its own number of threads for torch.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COMPILER = "torch._inductor.compile_fx"  # what a worker that compiles imports


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkRequest:
    """Asks for a worker. Two files go with it: the one in which the worker says why it failed, and
    its stderr."""

    run_dir: str
    cwd: str
    changed: Mapping[str, str]  # in the environment, against the server's
    removed: Sequence[str]  # from it
    cores: Sequence[int]  # that the worker stays on; none: it has all

    def packed(self) -> bytes:
        """Return the message."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkReply:
    """Says that a worker was forked, with its pidfd; that it ended, with its exit code; that the
    server has imported what it needs; or why it could not."""

    pid: int | None = None
    code: int | None = None  # a killed worker's is the signal's number below 0
    failed: str = ""

    def packed(self) -> bytes:
        """Return the message."""
        return json.dumps(asdict(self)).encode()


class ForkedProcess:
    """A process that the server forked, as `subprocess.Popen` shows one."""

    def __init__(self, server: ForkServer, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.code: int | None = None  # once it has ended
        self._server = server
        self._pidfd = pidfd  # means this process, also after another one got its number

    def poll(self) -> int | None:
        """Return the exit code, once it has one."""
        if self.code is None:
            self._server.look()
        return self.code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def end(self, code: int) -> None:
        """Note that it has ended."""
        self.code = code
        os.close(self._pidfd)


class ForkServer:
    """Starts workers by `start`. It begins with the first of them, and again where it was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}
        self._workers: dict[int, ForkedProcess] = {}  # that have not ended

    def start(
        self,
        run_dir: Path,
        *,
        env: Mapping[str, str],
        failure_fd: int,
        log: int,
        cores: Collection[int] = (),
        imports: Collection[str] = (),
    ) -> ForkedProcess:
        """Fork a worker of the run in this folder. `env`: its environment; `failure_fd`: the file
        in which it says why it failed; `log`: its stderr; `cores`: the CPU cores that it stays on,
        where it does not have all; `imports`: modules that it may need, for a server that begins
        now.

        Errors:
            OSError: the server was killed twice, or it cannot import what a worker needs.
        """
        try:
            return self._fork(run_dir, env, [failure_fd, log], cores, imports)
        except ConnectionError:  # it was killed, and begins again
            self._lose()
            return self._fork(run_dir, env, [failure_fd, log], cores, imports)

    def look(self) -> None:
        """Read which workers have ended. A server that was killed has taken its workers with it."""
        try:
            while self._socket is not None and self._ready(self._socket):
                self._read(self._socket)
        except ConnectionError:
            self._lose()

    def close(self) -> None:
        """End the server, and with it workers that still run."""
        if self._process is not None:
            self._lose()

    def _fork(
        self,
        run_dir: Path,
        env: Mapping[str, str],
        files: Sequence[int],
        cores: Collection[int],
        imports: Collection[str],
    ) -> ForkedProcess:
        self.look()
        sock = self._socket or self._begin(env, imports)
        request = ForkRequest(
            run_dir=str(run_dir),
            cwd=os.getcwd(),
            changed={name: value for name, value in env.items() if self._env.get(name) != value},
            removed=[name for name in self._env if name not in env],
            cores=list(cores),
        )
        socket.send_fds(sock, [request.packed()], files)
        while True:
            worker = self._read(sock)
            if worker is not None:
                return worker
            # another one has ended

    def _begin(self, env: Mapping[str, str], imports: Collection[str]) -> socket.socket:
        """Start the server, and wait until it has imported what it needs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = {**env, **ONE_THREAD, environment.PARENT: str(os.getpid())}
        command = [sys.executable, "-m", "nocap.launch.forker", str(theirs.fileno()), *imports]
        nowhere = subprocess.DEVNULL
        with shielded_child(), theirs:
            self._process = subprocess.Popen(
                command, env=self._env, pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere
            )
        self._socket = ours
        self._read(ours)
        return ours

    def _ready(self, sock: socket.socket) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return bool(selector.select(timeout=0))

    def _read(self, sock: socket.socket) -> ForkedProcess | None:
        """Read one answer. Returns the worker that was forked, if it tells of one.

        Errors:
            ConnectionError: the server was killed.
            OSError: it has ended, and said why.
        """
        content, files, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 1)
        if not content:
            raise ConnectionError("the process that starts the workers was killed")
        reply = ForkReply(**json.loads(content))
        if reply.failed:
            self._lose()
            raise OSError(f"the process that starts the workers failed: {reply.failed}")
        if reply.pid is None:
            return None
        if reply.code is not None:
            self._workers.pop(reply.pid).end(reply.code)
            return None
        worker = ForkedProcess(self, reply.pid, files[0])
        self._workers[reply.pid] = worker
        return worker

    def _lose(self) -> None:
        """Kill the server, and note that its workers have been killed with it."""
        assert self._process is not None
        assert self._socket is not None
        self._process.kill()
        self._process.wait()
        self._socket.close()
        for worker in self._workers.values():
            worker.end(-signal.SIGKILL)
        self._process = None
        self._socket = None
        self._workers = {}
