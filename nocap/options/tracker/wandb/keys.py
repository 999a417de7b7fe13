"""The keys of the Weights & Biases tracker, and what they refuse before anything is trained."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar
from urllib.parse import urlsplit

from nocap.config.keys import key, require
from nocap.options.tracker import Tracker
from nocap.options.tracker.wandb.login import NEEDS_KEY
from nocap.options.tracker.wandb.names import LONGEST_NAME, LONGEST_TAG

SHORTEST_KEY = 40  # characters
IDENTITY_TOKEN = "WANDB_IDENTITY_TOKEN_FILE"
# set by the process that starts a grid: its runs do not ask again
UNREACHABLE = "NOCAP_WANDB_UNREACHABLE"


class WandbMode(Enum):
    auto = "auto"  # online with a login, else offline
    online = "online"
    offline = "offline"
    disabled = "disabled"  # no mirror


@dataclass(kw_only=True, slots=True)
class WandbKeys(Tracker):
    """What a mirror in Weights & Biases is called, where it goes, and what it holds."""

    uploads: ClassVar[bool] = True
    # the second is what `wandb.init` imports; without it there, that takes longer and nothing else
    imports: ClassVar[tuple[str, ...]] = ("wandb", "wandb.sdk.launch.inputs.internal")
    # Texts as a server takes them: for a project W&B's client has the limit, as for tags; for the
    # others it has none, and 128 is what a page shows.

    # project that shows the run; the default is WANDB_PROJECT, or nocap
    project: str = key(longest=LONGEST_NAME)
    # user or team; the default is WANDB_ENTITY, or null for the login's own
    entity: str | None = key(longest=LONGEST_NAME)
    # group of the run; the default is WANDB_RUN_GROUP, or null for the grid's name
    group: str | None = key(longest=LONGEST_NAME)
    # name of the run; null: WANDB_NAME, or the settings in which the run differs
    name: str | None = key(longest=LONGEST_NAME, default=None)
    # job type of the run; null: WANDB_JOB_TYPE, or the run's arm
    job_type: str | None = key(longest=LONGEST_NAME, default=None)
    # text on the run's page; null: WANDB_NOTES
    notes: str | None = key(free=True, default=None)
    # labels of the run; WANDB_TAGS sets them too
    tags: list[str] = key(longest=LONGEST_TAG, default_factory=list)
    mode: WandbMode  # whether nocap sends rows while the run trains; WANDB_MODE sets it too
    init_timeout_s: int = key(ge=1, le=300)  # longest wait for the server at the start, in seconds
    # send the machine's own metrics, such as a GPU's load; null: only on a GPU
    system: bool | None = None
    # a loss; the summary has the step of the first validation at or below it
    target: float | None = key(gt=0, le=1e3, default=None)
    checkpoint: bool = False  # send the last checkpoint as an artifact
    alert: bool = False  # let W&B send an alert if the run diverges

    def __post_init__(self) -> None:
        fits = self.project and not re.search(r"[/\\#?%:]", self.project)
        require(
            bool(fits),
            "tracker.project",
            r"be a non-empty name without / \ # ? % or :",
            repr(self.project),
        )
        require(
            "" not in self.tags,
            "tracker.tags",
            "be texts of at least one character",
            "an empty text",
        )

    def check_start(self) -> None:
        """Refuse what W&B's client would not take, while nothing has been trained."""
        if self.mode in (WandbMode.offline, WandbMode.disabled):
            return
        token = os.environ.get(IDENTITY_TOKEN)
        require(not token, IDENTITY_TOKEN, NEEDS_KEY, token)
        secret = os.environ.get("WANDB_API_KEY", "").strip()
        rule = f"have at least {SHORTEST_KEY} characters"
        require(len(secret) >= SHORTEST_KEY or not secret, "WANDB_API_KEY", rule, f"{len(secret)}")
        url = os.environ.get("WANDB_BASE_URL", "")
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        rule = "be a server's address, such as https://api.wandb.ai"
        require(is_address or not url, "WANDB_BASE_URL", rule, url)

    def may_send(self) -> bool:
        """Say whether rows may go to a server: the mode lets them, and it answered the grid."""
        return self.mode in (WandbMode.auto, WandbMode.online) and UNREACHABLE not in os.environ

    def needs_login(self) -> bool:
        """Say whether a run that is offline for want of a login is worth a warning."""
        return self.mode is WandbMode.online
