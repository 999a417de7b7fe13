"""Measurements in fresh processes, each kept in a file until its arms, nocap's source or the machine change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.compose import Composed, to_plain
from nocap.config.trainer import Device
from nocap.store.identity import digest
from nocap.store.record import read_json, write_json
from nocap.store.source import source_hashes

WORKER = "nocap.study.session"
FILE = re.compile(r"(?P<what>\w.*)-s(?P<seed>\d+)-(?P<key>[0-9a-f]{12})(-(?P<repeat>\d+))?\.json")  # as `Session.path` names it


class SessionError(RuntimeError):
    """A session ended without a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A kind of measurement, a seed that numbers its repetition, and the arms it is about."""

    kind: str
    what: str  # for its file's name and for people
    seed: int
    arms: Mapping[str, Composed]
    how: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1  # of this seed: a later sitting may time it again

    def key(self) -> str:
        """Twelve hex digits: the same where another session would measure the same."""
        runs = {name: arm.run for name, arm in self.arms.items()}
        t = next(iter(runs.values())).trainer
        content = {
            "kind": self.kind,
            "how": dict(self.how),
            "arms": {name: run.that_count("step", to_plain(run)) for name, run in runs.items()},
            "source": {name: source_hashes(run, of="step") for name, run in runs.items()},
            "machine": hardware.describe(t.device, t.threads)["fingerprint"],
        }
        return digest(content)

    def path(self, folder: Path) -> Path:
        again = f"-{self.repeat}" if self.repeat > 1 else ""
        return folder / "sessions" / f"{self.what}-s{self.seed}-{self.key()}{again}.json"

    def request(self, folder: Path) -> Path:
        """What its process reads."""
        return (path := self.path(folder)).with_name(f".{path.stem}.request.json")

    def found(self, folder: Path) -> dict[str, Any] | None:
        """Its result, if there is one."""
        return read_json(self.path(folder))

    def run(self, folder: Path) -> dict[str, Any]:
        """Measure in a fresh process, unless there is a result.

        Errors:
            SessionError: the process ended without a result.
        """
        if (found := self.found(folder)) is not None:
            return found
        path, request = self.path(folder), self.request(folder)
        arms = {name: list(arm.overrides) for name, arm in self.arms.items()}
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_json(request, {"kind": self.kind, "seed": self.seed, "started": started, "arms": arms, "how": dict(self.how)})
        t = next(iter(self.arms.values())).run.trainer
        env = {"GOMP_SPINCOUNT": "1000", "KINETO_LOG_LEVEL": "99", **os.environ, "OMP_NUM_THREADS": str(t.threads)}
        env["NOCAP_PARENT"] = str(os.getpid())
        if t.device is Device.cpu:
            env["CUDA_VISIBLE_DEVICES"] = ""
        log = path.with_suffix(".log")
        log.unlink(missing_ok=True)  # whatever it is
        with log.open("x") as file:
            command = [sys.executable, "-m", WORKER, str(request), str(path)]
            code = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
        found = read_json(path)
        if code != 0 or found is None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise SessionError(f"{self.what}, seed {self.seed}: {lines[-1] if lines else f'exit code {code}'}; see {log}")
        self.tidy(folder)
        return found

    def tidy(self, folder: Path) -> None:
        """Delete what is of no use beside a result."""
        for path in (self.request(folder), self.path(folder).with_suffix(".log")):
            path.unlink(missing_ok=True)


def with_repeats(session: Session, folder: Path) -> list[Session]:
    """It and its repeats that have a result."""
    every = takewhile(lambda one: one.found(folder) is not None, (replace(session, repeat=n) for n in count(1)))
    return list(every)


def run_all(sessions: Sequence[Session], folder: Path, *, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run what is missing, one at a time: two at once would slow each other down. All results, in order."""
    missing = [session for session in sessions if session.found(folder) is None]
    for session in sessions:
        if session not in missing:  # a study that was killed at the end of one
            session.tidy(folder)
    for i, session in enumerate(missing, start=1):
        began = time.monotonic()
        session.run(folder)
        log(f"[{i}/{len(missing)}] {session.what}, seed {session.seed}: {', '.join(session.arms)}  {time.monotonic() - began:.0f} s")
    found = [session.found(folder) for session in sessions]
    return [one for one in found if one is not None]
