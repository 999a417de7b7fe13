"""The clock ledger: where the wall-clock time went, and the CPU time of this process. One line is
open at any time, so the lines sum to the wall by construction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nocap.row_keys import LINES, WALL


class Ledger:
    """Seconds by line, over all attempts of a run.

    `started` is the attempt's first moment by `time.monotonic()`, a clock that parent and worker
    share. A resumed run begins with the lines of its checkpoint, `before`. What earlier attempts
    spent since then is lost, and goes to `other`. CPU time is of all threads of this process.
    """

    def __init__(
        self, *, started: float, before: Mapping[str, float] | None = None, lost_s: float = 0.0
    ) -> None:
        self._seconds = dict.fromkeys(LINES, 0.0) | dict(before or {})
        self._seconds["other"] += lost_s
        self._cpu_seconds = dict.fromkeys(LINES, 0.0)
        self._line = "startup"
        self._since = started
        self._cpu_since = 0.0

    def _switch(self, line: str) -> str:
        now = time.monotonic()
        cpu_now = time.process_time()
        previous = self._line
        self._seconds[previous] += now - self._since
        self._cpu_seconds[previous] += cpu_now - self._cpu_since
        self._line = line
        self._since = now
        self._cpu_since = cpu_now
        return previous

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        """Time inside the block goes to `line`; blocks nest, and the inner one counts."""
        previous = self._switch(line)
        try:
            yield
        finally:
            self._switch(previous)

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Take seconds from a line, and put them into another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def started_up(self) -> None:
        """End the start-up: what no line claims from here on is `other`."""
        self._switch("other")

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all lines, and `WALL`, their sum."""
        self._switch(self._line)
        return {**self._seconds, WALL: sum(self._seconds.values())}

    def cpu_seconds(self) -> dict[str, float]:
        """Return this attempt's CPU time, by line."""
        self._switch(self._line)
        return dict(self._cpu_seconds)
