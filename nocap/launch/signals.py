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
    caught = list[signal.Signals]()
    for number in _STOPS:
        is_ignored = signal.getsignal(number) == signal.SIG_IGN
        if number != signal.SIGHUP or not is_ignored:
            caught.append(number)
    before = dict[signal.Signals, Any]()
    for number in caught:
        before[number] = signal.signal(number, lambda number, frame: handler(number))
    return before


@contextmanager
def stop_handler(handler: Callable[[int], None]) -> Iterator[None]:
    """Catch requests to stop inside the block. After a request, more of them are ignored: they must
    not change the exit code of what now ends."""
    requests = list[int]()

    def stop(number: int) -> None:
        requests.append(number)
        handler(number)

    before = catch_stops(stop)
    try:
        yield
    finally:
        for number, old in before.items():
            is_default = old in (signal.SIG_DFL, signal.default_int_handler)
            if requests and is_default:
                old = signal.SIG_IGN
            signal.signal(number, old)


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
        self.requested = False
        self._at_once = False

    def request(self, number: int) -> None:
        """Note a request to stop.

        Errors:
            StopNow: it came in the block of `at_once`.
        """
        self.requested = True
        if self._at_once:
            self._at_once = False
            raise StopNow

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Stop at once inside the block.

        Errors:
            StopNow: there is a request to stop, or it comes.
        """
        try:
            self._at_once = True
            if self.requested:
                raise StopNow
            yield
        finally:
            self._at_once = False


def unblock() -> None:
    """Unblock signals in the shielded child, which inherits blocked ones. Those that came until now
    are dropped."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL)
