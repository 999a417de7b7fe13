"""How a run ended, as the processes that started it tell each other. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nocap.store.record_files import RunStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a run ended, or that it did not."""

    status: RunStatus
    reason: str | None = None  # why it did not end well
    summary: dict[str, Any] = field(default_factory=dict)  # of its record, where it has one
    trained: bool = False  # by this process, now
    signals: tuple[int, ...] = ()  # the requests to stop that came
    taken_over: bool = False  # while this process did not run: another one trains it

    @classmethod
    def of(cls, summary: dict[str, Any], *, trained: bool = False) -> RunResult:
        """Return how the run of this summary ended.

        Errors:
            ValueError: the summary has no status that nocap writes.
        """
        status = RunStatus(summary["status"])
        reason = summary.get("error")
        return cls(status=status, reason=reason, summary=summary, trained=trained)

    @classmethod
    def elsewhere(cls, reason: str) -> RunResult:
        """Return that a run goes on elsewhere, when this process leaves."""
        return cls(status=RunStatus.waiting, reason=reason, trained=True)
