"""One run of a log, made row by row: its rows with a loss, in which steps may go back, and where it
ended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from nocap.sources.logs.columns import LOSSES

AXES = ("step", "epoch", "tokens", "call")  # how far a run is: the first that it has
PLURALS = {"step": "steps", "epoch": "epochs", "call": "calls of log"}
LEAST_ROWS = 2  # with a loss, of a run that diverged; and twice as many with those that are empty
SAME = 5e-4  # of two losses of an epoch, one of which was printed with four digits


@dataclass(kw_only=True, eq=False)
class LogRun:
    """What a log says of one run."""

    facts: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)  # its settings
    # texts of columns that are the same in each row
    others: dict[str, str] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)  # the last number of each key
    points: list[dict[str, float]] = field(default_factory=list)  # rows with a loss
    finals: dict[str, float] = field(default_factory=dict)  # what was measured after training
    # of its arm, where several columns name it
    levels: dict[str, str] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)  # the furthest on each axis
    begins: dict[str, float] = field(default_factory=dict)  # the first on each axis
    rows: int = 0
    is_empty: bool = False  # the last cell for a loss
    clock: bool = True  # its seconds never went back
    twice: bool = False  # a step had several losses
    # where cells for a loss are, since the last that has one
    empty: list[float] = field(default_factory=list)
    sparse: bool = False  # a cell was empty before one that is not: losses are in some rows only
    # a row without a loss stands at a step that has one: losses are rows of their own
    apart: bool = False
    calls_follow: bool = False  # W&B's count goes on by one: it is no step

    @property
    def axis(self) -> str | None:
        """Return what says how far it is."""
        return next((axis for axis in AXES if axis in self.reached), None)

    @property
    def at(self) -> float | None:
        """Return how far it is now."""
        return self.now.get(self.axis) if self.axis else None

    def is_another(self, numbers: Mapping[str, float]) -> bool:
        """Say whether a row begins another run: where steps go back to the first, or where there
        are none, and this one has its loss."""
        if self.axis is None:
            has_mark = bool(self.facts.keys() & {"run", "seed"}) and bool(self.points)
            return has_mark and any(key in self.points[-1] for key in numbers if key in LOSSES)
        start, now = numbers.get(self.axis), self.now.get(self.axis)
        if start is None or now is None:
            return False
        return start < now and start <= self.begins[self.axis]

    def add(self, numbers: dict[str, float]) -> str | None:
        """Go on; a line where the steps went back."""
        self._go_on(numbers)
        if not numbers.keys() & {*LOSSES}:
            return None
        axis = self.axis or ""
        at = self.now.get(axis, math.inf)
        dropped = self._drop_beyond(axis, at)
        if self.points and self.points[-1].get(axis) == at:  # said in two rows, or again
            most = SAME if axis == "epoch" else 0.0
            point = self.points.pop()
            for key in LOSSES:
                if key in point and key in numbers and not dropped:
                    self.twice |= _other(numbers[key], point[key], most)
            self.now = point | self.now
        self.points.append(self.now)
        if not dropped:
            return None
        name = PLURALS.get(axis, axis)
        return (
            f"its {name} go back to {at:g}, so nocap leaves out {dropped} earlier rows beyond "
            "this point"
        )

    def _go_on(self, numbers: dict[str, float]) -> None:
        """Take the numbers of a row; a loss stands for its row alone."""
        if numbers.get("train_s", math.inf) < self.now.get("train_s", -math.inf):
            self.clock = False
        rest = {key: x for key, x in self.now.items() if key not in LOSSES}
        self.now = rest | numbers
        for axis in AXES:
            if axis in numbers:
                self.begins.setdefault(axis, numbers[axis])
                self.reached[axis] = max(numbers[axis], self.reached.get(axis, -math.inf))

    def _drop_beyond(self, axis: str, at: float) -> int:
        """Drop the points that a later piece of the run makes anew, and count them."""
        before = len(self.points)
        while self.points and self.points[-1].get(axis, -math.inf) > at:
            self.points.pop()
        return before - len(self.points)

    def see(self, *, is_empty: bool) -> None:
        """Take note of a row's cell for a loss."""
        self.is_empty = is_empty
        self.sparse |= is_empty and not self.points
        self.sparse |= not is_empty and bool(self.empty)
        if not is_empty:
            self.apart |= bool(self.empty) and self.empty[-1] == self.at
            self.empty.clear()
        elif self.at is not None:
            self.apart |= bool(self.points) and self.points[-1].get(self.axis or "") == self.at
            self.empty.append(self.at)

    def end(self) -> None:
        """Add that the run diverged, where a cell is empty at which a loss was due: a program that
        writes strict JSON, or a table, leaves the cell of what is no number empty."""
        if self.axis is None or len(self.points) < LEAST_ROWS:
            return
        if len(self.points) + len(self.empty) < 2 * LEAST_ROWS:
            return
        last = self.points[-1].get(self.axis, math.nan)
        lost = [at for at in self.empty if at > last]
        if self.sparse or self.apart:
            # rows between validations are empty too: only that which was due says something
            due = self._due()
            lost = [at for at in lost if due is not None and math.isclose(at, due)]
        if lost:
            losses = [key for key in LOSSES if key in self.points[-1]]
            self.points.append({**self.now, self.axis: lost[0], **dict.fromkeys(losses, math.nan)})

    def _due(self) -> float | None:
        """Return where the next validation was due; `None`: they do not come regularly, or are rows
        of their own, so that one may be missing."""
        positions = [point.get(self.axis or "", math.nan) for point in self.points]
        gaps = {round(after - before, 9) for before, after in itertools.pairwise(positions)}
        if len(gaps) > 1 or self.apart:
            return None
        return positions[-1] + gaps.pop()

    def last(self, key: str) -> float | None:
        """Return a key's number in the last row with a loss that has one."""
        return next((point[key] for point in reversed(self.points) if key in point), None)


def _other(x: float, y: float, most: float) -> bool:
    """Say whether a loss is another one: by more than a share of it."""
    return abs(x - y) > most * abs(y) or math.isnan(x) != math.isnan(y)
