"""The file of a session: what was asked for, and the figures of each arm. No torch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec

from nocap.config.hardware import Fact
from nocap.config.keys import require
from nocap.sessions.figures import Figures
from nocap.sessions.places import PLACES
from nocap.store.record_files import read_json


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be held."""

    kind: str  # what the worker does: that of its place
    place: str  # a key of `PLACES`
    key: str  # the same where another session would measure the same
    number: int  # of the repetition, from 1
    how: dict[str, object]  # arguments of the kind, such as the number of rounds
    started: str
    arms: dict[str, list[str]]  # overrides


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures by arm, as JSON has them; null: an arm has none."""

    arms: dict[str, dict[str, object] | None]


class SessionFile(SessionRequest, frozen=True, kw_only=True, dict=True):
    """A session that has ended."""

    ended: str
    hardware: dict[str, Fact] = {}
    measured: _Measured

    @property
    def machine(self) -> str:
        """Return the fingerprint; empty: it is not known."""
        return str(self.hardware.get("fingerprint") or "")

    @property
    def on_cuda(self) -> bool:
        return self.hardware.get("device") == "cuda"

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """Return the figures of each arm that has some."""
        kind = PLACES[self.place].figures
        known = {name: row for name, row in self.measured.arms.items() if row is not None}
        return {name: msgspec.convert(row, kind) for name, row in known.items()}


def read_session(path: Path) -> SessionFile | None:
    """Return a session's file; `None`: it is not there.

    Errors:
        ValueError: it is damaged.
    """
    content = read_json(path)
    if content is None:
        return None
    try:
        file = msgspec.convert(content, SessionFile)
        require(
            bool(file.figures),
            str(path),
            "hold the measurements of at least one arm (to measure again, delete the file)",
            "none",
        )
        return file
    except (KeyError, msgspec.ValidationError) as error:
        raise ValueError(
            f"{path} must hold measurements that nocap wrote (to measure again, delete the "
            f"file), got other content ({error})"
        ) from error
