"""The git checkout that nocap runs from: its commit, and what was changed since."""

from __future__ import annotations

import hashlib
import subprocess

from nocap.config.paths import PACKAGE

CHECKOUT = PACKAGE.parent


def uncommitted() -> tuple[str, bytes] | None:
    """Return the commit of the checkout that nocap runs from, and the diff of its code since;
    `None` without one."""
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        diff = _git("diff", "HEAD", "--", "nocap", "conf")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.decode().strip(), diff


def _git(*arguments: str) -> bytes:
    """Return what git prints about the checkout.

    Errors:
        OSError, SubprocessError: there is no git, or it fails.
    """
    command = ["git", "-C", str(CHECKOUT), *arguments]
    process = subprocess.run(command, capture_output=True, check=True, timeout=10)
    return process.stdout


def git_state() -> dict[str, str | None] | None:
    """Return what a record says of it: the commit, and the SHA-256 of the diff, null where nothing
    was changed. A diff may hold any secret: it is not stored unless asked for (`store.diff`)."""
    changes = uncommitted()
    if changes is None:
        return None
    commit, diff = changes
    if not commit:
        return None
    diff_sha256: str | None = None
    if diff:
        diff_sha256 = hashlib.sha256(diff).hexdigest()
    return {"commit": commit, "diff_sha256": diff_sha256}
