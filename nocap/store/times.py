"""Write and read times as records have them: ISO 8601."""

from __future__ import annotations

from datetime import datetime


def now() -> str:
    """Return the time to the second, as records have their start."""
    local = datetime.now().astimezone()
    return local.isoformat(timespec="seconds")


def moment(text: str) -> float | None:
    """Read a time of ISO 8601 as seconds since the epoch, so that times of two zones are in their
    order.

    One without a zone is of this machine's. None: the text is no time.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (OverflowError, ValueError):
        return None
