"""The mirror of the local record in Weights & Biases: every row of `metrics.jsonl`, each once.

A session sends rows from the step on that the server does not have, whoever opens it: training,
`nocap.runs sync`, or a grid at its end. What the server has at the end is asked. Training waits for
a server no longer than `tracker.init_timeout_s` at the start and some seconds at the end. wandb is
imported only when a mirror is opened.

This file has the option. Those beside it:

    login           W&B's own client: its login, and its process
    queries         what nocap asks the server itself
    mirror_place    where the mirror of a folder is: `mirror.json`
    names           what W&B calls curves, and how long a text may be
    open_run        open the W&B run that mirrors a record
    mirror_session  send rows, a comparison and the end of a run
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from nocap.config.errors import line_of
from nocap.config.keys import key, require
from nocap.options.tracker import NoLoginError, RunFacts, Tracker, TrackerSession
from nocap.options.tracker.wandb.login import NEEDS_KEY, login, may_have_login, teardown
from nocap.options.tracker.wandb.mirror_place import MirrorPlace, agents_id
from nocap.options.tracker.wandb.mirror_session import warn
from nocap.options.tracker.wandb.names import LONGEST_NAME, LONGEST_TAG, cut
from nocap.options.tracker.wandb.open_run import open_online, open_session
from nocap.options.tracker.wandb.queries import VIEWER, ask

SHORTEST_KEY = 40  # characters
IDENTITY_TOKEN = "WANDB_IDENTITY_TOKEN_FILE"
# set by the process that starts a grid: its runs do not ask again
UNREACHABLE = "NOCAP_WANDB_UNREACHABLE"

# wandb's error telemetry goes to the same server: on one that accepts and never answers, it held
# the process for 20 s at exit. Read when wandb is imported.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


class WandbMode(Enum):
    auto = "auto"  # online with a login, else offline
    online = "online"
    offline = "offline"
    disabled = "disabled"  # no mirror


@dataclass(kw_only=True, slots=True)
class Wandb(Tracker):
    """Weights & Biases."""

    kind: str = "wandb"
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
        require(bool(fits), "tracker.project", r"be a name without / \ # ? % :", repr(self.project))
        require("" not in self.tags, "tracker.tags", "be texts", "an empty one")

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
        rule = "be a server's address, as https://api.wandb.ai"
        require(is_address or not url, "WANDB_BASE_URL", rule, url)

    def may_send(self) -> bool:
        """Say whether rows may go to a server: the mode lets them, and it answered the grid."""
        return self.mode in (WandbMode.auto, WandbMode.online) and UNREACHABLE not in os.environ

    def needs_login(self) -> bool:
        """Say whether a run that is offline for want of a login is worth a warning."""
        return self.mode is WandbMode.online

    def begin_grid(self, group: str) -> str | None:
        os.environ.pop(UNREACHABLE, None)
        if not (self.may_send() and may_have_login()):
            return None
        try:
            settings = login(online=True)
            if settings is None:
                return None
            viewer = ask(settings, VIEWER, {}, timeout_s=self.init_timeout_s).get("viewer") or {}
        except Exception as error:  # whatever its client raises
            os.environ[UNREACHABLE] = "1"
            return f"offline: W&B does not answer: {line_of(error)}"
        entity = self.entity or viewer.get("entity")
        shown_as = cut(self.group or group, LONGEST_NAME)
        return f"{settings.app_url}/{entity}/{self.project}/groups/{quote(shown_as, safe='')}"

    def open(self, facts: RunFacts) -> TrackerSession:
        """Open a session online or offline, as `tracker.mode` says. Under `auto` it is online where
        there is a login. Nothing prompts. A session that cannot be online is one warning, and is
        offline. A wandb that does not work at all is one warning, and there is no mirror."""
        if self.mode is WandbMode.disabled:
            return TrackerSession()
        try:
            return open_session(self, facts)
        except Exception as error:
            warn(f"no mirror of this run: {line_of(error)}")
            return TrackerSession()

    def is_awaited(self) -> bool:
        return bool(agents_id()) and self.may_send()

    def sends_now(self) -> bool:
        try:
            return self.may_send() and login(online=True) is not None
        except Exception:  # a login that its client does not take sends nothing
            return False

    def resend(self, facts: RunFacts) -> TrackerSession:
        settings = self._login_to_send()
        here = replace(self, system=False)  # what this machine does is nothing of the run's
        try:
            ask(settings, VIEWER, {}, timeout_s=self.init_timeout_s)
        except OSError as error:
            raise OSError(f"W&B does not answer: {line_of(error)}") from error
        try:
            return open_online(here, facts, settings, timeout_s=self.init_timeout_s, resent=True)
        except Exception as error:  # whatever its client raises
            teardown()  # or the next run would wait for this one
            raise ValueError(f"W&B does not take {facts.name}: {line_of(error)}") from error

    def _login_to_send(self) -> Any:
        """Return the settings of wandb's login.

        Errors:
            NoLoginError: there is none that works.
        """
        try:
            replace(self, mode=WandbMode.online).check_start()
            settings = login(online=True)
            if settings is None:
                raise ValueError("W&B needs a login: type wandb login, or set WANDB_API_KEY")
        except ValueError as error:
            raise NoLoginError(line_of(error)) from error
        except Exception as error:  # whatever its client raises
            raise NoLoginError(f"W&B: no login: {line_of(error)}") from error
        return settings

    def open_comparison(self, facts: RunFacts) -> TrackerSession:
        """Open a run of its own in the grid's group. `facts.identity` is the grid's, so that the
        same grid compared again is the same run."""
        return self.open(facts)

    @classmethod
    def left(cls, folder: Path) -> bool:
        place = MirrorPlace.read(folder)
        return place is not None and not place.complete
