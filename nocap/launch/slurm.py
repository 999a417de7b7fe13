"""Cells as jobs of Slurm, by submitit's own API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import submitit

from nocap.config.run import Run
from nocap.launch.cell import CellJob
from nocap.launch.executor import last_words, left_by
from nocap.launch.grid import Cell, Result

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")  # submitit's own names, for any cluster


class Jobs:
    """What was submitted since the last look becomes arrays of jobs. Slurm restarts them itself."""

    event: ClassVar[str] = "sent"
    poll_s: ClassVar[float] = 0.5

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        """`asked`: the launcher's keys."""
        self.folder, self.asked, self._new = folder, asked, list[SlurmJob]()
        self.logs = folder / "jobs" / "%j"
        given = {key if key in EVERY else f"slurm_{key}": value for key, value in asked.items() if key != "max_num_timeout"}
        try:
            self._executor = submitit.AutoExecutor(self.logs, cluster="slurm", slurm_max_num_timeout=asked["max_num_timeout"])
            self._executor.update_parameters(**given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"hydra/launcher=slurm must be given on a machine of a Slurm cluster, got {error}") from error

    def describe(self, runs: Sequence[Run]) -> str:
        return f"slurm: a job of {self.asked['timeout_min']} min a cell, {self.asked['array_parallelism']} at once at most"

    def submit(self, cell: Cell, begun: Callable[[], None]) -> SlurmJob:
        self._new.append(made := SlurmJob(self, cell))
        return made

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        new, self._new = self._new, []
        for made in new:  # all are known before the first is asked for: then one call of sacct answers for all
            made.sent = submitit.SlurmJob(self.logs, made.number.read_text()) if made.number.is_file() else None
        for made in new:
            if made.sent is not None and (made.sent.state == "UNKNOWN" or made.sent.done()):
                made.sent = None
        todo = [made for made in new if made.sent is None]
        for part in (todo[first : first + MOST_JOBS] for first in range(0, len(todo), MOST_JOBS)):
            try:
                for made, sent in zip(part, self._executor.submit_array([made.job for made in part]), strict=True):
                    made.sent = sent
                    made.number.write_text(sent.job_id)
            except Exception as error:  # submitit's, of no class of their own: sbatch has refused the array
                for made in part:
                    made.reason = _last_line(error)

    def close(self) -> None:
        pass


class SlurmJob:
    def __init__(self, jobs: Jobs, cell: Cell) -> None:
        self.cell, self.job, self._jobs = cell, CellJob(str(jobs.folder), cell.plan.identity), jobs
        self.number = self.job.log.with_suffix(".job")  # holds that of Slurm
        self.sent: Any = None
        self.reason: str | None = None  # why there is no record to come

    def poll(self) -> Result | None:
        self._jobs.send()
        if self.reason is None and self.sent.done():
            error = self.sent.exception()
            printed = last_words(self.sent.stdout() if self._jobs.asked["stderr_to_stdout"] else self.sent.stderr())
            self.reason = (printed if error is None else _last_line(error)) or f"see {self.number.parent}"
        return None if self.reason is None else left_by(self.cell, self.reason)

    def stop(self) -> None:
        """It goes on as it is: Slurm's jobs outlive the command that handed them over."""
        self._jobs.send()
        self.reason = self.reason or f"goes on as Slurm's job {self.sent.job_id}"


def _last_line(error: Exception) -> str:
    lines = re.findall(r"\S.*", str(error))
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
