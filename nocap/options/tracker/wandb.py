"""The mirror of the local record in Weights & Biases: every row of `metrics.jsonl`, each once.

A session sends rows from the step on that the server does not have, whoever opens it: training,
`nocap.runs sync`, or a grid at its end. What the server has at the end is asked. Training waits for
a server no longer than `tracker.init_timeout_s` at the start and some seconds at the end. wandb is
imported only when a mirror is opened.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import queue
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from nocap.config.keys import flat, key, line_of, require
from nocap.config.paths import shown
from nocap.options.tracker import (
    NoLoginError,
    RunFacts,
    Tables,
    Tracker,
    TrackerSession,
    at_the_end,
)

SLOW_FINISH_S = 3600.0  # where a checkpoint is sent
RESEND_FINISH_S = 600.0  # of a record that is sent later, which no training waits for
FINISH_TIMEOUT_S = 10.0  # what is not sent by then is left to `nocap.runs sync`
ASK_S = 10.0  # for the server to say that it has all rows, which it may count a little later
GRACE_S = 5.0  # for wandb to keep to these times, before its thread is left behind
# characters
LONGEST_NAME = 128
LONGEST_TAG = 64
SHORTEST_KEY = 40
IDENTITY_TOKEN = "WANDB_IDENTITY_TOKEN_FILE"
NEEDS_KEY = (
    "be left out: nocap asks W&B for its rows with an API key (WANDB_API_KEY or wandb login)"
)
SERVICE = "WANDB_SERVICE"  # has the address of wandb's own process, which children would share
PLACE = "mirror.json"  # in the folder `wandb` of a run or a grid: where its mirror is
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
    # name of the run; null: WANDB_NAME, or the settings that set the run apart
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
    # loss whose first step is in the summary: the first validation at or below it
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

    def begin_grid(self, group: str) -> str | None:
        os.environ.pop(UNREACHABLE, None)
        if not (_may_send(self) and _may_have_login()):
            return None
        try:
            settings = _login(online=True)
            if settings is None:
                return None
            viewer = _ask(settings, VIEWER, {}, timeout_s=self.init_timeout_s).get("viewer") or {}
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
            return _opened(self, facts)
        except Exception as error:
            _warn(f"no mirror of this run: {line_of(error)}")
            return TrackerSession()

    def is_awaited(self) -> bool:
        return bool(_agents_id()) and _may_send(self)

    def sends_now(self) -> bool:
        try:
            return _may_send(self) and _login(online=True) is not None
        except Exception:  # a login that its client does not take sends nothing
            return False

    def resend(self, facts: RunFacts) -> TrackerSession:
        settings = self._login_to_send()
        here = replace(self, system=False)  # what this machine does is nothing of the run's
        try:
            _ask(settings, VIEWER, {}, timeout_s=self.init_timeout_s)
        except OSError as error:
            raise OSError(f"W&B does not answer: {line_of(error)}") from error
        try:
            return _opened_online(here, facts, settings, timeout_s=self.init_timeout_s, resent=True)
        except Exception as error:  # whatever its client raises
            _teardown()  # or the next run would wait for this one
            raise ValueError(f"W&B does not take {facts.name}: {line_of(error)}") from error

    def _login_to_send(self) -> Any:
        """Return the settings of wandb's login.

        Errors:
            NoLoginError: there is none that works.
        """
        try:
            replace(self, mode=WandbMode.online).check_start()
            settings = _login(online=True)
            require(
                settings is not None, "W&B", "have a login (wandb login, or WANDB_API_KEY)", "none"
            )
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


# --- where a mirror is ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorPlace:
    """Says where a folder's mirror is, and whether the server has all of it."""

    id: str = ""
    entity: str = ""
    project: str = ""
    server: str = ""  # its address; none: it has been offline only
    deleted: int = 0  # how often the run was deleted on the server
    complete: bool = False
    report: str = ""  # of a comparison: the digest of the report that was sent
    rows: int = 0  # that the server had when the last session began
    end: str = ""  # the status whose checkpoint or alert the server got

    @classmethod
    def read(cls, folder: Path) -> MirrorPlace | None:
        """Return the place that a folder's file has; None: it has no sound one."""
        try:
            return cls(**json.loads((folder / "wandb" / PLACE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        path = folder / "wandb" / PLACE
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)


def run_id(folder: Path, *, identity: str, born: str) -> str:
    """Return the id of a run in W&B: the one that it was sent under, else its own."""
    place = MirrorPlace.read(folder)
    return place.id if place is not None else own_id(identity, born)


def own_id(identity: str, born: str) -> str:
    """Make an id of a run's identity and its first start, so that the same config trained again
    elsewhere is another run."""
    if not born:
        return identity
    return f"{identity}-{_digits(born)}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning and six digits that tell it from others that begin so."""
    if len(text) <= longest:
        return text
    beginning = text[: longest - 7]
    return f"{beginning}-{_digits(text)}"


# --- names ----------------------------------------------------------------------------------------

# A page of W&B sorts its sections by name: the validation loss comes first, then speed, memory,
# training.
SECTIONS = {"val/": "eval/", "memory/": "resources/"}
AXES = ("step", "tokens", "hours")
BEST = "eval/best"
# The table of runs has these while a run trains; others only have their curve.
SHOWN = (
    *("val/loss", "val/bpb", "train/loss"),
    *("perf/tokens_per_s", "perf/step_ms", "perf/mfu", "memory/model_mib", "status"),
)
OF_COMPARISONS = ("arms", "runs")


def name_there(name: str) -> str:
    """Return the name that a curve of the record has in W&B."""
    for prefix, section in SECTIONS.items():
        if name.startswith(prefix):
            return section + name.removeprefix(prefix)
    return name


def ends_of(summary: Mapping[str, object]) -> dict[str, object]:
    """Return what W&B's table of runs has of a summary. It leaves out constants, what stands in the
    config, and lines of the clock that are zero."""
    ends = dict[str, object]()
    for name, value in at_the_end(summary).items():
        is_column = name in (*SHOWN, *OF_COMPARISONS)
        is_spent = name.startswith("clock/") and bool(value)
        if is_column or is_spent:
            ends[name_there(name)] = value
    return ends


# --- what a server is asked -----------------------------------------------------------------------

VIEWER = "query Viewer { viewer { entity } }"
PROGRESS = """
query NocapProgress($project: String!, $entity: String, $name: String!) {
  project(name: $project, entityName: $entity) { run(name: $name) { historyLineCount } }
}
"""


def _ask(
    settings: Any, query: str, variables: Mapping[str, object], *, timeout_s: float
) -> dict[str, Any]:
    """Return what the server answers to a query.

    Errors:
        OSError: it does not answer, or refuses.
    """
    import urllib.request  # here, as a grid without W&B would pay for both
    from http.client import HTTPException

    secret = base64.b64encode(f"api:{settings.api_key}".encode()).decode()
    content = json.dumps({"query": query, "variables": variables}).encode()
    json_type = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{settings.base_url}/graphql", data=content, headers=json_type
    )
    # not to a server that this one may lead to
    request.add_unredirected_header("Authorization", f"Basic {secret}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            answer = json.load(reply)
        problems = [str(problem["message"]) for problem in answer.get("errors") or ()]
    except (HTTPException, ValueError, LookupError, AttributeError) as error:
        raise OSError(f"no answer to a query: {line_of(error)}") from error
    if problems:
        raise OSError("; ".join(problems))
    return dict(answer.get("data") or {})


def _rows_on_server(settings: Any, place: MirrorPlace, *, timeout_s: float) -> int | None:
    """Return how many rows the server has of a run; None: it has no such run.

    Errors:
        OSError: it does not say.
    """
    variables = {"project": place.project, "entity": place.entity or None, "name": place.id}
    data = _ask(settings, PROGRESS, variables, timeout_s=timeout_s)
    project = data.get("project") or {}
    run = project.get("run")
    if run is None:
        return None
    return int(run["historyLineCount"] or 0)


# --- a session ------------------------------------------------------------------------------------


class WandbSession(TrackerSession):
    """Sends to one open W&B run. The first failure is one warning; after it the mirror is quiet.

    wandb is called in a thread of its own: its process, frozen or busy, would otherwise block the
    training once its pipe is full.
    """

    def __init__(
        self, tracker: Wandb, run: Any, place: MirrorPlace, facts: RunFacts, *, resent: bool = False
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
        self._upload_s = _upload_s(tracker, resent=resent)
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
        values = {name_there(name): value for name, value in row.items() if value is not None}
        clocks = [name for name in values if name.startswith("clock/")]
        for name in sorted(clocks):
            self._hide(name, failure)
        train_s = row.get("clock/train_s")
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
        loss = row.get("val/loss")
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
                _teardown()
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
            _warn("no checkpoint to send: the run keeps none (trainer.keep_steps)")
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
                n_rows = _rows_on_server(settings, self._place, timeout_s=ASK_S) or 0
            except OSError as error:
                return f"the server does not answer which rows it has: {line_of(error)}"
            if n_rows >= expected:
                return ""
            if time.monotonic() > deadline:
                return f"the server has {n_rows} of {expected} rows"
            time.sleep(0.2)

    def _not_sent(self, reason: str) -> None:
        self.url_or_hint = self._hint
        self._silence(f"not everything was uploaded ({reason}); this sends it: {self._hint}")

    def _silence(self, reason: str) -> None:
        if not self._is_quiet:
            self._is_quiet = True
            _warn(reason)


def _may_send(tracker: Wandb) -> bool:
    return tracker.mode in (WandbMode.auto, WandbMode.online) and UNREACHABLE not in os.environ


def _may_have_login() -> bool:
    """Say whether it is worth importing wandb to look for a login."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    home = Path.home()
    netrc = os.environ.get("NETRC") or home / ".netrc"
    return os.path.exists(netrc) or os.path.exists(home / "_netrc")


def _login(*, online: bool) -> Any:
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


def _teardown() -> None:
    """End wandb's own process. Where that has failed, wandb would end this process as well."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()


def _opened(tracker: Wandb, facts: RunFacts) -> WandbSession:
    """Open a session online, or offline with the reason in a line. Its place is written first: a
    mirror that cannot be opened is left to `nocap.runs sync`."""
    _place_of(facts).write(facts.run_dir)
    problem = ""
    deadline = time.monotonic() + tracker.init_timeout_s
    online = _may_send(tracker)
    try:
        settings = _login(online=online)
        if settings is not None:
            return _opened_online(tracker, facts, settings, timeout_s=deadline - time.monotonic())
        if tracker.mode is WandbMode.online and online:
            problem = "no login"
    except Exception as error:  # whatever its client raises
        problem = line_of(error)
        # The failed attempt still holds the id: without this, the offline run is refused ("run ID
        # is in use").
        _teardown()
    place = _place_of(facts)
    run = _init(tracker, facts, place, mode="offline", timeout_s=float(tracker.init_timeout_s))
    if problem:
        _warn(f"offline: {problem}")
    return WandbSession(tracker, run, place, facts)


def _upload_s(tracker: Wandb, *, resent: bool) -> float:
    """Return how long the end of a run may take."""
    if tracker.checkpoint:
        return SLOW_FINISH_S
    if resent:
        return RESEND_FINISH_S
    return FINISH_TIMEOUT_S


def _opened_online(
    tracker: Wandb, facts: RunFacts, settings: Any, *, timeout_s: float, resent: bool = False
) -> WandbSession:
    deadline = time.monotonic() + timeout_s
    place = _place_on_server(tracker, facts, settings, timeout_s=timeout_s)
    place.write(facts.run_dir)
    left_s = max(1.0, deadline - time.monotonic())
    run = _init(tracker, facts, place, mode="online", timeout_s=left_s, resent=resent)
    place = replace(place, entity=run.entity, project=run.project, server=settings.base_url)
    place.write(facts.run_dir)
    return WandbSession(tracker, run, place, facts, resent=resent)


def _place_of(facts: RunFacts) -> MirrorPlace:
    """Return where a run's mirror is, or the id that it will have. W&B's agent knows a run by the
    id that it gave."""
    place = MirrorPlace.read(facts.run_dir)
    agents = _agents_id()
    if place is None or agents not in ("", place.id):
        return MirrorPlace(id=agents or own_id(facts.identity, facts.born))
    return replace(place, complete=False, rows=0)


def _place_on_server(
    tracker: Wandb, facts: RunFacts, settings: Any, *, timeout_s: float
) -> MirrorPlace:
    """Return where a run is sent, with the rows that the server has of it. One that was deleted
    there has another id: a server does not take the old one.

    Errors:
        OSError: the server does not answer.
    """
    before = _place_of(facts)
    if not before.server and not _agents_id():  # it is nowhere yet
        return before
    entity = tracker.entity or before.entity
    place = replace(before, server=settings.base_url, project=tracker.project, entity=entity)
    rows = _rows_on_server(settings, place, timeout_s=timeout_s)
    if place != before:
        return replace(place, rows=rows or 0, report="", end="")
    if rows is not None:
        return replace(place, rows=rows)
    n_deleted = place.deleted + 1
    new_id = f"{own_id(facts.identity, facts.born)}-{n_deleted + 1}"
    _warn(f"run {place.id} was deleted on the server: it is sent anew as {new_id}")
    # it is nowhere yet
    return replace(place, id=new_id, deleted=n_deleted, server="", report="", end="")


def _agents_id() -> str:
    """Return the id that W&B's agent gave this run; empty: no agent has started it."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return ""
    return os.environ.get("WANDB_RUN_ID", "")


def _init(
    tracker: Wandb,
    facts: RunFacts,
    place: MirrorPlace,
    *,
    mode: str,
    timeout_s: float,
    resent: bool = False,
) -> Any:
    import wandb

    _forget_attempts(facts)
    group = tracker.group or facts.group
    if group:
        group = cut(group, LONGEST_NAME)
    tags = [cut(tag, LONGEST_TAG) for tag in (*tracker.tags, *facts.tags) if tag]
    measures_system = tracker.system
    if measures_system is None:
        measures_system = dict(flat(facts.config)).get("trainer.device") == "cuda"
    settings = wandb.Settings(
        init_timeout=timeout_s,
        finish_timeout=_upload_s(tracker, resent=resent),
        finish_timeout_raises=True,
        silent=True,
        # The local record has the console, the code, the hardware and the versions. A command line
        # could also carry a secret.
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=not measures_system,
        x_save_requirements=False,
    )
    init: Any = wandb.init
    run = init(
        name=cut(_name(tracker, facts), LONGEST_NAME),
        group=group,
        job_type=cut(tracker.job_type or facts.arm, LONGEST_NAME),
        notes=tracker.notes,
        tags=list(dict.fromkeys(tags)),
        config=_config(facts),
        id=place.id,
        project=tracker.project,
        entity=tracker.entity,
        dir=facts.run_dir,
        mode=mode,
        resume="allow",
        reinit="finish_previous",
        settings=settings,
    )
    for axis in AXES:
        run.define_metric(axis, hidden=True, summary="none")  # no panel of its own
    for name in SHOWN:
        run.define_metric(name_there(name), step_metric="step")
    run.define_metric("*", step_metric="step", summary="none")
    return run


def _name(tracker: Wandb, facts: RunFacts) -> str:
    """Name a run: as the tracker says, and among the runs of a grid by what sets it apart, too."""
    if not tracker.name:
        return facts.name
    if not facts.group:
        return tracker.name
    return f"{tracker.name} {facts.name}"


def _config(facts: RunFacts) -> dict[str, object]:
    """Return the keys that make the run what it is, under the names that a command line has for
    them: an option's name is its group's value, as a sweep's agent has it."""
    config = {**facts.counted, **facts.options, **facts.about}
    config["arm"] = facts.arm
    config["arm_id"] = facts.arm_id
    config["identity"] = facts.identity
    if facts.swept:
        config["swept"] = ", ".join(facts.swept)
    return config


def _forget_attempts(facts: RunFacts) -> None:
    """Remove the folders of earlier sessions: their rows come again from the record, and what is
    not there cannot be uploaded a second time."""
    for folder in facts.run_dir.glob("wandb/*run-*"):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


def _warn(message: str) -> None:
    print(f"nocap: W&B: {message}", file=sys.stderr, flush=True)
