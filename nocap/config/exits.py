"""How a process ends: the exit codes of commands and workers."""

from __future__ import annotations

EXIT_CODES = {"finished": 0, "failed": 1, "diverged": 1, "refused": 2, "preempted": 75}
