"""How often a pair of arms was looked at, counted from the records: each keeps the seeds that its
command asked for. A grid that was killed and typed again, or another grid with the same baseline,
is no look; seeds that were typed one by one are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nocap.judge.arms import Arm
from nocap.judge.interval import LEAST_PAIRS
from nocap.store.metrics import moment


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """What commands asked of two arms until now."""

    count: int  # at least one: that of whoever compares them
    asked: frozenset[int]  # the seeds that both were asked for; none where no record says it
    asked_of: tuple[frozenset[int], frozenset[int]]  # of the arm, of the other one


def looks_at(arm: Arm, base: Arm) -> Looks:
    """Count the different numbers of seeds, three or more, that both arms had been asked for after
    each command that trained a run of either."""
    commands = sorted([*_commands(arm, 0), *_commands(base, 1)])
    asked = (set[int](), set[int]())
    after = dict[float, tuple[int, int]]()  # two that began in one second are one
    for began, side, seeds in commands:
        asked[side].update(seeds)
        after[began] = (len(asked[0] & asked[1]), min(map(len, asked)))
    both = asked[0] & asked[1]
    counted = (
        0 if len(both) >= LEAST_PAIRS else 1
    )  # pairs, or runs of either where seeds are not shared
    looks = sum(count >= LEAST_PAIRS for count in {counts[counted] for counts in after.values()})
    return Looks(
        count=max(1, looks),
        asked=frozenset(both),
        asked_of=(frozenset(asked[0]), frozenset(asked[1])),
    )


def _commands(arm: Arm, side: int) -> Iterator[tuple[float, int, tuple[int, ...]]]:
    """List when each command that trained a run of an arm began, and which seeds of the arm it
    asked for."""
    for run in arm.all:
        for attempt in run.manifest["attempts"]:
            asked = attempt["asked"]
            began = moment(asked.get("at") or "")
            if began is not None and asked["seeds"]:
                yield began, side, tuple(asked["seeds"])
