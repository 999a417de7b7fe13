"""An attempt at a run, as `manifest.json` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEntry:
    """What the manifest says of an attempt, but for the machine and the seeds of its command."""

    started: str | None
    host: str | None
    spent_s: float  # what the run had taken before
    grid: str | None  # that started it
    swept: tuple[str, ...]  # the groups and keys that set the run apart from those beside it

    @property
    def is_cell(self) -> bool:
        """Say whether the run was trained as a cell of a grid."""
        return self.grid is not None


def attempts_in(manifest: Mapping[str, Any]) -> list[AttemptEntry]:
    """Return the attempts of a run, the last one last."""
    attempts = list[AttemptEntry]()
    for entry in manifest["attempts"]:
        attempt = AttemptEntry(
            started=entry.get("started"),
            host=entry.get("host"),
            spent_s=entry.get("spent_s") or 0.0,
            grid=entry.get("grid"),
            swept=tuple(entry.get("swept") or ()),
        )
        attempts.append(attempt)
    return attempts
