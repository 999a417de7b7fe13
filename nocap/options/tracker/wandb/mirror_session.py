"""An open mirror: send rows, a comparison and the end of a run, and ask whether all is there."""

from __future__ import annotations

import hashlib
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nocap.config.errors import line_of
from nocap.config.paths import shown
from nocap.options.tracker import RunFacts, Tables, TrackerSession
from nocap.options.tracker.wandb.keys import WandbKeys
from nocap.options.tracker.wandb.login import teardown
from nocap.options.tracker.wandb.mirror_place import MirrorPlace
from nocap.options.tracker.wandb.names import BEST, curve_name, ends_of
from nocap.options.tracker.wandb.queries import rows_on_server
from nocap.row_keys import CLOCK, VAL_LOSS, clock_key

SLOW_FINISH_S = 3600.0  # where a checkpoint is sent
RESEND_FINISH_S = 600.0  # of a record that is sent later, which no training waits for
FINISH_TIMEOUT_S = 10.0  # what is not sent by then is left to `nocap.runs sync`
ASK_S = 10.0  # for the server to say that it has all rows, which it may count a little later
GRACE_S = 5.0  # for wandb to keep to these times, before its thread is left behind


class WandbSession(TrackerSession):
    """Sends to one open W&B run. The first failure is one warning; after it the mirror is quiet.

    wandb is called in a thread of its own: its process, frozen or busy, would otherwise block the
    training once its pipe is full.
    """

    def __init__(
        self,
        tracker: WandbKeys,
        run: Any,
        place: MirrorPlace,
        facts: RunFacts,
        *,
        resent: bool = False,
    ) -> None:
        """Begin to send. `resent`: nothing trains, and the session may take its time."""
        self._tracker = tracker
        self._run = run
        self._place = place
        self._facts = facts
        self._is_quiet = False  # after a failure, or the end
        self._hidden = set[str]()  # curves that have no panel of their own
        self._ends = dict[str, object]()  # what only all rows together tell
        self._resent = resent
        self._report = place.report  # that the server has when all is there
        self._upload_s = upload_s(tracker, resent=resent)
        self.finish_s = self._upload_s + ASK_S + GRACE_S
        # What the server has begins before this step: a resumed run repeats rows, but for their
        # clock. Offline it is 0, and the folder is a new one.
        self._first_step = int(run.starting_step)
        self._hint = f"python -m nocap.runs sync {shlex.quote(shown(facts.run_dir))}"
        self.link = None if run.offline else run.url
        self.url_or_hint: str | None = self.link or self._hint
        # None: the last
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="wandb mirror", daemon=True).start()

    def _serve(self) -> None:
        """Make the calls, one after another, up to the last."""
        while True:
            call = self._calls.get()
            if call is None:
                return
            call()

    def _submit(self, failure: str, call: Callable[[], object]) -> None:
        """Have the thread make a call of wandb. `failure`: how the warning begins if it raises."""

        def guarded() -> None:
            if self._is_quiet:
                return
            try:
                call()
            except Exception as error:
                self._silence(f"{failure}: {line_of(error)}")

        self._calls.put(guarded)

    def log(self, row: Mapping[str, object]) -> None:
        step = row["step"]
        if not isinstance(step, int):
            return
        self._note_best(row)
        if self._is_quiet or step < self._first_step:
            return
        self.sent += 1
        failure = f"stopped mirroring at step {step}"
        # a curve has no point there
        values = {curve_name(name): value for name, value in row.items() if value is not None}
        clocks = [name for name in values if name.startswith(CLOCK)]
        for name in sorted(clocks):
            self._hide(name, failure)
        train_s = row.get(clock_key("train"))
        if isinstance(train_s, int | float):
            values["hours"] = train_s / 3600
        row_time = self._facts.time_of(row)
        if row_time is not None:
            values["_timestamp"] = row_time
        self._submit(failure, partial(self._run.log, values, step=step, commit=True))

    def _hide(self, name: str, failure: str) -> None:
        """Give a curve no panel of its own: ten panels of seconds would come before the loss. The
        dashboard has them in a folded section."""
        if name in self._hidden:
            return
        self._hidden.add(name)
        hide = partial(
            self._run.define_metric, name, step_metric="step", summary="none", hidden=True
        )
        self._submit(failure, hide)

    def _note_best(self, row: Mapping[str, object]) -> None:
        """Keep the lowest validation loss, and the first step at the target or below it."""
        loss = row.get(VAL_LOSS)
        target = self._tracker.target
        best = self._ends.get(BEST)
        if not isinstance(loss, int | float):
            return
        if not isinstance(best, int | float) or loss < best:
            self._ends[BEST] = loss
        if target is not None and loss <= target:
            self._ends.setdefault("steps_to_target", row["step"])

    def log_comparison(self, tables: Tables, report: Path) -> None:
        """Send the tables, and the report, which is shown in the run's page and kept as a file."""

        def send() -> None:
            import wandb

            content = dict[str, object]()
            for name, rows in tables.items():
                if rows:
                    cells = [list(row.values()) for row in rows]
                    content[name] = wandb.Table(columns=list(rows[0]), data=cells)
            content["report"] = wandb.Html(str(report), inject=False)
            self._run.log(content)
            if self._run.offline:  # its client would keep a copy outside of the run's folder
                return
            artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
            artifact.add_file(str(report), name="report.html")
            self._run.log_artifact(artifact)

        report_digest = _digest(report)
        if report_digest == self._place.report and self._first_step:  # the server has it
            return
        self._report = report_digest
        self.sent += 1
        self._submit("the comparison is not mirrored", send)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        done = threading.Event()
        self._calls.put(partial(self._finish, summary, status, done))
        self._calls.put(None)
        longest_s = self._upload_s
        if status != "finished" and not self._resent:  # it has no checkpoint to send
            longest_s = FINISH_TIMEOUT_S
        has_answered = done.wait(longest_s + ASK_S + GRACE_S)
        if not has_answered:
            self._not_sent("wandb does not answer")

    def _finish(self, summary: Mapping[str, object], status: str, done: threading.Event) -> None:
        offline = self._run.offline
        has_failed = self._is_quiet
        try:
            lack = self._end(summary, status)
        except Exception as error:
            lack = line_of(error)
            # wandb's own process is gone: without this, its hook prints a traceback at exit
            if not isinstance(error, TimeoutError):
                teardown()
        if lack or (has_failed and not offline):
            self._not_sent(lack)
        elif not offline:
            self.complete = True
        self._is_quiet = True
        done.set()

    def _end(self, summary: Mapping[str, object], status: str) -> str:
        """End the run, and return what the server lacks of it, in words; empty: nothing, or it is
        offline."""
        settings = self._run.settings
        has_failed = self._is_quiet
        self._run.summary.update(ends_of(summary) | self._ends)
        problem = self._send_end(status)
        exit_code = 0 if status == "finished" else 1
        self._run.finish(exit_code=exit_code)
        if self._run.offline:
            return ""
        place = self._place
        if self._has_end_to_send(status) and not problem:
            place = replace(place, end=status)
        place.write(self._facts.run_dir)
        if has_failed:
            return problem
        lack = problem or self._lack(settings)
        if not lack:
            replace(place, complete=True, report=self._report).write(self._facts.run_dir)
        return lack

    def _has_end_to_send(self, status: str) -> bool:
        """Say whether an alert or a checkpoint is to be sent at this end, which the server has not
        got before."""
        if self._run.offline or self._place.end == status:
            return False
        if status == "diverged":
            return self._tracker.alert
        return status == "finished" and self._tracker.checkpoint

    def _send_end(self, status: str) -> str:
        """Mark a run that was stopped from outside, and send what is to be sent at an end. Return
        why that failed, in words: the run ends there all the same."""
        try:
            if status == "preempted":
                self._run.mark_preempting()
            has_end = self._has_end_to_send(status)
            if has_end and status == "diverged":
                self._run.alert(title="diverged", text=f"{self._facts.name}: {self.url_or_hint}")
            if has_end and status == "finished":
                self._send_checkpoint()
        except Exception as error:  # whatever its client raises
            return line_of(error)
        return ""

    def _send_checkpoint(self) -> None:
        import wandb

        checkpoints = sorted(self._facts.run_dir.glob("checkpoints/step-*/"))
        if not checkpoints:
            warn("no checkpoint to send: the run keeps none (trainer.keep_steps)")
            return
        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", type="model")
        artifact.add_dir(str(checkpoints[-1]))
        self._run.log_artifact(artifact)

    def _lack(self, settings: Any) -> str:
        """Return what the server lacks, in words; empty: nothing. It is to have what it had when
        the session began, and what the session has sent. Its client ends without an error where the
        server has refused rows."""
        deadline = time.monotonic() + ASK_S
        expected = self._place.rows + self.sent
        while True:
            try:
                n_rows = rows_on_server(settings, self._place, timeout_s=ASK_S) or 0
            except OSError as error:
                return f"the server does not answer which rows it has: {line_of(error)}"
            if n_rows >= expected:
                return ""
            if time.monotonic() > deadline:
                return f"the server has {n_rows} of {expected} rows"
            time.sleep(0.2)

    def _not_sent(self, reason: str) -> None:
        self.url_or_hint = self._hint
        self._silence(
            f"nocap did not upload everything ({reason}); this command sends the rest: {self._hint}"
        )

    def _silence(self, reason: str) -> None:
        if not self._is_quiet:
            self._is_quiet = True
            warn(reason)


def upload_s(tracker: WandbKeys, *, resent: bool) -> float:
    """Return how long the end of a run may take."""
    if tracker.checkpoint:
        return SLOW_FINISH_S
    if resent:
        return RESEND_FINISH_S
    return FINISH_TIMEOUT_S


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def warn(message: str) -> None:
    """Write a line about the mirror to stderr."""
    print(f"nocap: W&B: {message}", file=sys.stderr, flush=True)
