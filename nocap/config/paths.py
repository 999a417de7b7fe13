"""Where things lie: the configuration tree and the cache, from a checkout and from an installed wheel alike."""

from __future__ import annotations

import os
from pathlib import Path

from nocap.config.keys import check_text, require

PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The folder of Hydra groups: inside an installed package, or at the top of a checkout."""
    installed, checkout = PACKAGE / "conf", PACKAGE.parent / "conf"
    return installed if installed.is_dir() else checkout


def expanded(path: str | Path) -> Path:
    """The path with its ~ or ~user replaced.

    Errors:
        ValueError: there is no such home folder, or no file can have such a name.
    """
    check_text("a path", str(path))
    try:
        found = Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} must begin with a user's home folder, and there is none") from None
    require(all(len(os.fsencode(part)) <= 255 for part in found.parts), "a path", "have names of at most 255 bytes", path)
    return found


def cache_root(configured: str | None = None) -> Path:
    """The cache: the config's `cache_dir`, else `$NOCAP_CACHE`, else `nocap` in the user's cache folder.

    Errors:
        ValueError: there is no such folder, and it cannot be made.
    """
    configured = configured or os.environ.get("NOCAP_CACHE")
    try:
        found = expanded(configured or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nocap").absolute()
    except ValueError as error:
        raise ValueError(f"{_CACHE}: {error}") from None
    there = next(part for part in (found, *found.parents) if part.exists())
    if not there.is_dir() or (there != found and not os.access(there, os.W_OK | os.X_OK)):
        raise ValueError(f"{_CACHE}, got {found}, which cannot be made in {there}")
    return found


_CACHE = "the environment variable NOCAP_CACHE, or cache_dir, must name a folder for prepared data"
