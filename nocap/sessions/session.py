"""A session: arms measured in turns, in a process of their own. One at a time is timed on a
machine."""

from __future__ import annotations

import fcntl
import glob
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.errors import FailedError
from nocap.config.paths import cache_root
from nocap.config.plain import to_plain
from nocap.config.trainer import Device, Trainer
from nocap.launch import environment
from nocap.sessions.places import PARTS, PLACES
from nocap.sessions.session_file import SessionFile, SessionRequest, read_session
from nocap.store.file_writing import open_without_link
from nocap.store.record_files import digest
from nocap.store.source_hashes import source_hashes
from nocap.store.times import now

WORKER = "nocap.sessions.worker"


@dataclass(frozen=True, kw_only=True)
class Session:
    """A measurement in a process of its own, all its arms interleaved; it may be repeated,
    under numbers from 1."""

    place: str  # a key of PLACES
    arms: Mapping[str, Composed]
    how: Mapping[str, object] = field(default_factory=dict)  # arguments of the place's kind

    @cached_property
    def key(self) -> str:
        """Return twelve hex digits, the same where another session would measure the same."""
        runs = {name: arm.run for name, arm in self.arms.items()}
        trainer = self._trainer
        machine = hardware.describe(trainer.device, trainer.threads)
        return digest(
            {
                "kind": PLACES[self.place].kind,
                "how": dict(self.how),
                "arms": {name: run.that_count("step", to_plain(run)) for name, run in runs.items()},
                "source": {name: source_hashes(run, of="step") for name, run in runs.items()},
                "machine": machine["fingerprint"],
            }
        )

    @property
    def _trainer(self) -> Trainer:
        """Return the trainer of the first arm, whose device and threads all have."""
        first = next(iter(self.arms.values()))
        return first.run.trainer

    @property
    def name(self) -> str:
        if self.place == PARTS:
            return f"{self.place}-{next(iter(self.arms))}"
        return self.place

    def path(self, folder: Path, number: int) -> Path:
        return folder / "sessions" / f"{self.name}-{number}-{self.key}.json"

    def results(self, folder: Path) -> list[SessionFile]:
        """List the files of all its numbers that there are, in their order."""
        paths = (folder / "sessions").glob(f"{glob.escape(self.name)}-*-{self.key}.json")
        files = list[SessionFile]()
        for path in paths:
            file = read_session(path)
            if file is not None:
                files.append(file)
        files.sort(key=lambda file: file.number)
        return files

    def run(self, folder: Path, number: int = 1) -> SessionFile:
        """Measure in a fresh process, unless there is a result. Nothing else is timed on this
        machine at the same time.

        Errors:
            FailedError: the process ended without a result.
        """
        path = self.path(folder, number)
        with timing():
            result = read_session(path)
            if result is not None:  # maybe another command's, while this one waited
                return result
            log = path.with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "w", opener=open_without_link) as file:
                worker = subprocess.run(
                    [sys.executable, "-m", WORKER, str(path)],
                    env=self._environment(),
                    input=msgspec.json.encode(self._request(number)).decode(),
                    text=True,
                    stdout=file,
                    stderr=file,
                    check=False,
                )
        result = read_session(path)
        if result is None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            reason = lines[-1] if lines else f"exit code {worker.returncode}"
            raise FailedError(f"{self.name}, session {number}: {reason}; see {log}")
        log.unlink(missing_ok=True)
        return result

    def _environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        trainer = self._trainer
        env = {"GOMP_SPINCOUNT": "1000", "KINETO_LOG_LEVEL": "99", **os.environ}
        env["OMP_NUM_THREADS"] = str(trainer.threads)
        env[environment.PARENT] = str(os.getpid())
        if trainer.device is Device.cpu:
            env["CUDA_VISIBLE_DEVICES"] = ""
        return env

    def _request(self, number: int) -> SessionRequest:
        """Return what the process is to measure."""
        return SessionRequest(
            kind=PLACES[self.place].kind,
            place=self.place,
            key=self.key,
            number=number,
            how=dict(self.how),
            started=now(),
            arms={name: list(arm.overrides) for name, arm in self.arms.items()},
        )


@contextmanager
def timing() -> Iterator[None]:
    """Wait until nothing else is timed on this machine: two timings at once would slow each other
    down."""
    path = cache_root() / f"timing-{socket.gethostname()}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file, also by a kill
        yield
    time.sleep(0.5)  # who waits for it goes first, on a busy machine too
