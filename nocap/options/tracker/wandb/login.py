"""W&B's own client: find its login, and end its process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from nocap.config.keys import require

NEEDS_KEY = (
    "be unset, because nocap reads rows from W&B with an API key (set WANDB_API_KEY, or type "
    "wandb login)"
)
SERVICE = "WANDB_SERVICE"  # has the address of wandb's own process, which children would share


def may_have_login() -> bool:
    """Say whether it is worth importing wandb to look for a login."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    home = Path.home()
    netrc = os.environ.get("NETRC") or home / ".netrc"
    return os.path.exists(netrc) or os.path.exists(home / "_netrc")


def login(*, online: bool) -> Any:
    """Return wandb's settings with its login; None: there is no login, or it is not asked for.

    Errors:
        ValueError: the login has no API key.
    """
    import wandb

    # Each process has a service of its own: one that it shared would end with the process that
    # began it.
    os.environ.pop(SERVICE, None)
    # Silent before the login: a login that may print asks the server for the user's name, 5 s
    # without a network. `online` only lets it look for credentials where `WANDB_MODE` says offline
    # and the config says online.
    mode: Any = "online" if online else "offline"
    setup = wandb.setup(settings=wandb.Settings(silent=True, mode=mode))
    os.environ.pop(SERVICE, None)
    if not online or not wandb.login(prompt=False, verify=False):
        return None
    require(bool(setup.settings.api_key), "an identity token of W&B", NEEDS_KEY, "one")
    return setup.settings


def teardown() -> None:
    """End wandb's own process. Where that has failed, wandb would end this process as well."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()
