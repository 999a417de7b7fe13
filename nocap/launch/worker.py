"""A worker: one rank of a run, in a process of its own. `python -m nocap.launch.worker RUN_DIR` is what the command starts.

With several devices this process becomes torchrun's agent and starts the ranks, which run this same module.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from nocap import outside
from nocap.config.compose import load, to_plain
from nocap.config.errors import EXIT_CODES, LOST
from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.data.tokens import Shard
from nocap.launch.signals import STOP_SIGNALS, unblock
from nocap.options.tracker import RunFacts, TrackerSession
from nocap.store import lock
from nocap.store.record import Metrics, Row, read_json, write_json
from nocap.store.tracking import open_tracker
from nocap.training.heartbeat import START_UP, Heartbeat
from nocap.training.loop import train
from nocap.training.process import die_with_parent, leave
from nocap.training.recorder import Outcome
from nocap.training.step import Job
from nocap.training.summary import cut_short, summarize
from nocap.training.terminal import Reporter, ending
from nocap.training.world import World, join

WRITER_WAIT_S = 10.0  # a killed parent's worker needs a moment to die


def main() -> None:
    run_dir = Path(sys.argv[1])
    unblock()
    die_with_parent(int(os.environ["NOCAP_PARENT"]))
    try:
        run = load(run_dir / "config.yaml")
    except ValueError as error:  # an option from outside that changed since the command began
        print(f"nocap: {error}", file=sys.stderr)
        leave(EXIT_CODES["refused"])
    if run.trainer.devices > 1 and "RANK" not in os.environ:
        leave(start_ranks(run, run_dir))
    status = work(run, run_dir, started=float(os.environ["NOCAP_STARTED"]))
    # To torchrun's agent, a rank that wrote its record has succeeded; any other code would have it kill the rest.
    leave(EXIT_CODES[status] if status in ("failed", "refused") or run.trainer.devices == 1 else 0)


def start_ranks(run: Run, run_dir: Path) -> int:
    """Start a rank per device with torchrun's library and wait for them. The agent's exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in filter(lambda name: name.startswith("torch.distributed.elastic"), logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # an error is reported below, in one line
    os.environ["NOCAP_PARENT"] = str(os.getpid())
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGHUP,SIGQUIT"  # Ctrl-C comes as SIGTERM, from the parent
    with tempfile.TemporaryDirectory() as log_dir:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=run.trainer.devices,
            run_id=run_dir.name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            monitor_interval=0.1,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=log_dir),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "nocap.launch.worker", str(run_dir))
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
            if set(codes.values()) == {EXIT_CODES["refused"]}:
                return EXIT_CODES["refused"]
            return _ranks_failed(run, run_dir, codes)
        except SignalException:
            return EXIT_CODES["preempted"]
    return 0


def _ranks_failed(run: Run, run_dir: Path, codes: dict[int, int]) -> int:
    """Report which rank was killed, and where. The others only wrote that they lost it."""
    heartbeat = Heartbeat(run_dir)
    killed = {rank: code for rank, code in codes.items() if code < 0}
    message = ", ".join(f"rank {rank} ended with {ending(code)} {heartbeat.where(rank)}" for rank, code in (killed or codes).items())
    print(f"nocap: {message}; see {run_dir / 'train.log'}", file=sys.stderr)
    if not killed:
        return EXIT_CODES["failed"]
    cut_short(run, run_dir, status="failed", attempt_s=time.monotonic() - float(os.environ["NOCAP_STARTED"]), error=message)
    return LOST


def work(run: Run, run_dir: Path, *, started: float) -> str:
    """Train as this process's rank and write the record. Returns the status, or `refused`."""
    signals = _catch_signals()
    manifest = read_json(run_dir / "manifest.json")
    assert manifest is not None
    # Longer than the parent waits: it names the rank that hangs. The others know only that they waited.
    world = join(run.trainer.device, timeout_s=2 * run.trainer.hang_timeout_s)
    heartbeat = Heartbeat(run_dir)
    heartbeat.beat(world.rank, START_UP)
    reporter = Reporter(log_path=run_dir / "train.log" if world.is_main else None, steps=run.trainer.steps)
    writer = lock.acquire(run_dir / ".writer.lock", wait_s=WRITER_WAIT_S) if world.is_main else None
    sessions: list[TrackerSession] = []

    def on_start(rows: list[Row]) -> None:
        sessions.append(open_tracker(run.tracker, _facts(run, run_dir, manifest), rows=rows))
        reporter.start(rows[-1]["step"] + 1 if rows else (manifest["init"] or {"step": 0})["step"])

    def on_row(row: Row) -> None:
        reporter.row(row)
        sessions[0].log(row)

    data = manifest["data"]
    job = Job(
        run=run,
        train_shards=tuple(Shard(**shard) for shard in data["train"]),
        val_shards=tuple(Shard(**shard) for shard in data["val"]),
        vocab_size=data["vocab_size"],
        val_bytes=data["val_bytes"],
        run_dir=run_dir,
        world=world,
        started=started,
        spent_s=manifest["attempts"][-1]["spent_s"],
        on_start=on_start,
        on_row=on_row,
        log=reporter.log,
        stop_asked=lambda: bool(signals),
        heartbeat=lambda step: heartbeat.beat(world.rank, step),
    )
    try:
        outcome = train(job)
        reporter.close()
        if world.is_main:
            _conclude(run, run_dir, manifest, outcome, sessions[0])
    except Exception as error:
        for session in sessions:
            session.finish(summary={}, status="failed")
        return _report_failure(run, run_dir, world, error, started, behind=heartbeat.behind())
    finally:
        reporter.close()
        if writer is not None:
            writer.close()
    return outcome.status


def _facts(run: Run, run_dir: Path, manifest: dict[str, Any]) -> RunFacts:
    return RunFacts(
        identity=manifest["identity"],
        name=manifest["name"],
        arm=manifest["arm"],
        seed=run.seed,
        run_dir=run_dir,
        config=to_plain(run),
        group=manifest["attempts"][-1].get("grid"),
    )


def _conclude(run: Run, run_dir: Path, manifest: dict[str, Any], outcome: Outcome, session: TrackerSession) -> None:
    """Write the summary after the tracker has ended: so its clock holds that as well."""
    rows = Metrics(run_dir / "metrics.jsonl").rows()

    def summary() -> dict[str, Any]:
        clock = outcome.ledger.seconds()
        return summarize(run, manifest, rows, status=outcome.status, step=outcome.step, clock_s=clock, totals=outcome.totals)

    session.finish(summary=summary(), status=outcome.status)
    write_json(run_dir / "summary.json", {**summary(), "tracker": session.url_or_hint})


def _report_failure(run: Run, run_dir: Path, world: World, error: Exception, started: float, *, behind: str) -> str:
    """The traceback into the log, a line on stderr, the status into the summary."""
    refused = isinstance(error, InputError)
    line = str(error) if refused or isinstance(error, OSError) else f"{type(error).__name__}: {error}".splitlines()[0]
    line += _place_outside(error)
    if world.size > 1 and isinstance(error, RuntimeError):  # from a collective, as a rule: which rank did not come?
        line += f" (furthest behind: {behind})"
    with suppress(OSError), (run_dir / "train.log").open("a") as file:  # a full disk may be what failed
        file.write(f"rank {world.rank} failed\n{traceback.format_exc()}")
    if world.is_main:
        cut_short(run, run_dir, status="failed", attempt_s=time.monotonic() - started, error=line)
    if world.is_main or not refused:  # all ranks refuse for the same reason
        print(f"nocap: rank {world.rank}: {line}" if world.size > 1 and not refused else f"nocap: {line}", file=sys.stderr)
    return "refused" if refused else "failed"


def _place_outside(error: Exception) -> str:
    """The line of a file from outside that the error came from, if it did."""
    paths = {str(file.path) for file in outside.files()}
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
    return f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""


def _catch_signals() -> list[int]:
    """The signals that come from now on. The loop looks at the end of a step."""
    signals: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: signals.append(number))
    return signals


if __name__ == "__main__":
    main()
