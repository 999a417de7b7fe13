"""What a run costs before its first step: a process with torch, data, compilation. Runs of seconds are mostly that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Compile
from nocap.store.find import run_folders
from nocap.store.runs import Record, glance
from nocap.store.verify import ENDED

RUNS = 200  # of those in the folder are looked at
COMPILE_S = 20.0  # a guess, where no run of this machine was compiled in this way


def startups(arms: Mapping[str, Run], folder: Path) -> tuple[dict[str, float], str]:
    """Arm → seconds, and where they are from: the ended runs in `folder` of this machine that are compiled in the same way, else the time
    that a process takes to import what a worker does."""
    seen, found, counted = _seen(folder), dict[str, float](), 0
    for arm, run in arms.items():
        t = run.trainer
        known = seen.get((str(hardware.describe(t.device, t.threads)["fingerprint"]), t.compile.name), [])
        counted = max(counted, len(known))
        found[arm] = median(known) if known else imports_s() + (0.0 if t.compile is Compile.off else COMPILE_S)
    return found, f"from {counted} runs of this machine" if counted else "from a process that imports torch"


def _seen(folder: Path) -> dict[tuple[str, str], list[float]]:
    found = dict[tuple[str, str], list[float]]()
    for path in run_folders(folder)[:RUNS]:
        try:
            record = glance(path)
        except ValueError:
            continue  # a list of the runs names it
        if record.status in ENDED and (seconds := _seconds(record)) is not None:
            found.setdefault((record.machine[0], str(record.config.get("trainer.compile"))), []).append(seconds)
    return found


def _seconds(record: Record) -> float | None:
    spent = [record.number("clock_s", line) for line in ("startup", "compile")]
    return None if spent[0] is None else sum(seconds or 0.0 for seconds in spent)


@cache
def imports_s() -> float:
    began = time.monotonic()
    command = [sys.executable, "-c", "import nocap.launch.worker"]
    subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - began
