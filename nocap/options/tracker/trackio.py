"""The rows in Trackio: a dashboard on this machine, without an account."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from nocap.options.tracker import RunFacts, Tracker, TrackerSession, at_the_end, needed


@dataclass(kw_only=True, slots=True)
class Trackio(Tracker):
    kind: str = "trackio"
    project: str = "nocap"  # where the run is shown

    def open(self, facts: RunFacts) -> TrackerSession:
        return _Session(self, facts)


class _Session(TrackerSession):
    def __init__(self, tracker: Trackio, facts: RunFacts) -> None:
        with needed("trackio"):
            import trackio
        name = f"{facts.name} {facts.identity[:6]}"  # Trackio knows a run by its name
        config = {**facts.config, "arm": facts.arm, "options": facts.options, "swept": facts.swept}
        self._trackio: Any = trackio
        with redirect_stdout(io.StringIO()):  # its greetings
            with suppress(ValueError):  # there is no such project yet
                for earlier in trackio.Api().runs(tracker.project):
                    if earlier.name == name:  # an earlier attempt's rows come again from the record
                        earlier.delete()
            self._run: Any = trackio.init(
                project=tracker.project,
                name=name,
                group=facts.group,
                config=config,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        self.url_or_hint = f"trackio show --project {shlex.quote(tracker.project)}"
        self._step = 0

    def log(self, row: Mapping[str, object]) -> None:
        step = row["step"]
        assert isinstance(step, int)
        self._step = step
        self._run.log(
            {name: value for name, value in row.items() if name != "step" and value is not None}, step=step
        )

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        ends = {
            f"summary/{name}": value
            for name, value in at_the_end(summary).items()
            if isinstance(value, int | float)
        }
        with redirect_stdout(io.StringIO()):
            if ends:
                self._run.log(ends, step=self._step)
            self._trackio.finish()
