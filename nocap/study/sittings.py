"""When a study's sessions are held: in sittings apart in time, between its trainings as far as those last, and after them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nocap.config.compose import Composed
from nocap.judge.sittings import sittings
from nocap.store.formats import duration
from nocap.study.cells import StoppedError
from nocap.study.evidence import span
from nocap.study.plan import StudyPlan, all_sessions, sittings_of
from nocap.study.sessions import Session, SessionError, run_all, with_repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The sessions of one shape, and in how many sittings they are held. Their seeds are dealt over these; where there are more sittings
    than seeds, a seed is timed again."""

    name: str
    sessions: Sequence[Session]
    sittings: int
    apart_min: float
    folder: Path

    def results(self) -> list[dict[str, Any]]:
        """Everything that there is, repeats too."""
        every = [one.found(self.folder) for session in self.sessions for one in with_repeats(session, self.folder)]
        return [one for one in every if one is not None]

    def held(self) -> int:
        """Sittings by the clock, of the arm that has the fewest. A later look may leave arms out: an arm's sitting is one in which all was
        timed that some seed times beside it."""
        found = self.results()
        numbers = sittings([span(one) for one in found], apart_min=self.apart_min)
        timed: dict[int, set[tuple[str, ...]]] = {}
        for n, one in zip(numbers, found, strict=True):
            timed.setdefault(n, set()).add(tuple(one["arms"]))
        kinds = [{tuple(one.arms) for one in self.sessions if one.seed == seed} for seed in {one.seed for one in self.sessions}]

        def sittings_of_arm(arm: str) -> int:
            mine = [kind for kind in kinds if any(arm in arms for arms in kind)]
            return sum(any(kind <= seen for kind in mine) for seen in timed.values())

        return min(sittings_of_arm(arm) for one in self.sessions for arm in one.arms)

    def left(self) -> int:
        missing = any(one.found(self.folder) is None for one in self.sessions)
        return max(self.sittings - self.held(), int(missing))

    def next(self) -> list[Session]:
        """The sessions of the next sitting."""
        held = [(one, len(with_repeats(one, self.folder))) for one in self.sessions]
        missing = list(dict.fromkeys(one.seed for one, n in held if n == 0))
        if missing:
            now = missing[:: self.left()]
            return [one for one, n in held if one.seed in now and n == 0]
        again, _ = min(held, key=lambda row: row[1])
        return [replace(one, repeat=n + 1) for one, n in held if one.seed == again.seed]

    def due_in_s(self) -> float:
        """Until the next sitting may begin."""
        ends = [span(one)[1] for one in self.results()]
        return (max(ends) + timedelta(minutes=self.apart_min) - datetime.now().astimezone()).total_seconds() if ends else 0.0


def places_of(plan: StudyPlan, train: Mapping[str, Composed]) -> list[Place]:
    """What a study times, named as the evidence's fields; of what is only counted, a session. `train`: the arms as they are trained."""
    places = []
    for name, sessions in all_sessions(plan, train).items():
        n, firsts = sittings_of(plan, name), {claim.seeds[0] for claim in plan.study.claims}
        kept = [one for one in sessions if n > 1 or one.seed in firsts]
        places.append(Place(name=name, sessions=kept, sittings=n, apart_min=plan.at.apart_min, folder=plan.folder))
    return [place for place in places if place.sessions]


class Sittings:
    """All places of a study."""

    def __init__(self, places: Sequence[Place], *, problems: list[str], log: Callable[[str], None]) -> None:
        self._places, self._problems, self._log = list(places), problems, log

    def hold_due(self) -> None:
        """A sitting of each place that may have one now. A place of which a session fails has no more."""
        for place in self.waiting():
            if place.due_in_s() <= 0:
                try:
                    run_all(place.next(), place.folder, log=self._log)
                except SessionError as error:
                    self._problems.append(f"{place.name}: {error}")
                    self._places.remove(place)

    def hold_all(self) -> None:
        """What is left, waiting between sittings.

        Errors:
            StoppedError: Ctrl-C while waiting.
        """
        while waiting := self.waiting():
            if (seconds := min(place.due_in_s() for place in waiting)) > 0:
                self._log(f"waiting {duration(seconds)}: sittings of timing are {waiting[0].apart_min:g} minutes apart")
                try:
                    time.sleep(seconds)
                except KeyboardInterrupt as stop:
                    raise StoppedError("stopped while waiting; what was trained and timed is kept, and the same command goes on") from stop
            self.hold_due()

    def waiting(self) -> list[Place]:
        return [place for place in self._places if place.left()]
