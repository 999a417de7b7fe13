"""The mirror of the local record in Weights & Biases: every row of `metrics.jsonl`, each once.

A session sends rows from the step on that the server does not have, whoever opens it: training,
`nocap.runs sync`, or a grid at its end. What the server has at the end is asked. Training waits for
a server no longer than `tracker.init_timeout_s` at the start and some seconds at the end. wandb is
imported only when a mirror is opened.

This file has the option. Those beside it:

    keys            its keys, and what they refuse
    login           W&B's own client: its login, and its process
    queries         what nocap asks the server itself
    mirror_place    where the mirror of a folder is: `mirror.json`
    names           what W&B calls curves, and how long a text may be
    open_run        open the W&B run that mirrors a record
    mirror_session  send rows, a comparison and the end of a run
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nocap.config.errors import line_of
from nocap.options.tracker import NoLoginError, RunFacts, TrackerSession
from nocap.options.tracker.wandb.keys import UNREACHABLE, WandbKeys, WandbMode
from nocap.options.tracker.wandb.login import login, may_have_login, teardown
from nocap.options.tracker.wandb.mirror_place import MirrorPlace, agents_id
from nocap.options.tracker.wandb.mirror_session import warn
from nocap.options.tracker.wandb.names import LONGEST_NAME, cut
from nocap.options.tracker.wandb.open_run import open_online, open_session
from nocap.options.tracker.wandb.queries import VIEWER, ask

# wandb's error telemetry goes to the same server: on one that accepts and never answers, it held
# the process for 20 s at exit. Read when wandb is imported, which a process that forks runs does by
# the names in `imports`: so it is set before any import.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


@dataclass(kw_only=True, slots=True)
class Wandb(WandbKeys):
    """Weights & Biases."""

    kind: str = "wandb"

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

    def would_send(self) -> bool:
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
    def has_unsent(cls, folder: Path) -> bool:
        place = MirrorPlace.read(folder)
        return place is not None and not place.complete
