"""A race of commands: pairs of runs, interleaved, until the answer is safe or the pairs are spent; then a
verdict for each arm.

The first arm is the baseline. A repeat runs every arm once with its seed, forwards and backwards in turns, so
that a machine that drifts favours none. After 3, 6, 12, … repeats the arms are judged: what the commands
print by `judge.interval`, all arms together, and what they cost by `judge.cautious`. The race stops where all
are decided. Its registration, `race.json`, is written before the first run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import Any

from nocap.judge import cautious
from nocap.judge.cautious import CLOCK_BIAS
from nocap.judge.claim import TO_TARGET
from nocap.judge.interval import (
    LEAST_PAIRS,
    ROUNDING,
    Estimate,
    alike,
    analyses,
    analysis_of,
    of_arms,
    of_arms_apart,
)
from nocap.judge.losses import Outcome, outcome
from nocap.judge.time_to_target import Crossing, crossing, too_coarse, widening
from nocap.judge.verdict import Word, decide
from nocap.report.page import finite
from nocap.sources.command import COSTS, Command, Reading, named, result
from nocap.store.metrics import METRICS, Better, Kind, Metric, now
from nocap.store.record import digest, read_json, write_json

FILE = "race.json"
MEASURED = (*COSTS, *TO_TARGET)  # whatever the command prints
# more pairs may change these words
OPEN = (Outcome.unclear.value, Outcome.undecided.value, Word.inconclusive.value)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A metric that may be no worse than by `margin`."""

    reading: Reading
    margin: float


@dataclass(kw_only=True)
class Race:
    arms: Sequence[Command]  # the baseline first
    readings: Sequence[Reading]  # the one that decides first
    output_dir: Path
    pairs: int
    guards: Sequence[Guard] = ()
    expect: tuple[float, float] | None = None  # what the arms' gain is said to be
    target: float | None = None  # of the first metric
    first_seed: int = 0
    seeded: bool = True  # the commands take the seed
    sessions: int = 1
    apart_s: float = 0.0
    jobs: int = 1  # runs at once; of more than one no time is known
    begin: Callable[[Command, int, Path], None]  # runs one
    stop: Event = field(default_factory=Event)  # ends what runs
    failed: Event = field(default_factory=Event)  # begins nothing more
    log: Callable[[str], None] = print
    known: dict[str, Any] = field(default_factory=dict)  # the registration
    rows: dict[Path, dict[str, float]] = field(default_factory=dict)  # of runs that ended
    crossings: dict[Path, dict[str, Crossing]] = field(default_factory=dict)  # by the names of `TO_TARGET`

    # --- runs -----------------------------------------------------------------------------------------------

    @property
    def stated(self) -> dict[str, Any]:
        """What makes it this race and no other."""
        timed = self.sessions > 1
        return {
            "arms": {arm.name: [arm.content, *arm.words] for arm in self.arms},
            "metrics": [[reading.what, reading.file, reading.better.value] for reading in self.readings],
            "guards": [
                [guard.reading.what, guard.margin, guard.reading.better.value] for guard in self.guards
            ],
            "expect": self.expect and [end if math.isfinite(end) else None for end in self.expect],
            "target": self.target,
            "first_seed": self.first_seed,
            "seeded": self.seeded,
            "sessions": self.sessions,
            "apart_s": self.apart_s if timed else None,
            "pairs": self.pairs if timed else None,  # which make the sessions
            "at_once": self.jobs > 1,
        }

    @property
    def folder(self) -> Path:
        return self.output_dir / "races" / digest(self.stated)

    def place(self, arm: Command, repeat: int) -> Path:
        """Of a run, which all races share; but those of another race were not made in the sessions of this
        one."""
        runs = self.folder / "runs" if self.sessions > 1 else self.output_dir / "commands"
        return runs / f"{arm.content}-{self.first_seed + repeat}"

    def register(self) -> None:
        """Once, before the first run."""
        self.known = read_json(self.folder / FILE) or {}
        if not self.known:
            arms = [*self.stated["arms"].values()]
            there = sum(
                result(self.place(arm, i)) is not None for arm in self.arms for i in range(self.pairs)
            )
            others = [read_json(path) or {} for path in self.folder.parent.glob(f"*/{FILE}")]
            raced = sum([*other["arms"].values()] == arms for other in others)
            self.known = {
                "kind": "race",
                "hash": digest(self.stated),
                "at": now(),
                "exploratory": _exploratory(there, raced),
                **self.stated,
            }
            write_json(self.folder / FILE, self.known)

    def run(self) -> list[dict[str, Any]]:
        """All that is missing, look by look; the verdicts.

        Errors:
            FailedError: a run that did not end well.
        """
        self.register()
        begun, stops = 0, {2, *analyses(), self.pairs}  # at two it shows whether a command ignores its seed
        for n in range(1, self.pairs + 1) if self.sessions > 1 else sorted(stops):
            if n <= self.pairs:
                self._wait(begun)
                self._measure(range(begun, n))
                begun = n
                if self.sessions == 1 and (self.ignores_seed(n) or (n in analyses() and self._is_decided(n))):
                    break
        return self.verdicts(begun)

    def _is_decided(self, n: int) -> bool:
        return all(verdict["decided"] for verdict in self.verdicts(n))

    def _measure(self, repeats: range) -> None:
        """What is missing of these repeats, `jobs` at once, in the order in which arms take turns. After a
        failure nothing more begins, and what runs goes on to its end."""
        turns = [
            (arm, repeat) for repeat in repeats for arm in (self.arms if repeat % 2 == 0 else self.arms[::-1])
        ]
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for run in [pool.submit(self._run, arm, repeat) for arm, repeat in turns]:
                    run.result()
            except KeyboardInterrupt:
                self.stop.set()
                raise

    def _run(self, arm: Command, repeat: int) -> None:
        place, seed, began = self.place(arm, repeat), self.first_seed + repeat, time.monotonic()
        if (
            self.failed.is_set()
            or self.stop.is_set()
            or (self.has_times(place) and all(reading.is_in(place) for reading in self.measured))
        ):
            return
        try:
            with named(arm, seed):
                self.begin(arm, seed, place)
            values = [reading.value(place) for reading in self.measured]
        except Exception:
            self.failed.set()
            raise
        self.log(
            f"{arm.name}, seed {seed}: {self.readings[0].name} {values[0]:g}  "
            f"{time.monotonic() - began:.1f} s"
        )

    def has_times(self, place: Path) -> bool:
        """Whether a run ended well, and alone where its times are asked for."""
        return {*self.costs} - {*TO_TARGET} <= (result(place) or {}).keys()

    def _wait(self, repeat: int) -> None:
        """Until the next session of timing may begin."""
        places = [self.place(arm, repeat) for arm in self.arms]
        if repeat == 0 or self.session(repeat) == self.session(repeat - 1) or all(map(result, places)):
            return
        self.log(
            f"waiting {self.apart_s / 60:g} minutes: session {self.session(repeat) + 1} of {self.sessions}"
        )
        time.sleep(self.apart_s)

    def session(self, repeat: int) -> int:
        return repeat * self.sessions // self.pairs

    # --- what they show -------------------------------------------------------------------------------------

    def values(self, arm: Command, metric: str, n: int) -> list[float]:
        """Of the first n repeats."""
        return [self.row(arm, repeat)[metric] for repeat in range(n)]

    def row(self, arm: Command, repeat: int) -> dict[str, float]:
        """All that is known of a run that ended, read once. What never came to the target is infinite."""
        place = self.place(arm, repeat)
        if place not in self.rows:
            costs = dict(result(place) or {})
            if self.target is not None:
                self.crossings[place] = self._to_target(place, self.target)
                costs |= {name: there.at for name, there in self.crossings[place].items()}
            read = {reading.name: reading.value(place) for reading in self.measured}
            self.rows[place] = read | {name: float(costs[name]) for name in self.costs}
        return self.rows[place]

    @property
    def measured(self) -> list[Reading]:
        """What is compared, and what may not be worse."""
        return [*self.readings, *(guard.reading for guard in self.guards)]

    def _to_target(self, place: Path, target: float) -> dict[str, Crossing]:
        """Return where the run came to the target, on the curve of the first metric. Its seconds are those at
        which it printed that it was there."""
        points = [(step, value, at) for step, value, at in self.readings[0].curve(place) if step is not None]
        steps = [step for step, _, _ in points]
        seconds = [at for _, _, at in points]
        sign = -1 if self.readings[0].better is Better.higher else 1  # the curve that is read falls
        values = [sign * value for _, value, _ in points]
        there = crossing(steps, values, target=sign * target) if points else None
        if there is None:
            return dict.fromkeys(TO_TARGET, Crossing.never(math.inf))
        after = next(i for i, step in enumerate(steps) if step >= there.at)
        said = Crossing(at=seconds[after], before=seconds[max(after - 1, 0)], after=seconds[after])
        return dict(zip(TO_TARGET, (said, there), strict=True))

    @property
    def costs(self) -> list[str]:
        """What is compared beside the metrics, as ratios. Runs that share the machine have no times."""
        names = [*COSTS, *(TO_TARGET if self.target is not None else ())]
        return [name for name in names if self.jobs == 1 or METRICS[name].unit != "s"]

    def has_verdict(self, cost: str) -> bool:
        """Times of one session have none."""
        return METRICS[cost].kind is not Kind.clock or self.sessions >= LEAST_PAIRS

    def ignores_seed(self, n: int) -> bool:
        """Whether an arm's repeats are equal to rounding: the command takes no seed, and more of them would
        say nothing."""
        sides = [self.values(arm, self.readings[0].name, n) for arm in self.arms]
        return any(map(alike, sides))

    def gain(self, arm: Command, metric: Metric, n: int) -> Estimate:
        """How much better than the baseline: in the metric's unit, of times and memory as a logarithm of the
        ratio."""
        if metric.name in MEASURED:
            return self._cost(arm, metric, n)
        values = {each.name: self.values(each, metric.name, n) for each in self.arms}
        base = values.pop(self.arms[0].name)
        finite = {name: row for name, row in values.items() if all(map(math.isfinite, [*row, *base]))}
        if arm.name not in finite:
            return _unknown(n, "a run printed no finite number")
        sign = 1 if metric.better is Better.higher else -1
        rows = [[sign * x for x in row] for row in finite.values()]
        against = [sign * x for x in base]
        look = max(1, analysis_of(n))
        if self.seeded:
            pairs = [[x - y for x, y in zip(row, against, strict=True)] for row in rows]
            estimates = of_arms(pairs, look=look)
        else:
            estimates = of_arms_apart(against, rows, look=look)
        return estimates[[*finite].index(arm.name)]

    def _cost(self, arm: Command, metric: Metric, n: int) -> Estimate:
        """How much less it costs, as a logarithm of the ratio."""
        a, b = (self.values(side, metric.name, n) for side in (arm, self.arms[0]))
        if min(*a, *b) <= 0 or not all(map(math.isfinite, [*a, *b])):
            return _unknown(n, "a run never came to the target, or began at it")
        bias = CLOCK_BIAS if metric.kind is Kind.clock else 0.0
        if metric.name in TO_TARGET:
            steps = METRICS["steps_to_target"]
            own, base = (self._crossings(side, steps, n) for side in (arm, self.arms[0]))
            at, base_at = ([there.at for there in side] for side in (own, base))
            if (why := too_coarse(own, base, self._gain_in_cost(at, base_at, steps).exp())) is not None:
                return _unknown(n, why)
            bias += widening(*(self._crossings(side, metric, n) for side in (arm, self.arms[0])))
        return self._gain_in_cost(a, b, metric, bias=bias)

    def _crossings(self, arm: Command, metric: Metric, n: int) -> list[Crossing]:
        return [self.crossings[self.place(arm, i)][metric.name] for i in range(n)]

    def _gain_in_cost(
        self, own: Sequence[float], base: Sequence[float], metric: Metric, *, bias: float = 0.0
    ) -> Estimate:
        """Return the logarithm of a ratio of these, repeat by repeat, or session by session."""
        n = len(own)
        a, b = ([math.log(x) for x in side] for side in (own, base))
        if self.sessions > 1:  # a session is what repeats a time
            groups = [[i for i in range(n) if self.session(i) == session] for session in range(self.sessions)]
            a, b = ([fmean(side[i] for i in group) for group in groups if group] for side in (a, b))
        sign = 1 if metric.better is Better.higher else -1
        pairs = [sign * (x - y) for x, y in zip(a, b, strict=True)]
        return cautious.of_pairs(
            pairs,
            bias=bias,
            analysis=max(1, analysis_of(len(pairs))),
            comparisons=len(self.arms) - 1,
        )

    def verdicts(self, n: int) -> list[dict[str, Any]]:
        """Of each arm but the baseline, at the last analysis of n repeats."""
        shown = analyses()[analysis_of(n) - 1] if analysis_of(n) else n
        single = self.ignores_seed(n)
        return [self._verdict(arm, shown, single=single) for arm in self.arms[1:]]

    def _verdict(self, arm: Command, n: int, *, single: bool) -> dict[str, Any]:
        primary = self.readings[0].metric
        gain = self.gain(arm, primary, n)
        size = max(
            map(abs, [*self.values(arm, primary.name, n), *self.values(self.arms[0], primary.name, n)])
        )
        guards = [(guard, self.gain(arm, guard.reading.metric, n)) for guard in self.guards]
        word, reason = self._word(gain, guards, tie=ROUNDING * size)
        if single:
            word, reason = (
                Outcome.undecided.value,
                "n=1: repeats are equal to rounding, the command ignores its seed",
            )
        costs = {}
        for name in self.costs:
            ends = self.gain(arm, METRICS[name], n)
            way = outcome(ends) if self.has_verdict(name) else Outcome.undecided
            costs[name] = {**ends.exp().json(), "verdict": way.value}  # the ratio, not its logarithm
        return {
            "arm": arm.name,
            "n": 1 if single else n,
            "word": word,
            "reason": reason,
            "decided": word not in OPEN,
            "gain": gain.json(),
            "guards": [
                {"metric": guard.reading.name, "margin": guard.margin, **ends.json()}
                for guard, ends in guards
            ],
            "costs": costs,
            "exploratory": self.known["exploratory"],
        }

    def _word(
        self, gain: Estimate, guards: Sequence[tuple[Guard, Estimate]], *, tie: float
    ) -> tuple[str, str]:
        if not math.isfinite(gain.high):
            return Outcome.undecided.value, f"n={gain.n}"
        places = [ends.place(-guard.margin, math.inf) for guard, ends in guards]
        broken = next(
            (
                guard.reading.name
                for (guard, _), place in zip(guards, places, strict=True)
                if place not in (0, 1)
            ),
            "",
        )
        if self.expect is not None:
            word, reason = decide(gain.place(*self.expect, tie=tie), places)
            return word.value, f"guard {broken}" if broken else reason.value if reason else ""
        if -1 in places:
            return Outcome.worse.value, f"guard {broken}"
        way = outcome(gain, tie=tie)
        return (
            (Outcome.unclear.value, f"guard {broken}")
            if broken and way is Outcome.better
            else (way.value, "")
        )


def _unknown(n: int, why: str) -> Estimate:
    return Estimate(mid=math.nan, low=-math.inf, high=math.inf, n=n, method=why)


def _exploratory(there: int, raced: int) -> str:
    """Why a race is, if it is."""
    reasons = [f"{there} of its runs were there before it was registered"] if there else []
    return "; ".join(
        [*reasons, *(["its arms were raced before with other seeds, metrics or ends"] if raced else [])]
    )


def content(race: Race, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of it as JSON: the registration, every measurement, every verdict."""
    n = max([verdict["n"] for verdict in verdicts] + [1])
    runs = [(arm, i) for arm in race.arms for i in range(n)]
    rows = [
        {"arm": arm.name, "seed": race.first_seed + i, "session": race.session(i), **race.row(arm, i)}
        for arm, i in runs
    ]
    return {**race.known, "verdicts": list(verdicts), "measurements": finite(rows), "paired": race.seeded}
