"""Where things lie: the configuration tree and the cache, from a checkout and from an installed wheel alike."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The folder of Hydra groups: inside an installed package, or at the top of a checkout."""
    installed, checkout = PACKAGE / "conf", PACKAGE.parent / "conf"
    return installed if installed.is_dir() else checkout


def cache_root(configured: str | None = None) -> Path:
    """The cache: the config's `cache_dir`, else `$NOCAP_CACHE`, else `nocap` in the user's cache folder."""
    if configured or (configured := os.environ.get("NOCAP_CACHE")):
        return Path(configured).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "nocap"
