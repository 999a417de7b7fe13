"""What carries a grid's cells out, here or on a cluster: its interface, which the launcher options
build on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:  # `--help` reads the launchers' keys, and starts in half a second
    from nocap.config.run import Run
    from nocap.launch.grid import Cell
    from nocap.launch.run_result import RunResult


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job on another machine: the record says how its run ended."""

    reason: str  # why there is no record, where there is none


class Work(Protocol):
    """What an executor has begun."""

    def poll(self) -> RunResult | JobEnd | None:
        """Return how it ended, once it has.

        Errors:
            OSError, ValueError: its record cannot be read.
        """

    def stop(self) -> None:
        """Ask it, once or again, to save and end."""


# what a person reads after Ctrl-C
GOES_ON = "stopped and saved; to continue, type the same command again"


class Executor:
    """Where cells run; what is written here is a cluster's."""

    event: ClassVar[str] = "sent"  # what is said of a cell that it has begun
    is_here: ClassVar[bool] = False  # cells run on this machine, where a bar names them
    goes_on: ClassVar[str] = GOES_ON  # what is said once nothing more is waited for
    poll_s: ClassVar[float] = 0.5

    def describe(self, runs: Sequence[Run]) -> str | None:
        """Return a line for the user about these runs, printed before the first of them."""
        return None

    def submit(self, cell: Cell) -> Work | RunResult | None:
        """Begin a cell, unless it has ended already. None: there is no room.

        Errors:
            HeldError: another process trains it.
            OSError, ValueError: it cannot begin.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will be submitted."""


def last_words(printed: str | None) -> str | None:
    """Return the last line in which a job says what is wrong."""
    lines = re.findall(r"^nocap: (.*)", printed or "", re.MULTILINE)
    return str(lines[-1]) if lines else None
