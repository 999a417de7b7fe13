"""gloo's sockets ask nobody who he is: once the ranks are connected, nobody else is, and nobody can be."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def close_listeners() -> None:
    """Close the sockets on which this process waits for connections."""
    with open(os.devnull) as null:
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:  # it is no socket
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    os.dup2(null.fileno(), fd)  # the number stays taken: gloo believes that it has it


def strangers() -> set[int]:
    """The other users of this machine who hold the other end of a connection of this process. Linux only: none elsewhere."""
    files = [path for name in ("tcp", "tcp6") if (path := Path("/proc/net", name)).exists()]
    rows = [line.split() for path in files for line in path.read_text().splitlines()[1:]]
    owners = {(local, remote): int(owner) for _, local, remote, _, _, _, _, owner, *_ in rows}
    mine = set()
    for fd in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one of the listing
            mine.add(os.readlink(f"/dev/fd/{fd}"))
    ends = [(row[2], row[1]) for row in rows if f"socket:[{row[9]}]" in mine]
    return {owners[end] for end in ends if end in owners} - {os.geteuid()}
