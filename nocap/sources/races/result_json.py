"""The result of a race as JSON: what was registered, each verdict, each run; and what to type next.
Here it is written, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from nocap.judge.comparison_json import interval_json
from nocap.judge.comparison_schema import to_json
from nocap.judge.interval import analyses
from nocap.judge.races import RacedArm, RaceResult
from nocap.sources.races.command_output import result
from nocap.sources.races.race import Race, RaceOutcome
from nocap.store.measurement import Measurement


def written(race: Race, outcome: RaceOutcome) -> dict[str, Any]:
    """Write all of it as JSON types: the registration, every verdict, every measurement."""
    registration = outcome.registration
    verdicts = list[dict[str, object]]()
    for arm in outcome.result.arms:
        verdicts.append(
            {**_verdict(race, outcome.result, arm), "exploratory": registration.exploratory}
        )
    return {
        **race.registration_json(registration),
        "verdicts": verdicts,
        "measurements": run_objects(race, outcome.result.n),
        "paired": race.seeded,
    }


def _verdict(race: Race, result: RaceResult, arm: RacedArm) -> dict[str, object]:
    guards = list[dict[str, object]]()
    for guard in race.guards:
        name = guard.reader.name
        guards.append(
            {"metric": name, "margin": guard.margin, **to_json(interval_json(arm.guards[name]))}
        )
    costs = dict[str, object]()
    for name, cost in arm.costs.items():
        costs[name] = {**to_json(interval_json(cost.estimate)), "verdict": cost.word.value}
    return {
        "arm": arm.name,
        "n": result.n,
        "word": arm.word.value,
        "reason": arm.reason_text,
        "decided": arm.is_decided,
        "gain": to_json(interval_json(arm.gain)),
        "guards": guards,
        "costs": costs,
    }


def run_objects(race: Race, n: int) -> list[dict[str, object]]:
    """Return an object a run of the first n repeats, arm by arm, with the value of each metric."""
    runs = dict[tuple[str, int], dict[str, object]]()
    for each in race.rows(n).measurements:
        run = runs.setdefault((each.arm, each.repeat), _named(race, each))
        run[each.metric.name] = each.value
    return [*runs.values()]


def _named(race: Race, row: Measurement) -> dict[str, object]:
    session = race.question.session(row.repeat - race.first_seed)
    return {"arm": row.arm, "seed": row.repeat, "session": session}


def next_step(race: Race, outcome: RaceOutcome, words: Sequence[str]) -> dict[str, object]:
    """Say what a program does next: the command that goes on with more pairs, null where none would
    change the answer; what it takes, null where no time is known; and how many of the pairs that
    were allowed are left. `words`: those of this race's command."""
    pairs = more_pairs(race, outcome)
    return {
        "command": None if pairs is None else _with_pairs(words, pairs),
        "minutes": None if pairs is None else _minutes(race, pairs),
        "pairs": pairs,
        "pairs_left": max(race.pairs - outcome.result.n, 0),
    }


def more_pairs(race: Race, outcome: RaceOutcome) -> int | None:
    """Return how many pairs in all may change the answer; `None`: no number would."""
    more = [size for size in analyses() if size > max(outcome.result.n, race.pairs)]
    over = outcome.result.is_decided or outcome.result.ignores_seed or race.sessions > 1
    return None if over or not more else more[0]


def _with_pairs(words: Sequence[str], pairs: int) -> list[str]:
    """Return the command of a race of so many pairs at most."""
    split = words.index("--") if "--" in words else len(words)
    options = list[str]()
    skips = False
    for word in words[:split]:
        if not skips and word != "--pairs" and not word.startswith("--pairs="):
            options.append(word)
        skips = word == "--pairs"
    return ["python", "-m", "nocap.race", "--pairs", str(pairs), *options, *words[split:]]


def _minutes(race: Race, pairs: int) -> float | None:
    """Return what the runs that are missing take, by those that are there."""
    total_s = 0.0
    for arm in race.arms:
        results = [result(race.run_folder(arm, repeat)) for repeat in range(pairs)]
        times = [float(run["wall_s"]) for run in results if run and "wall_s" in run]
        if not times:
            return None
        total_s += (pairs - len(times)) * fmean(times)
    return round(total_s / 60, 3)
