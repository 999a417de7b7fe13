"""What a study needs done, each once: runs to train, sessions to time. A task is done when its result is there."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.compose import Composed, to_plain
from nocap.config.errors import EXIT_CODES, EndedError
from nocap.config.paths import cache_root
from nocap.config.trainer import Device
from nocap.judge.claim import Rule
from nocap.launch.grid import Cell, RefusedError, Result, check, key_of
from nocap.launch.plan import DAMAGED, outcome, plan
from nocap.launch.runner import Devices, Runner
from nocap.store.identity import digest, source_hashes
from nocap.store.record import read_ended, read_json, write_json
from nocap.store.runs import Record, read
from nocap.study.plan import StudyPlan, engine_of, with_seed

WORKER = "nocap.study.session"
PROFILE_REPEATS = 2  # of a step, in each session


class StoppedError(EndedError):
    """A request to stop: what was trained and timed is kept, and the same command goes on."""

    code = EXIT_CODES["preempted"]


class FailedError(EndedError):
    """A run or session failed that later ones need."""


# --- runs ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A run that a study needs: an arm with a seed."""

    arm: str
    seed: int
    composed: Composed  # with the seed
    short: int = 0  # the steps of a shorter schedule


def trainings(arms: Mapping[str, Composed], seeds: Mapping[int, Sequence[str]], *, short: bool = False) -> list[Training]:
    """`seeds`: seed → arms."""
    return [
        Training(arm=arm, seed=seed, composed=with_seed(arms[arm], seed), short=arms[arm].run.trainer.steps if short else 0)
        for seed, names in seeds.items()
        for arm in names
        if arm in arms
    ]


class Trainings:
    """Runs that belong together: the cells of one grid, beside all other runs.

    Errors:
        ValueError: an invalid run; the first is named, with how many there are.
    """

    def __init__(self, runs: Sequence[Training], *, label: str) -> None:
        known = {run.composed.overrides: run.composed for run in runs}
        try:
            overrides = [run.composed.overrides for run in runs]
            grid = check(overrides, swept=("seed",), compose=lambda words: known[tuple(words)], log=lambda line: None)
        except RefusedError as refused:
            raise ValueError(refused.lines[0]) from refused
        dataset = grid.cells[0].plan.dataset
        identities = [plan(run.composed.run, choices=run.composed.choices, dataset=dataset).identity for run in runs]
        names: dict[str, list[str]] = {}  # two arms may be the same run
        for run, identity in zip(runs, identities, strict=True):
            names.setdefault(identity, []).append(run.arm)
        common = set.intersection(*map(set, overrides))
        swept = tuple(dict.fromkeys(key_of(word) for words in overrides for word in words if word not in common))
        cells = [
            replace(
                cell,
                label=f"{label} {'='.join(dict.fromkeys(names[cell.plan.identity]))} seed={cell.plan.run.seed}",
                plan=replace(cell.plan, swept=swept),
            )
            for cell in grid.cells
        ]
        by_identity = {cell.plan.identity: cell for cell in cells}
        self.grid, self.damaged = replace(grid, cells=tuple(cells)), set[tuple[str, int]]()
        self.cells: list[tuple[Training, Cell]] = [(run, by_identity[i]) for run, i in zip(runs, identities, strict=True)]

    def missing(self, seed: int | None = None) -> list[Cell]:
        return [cell for cell in self.grid.cells if seed in (None, cell.plan.run.seed) and outcome(cell.plan) is None]

    def train(
        self,
        *,
        between: Callable[[], None] = lambda: None,
        without: Collection[int] = (),
        watch: Callable[[Cell, str], None] = lambda cell, event: None,
    ) -> dict[str, Result]:
        """Train what is missing, a seed's cells at once as far as the machine has room, but `without` these seeds. Identity → how it
        ended. `between`: called before each seed's. `watch`: told of each cell that it is begun, and how it ended.

        Errors:
            StoppedError: somebody asked to stop.
        """
        results: dict[str, Result] = {}
        seeds = [seed for seed in dict.fromkeys(cell.plan.run.seed for cell in self.grid.cells) if seed not in without]
        if not any(map(self.missing, seeds)):
            return results
        self.grid.write()
        for seed in seeds:
            between()
            cells = tuple(cell for cell in self.grid.cells if cell.plan.run.seed == seed)
            runner = Runner(replace(self.grid, cells=cells), Devices(), watch=watch)
            results |= runner.run()
            if runner.stopping:
                raise StoppedError("stopped; what was trained is saved, and the same command goes on")
        return results

    def records(self, problems: list[str]) -> list[tuple[Training, Record]]:
        """Of the runs that finished or diverged. What cannot be read of a record goes into `problems`, and who is `damaged`."""
        records = []
        for run, cell in self.cells:
            try:
                ended = read_ended(cell.plan.run_dir, identity=cell.plan.identity)
            except ValueError as error:
                problems.append(f"{DAMAGED}: {error}")
                self.damaged.add((run.arm, run.seed))
                continue
            if ended is not None:
                records.append((run, read(cell.plan.run_dir)))
        return records


# --- sessions ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A measurement in a process of its own: all its arms, interleaved."""

    place: str  # pace, bench, parts, curve, decoding: the field of the evidence that it fills
    kind: str  # steps, parts, lengths, decoding
    number: int  # which repetition, from 1
    arms: Mapping[str, Composed]
    how: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Twelve hex digits: the same where another session would measure the same."""
        runs = {name: arm.run for name, arm in self.arms.items()}
        t = next(iter(runs.values())).trainer
        return digest(
            {
                "kind": self.kind,
                "how": dict(self.how),
                "arms": {name: run.that_count("step", to_plain(run)) for name, run in runs.items()},
                "source": {name: source_hashes(run, of="step") for name, run in runs.items()},
                "machine": hardware.describe(t.device, t.threads)["fingerprint"],
            }
        )

    @property
    def name(self) -> str:
        return f"{self.place}{f'-{next(iter(self.arms))}' if self.place == 'parts' else ''}"

    def path(self, folder: Path) -> Path:
        return folder / "sessions" / f"{self.name}-{self.number}-{self.key}.json"

    def result(self, folder: Path) -> dict[str, Any] | None:
        return read_json(self.path(folder))

    def run(self, folder: Path) -> dict[str, Any]:
        """Measure in a fresh process, unless there is a result. Nothing else is timed on this machine at the same time.

        Errors:
            FailedError: the process ended without a result.
        """
        if (result := self.result(folder)) is not None:
            return result
        path = self.path(folder)
        request, log = path.with_name(f".{path.stem}.request.json"), path.with_suffix(".log")
        arms = {name: list(arm.overrides) for name, arm in self.arms.items()}
        t = next(iter(self.arms.values())).run.trainer
        env = {"GOMP_SPINCOUNT": "1000", "KINETO_LOG_LEVEL": "99", **os.environ, "OMP_NUM_THREADS": str(t.threads)}
        env["NOCAP_PARENT"] = str(os.getpid())
        if t.device is Device.cpu:
            env["CUDA_VISIBLE_DEVICES"] = ""
        with timing():
            if (result := self.result(folder)) is not None:  # another command's, while this one waited
                return result
            started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            asked = {"kind": self.kind, "place": self.place, "key": self.key, "number": self.number, "how": dict(self.how)}
            write_json(request, {**asked, "started": started, "arms": arms})
            log.unlink(missing_ok=True)  # whatever it is
            with log.open("x") as file:
                command = [sys.executable, "-m", WORKER, str(request), str(path)]
                code = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
        result = self.result(folder)
        if code != 0 or result is None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise FailedError(f"{self.name}, session {self.number}: {lines[-1] if lines else f'exit code {code}'}; see {log}")
        for left in (request, log):
            left.unlink(missing_ok=True)
        return result


@contextmanager
def timing() -> Iterator[None]:
    """Studies train side by side, and time one at a time: two timings at once would slow each other down."""
    path = cache_root() / f"timing-{socket.gethostname()}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file, also by a kill
        yield


def sessions(plan: StudyPlan, arms: Mapping[str, Composed], number: int) -> list[Session]:
    """All that one repetition of the timing measures. `arms`: as they are trained."""
    study, at, bench = plan.study, plan.at, plan.bench

    def ask(place: str, kind: str, made: Mapping[str, Composed], names: Sequence[str], **how: object) -> list[Session]:
        first = {arm: made[arm] for arm in sorted(names, key=lambda arm: arm != study.baseline) if arm in made}  # it is the control
        return [Session(place=place, kind=kind, number=number, arms=first, how=how)] if first else []

    by = {kind: study.needing(lambda metric, kind=kind: metric.made_by == kind) for kind in ("steps", "parts", "lengths", "decoding")}  # type: ignore[misc]
    paced = study.needing(lambda metric: metric.name == "time_to_target_s")
    profiled = [arm for arm in study.arms if arm in by["parts"] or arm in _bounding(plan)]
    decode = {} if at.decode is None else {"prompt": at.decode.prompt, "new": at.decode.new, "vocab": at.decode.vocab_size}
    engines = {arm: engine_of(study, at, arm) for arm in by["decoding"]}
    return [
        *ask("pace", "steps", arms, paced, rounds=at.rounds),
        *ask("bench", "steps", bench, by["steps"], rounds=at.rounds),
        *(one for arm in profiled for one in ask("parts", "parts", bench, [arm], repeats=PROFILE_REPEATS)),
        *ask("curve", "lengths", bench, by["lengths"], T=at.curve),
        *ask("decoding", "decoding", bench, by["decoding"], **decode, engines=engines),
    ]


def _bounding(plan: StudyPlan) -> list[str]:
    """Baselines whose profile bounds a claim."""
    return [plan.study.against(claim) for claim in plan.study.claims if claim.mechanism.rule is Rule.amdahl]
