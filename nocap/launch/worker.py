"""A worker: one rank of a run, in a process of its own. The command starts `python -m
nocap.launch.worker RUN_DIR` for each device."""

from __future__ import annotations

import os

from nocap.launch import environment
from nocap.launch.process import die_with_parent, leave

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(environment.parent())

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from nocap.config import entry
from nocap.config.errors import EXIT_CODES
from nocap.config.outgoing_text import guarded
from nocap.config.plain import load, to_plain
from nocap.config.run import Run
from nocap.data.tokens import Shard
from nocap.launch.heartbeat import START_UP, Heartbeat
from nocap.launch.leftovers import keeps_last
from nocap.launch.progress import Reporter
from nocap.launch.run_facts import run_facts
from nocap.launch.signals import StopNow, Stops, catch_stops, unblock
from nocap.launch.worker_failure import cut_attempt_short, report_failure, tell_parent
from nocap.model.build import build_model, count_parameters
from nocap.model.compiled import compiler_failed
from nocap.options.tracker import TrackerSession
from nocap.store.attempt_entry import attempts_in
from nocap.store.record_files import (
    CONFIG,
    MANIFEST,
    ROWS,
    TRAIN_LOG,
    RunStatus,
    read_json,
    write_summary,
)
from nocap.store.rows_file import Row, RowsFile
from nocap.store.source_hashes import check_source
from nocap.store.tracking import has_mirror, open_tracker
from nocap.training import allocator
from nocap.training.job import Job
from nocap.training.loop import train
from nocap.training.recorder import Outcome
from nocap.training.summary import summarize
from nocap.training.world import World, join, world_of_environment

BEAT_S = 0.5  # between heartbeats while a tracker ends


def main() -> NoReturn:
    """Train one rank of the run in the folder that the command line names, and leave."""
    run_dir = Path(sys.argv[1])
    unblock()
    try:
        run = load(run_dir / CONFIG)
    except ValueError as error:  # an option from outside that changed since the command began
        if not tell_parent(RunStatus.refused, str(error)):
            print(f"nocap: {error}", file=sys.stderr)
        leave(EXIT_CODES[RunStatus.refused])
    allocator.use(run.trainer.malloc)
    status = work(run, run_dir, started=float(os.environ[environment.STARTED]))
    # A rank that wrote its record has succeeded: any other code would end the rest.
    is_alone = run.trainer.devices == 1
    if is_alone or status in (RunStatus.failed, RunStatus.refused):
        leave(EXIT_CODES[status])
    leave(0)


def work(run: Run, run_dir: Path, *, started: float) -> RunStatus:
    """Train as this process's rank and write the record. Returns the status, or `refused`."""
    process = WorkerProcess(run, run_dir, started=started)
    try:
        timeout_s = run.trainer.hang_timeout_s
        store_path = os.environ.get(environment.STORE)
        join(run.trainer.device, timeout_s=timeout_s, store_path=store_path)
        outcome = train(process.job)
        process.reporter.close()
        if process.world.is_main:
            conclude(process.job, process.manifest, outcome, process.session)
    except (Exception, StopNow) as error:
        return process.report(error)
    finally:
        process.reporter.close()
    return outcome.status


class WorkerProcess:
    """This process's rank of a run: what it trains, and whom it tells of it."""

    def __init__(self, run: Run, run_dir: Path, *, started: float) -> None:
        """Listen to requests to stop, and send the first heartbeat."""
        self._stops = Stops()
        catch_stops(self._stops.request)
        manifest = read_json(run_dir / MANIFEST)
        assert manifest is not None
        self.run = run
        self.run_dir = run_dir
        self.manifest = manifest
        self.world = world_of_environment(run.trainer.device)
        self._heartbeat = Heartbeat(run_dir)
        self._beat(START_UP)
        log_path: Path | None = None
        stage: Path | None = None
        if self.world.is_main:  # the only rank that writes
            log_path = run_dir / TRAIN_LOG
            stage = Path(os.environ[environment.STAGE])
        self.reporter = Reporter(log_path=log_path, steps=run.trainer.steps)
        self.session = TrackerSession()  # mirrors nothing, until training starts
        self.job = replace(
            job_of(run, run_dir, manifest, world=self.world, started=started),
            stage=stage,
            on_start=self._start,
            on_row=self._log_row,
            log=self.reporter.log,
            stop_asked=lambda: self._stops.requested,
            stop_at_once=self._starting,
            heartbeat=self._beat,
        )

    def _beat(self, step: int) -> None:
        self._heartbeat.beat(self.world.rank, step)

    def _start(self, rows: list[Row]) -> None:
        """Open the tracker's session before the first step. `rows`: of the attempts before."""
        if has_mirror(self.run.tracker):
            vocab_size = self.manifest["data"]["vocab_size"]
            params = _parameters(self.run, vocab_size, self.reporter.log)
            facts = run_facts(to_plain(self.run), self.run_dir, self.manifest, params=params)
            self.session = open_tracker(self.run.tracker, facts, rows=rows)
        if self.session.link is not None:
            self.reporter.log(f"tracker: {self.session.link}")
        self.reporter.start(self._first_step(rows))

    def _first_step(self, rows: list[Row]) -> int:
        """Return the step at which this attempt begins."""
        if rows:
            return int(rows[-1]["step"]) + 1
        init = self.manifest["init"] or {"step": 0}
        return int(init["step"])

    def _log_row(self, row: Row) -> None:
        self.reporter.row(row)
        self.session.log(row)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Stop at once inside the block, which is the first forward and backward. A rank that left
        alone would be missed by the others."""
        is_alone = self.world.size == 1
        with self._stops.at_once() if is_alone else nullcontext():
            yield
        if self.manifest["outside"]:
            check_source(self.run, self.manifest["parts"]["source"])

    def report(self, error: Exception | StopNow) -> RunStatus:
        """End the tracker's session of a run that has no end, write the reason, and return the
        status."""
        # Ctrl-C and `timeout` reach the C++ compiler too, and it dies.
        if isinstance(error, StopNow) or (self._stops.requested and compiler_failed(error)):
            self._end_session(RunStatus.preempted)
            return _stopped_in_compilation(self.job)
        self._end_session(RunStatus.failed)
        return report_failure(self.job, error, behind=self._heartbeat.behind())

    def _end_session(self, status: RunStatus) -> None:
        """End the tracker's session of a run without a summary."""
        self.session.finish(summary={"status": status}, status=status)


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


def job_of(
    run: Run, run_dir: Path, manifest: dict[str, Any], *, world: World, started: float
) -> Job:
    """Return a run with what its manifest says, in this process, without callbacks."""
    data = manifest["data"]
    return Job(
        run=run,
        train_shards=tuple(Shard(**shard) for shard in data["train"]),
        val_shards=tuple(Shard(**shard) for shard in data["val"]),
        vocab_size=data["vocab_size"],
        val_bytes=data["val_bytes"],
        run_dir=run_dir,
        world=world,
        started=started,
        keeps_last=keeps_last(manifest, run.trainer),
        spent_s=attempts_in(manifest)[-1].spent_s,
        teacher_s=sum(teacher["train_s"] for teacher in manifest["teachers"].values()),
    )


def conclude(job: Job, manifest: dict[str, Any], outcome: Outcome, session: TrackerSession) -> None:
    """Write the summary, and once more when the tracker has ended: so its clock holds that as
    well."""
    rows = RowsFile(job.run_dir / ROWS).rows()

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


def _stopped_in_compilation(job: Job) -> RunStatus:
    """Write that the run stopped before its first step. Nothing is lost: compilation comes before
    it."""
    if job.world.is_main:
        cut_attempt_short(job, RunStatus.preempted, "got a request to stop before its first step")
    return RunStatus.preempted


def begin() -> NoReturn:
    """Be a worker as this process."""
    entry.outlive_readers()
    with guarded():
        main()


if __name__ == "__main__":
    begin()
