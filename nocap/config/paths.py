"""Where things lie: the configuration tree and the cache, from a checkout and from an installed
wheel alike."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from nocap.config.keys import check_text, require

PACKAGE = Path(__file__).resolve().parents[1]
STDOUT = Path("-")  # as a command's --json names it


def conf_dir() -> Path:
    """Return the folder of Hydra groups: inside an installed package, or at the top of a
    checkout."""
    installed = PACKAGE / "conf"
    if installed.is_dir():
        return installed
    return PACKAGE.parent / "conf"


def expanded(path: str | Path) -> Path:
    """Return the path with its ~ or ~user replaced.

    Errors:
        ValueError: there is no such home folder, or no file can have such a name.
    """
    require(path != "", "a path", "not be empty", "''")
    check_text("a path", str(path))
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} begins with a home folder (~) that does not exist") from None


def cache_root(configured: str | None = None) -> Path:
    """Return the cache: the config's `cache_dir`, else `$NOCAP_CACHE`, else `nocap` in the user's
    cache folder. Who writes there makes it.

    Errors:
        ValueError: there is no such folder, as for a user without a home.
    """
    configured = configured or os.environ.get("NOCAP_CACHE")
    try:
        if configured:
            return expanded(configured).absolute()
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        return expanded(caches / "nocap").absolute()
    except ValueError as error:
        raise ValueError(
            "the environment variable NOCAP_CACHE, or the key cache_dir, must name a folder for "
            f"prepared data: {error}"
        ) from None


def private_caches() -> dict[str, str]:
    """Have what torch.compile keeps, and runs when it finds it again, in a folder of the cache
    where no other user can write. torch's own place is the folder for temporary files. What the
    user has set stays. Return the variables of the environment that say so.

    Errors:
        ValueError: the folder is another user's, or others can write in it.
        OSError: it cannot be made.
    """
    folder = cache_root() / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()  # a link's own mode is 777
    mode = status.st_mode & 0o777
    others_can_write = bool(mode & 0o022)
    is_private = status.st_uid == os.getuid() and not others_can_write
    key = f"{folder}, which holds code that nocap runs,"
    rule = "be a folder that you own, and that nobody else can write to (or set NOCAP_CACHE)"
    require(is_private, key, rule, f"mode {mode:o} and user {status.st_uid}")
    own = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        HEADERS: "apart",
    }
    torchs_own = f"{tempfile.gettempdir()}/torchinductor_"
    for name in own:
        value = os.environ.get(name)
        # torch sets its own place, too, when it is asked for it
        if value and not value.startswith(torchs_own):
            own[name] = value
    os.environ.update(own)
    return own


# torch precompiles C++ headers in the folder for temporary files, wherever its cache is, unless
# this is 0 or any word but 1: then it does not, and nocap.model.compiled has them in the cache.
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def shown(path: Path) -> str:
    """Return a path as one types it here."""
    if path.absolute().is_relative_to(Path.cwd()):
        return os.path.relpath(path)
    return str(path)
