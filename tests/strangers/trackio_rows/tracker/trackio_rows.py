"""A tracker that writes the rows into Trackio (`pip install trackio`): a dashboard on this machine,
without an account. Where it keeps its data, $TRACKIO_DIR says."""

import shlex
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO

from nocap.options.tracker import Tracker, TrackerSession, at_the_end


class Session(TrackerSession):
    def __init__(self, project, facts):
        import trackio  # in the run's own process alone, and only where this tracker was chosen

        self.trackio = trackio
        self.url_or_hint = f"trackio show --project {shlex.quote(project)}"
        self.step = 0
        name = f"{facts.name} {facts.identity[:6]}"  # Trackio knows a run by its name
        config = {**facts.config, "arm": facts.arm, "options": facts.options, "swept": facts.swept}
        with redirect_stdout(StringIO()):  # its greetings
            self._delete_earlier(project, name)
            self.run = trackio.init(
                project=project,
                name=name,
                group=facts.group,
                config=config,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def _delete_earlier(self, project, name):
        """Delete what an earlier attempt left: its rows come again from the record."""
        with suppress(ValueError):  # there is no such project yet
            for earlier in self.trackio.Api().runs(project):
                if earlier.name == name:
                    earlier.delete()

    def log(self, row):
        self.step = row["step"]
        values = {}
        for name, value in row.items():
            if name != "step" and value is not None:
                values[name] = value
        self.run.log(values, step=self.step)

    def finish(self, *, summary, status):
        ends = {}
        for name, value in at_the_end(summary).items():
            if isinstance(value, int | float):
                ends[f"summary/{name}"] = value
        with redirect_stdout(StringIO()):
            if ends:
                self.run.log(ends, step=self.step)
            self.trackio.finish()


@dataclass(kw_only=True)
class TrackioRows(Tracker):
    kind: str = "trackio_rows"
    project: str = "nocap"  # where the run is shown

    def open(self, facts):
        return Session(self.project, facts)
