"""Another user of the machine, who sends what he likes to the sockets on which a run listens."""

from __future__ import annotations

import base64
import encodings.idna  # noqa: F401  # of a host name: the other user may not be able to read this Python
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.attempts import processes

NOBODY = 65534
PING = b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + b"echo"  # what torch's TCPStore answers with `echo`


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


def listening(run_dir: Path) -> set[tuple[str, int]]:
    """Addresses, as /proc/net/tcp writes them, and ports on which the run's processes listen."""
    inodes = set()
    for pid in processes(run_dir):
        with suppress(OSError):  # it ended while we looked
            inodes |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for line in (line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]):
        if line[3] == "0A" and f"socket:[{line[9]}]" in inodes:
            address, _, port = line[1].rpartition(":")
            found.add((address, int(port, 16)))
    return found


def messages(key: str, payload: bytes) -> Iterator[bytes]:
    """TCPStore's rendezvous key, pickles, gloo's greetings before a pickle, noise."""
    name, value = f"/torch.rendezvous.{key}".encode(), base64.b64encode(payload)
    written = struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(value)) + value
    yield PING[:5] + b"\x01" + written
    yield from (payload, bytes(64), b"\xff" * 4096)
    yield from (struct.pack("<q", number) + payload for number in range(-1, 8))


@contextmanager
def intruder(key: str, ports: set[int], mark: Path, heard: Path) -> Iterator[None]:
    """A process of another uid that has sent everything to these ports, and holds its connections until the block's end."""
    there, here = os.pipe()
    parts = [PING, *messages(key, pickle.dumps(Payload(mark)))]
    if (pid := os.fork()) == 0:
        with heard.open("wb", buffering=0) as file:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            connections = [connection for port in sorted(ports) for connection in attack(port, parts, file)]
            os.write(here, b"done")
            time.sleep(60 * bool(connections))
            os._exit(0)
    os.close(here)
    try:
        assert os.read(there, 4) == b"done"
        yield
    finally:
        os.close(there)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def attack(port: int, parts: list[bytes], heard: IO[bytes]) -> Iterator[socket.socket]:
    for part in parts:
        with suppress(OSError):
            connection = socket.create_connection(("localhost", port), timeout=1)
            connection.sendall(part)
            yield connection
            connection.settimeout(0.1)
            heard.write(connection.recv(64))
