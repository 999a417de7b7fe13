"""Requests to stop. A parent handles them and passes each on once. A worker gets them from its parent only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # SIGUSR2 is Slurm's warning as submitit sends it
_TO_ALL = (signal.SIGINT, signal.SIGUSR2)  # what a terminal or Slurm sends to all processes of a job


@contextmanager
def stop_handler(handler: Callable[[int], None]) -> Iterator[None]:
    """Inside the block a request to stop only calls `handler` with the signal's number. Main thread only."""
    before = {number: signal.signal(number, lambda number, frame: handler(number)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def shielded_child() -> Iterator[None]:
    """A process started in this block gets a request to stop only as its parent's SIGTERM. The parent's own wait for the block's end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _TO_ALL}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL)


def unblock() -> None:
    """For the shielded child: it inherits blocked signals. Those that came until now are dropped."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL)
