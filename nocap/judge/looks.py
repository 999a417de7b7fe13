"""How often a pair of arms was looked at, counted from the records: each keeps the seeds that its
command asked for. A grid that was killed and typed again, or another grid with the same baseline,
is no look; seeds that were typed one by one are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nocap.judge.arms import Arm
from nocap.judge.interval import LEAST_PAIRS
from nocap.store.times import moment


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """What commands asked of two arms until now."""

    count: int  # at least one: that of whoever compares them
    seeds: frozenset[int]  # that commands named for both; none where no record says it
    seeds_of: tuple[frozenset[int], frozenset[int]]  # of the arm, of the other one


def looks_at(arm: Arm, base: Arm) -> Looks:
    """Count the different numbers of seeds, three or more, that both arms had been asked for after
    each command that trained a run of either."""
    commands = sorted([*_commands(arm, 0), *_commands(base, 1)])
    sides = (set[int](), set[int]())
    after = dict[float, tuple[int, int]]()  # two that began in one second are one
    for began, side, seeds in commands:
        sides[side].update(seeds)
        after[began] = (len(sides[0] & sides[1]), min(map(len, sides)))
    both = sides[0] & sides[1]
    # pairs count, or runs of either where seeds are not shared
    kind = 0 if len(both) >= LEAST_PAIRS else 1
    numbers = {counts[kind] for counts in after.values()}
    looks = sum(number >= LEAST_PAIRS for number in numbers)
    return Looks(
        count=max(1, looks),
        seeds=frozenset(both),
        seeds_of=(frozenset(sides[0]), frozenset(sides[1])),
    )


def _commands(arm: Arm, side: int) -> Iterator[tuple[float, int, tuple[int, ...]]]:
    """List when each command that trained a run of an arm began, and which seeds of the arm it
    asked for."""
    for run in arm.all:
        for attempt in run.attempts:
            request = attempt["asked"]
            began = moment(request.get("at") or "")
            if began is not None and request["seeds"]:
                yield began, side, tuple(request["seeds"])
