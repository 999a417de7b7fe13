"""Cells as jobs of Slurm, by submitit's own API, each in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from nocap.launch.cluster_cell import CellJob
from nocap.launch.executor import Executor, JobEnd, last_words
from nocap.launch.grid import Cell
from nocap.launch.run_result import RunResult

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise


class SlurmJobs(Executor):
    """What was submitted since the last look becomes arrays of jobs. Slurm restarts them itself."""

    goes_on: ClassVar[str] = (
        "Slurm has the jobs; the same command without --detach waits for them and reports"
    )

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        *,
        max_num_timeout: int,
        stderr_to_stdout: bool,
    ) -> None:
        """Check that this machine is one of a cluster. `parameters` are submitit's, by its names.

        Errors:
            ValueError: it is not.
        """
        import submitit

        self.folder = folder
        self.stderr_to_stdout = stderr_to_stdout
        self.logs = folder / "jobs" / "%j"
        self._new = list[SlurmCell]()
        try:
            self._executor = submitit.AutoExecutor(
                self.logs, cluster="slurm", slurm_max_num_timeout=max_num_timeout
            )
            self._executor.update_parameters(**parameters)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"hydra/launcher=slurm works only on a machine of a Slurm cluster: {error}"
            ) from error

    def submit(self, cell: Cell) -> SlurmCell:
        """Return the cell as a job, which is handed over at the next look."""
        job = CellJob(str(self.folder), cell.plan.identity)
        slurm_cell = SlurmCell(self, job)
        self._new.append(slurm_cell)
        return slurm_cell

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        import submitit

        new = self._new
        self._new = []
        # all are known before the first is asked for: then one call of sacct answers for all
        for cell in new:
            if cell.number_file.is_file():
                cell.sent = submitit.SlurmJob(self.logs, cell.number_file.read_text())
        without_job = [cell for cell in new if cell.is_over]
        for first in range(0, len(without_job), MOST_JOBS):
            self._send_array(without_job[first : first + MOST_JOBS])

    def _send_array(self, cells: Sequence[SlurmCell]) -> None:
        """Hand over an array of jobs; where `sbatch` refuses it, every cell has the reason."""
        try:
            jobs = self._executor.submit_array([cell.job for cell in cells])
            for cell, sent in zip(cells, jobs, strict=True):
                cell.sent = sent
                cell.number_file.write_text(sent.job_id)
        except Exception as error:  # submitit's, of no class of their own
            for cell in cells:
                cell.reason = _last_line(error)


class SlurmCell:
    """A cell as a job."""

    def __init__(self, jobs: SlurmJobs, job: CellJob) -> None:
        self.job = job
        # holds Slurm's number, so that a later command finds it
        self.number_file = job.log.with_suffix(".job")
        self.sent: Any = None  # submitit's job
        self.reason: str | None = None  # why there is no record to come
        self._jobs = jobs
        self._stopping = False

    @property
    def is_over(self) -> bool:
        """Say whether no job has the cell now."""
        return self.sent is None or self.sent.state == "UNKNOWN" or self.sent.done()

    def poll(self) -> RunResult | JobEnd | None:
        """Return how the job ended; None: it goes on.

        Errors:
            ValueError: Slurm has refused the job.
        """
        self._jobs.send()
        if self.reason is None and self.sent.done():
            self.reason = self._why_over()
        if self.reason is not None and self.sent is None:
            raise ValueError(self.reason)
        if self.reason is not None:
            return JobEnd(self.reason)
        if self._stopping:
            return RunResult.elsewhere(f"continues as Slurm's job {self.sent.job_id}")
        return None

    def _why_over(self) -> str:
        """Return the last words of a job that has ended."""
        error = self.sent.exception()
        if error is not None:
            return _last_line(error)
        if self._jobs.stderr_to_stdout:
            printed = self.sent.stdout()
        else:
            printed = self.sent.stderr()
        return last_words(printed) or f"see {self.number_file.parent}"

    def stop(self) -> None:
        """Leave it as it is: Slurm's jobs outlive the command that handed them over."""
        self._stopping = True


def _last_line(error: Exception) -> str:
    """Return the error's kind and the last line of what it says."""
    last = ""
    for line in re.findall(r"\S.*", str(error)):
        last = line.strip()
    return f"{type(error).__name__}: {last}"
