"""The variables of the environment by which a process tells those that it starts what only it
knows."""

from __future__ import annotations

import os

PARENT = "NOCAP_PARENT"  # the process with which this one ends
STARTED = "NOCAP_STARTED"  # time.monotonic() of the attempt's first moment
STAGE = "NOCAP_STAGE"  # the folder of the lease in which the record's files are prepared
FAILURES = "NOCAP_FAILURES"  # the pipe into which a worker writes why it failed
STORE = "NOCAP_STORE"  # the file in which the ranks of an attempt find each other


def parent() -> int:
    """Return the process with which this one ends."""
    return int(os.environ[PARENT])
