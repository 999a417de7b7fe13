"""A Slurm of two partitions for tests: `sbatch`, `srun`, `sacct`, `scontrol` and `scancel` by the
name they are called by.

A node of the partition `one`, which is the default, has one core, of `two` two. Neither has a GPU.
An array has at most 100 jobs.

`$FAKE_SLURM` holds its state. A file `limit-JOB` there is a job's time limit coming near: the job
gets SIGUSR2, and once it has ended it runs again if it asked for that.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from itertools import count, pairwise
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scontrol", "scancel")
PARTITIONS = {"one": 1, "two": 2}  # cores of a node
MOST = 100  # jobs of an array


def install(folder: Path) -> dict[str, str]:
    """Make the commands and an empty state below a folder. The environment that finds them."""
    (folder / "bin").mkdir(parents=True)
    (folder / "state").mkdir()
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        path.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAKE_SLURM": str(folder / "state")}


def sbatch(state: Path, script: str) -> None:
    text = Path(script).read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, re.M))
    array = re.match(r"0-(\d+)", asked.get("array", ""))
    partition = asked.get("partition", "one")
    if partition not in PARTITIONS or (array and int(array[1]) >= MOST):
        if partition not in PARTITIONS:
            what = "Invalid partition name specified"
        else:
            what = "Invalid job array specification"
        raise SystemExit(f"sbatch: error: Batch job submission failed: {what}")
    number = next(number for number in count(1) if _new(state / f"submitted-{number}"))
    copy = state / f"script-{number}"
    copy.write_text(Path(script).read_text())
    for task in range(int(array[1]) + 1) if array else [-1]:
        if array:
            job = f"{number}_{task}"
        else:
            job = str(number)
        _becomes(state, job, "PENDING")
        command = [sys.executable, __file__, "node", str(copy), job, partition]
        nowhere = subprocess.DEVNULL
        subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
    print(f"Submitted batch job {number}")


def _new(path: Path) -> bool:
    """Whether nobody else has made it: two that submit at the same moment have numbers of their
    own."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def node(state: Path, script: str, job: str, partition: str) -> None:
    """Run a job, again as often as it asks for it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: PARTITIONS[partition]])
    number, _, task = job.partition("_")
    env = {
        **os.environ,
        "SLURM_JOB_ID": job,
        "SLURM_NTASKS": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0",
    }
    env |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "node1"}
    env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task} if task else {}
    limit, requeue, cancel = (state / f"{name}-{job}" for name in ("limit", "requeue", "cancel"))
    while True:
        _becomes(state, job, "RUNNING")
        process = subprocess.Popen(
            ["bash", script], env=env, start_new_session=True, preexec_fn=_deaf
        )
        while process.poll() is None:
            if limit.exists():
                limit.unlink()
                os.killpg(process.pid, signal.SIGUSR2)
            if cancel.exists():
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)
        if not requeue.exists():
            break
        requeue.unlink()
    if cancel.exists():
        ended = "CANCELLED"
    elif process.returncode:
        ended = "FAILED"
    else:
        ended = "COMPLETED"
    _becomes(state, job, ended)


def _becomes(state: Path, job: str, what: str) -> None:
    """At once: a reader never finds an empty file."""
    (state / f"new-{job}").write_text(what)
    (state / f"new-{job}").replace(state / f"job-{job}")


def _deaf() -> None:
    """The warning is for what `srun` started, not for the script."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _hearing() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def srun(state: Path, *words: str) -> None:
    job = {"%j": os.environ["SLURM_JOB_ID"], "%t": "0"}
    job |= {
        "%A": os.environ.get("SLURM_ARRAY_JOB_ID", ""),
        "%a": os.environ.get("SLURM_ARRAY_TASK_ID", ""),
    }
    options = {}
    command = list(words)
    while command[0].startswith("--"):
        key = command.pop(0)
        if key in ("--output", "--error"):
            options[key] = re.sub("%[jtAa]", lambda match: job[match[0]], command.pop(0))
    for descriptor, key in ((1, "--output"), (2, "--error")):
        while not Path(
            options[key]
        ).parent.is_dir():  # submitit makes it once it knows the job's number
            time.sleep(0.05)
        file = os.open(options[key], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
    raise SystemExit(subprocess.call(command, preexec_fn=_hearing))


def sacct(state: Path, *words: str) -> None:
    asked = {job for flag, job in pairwise(words) if flag == "-j"}
    print("JobID|State|NodeList")
    for path in sorted(state.glob("job-*")):
        job = path.name.removeprefix("job-")
        if job.partition("_")[0] in asked:
            print(f"{job}|{path.read_text()}|node1")


def scontrol(state: Path, what: str, job: str) -> None:
    assert what == "requeue"
    (state / f"requeue-{job}").touch()


def scancel(state: Path, job: str) -> None:
    (state / f"cancel-{job}").touch()


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    globals()[name](Path(os.environ["FAKE_SLURM"]), *arguments)
