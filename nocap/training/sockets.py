"""gloo's sockets ask nobody who he is: once the ranks are connected, nobody else can be."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def close_listeners() -> None:
    """Close the sockets on which this process waits for connections."""
    with open(os.devnull) as null:
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:  # it is no socket
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    os.dup2(null.fileno(), fd)  # the number stays taken: gloo believes that it has it
