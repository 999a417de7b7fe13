"""The process that workers are forked from, started by `nocap.launch.server`.

It has imported torch, nocap and the tracker's library, and nothing else: it has no thread, no CUDA, and has
drawn no random number.
"""

from __future__ import annotations

import os

from nocap.training.process import die_with_parent, rename

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(int(os.environ["NOCAP_PARENT"]))

import gc
import importlib
import json
import selectors
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from nocap.launch.server import MESSAGE_BYTES

FAILURE_LENGTH = 1000  # characters that say why it could not begin


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
    code = 1
    try:
        die_with_parent(parent)
        os.dup2(log, 2)
        _close_all_but(0, 1, 2, told)
        os.chdir(asked["cwd"])
        if asked["cores"]:  # before it has threads, which take over its cores
            os.sched_setaffinity(0, asked["cores"])
        for name in asked["unset"]:
            os.environ.pop(name, None)
        os.environ.update(asked["set"], NOCAP_PARENT=str(parent), NOCAP_FAILURES=str(told))
        rename(f"nocap rank {os.environ['RANK']}" if "RANK" in os.environ else "nocap worker")
        work([asked["run_dir"]])
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # never back into the server's loop


def _close_all_but(*kept: int) -> None:
    for fd in map(int, os.listdir("/dev/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(fd)


def main() -> None:
    """Import what a worker needs, say so, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        import torch._dynamo  # noqa: F401  # as torch's optimizers do

        from nocap.launch import worker
    except Exception as error:  # of whatever is installed
        sock.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:FAILURE_LENGTH]}).encode())
        sys.exit(1)
    for name in sys.argv[2:]:
        with suppress(Exception):  # a worker that needs it says why it does not work
            importlib.import_module(name)

    def work(words: list[str]) -> NoReturn:
        sys.argv = [sys.argv[0], *words]
        worker.begin()

    sock.send(json.dumps({}).encode())
    serve(sock, work)


if __name__ == "__main__":
    main()
