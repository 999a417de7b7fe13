"""The commit that nocap runs from, and what was changed since."""

from __future__ import annotations

import hashlib
import subprocess

from nocap.config.paths import PACKAGE

DIFF_BYTES = 256 * 1024  # of uncommitted changes, in a manifest


def git_state() -> dict[str, str] | None:
    """Commit and uncommitted changes of the checkout that nocap runs from; `None` for an installed package.

    Of a long diff its first lines, `DIFF_BYTES` of them, and the SHA-256 of all of it.
    """
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        commit, diff = (
            subprocess.run(["git", "-C", str(PACKAGE.parent), *command], capture_output=True, check=True, timeout=10).stdout
            for command in (["rev-parse", "HEAD"], ["diff", "HEAD", "--", "nocap", "conf"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.decode().strip(), "diff": _bounded(diff), "diff_sha256": hashlib.sha256(diff).hexdigest()}


def _bounded(diff: bytes) -> str:
    kept = diff if len(diff) <= DIFF_BYTES else diff[:DIFF_BYTES].rpartition(b"\n")[0] + b"\n"
    left_out = f"[{len(diff) - len(kept):,} bytes of this diff are left out]\n" if len(kept) < len(diff) else ""
    return kept.decode(errors="replace") + left_out
