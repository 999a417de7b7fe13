"""Requests to stop: who hears them, and when. A parent hears them all and passes each on once; a worker hears its parent only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # SIGUSR2 is Slurm's warning as submitit sends it
_DEAF_TO = (signal.SIGINT, signal.SIGUSR2)  # what a terminal or Slurm sends to all processes of a job


@contextmanager
def heard(hear: Callable[[int], None]) -> Iterator[None]:
    """Inside the block a request to stop does nothing but call `hear`."""
    before = {number: signal.signal(number, lambda number, frame: hear(number)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def born_deaf() -> Iterator[None]:
    """A process started in this block hears of a request to stop only by the SIGTERM that its parent sends it.

    A request that comes meanwhile waits for the end of the block.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _DEAF_TO}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEAF_TO)


def unblock() -> None:
    """A process born in that block has its signals blocked as well. Those that came until now are dropped."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEAF_TO)
