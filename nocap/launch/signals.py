"""Requests to stop. A parent handles them and passes each on once. A worker gets them from its
parent only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# SIGUSR2 is Slurm's warning as submitit sends it
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)
# what a terminal or Slurm sends to all processes of a job
_TO_ALL = (signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)


def catch_stops(handler: Callable[[int], None]) -> dict[signal.Signals, Any]:
    """Call `handler` with a signal's number at each request to stop from now on. Return the
    handlers before. Main thread only.

    A SIGHUP that is ignored stays so: that is what nohup asks for.
    """
    caught = [
        number
        for number in _STOPS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    return {
        number: signal.signal(number, lambda number, frame: handler(number)) for number in caught
    }


@contextmanager
def stop_handler(handler: Callable[[int], None]) -> Iterator[None]:
    """`catch_stops` inside the block. After a request, more of them are ignored: they must not
    change the exit code of what now ends."""
    came = list[int]()

    def stop(number: int) -> None:
        came.append(number)
        handler(number)

    before = catch_stops(stop)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(
                number,
                signal.SIG_IGN
                if came and old in (signal.SIG_DFL, signal.default_int_handler)
                else old,
            )


@contextmanager
def shielded_child() -> Iterator[None]:
    """Shield a process that is started in this block: it gets a request to stop only as its
    parent's SIGTERM. The parent's own wait for the block's end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _TO_ALL}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL)


class StopNow(BaseException):
    """Raised where a request to stop comes while nothing would be lost."""


class Stops:
    """Whether a worker was asked to stop. In the block of `at_once` that raises `StopNow`,
    elsewhere the step in progress ends first."""

    def __init__(self) -> None:
        self.asked = self._at_once = False

    def came(self, number: int) -> None:
        self.asked = True
        if self._at_once:
            self._at_once = False
            raise StopNow

    @contextmanager
    def at_once(self) -> Iterator[None]:
        try:
            self._at_once = True
            if self.asked:
                raise StopNow
            yield
        finally:
            self._at_once = False


def unblock() -> None:
    """Unblock signals in the shielded child, which inherits blocked ones. Those that came until now
    are dropped."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL)
