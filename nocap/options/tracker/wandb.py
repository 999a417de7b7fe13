"""The mirror of the local record in Weights & Biases: every row of `metrics.jsonl`.

Training waits for a server no longer than `tracker.init_timeout_s` at the start and `FINISH_TIMEOUT_S` at the
end, and what was not sent stays on disk. wandb is imported only when a mirror is opened.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.tracker import RunFacts, Tables, Tracker, TrackerSession, at_the_end

FINISH_TIMEOUT_S = 10.0  # what is not sent by then stays on disk for `wandb sync`
GRACE_S = 5.0  # for wandb to keep to that time, before its thread is left behind
LONGEST_TAG = 64  # characters that a server takes

# wandb's error telemetry goes to the same server: on one that accepts and never answers, it held the process
# for 20 s at exit. Read when wandb is imported.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


class WandbMode(Enum):
    auto = "auto"  # online with a login, else offline
    online = "online"
    offline = "offline"


@dataclass(kw_only=True, slots=True)
class Wandb(Tracker):
    """Weights & Biases."""

    kind: str = "wandb"
    uploader: ClassVar[str] = "wandb sync"
    # the second is what `wandb.init` imports; without it there, that takes longer and nothing else
    imports: ClassVar[tuple[str, ...]] = ("wandb", "wandb.sdk.launch.inputs.internal")
    project: str  # where the run is shown
    entity: str | None  # user or team; null: the login's own
    group: str | None  # under which the dashboard gathers runs; null: the grid's name
    tags: list[str] = field(default_factory=list)  # labels of the run
    mode: WandbMode  # whether rows are sent while it trains
    init_timeout_s: int = key(ge=1, le=3600)  # seconds that training waits for a server at the start

    def __post_init__(self) -> None:
        require(bool(self.project), "tracker.project", "be a name", repr(self.project))

    def open(self, facts: RunFacts) -> TrackerSession:
        """Online or offline: `tracker.mode`, else `WANDB_MODE` (`disabled` means no mirror), else online with
        a login and offline without one, and never a prompt. Online that does not work is one warning and
        offline: nothing is lost, and `wandb sync` uploads it later. A wandb that does not work at all is one
        warning and no mirror."""
        mode = os.environ.get("WANDB_MODE", "auto") if self.mode is WandbMode.auto else self.mode.value
        if mode == "disabled":
            return TrackerSession()
        try:
            return WandbSession(
                _open_run(self, facts, mode={"dryrun": "offline", "run": "online"}.get(mode, mode))
            )
        except Exception as error:
            _warn(f"no mirror of this run: {_line(error)}")
            return TrackerSession()

    def open_comparison(self, facts: RunFacts) -> TrackerSession:
        """A run of its own in the grid's group. `facts.identity` is the grid's, so that the same grid
        compared again is the same run."""
        return self.open(facts)

    @classmethod
    def offline(cls, folder: Path) -> list[Path]:
        offline_runs = (
            path
            for path in sorted(folder.glob("wandb/offline-run-*"))
            if path.is_dir() and not path.is_symlink()
        )
        # wandb leaves this beside what it has uploaded
        return [path for path in offline_runs if not any(path.glob("*.synced"))]


class WandbSession(TrackerSession):
    """One open W&B run. The first failure is one warning; after it the mirror is quiet.

    wandb is called in a thread of its own: its process, frozen or busy, would otherwise block the training
    once its pipe is full.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._silenced, self._defined = False, {"clock/train_s"}
        # wandb drops rows before this step. A server that knows the run has them: a resumed run repeats them,
        # but for its clock. Offline it is 0.
        self._first_step = int(run.starting_step)
        # without the flag W&B passes over the folder of a run that began online
        flag = "" if run.offline else "--no-skip-online "
        self._hint = f"wandb sync {flag}{shlex.quote(os.path.abspath(run.settings.sync_dir))}"
        self.url_or_hint: str | None = self._hint if run.offline else run.url
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._calls.get()()

    def _submit(self, failure: str, call: Callable[[], object]) -> None:
        def guarded() -> None:
            if self._silenced:
                return
            try:
                call()
            except Exception as error:
                self._silence(f"{failure}: {_line(error)}")

        self._calls.put(guarded)

    def log(self, row: Mapping[str, object]) -> None:
        step = row["step"]
        if self._silenced or not isinstance(step, int) or step < self._first_step:
            return
        failure = f"stopped mirroring at step {step}"
        # a curve has no point there
        values = {name: value for name, value in row.items() if value is not None}
        for name in sorted(
            name for name in values if name.startswith("clock/") and name not in self._defined
        ):
            # ten panels of seconds would come before the loss; the dashboard has them in a folded section
            self._defined.add(name)
            self._submit(failure, partial(self._run.define_metric, name, step_metric="step", hidden=True))
        self._submit(failure, partial(self._run.log, values, step=step, commit=True))

    def log_comparison(self, tables: Tables, report: Path) -> None:
        """Send the tables, and the report, which is shown in the run's page and kept as a file."""

        def send() -> None:
            import wandb

            drawn = {
                name: wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
                for name, rows in tables.items()
                if rows
            }
            self._run.log({**drawn, "report": wandb.Html(str(report), inject=False)})
            artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
            artifact.add_file(str(report), name="report.html")
            self._run.log_artifact(artifact)

        self._submit("the comparison is not mirrored", send)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        done = threading.Event()
        self._calls.put(partial(self._finish, summary, status, done))
        if not done.wait(FINISH_TIMEOUT_S + GRACE_S):
            self.url_or_hint = self._hint
            self._silence(f"wandb does not answer; what it has taken is on the disk: {self._hint}")

    def _finish(self, summary: Mapping[str, object], status: str, done: threading.Event) -> None:
        try:
            self._run.summary.update(at_the_end(summary))
            self._run.finish(exit_code=0 if status == "finished" else 1)
        except Exception as error:
            self.url_or_hint = self._hint
            self._silence(f"not everything was uploaded ({_line(error)}); later: {self._hint}")
            # wandb's own process is gone: without this, its hook prints a traceback at exit
            if not isinstance(error, TimeoutError):
                import wandb

                with contextlib.suppress(Exception):
                    wandb.teardown()
        self._silenced = True
        done.set()

    def _silence(self, reason: str) -> None:
        if not self._silenced:
            self._silenced = True
            _warn(reason)


def _open_run(tracker: Wandb, facts: RunFacts, *, mode: str) -> Any:
    deadline = time.monotonic() + tracker.init_timeout_s
    import wandb

    # Silent before the login: a login that may print asks the server for the user's name, 5 s without a
    # network. `online` only lets it look for credentials where `WANDB_MODE` says offline and the config says
    # online.
    wandb.setup(settings=wandb.Settings(silent=True, mode="offline" if mode == "offline" else "online"))
    if mode != "offline":
        if not wandb.login(prompt=False, verify=False):
            problem = "no login" if mode == "online" else ""
        else:
            try:
                return _init(
                    wandb, tracker, facts, mode="online", timeout_s=max(1.0, deadline - time.monotonic())
                )
            except Exception as error:
                problem = _line(error)
                # The failed attempt still holds the id: without this, the offline run is refused ("run ID is
                # in use").
                wandb.teardown()
        if problem:
            _warn(f"offline: {problem}")
    return _init(wandb, tracker, facts, mode="offline", timeout_s=float(tracker.init_timeout_s))


def _init(wandb: Any, tracker: Wandb, facts: RunFacts, *, mode: str, timeout_s: float) -> Any:
    _forget_attempts(facts)
    described = {
        "name": facts.name,
        "group": tracker.group or facts.group,
        "job_type": facts.arm,
        "tags": list(dict.fromkeys(tag[:LONGEST_TAG] for tag in (*tracker.tags, *facts.tags) if tag)),
        "config": {
            **facts.config,
            "arm": facts.arm,
            "arm_id": facts.arm_id,
            "options": facts.options,
            "swept": facts.swept,
        },
    }
    settings = wandb.Settings(
        init_timeout=timeout_s,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
        silent=True,
        # The local record has the console, the code, the hardware and the versions. A command line could also
        # carry a secret.
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        **described,
        id=facts.identity,
        project=tracker.project,
        entity=tracker.entity,
        dir=facts.run_dir,
        mode=mode,
        resume="allow",
        reinit="finish_previous",
        settings=settings,
    )
    for axis in ("step", "tokens"):
        run.define_metric(axis, hidden=True)  # no panel of its own
    run.define_metric("clock/train_s", hidden=True)
    run.define_metric("*", step_metric="step")
    return run


def _forget_attempts(facts: RunFacts) -> None:
    """Remove what earlier attempts of this run left: their rows come again from the record, those after the
    checkpoint do not."""
    for folder in facts.run_dir.glob("wandb/*run-*"):
        if folder.is_dir() and not folder.is_symlink() and folder.name.endswith(f"-{facts.identity}"):
            shutil.rmtree(folder)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _warn(message: str) -> None:
    print(f"nocap: W&B: {message}", file=sys.stderr, flush=True)
