"""A race of commands: pairs of runs, interleaved, until the answer is safe or the pairs are spent;
then the judge's result.

The first arm is the baseline. A repeat runs every arm once with its seed, forwards and backwards in
turns, so that a machine that drifts favours none. After 3, 6, 12, … repeats `nocap.judge.races`
judges the rows, and the race stops where all arms are decided. Its registration, `race.json`, is
written before the first run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from nocap.judge.claim import TO_TARGET
from nocap.judge.interval import analyses, finite
from nocap.judge.races import Limit, RaceQuestion, RaceResult, RaceRows, judge
from nocap.judge.time_to_target import TargetCrossing
from nocap.metrics import METRICS, Metric
from nocap.sources.races.command import COSTS, Command, failures_of
from nocap.sources.races.command_output import MetricReader, result
from nocap.sources.races.run_rows import RunRows, read_rows
from nocap.store.json_shapes import Required
from nocap.store.measurement import Measurement
from nocap.store.record_files import digest, read_json, write_json
from nocap.store.times import now

FILE = "race.json"
COST_NAMES = (*COSTS, *TO_TARGET)  # whatever the command prints
# what is read of a registration
_REGISTERED = Required({"at": str, "exploratory": str, "arms": dict})


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardReader:
    """A metric that may be no worse than by `margin`, and how it is read."""

    reader: MetricReader
    margin: float

    @property
    def limit(self) -> Limit:
        return Limit(metric=self.reader.metric, margin=self.margin)


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceRegistration:
    """What was written of a race before its first run, beside what it is."""

    at: str
    exploratory: str  # why the race is; "": it is not


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceOutcome:
    """What a race found."""

    registration: RaceRegistration
    result: RaceResult


@dataclass(kw_only=True)
class Race:
    """A race: what is compared, and how its runs are begun, ended and read."""

    arms: Sequence[Command]  # the baseline first
    readers: Sequence[MetricReader]  # the one that decides first
    output_dir: Path
    pairs: int
    guards: Sequence[GuardReader] = ()
    expect: tuple[float, float] | None = None  # what the arms' gain is said to be
    target: float | None = None  # of the first metric
    first_seed: int = 0
    seeded: bool = True  # the commands take the seed
    sessions: int = 1
    apart_s: float = 0.0
    jobs: int = 1  # runs at once; of more than one no time is known
    begin: Callable[[Command, int, Path], None]  # runs an arm with a seed in a folder
    stop: Event = field(default_factory=Event)  # ends what runs
    failed: Event = field(default_factory=Event)  # begins nothing more
    log: Callable[[str], None] = print
    _rows: dict[Path, RunRows] = field(default_factory=dict, init=False)  # of each run's folder

    # --- what it is -------------------------------------------------------------------------------

    @property
    def definition(self) -> dict[str, object]:
        """Say what makes it this race and no other, as its registration has it."""
        timed = self.sessions > 1
        return {
            "arms": self._arms_json(),
            "metrics": [[reader.what, reader.file, reader.better.value] for reader in self.readers],
            "guards": [
                [guard.reader.what, guard.margin, guard.reader.better.value]
                for guard in self.guards
            ],
            "expect": self._ends_json(),
            "target": self.target,
            "first_seed": self.first_seed,
            "seeded": self.seeded,
            "sessions": self.sessions,
            "apart_s": self.apart_s if timed else None,
            "pairs": self.pairs if timed else None,  # which make the sessions
            "at_once": self.jobs > 1,
        }

    def _arms_json(self) -> dict[str, list[str]]:
        return {arm.name: [arm.digest, *arm.words] for arm in self.arms}

    def _ends_json(self) -> list[float | None] | None:
        """Return the stated gain; an open end is null."""
        return None if self.expect is None else [finite(end) for end in self.expect]

    @property
    def folder(self) -> Path:
        return self.output_dir / "races" / digest(self.definition)

    def run_folder(self, arm: Command, repeat: int) -> Path:
        """Return the folder of a run, which all races share. A run of another race was not made in
        the sessions of this one: where there are several, the race has runs of its own."""
        runs = self.folder / "runs" if self.sessions > 1 else self.output_dir / "commands"
        return runs / f"{arm.digest}-{self.first_seed + repeat}"

    def registration_json(self, registration: RaceRegistration) -> dict[str, object]:
        """Return the registration as JSON."""
        return {
            "kind": "race",
            "hash": digest(self.definition),
            "at": registration.at,
            "exploratory": registration.exploratory,
            **self.definition,
        }

    def register(self) -> RaceRegistration:
        """Write the registration before the first run; where it is there, read it.

        Errors:
            ValueError: it is damaged, or that of another race is.
        """
        known = read_json(self.folder / FILE, _REGISTERED)
        if known is not None:
            return RaceRegistration(at=known["at"], exploratory=known["exploratory"])
        registration = RaceRegistration(at=now(), exploratory=self._exploratory())
        write_json(self.folder / FILE, self.registration_json(registration))
        return registration

    def _exploratory(self) -> str:
        """Say why a race that is not registered yet is exploratory; nothing where it is not."""
        earlier = 0
        for arm in self.arms:
            earlier += sum(
                result(self.run_folder(arm, repeat)) is not None for repeat in range(self.pairs)
            )
        arms = [*self._arms_json().values()]
        was_raced = False
        for path in self.folder.parent.glob(f"*/{FILE}"):
            other = read_json(path, _REGISTERED)
            was_raced = was_raced or (other is not None and [*other["arms"].values()] == arms)
        reasons = list[str]()
        if earlier:
            reasons.append(f"{earlier} of its runs were there before the race was registered")
        if was_raced:
            reasons.append(
                "its arms were raced before with other seeds, other metrics or another expected "
                "range"
            )
        return "; ".join(reasons)

    # --- runs -------------------------------------------------------------------------------------

    def run(self) -> RaceOutcome:
        """Run all that is missing, look by look, and return what it shows.

        Errors:
            FailedError: a run that did not end well.
        """
        registration = self.register()
        begun = 0
        for n in self._stops():
            self._wait(begun)
            self._measure(range(begun, n))
            begun = n
            if self.sessions == 1 and self._is_over(n):
                break
        return RaceOutcome(registration=registration, result=self.result_at(begun))

    def _stops(self) -> Sequence[int]:
        """List after how many repeats it looks: at the analyses, the first of which shows whether
        commands ignore their seed, and at the end. With several sessions it may have to wait before
        each repeat."""
        if self.sessions > 1:
            return range(1, self.pairs + 1)
        return sorted(n for n in {*analyses(), self.pairs} if n <= self.pairs)

    def _is_over(self, n: int) -> bool:
        if self.rows(n).ignores_seed(self.question):
            return True
        return n in analyses() and self.result_at(n).is_decided

    def result_at(self, n: int) -> RaceResult:
        """Return what the first n repeats show."""
        return judge(self.rows(n), self.question)

    def _measure(self, repeats: range) -> None:
        """Run what is missing of these repeats, `jobs` at once, in the order in which arms take
        turns. After a failure nothing more begins, and what runs goes on to its end."""
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                runs = [pool.submit(self._run, arm, repeat) for arm, repeat in self._turns(repeats)]
                for run in runs:
                    run.result()
            except KeyboardInterrupt:
                self.stop.set()
                raise

    def _turns(self, repeats: range) -> list[tuple[Command, int]]:
        turns = list[tuple[Command, int]]()
        for repeat in repeats:
            order = self.arms if repeat % 2 == 0 else self.arms[::-1]
            turns += [(arm, repeat) for arm in order]
        return turns

    def _run(self, arm: Command, repeat: int) -> None:
        folder = self.run_folder(arm, repeat)
        seed = self.first_seed + repeat
        began = time.monotonic()
        if self.failed.is_set() or self.stop.is_set() or self._is_complete(folder):
            return
        try:
            with failures_of(arm, seed):
                self.begin(arm, seed, folder)
            values = [reader.value(folder) for reader in self.all_readers]
        except Exception:
            self.failed.set()
            raise
        spent_s = time.monotonic() - began
        self.log(f"{arm.name}, seed {seed}: {self.readers[0].name} {values[0]:g}  {spent_s:.1f} s")

    def _is_complete(self, folder: Path) -> bool:
        """Say whether a run ended well with all that is read from it, and alone where its times are
        asked for."""
        known = result(folder) or {}
        costs = {metric.name for metric in self.costs} - {*TO_TARGET}
        return costs <= known.keys() and all(reader.is_in(folder) for reader in self.all_readers)

    def _wait(self, repeat: int) -> None:
        """Wait until the next session of timing may begin."""
        if repeat == 0 or self.question.session(repeat) == self.question.session(repeat - 1):
            return
        if all(result(self.run_folder(arm, repeat)) for arm in self.arms):
            return
        session = self.question.session(repeat) + 1
        self.log(
            f"waiting {self.apart_s / 60:g} minutes before session {session} of {self.sessions}"
        )
        time.sleep(self.apart_s)

    # --- rows and question ------------------------------------------------------------------------

    @property
    def all_readers(self) -> list[MetricReader]:
        """List what is read: what is compared, and what may not be worse."""
        return [*self.readers, *(guard.reader for guard in self.guards)]

    @property
    def costs(self) -> list[Metric]:
        """List what is compared beside that, as ratios. Runs that share the machine have no
        times."""
        names = COST_NAMES if self.target is not None else COSTS
        metrics = [METRICS[name] for name in names]
        return [metric for metric in metrics if self.jobs == 1 or metric.unit != "s"]

    @property
    def question(self) -> RaceQuestion:
        return RaceQuestion(
            arms=[arm.name for arm in self.arms],
            metrics=[reader.metric for reader in self.readers],
            limits=[guard.limit for guard in self.guards],
            costs=self.costs,
            expect=self.expect,
            paired=self.seeded,
            repeats=self.pairs,
            sessions=self.sessions,
        )

    def rows(self, n: int) -> RaceRows:
        """Return the rows of the first n repeats, which all ended."""
        measurements = list[Measurement]()
        crossings = dict[tuple[str, str], list[TargetCrossing]]()
        for arm in self.arms:
            for repeat in range(n):
                run = self._read(arm, repeat)
                measurements += run.measurements
                for name, point in run.crossings.items():
                    crossings.setdefault((arm.name, name), []).append(point)
        return RaceRows(measurements=measurements, crossings=crossings)

    def _read(self, arm: Command, repeat: int) -> RunRows:
        """Return the rows of a run, which is read once."""
        folder = self.run_folder(arm, repeat)
        if folder not in self._rows:
            self._rows[folder] = read_rows(
                folder,
                arm=arm.name,
                seed=self.first_seed + repeat,
                readers=self.all_readers,
                costs=self.costs,
                target=self.target,
            )
        return self._rows[folder]
