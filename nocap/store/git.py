"""The commit that nocap runs from, and what was changed since."""

from __future__ import annotations

import hashlib
import subprocess

from nocap.config.paths import PACKAGE


def uncommitted() -> tuple[str, bytes] | None:
    """The commit of the checkout that nocap runs from, and the diff of its code since; `None` without one."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        commit, diff = (
            subprocess.run(["git", "-C", str(PACKAGE.parent), *command], capture_output=True, check=True, timeout=10).stdout
            for command in (["rev-parse", "HEAD"], ["diff", "HEAD", "--", "nocap", "conf"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.decode().strip(), diff


def git_state() -> dict[str, str | None] | None:
    """What a record says of it: the commit, and the SHA-256 of the diff, null where nothing was changed. A
    diff may hold any secret: it is not stored unless asked for (`store.diff`)."""
    commit, diff = uncommitted() or ("", b"")
    digest = hashlib.sha256(diff).hexdigest() if diff else None
    return {"commit": commit, "diff_sha256": digest} if commit else None
