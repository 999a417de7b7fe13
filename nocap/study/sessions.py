"""Sessions asked for once: each runs in a fresh process, and what it said is kept until its arms, nocap's source or the machine change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.compose import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.store.identity import digest
from nocap.store.record import read_json, write_json
from nocap.store.source import source_hashes

WORKER = "nocap.study.session"


class SessionError(RuntimeError):
    """A session ended without a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One to ask for: a kind of measurement, a seed that numbers its repetition, and the arms it is about."""

    kind: str
    what: str  # for its file's name and for people
    seed: int
    arms: Mapping[str, Sequence[str]]  # name → all its words
    runs: Mapping[str, Run]  # the same, composed
    how: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> str:
        """Twelve hex digits: the same where asking again would say the same, the clock's noise apart."""
        run = next(iter(self.runs.values()))
        configs = {name: arm.that_count("step", to_plain(arm)) for name, arm in self.runs.items()}
        source = {name: source_hashes(arm, of="step") for name, arm in self.runs.items()}
        machine = hardware.describe(run.trainer.device, run.trainer.threads)["fingerprint"]
        return digest({"kind": self.kind, "how": dict(self.how), "arms": configs, "source": source, "machine": machine})

    def path(self, folder: Path) -> Path:
        return folder / "sessions" / f"{self.what}-s{self.seed}-{self.key()}.json"

    def found(self, folder: Path) -> dict[str, Any] | None:
        """What it said, if it has been held."""
        return read_json(self.path(folder))

    def hold(self, folder: Path, *, claims: Mapping[str, str]) -> dict[str, Any]:
        """Hold it, unless it has been; `claims` (id → hash) are written down before it starts.

        Errors:
            SessionError: it ended without a result.
        """
        if (found := self.found(folder)) is not None:
            return found
        path = self.path(folder)
        request = path.with_name(f".{path.stem}.request.json")
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        facts = {"kind": self.kind, "seed": self.seed, "claims": dict(claims), "started": started}
        write_json(request, {**facts, "arms": {name: list(words) for name, words in self.arms.items()}, "how": dict(self.how)})
        t = next(iter(self.runs.values())).trainer
        env = {"GOMP_SPINCOUNT": "1000", "KINETO_LOG_LEVEL": "99", **os.environ, "OMP_NUM_THREADS": str(t.threads)}
        if t.device is Device.cpu:
            env["CUDA_VISIBLE_DEVICES"] = ""
        log = path.with_suffix(".log")
        with log.open("w") as file:
            command = [sys.executable, "-m", WORKER, str(request), str(path)]
            code = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
        found = read_json(path)
        if code != 0 or found is None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise SessionError(f"{self.what}, seed {self.seed}: {lines[-1] if lines else f'exit code {code}'}; see {log}")
        request.unlink()
        log.unlink()
        return found


def hold_all(sessions: Sequence[Session], folder: Path, *, claims: Mapping[str, str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Seed by seed, one at a time: a session beside another would time that one, too."""
    missing = [session for session in sessions if session.found(folder) is None]
    for i, session in enumerate(missing, start=1):
        began = time.monotonic()
        session.hold(folder, claims=claims)
        say(f"[{i}/{len(missing)}] {session.what}, seed {session.seed}: {', '.join(session.arms)}  {time.monotonic() - began:.0f} s")
    found = [session.found(folder) for session in sessions]
    return [one for one in found if one is not None]
