"""A worker: one rank of a run, in a process of its own. The command starts `python -m
nocap.launch.worker RUN_DIR` for each device."""

from __future__ import annotations

import os

from nocap.training.process import die_with_parent, leave

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(int(os.environ["NOCAP_PARENT"]))

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from nocap import outside
from nocap.config import entry
from nocap.config.keys import EXIT_CODES, InputError
from nocap.config.outward import guarded
from nocap.config.plain import load, to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.tokens import Shard
from nocap.launch.head import keeps_last, run_facts
from nocap.launch.signals import StopNow, Stops, catch_stops, unblock
from nocap.model.compiled import compiler_failed
from nocap.model.gpt import build_model, count_parameters
from nocap.options.tracker import TrackerSession
from nocap.store.files import append_text
from nocap.store.identity import check_source
from nocap.store.lease import LostError
from nocap.store.record import Metrics, Row, read_json, write_summary
from nocap.store.tracking import has_mirror, open_tracker
from nocap.training import allocator, memory
from nocap.training.heartbeat import START_UP, Heartbeat
from nocap.training.loop import train
from nocap.training.recorder import Outcome
from nocap.training.step import Job
from nocap.training.summary import cut_short, summarize
from nocap.training.terminal import Reporter
from nocap.training.world import join, place

FAILURE_BYTES = 4000  # of a rank's failure: what goes into a pipe in one piece
BEAT_S = 0.5  # between heartbeats while a tracker ends


def main() -> NoReturn:
    run_dir = Path(sys.argv[1])
    unblock()
    try:
        run = load(run_dir / "config.yaml")
    except ValueError as error:  # an option from outside that changed since the command began
        if not _tell("refused", str(error)):
            print(f"nocap: {error}", file=sys.stderr)
        leave(EXIT_CODES["refused"])
    allocator.use(run.trainer.malloc)
    status = work(run, run_dir, started=float(os.environ["NOCAP_STARTED"]))
    # A rank that wrote its record has succeeded: any other code would end the rest.
    leave(EXIT_CODES[status] if status in ("failed", "refused") or run.trainer.devices == 1 else 0)


def work(run: Run, run_dir: Path, *, started: float) -> str:
    """Train as this process's rank and write the record. Returns the status, or `refused`."""
    stops = Stops()
    catch_stops(stops.came)
    manifest = read_json(run_dir / "manifest.json")
    assert manifest is not None
    world = place(run.trainer.device)
    heartbeat = Heartbeat(run_dir)
    heartbeat.beat(world.rank, START_UP)
    reporter = Reporter(
        log_path=run_dir / "train.log" if world.is_main else None, steps=run.trainer.steps
    )
    session = TrackerSession()  # mirrors nothing, until training starts

    def on_start(rows: list[Row]) -> None:
        nonlocal session
        if has_mirror(run.tracker):
            params = _parameters(run, manifest["data"]["vocab_size"], reporter.log)
            facts = run_facts(to_plain(run), run_dir, manifest, params=params)
            session = open_tracker(run.tracker, facts, rows=rows)
        if session.link is not None:
            reporter.log(f"tracker: {session.link}")
        reporter.start(rows[-1]["step"] + 1 if rows else (manifest["init"] or {"step": 0})["step"])

    def on_row(row: Row) -> None:
        reporter.row(row)
        session.log(row)

    @contextmanager
    def starting() -> Iterator[None]:
        """Around the first forward and backward. A rank that left alone would be missed by the
        others."""
        with stops.at_once() if world.size == 1 else nullcontext():
            yield
        if manifest["outside"]:
            check_source(run, manifest["parts"]["source"])

    job = job_of(
        run,
        run_dir,
        manifest,
        stage=Path(os.environ["NOCAP_STAGE"])
        if world.is_main
        else None,  # the only rank that writes
        world=world,
        started=started,
        on_start=on_start,
        on_row=on_row,
        log=reporter.log,
        stop_asked=lambda: stops.asked,
        stop_at_once=starting,
        heartbeat=lambda step: heartbeat.beat(world.rank, step),
    )
    try:
        join(run.trainer.device, timeout_s=run.trainer.hang_timeout_s)
        outcome = train(job)
        reporter.close()
        if world.is_main:
            _conclude(job, manifest, outcome, session)
    except (Exception, StopNow) as error:
        # Ctrl-C and `timeout` reach the C++ compiler too, and it dies.
        preempted = isinstance(error, StopNow) or (stops.asked and compiler_failed(error))
        status = "preempted" if preempted else "failed"
        session.finish(summary={"status": status}, status=status)
        if preempted or not isinstance(error, Exception):
            return _stopped_in_compilation(job)
        return _report_failure(job, error, behind=heartbeat.behind())
    finally:
        reporter.close()
    return outcome.status


def _parameters(run: Run, vocab_size: int, log: Callable[[str], None]) -> dict[str, int]:
    """Return the numbers of its model's parameters, without their memory and random numbers, before
    the first step. A model from outside that cannot be built so has them at the end."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return count_parameters(build_model(run, vocab_size=vocab_size))
    except Exception as error:
        log(
            f"the tracker gets the number of parameters at the end: {type(error).__name__}: {error}"
        )
        return {}


def job_of(run: Run, run_dir: Path, manifest: dict[str, Any], **around: Any) -> Job:
    """Return a run with what its manifest says; `around`: what is of this process."""
    data = manifest["data"]
    return Job(
        run=run,
        train_shards=tuple(Shard(**shard) for shard in data["train"]),
        val_shards=tuple(Shard(**shard) for shard in data["val"]),
        vocab_size=data["vocab_size"],
        val_bytes=data["val_bytes"],
        run_dir=run_dir,
        keeps_last=keeps_last(manifest, run.trainer),
        spent_s=manifest["attempts"][-1]["spent_s"],
        teacher_s=sum(teacher["train_s"] for teacher in manifest["teachers"].values()),
        **around,
    )


def _conclude(
    job: Job, manifest: dict[str, Any], outcome: Outcome, session: TrackerSession
) -> None:
    """Write the summary, and once more when the tracker has ended: so its clock holds that as
    well."""
    rows = Metrics(job.run_dir / "metrics.jsonl").rows()

    def summary() -> dict[str, Any]:
        clock = outcome.ledger.seconds()
        return summarize(
            job.run,
            manifest,
            rows,
            status=outcome.status,
            step=outcome.step,
            clock_s=clock,
            totals=outcome.totals,
        )

    def write() -> None:
        write_summary(job.run_dir, {**summary(), "tracker": session.url_or_hint}, stage=job.stage)

    write()
    with _beating(partial(job.heartbeat, outcome.step), longest_s=session.finish_s):
        session.finish(summary=summary(), status=outcome.status)
    with suppress(OSError):  # the first one stays
        write()


@contextmanager
def _beating(beat: Callable[[], None], *, longest_s: float) -> Iterator[None]:
    """Send heartbeats inside the block, for so many seconds at most."""
    deadline = time.monotonic() + longest_s
    ended = threading.Event()

    def go_on() -> None:
        while time.monotonic() < deadline and not ended.wait(BEAT_S):
            beat()

    threading.Thread(target=go_on, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _stopped_in_compilation(job: Job) -> str:
    """Nothing is lost: compilation comes before an attempt's first step."""
    if job.world.is_main:
        _cut_short(job, "preempted", "asked to stop before its first step")
    return "preempted"


def _cut_short(job: Job, status: str, error: str) -> None:
    cut_short(
        job.run,
        job.run_dir,
        status=status,
        attempt_s=time.monotonic() - job.started,
        error=error,
        stage=job.stage,
    )


def _no_room(run: Run, error: Exception) -> InputError:
    """Say which micro-batch did not fit, and what to do."""
    cause = str(error).partition("\n")[0]
    rule = (
        f"be smaller, for all that it is compared with: a step does not fit into this memory "
        f"({cause})"
    )
    return InputError(f"trainer.micro_batch must {rule}, got {run.trainer.micro_batch}")


def _report_failure(job: Job, error: Exception, *, behind: str) -> str:
    """Return the traceback into the log, a line on stderr, the status into the summary."""
    if job.run.trainer.device is Device.cuda and memory.ran_out(error):
        error = _no_room(job.run, error)
    world, log, refused = job.world, job.run_dir / "train.log", isinstance(error, InputError)
    line = (
        str(error)
        if refused or isinstance(error, OSError | LostError)
        else f"{type(error).__name__}: {error}".splitlines()[0]
    )
    line += _place_outside(error)
    # from a collective, as a rule: which rank did not come?
    if world.size > 1 and isinstance(error, RuntimeError):
        line += f" (furthest behind: {behind})"
    with suppress(OSError):  # a full disk may be what failed
        append_text(log, f"rank {world.rank} failed\n{traceback.format_exc()}")
    if world.size > 1 and not refused:  # all ranks refuse for the same reason
        line = f"rank {world.rank}: {line}"
    status = "refused" if refused else "failed"
    if _tell(status, line):
        return status
    if world.is_main:
        _cut_short(job, "failed", line)
    if world.is_main or not refused:
        print(f"nocap: {line}" + ("" if refused else f"; see {log}"), file=sys.stderr)
    return status


def _tell(status: str, line: str) -> bool:
    """Tell the parent, if it listens. It reports the first failure: the others only say that they
    lost a rank."""
    told = os.environ.get("NOCAP_FAILURES")
    if told is not None:
        os.write(int(told), f"{status} {line}".encode(errors="replace")[:FAILURE_BYTES] + b"\0")
    return told is not None


def _place_outside(error: Exception) -> str:
    """Return the line of a file from outside that the error came from, if it did."""
    paths = {str(file.path) for file in outside.files()}
    places = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths
    ]
    return f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""


def begin() -> NoReturn:
    """Be a worker as this process."""
    entry.outlive_readers()
    with guarded():
        main()


if __name__ == "__main__":
    begin()
