"""The process that workers are forked from, started by `nocap.launch.fork_server`.

It has imported torch, nocap and the tracker's library, and nothing else: it has no thread, no CUDA,
and has drawn no random number.
"""

from __future__ import annotations

import os

from nocap.launch import environment
from nocap.launch.process import die_with_parent, rename

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(environment.parent())

import gc
import importlib
import json
import selectors
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from nocap.launch.fork_server import MESSAGE_BYTES, ForkReply, ForkRequest

FAILURE_LENGTH = 1000  # characters that say why it could not begin


def serve(sock: socket.socket) -> None:
    """Fork a worker for each request, and say how each ended, until the other side closes."""
    # no worker copies a page of the imports because a collection of garbage has touched it
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not sock:  # a worker has ended
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(key.data, 0)
                    code = os.waitstatus_to_exitcode(status)
                    sock.send(ForkReply(pid=key.data, code=code).packed())
                    continue
                content, files, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 2)
                if not content:
                    return
                pid = fork_worker(ForkRequest(**json.loads(content)), *files)
                pidfd = os.pidfd_open(pid)
                selector.register(pidfd, selectors.EVENT_READ, data=pid)
                socket.send_fds(sock, [ForkReply(pid=pid).packed()], [pidfd])


def fork_worker(request: ForkRequest, failure_fd: int, log: int) -> int:
    """Fork a worker, and return its pid. In the worker itself this does not return."""
    server = os.getpid()
    pid = os.fork()
    if pid != 0:  # the server itself
        os.close(failure_fd)
        os.close(log)
        return pid
    code = 1
    try:
        die_with_parent(server)
        os.dup2(log, 2)
        _close_all_but(0, 1, 2, failure_fd)
        _work(request, failure_fd, server)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # never back into the server's loop


def _work(request: ForkRequest, failure_fd: int, server: int) -> NoReturn:
    """Be the worker that was asked for."""
    from nocap.launch import worker  # imported by `main`

    os.chdir(request.cwd)
    if request.cores:  # before it has threads, which take over its cores
        os.sched_setaffinity(0, request.cores)
    for name in request.removed:
        os.environ.pop(name, None)
    os.environ.update(request.changed)
    os.environ[environment.PARENT] = str(server)
    os.environ[environment.FAILURES] = str(failure_fd)
    name = "nocap worker"
    if "RANK" in os.environ:
        name = f"nocap rank {os.environ['RANK']}"
    rename(name)
    sys.argv = [sys.argv[0], request.run_dir]
    worker.begin()


def _close_all_but(*needed: int) -> None:
    for fd in map(int, os.listdir("/dev/fd")):
        if fd not in needed:
            with suppress(OSError):  # that of the listing itself
                os.close(fd)


def main() -> None:
    """Import what a worker needs, say so, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch._dynamo  # as torch's optimizers do  # noqa: F401

        import nocap.launch.worker  # noqa: F401
    except Exception as error:  # of whatever is installed
        sock.send(ForkReply(failed=f"{type(error).__name__}: {error}"[:FAILURE_LENGTH]).packed())
        sys.exit(1)
    for name in sys.argv[2:]:
        with suppress(Exception):  # a worker that needs it says why it does not work
            importlib.import_module(name)
    sock.send(ForkReply().packed())
    serve(sock)


if __name__ == "__main__":
    main()
