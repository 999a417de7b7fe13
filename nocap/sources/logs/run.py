"""One run of a log, made row by row: its rows with a loss, in which steps may go back, and where it
ended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nocap.sources.logs.columns import LOSSES, MARKS
from nocap.sources.logs.log_row import LogRow

AXES = ("step", "epoch", "tokens", "call")  # how far a run is: the first that it has
PLURALS = {"step": "steps", "epoch": "epochs", "call": "calls of log"}
LEAST_ROWS = 2  # with a loss, of a run that diverged; and twice as many with those that are empty
SAME = 5e-4  # of two losses of an epoch, one of which was printed with four digits


@dataclass(kw_only=True, eq=False)
class LossCells:
    """Which cells for a loss are empty. `see` takes note of them, row by row. `due` then says where
    one is empty at which a loss was due."""

    is_empty: bool = False  # the last cell
    # where empty cells are, since the last that has a loss
    empty: list[float] = field(default_factory=list)
    sparse: bool = False  # a cell was empty before one that is not: losses are in some rows only
    # a row without a loss stands at a step that has one: losses are rows of their own
    apart: bool = False

    def see(self, *, is_empty: bool, at: float | None, last: float | None) -> None:
        """Take note of a row's cell. `at`: how far the run is; `last`: where its last loss stands,
        `None` without one."""
        self.is_empty = is_empty
        self.sparse |= is_empty and last is None
        self.sparse |= not is_empty and bool(self.empty)
        if not is_empty:
            self.apart |= bool(self.empty) and self.empty[-1] == at
            self.empty.clear()
        elif at is not None:
            self.apart |= last == at
            self.empty.append(at)

    def due(self, positions: Sequence[float]) -> float | None:
        """Return where the first loss was due whose cell is empty; `None`: there is no such cell.
        `positions`: where the losses stand."""
        if len(positions) < LEAST_ROWS or len(positions) + len(self.empty) < 2 * LEAST_ROWS:
            return None
        after = [at for at in self.empty if at > positions[-1]]
        if self.sparse or self.apart:
            # rows between validations are empty too: only that which was due says something
            next_one = self._next(positions)
            after = [at for at in after if next_one is not None and math.isclose(at, next_one)]
        return after[0] if after else None

    def _next(self, positions: Sequence[float]) -> float | None:
        """Return where the next validation was due; `None`: they do not come regularly, or are rows
        of their own, so that one may be missing."""
        gaps = {round(after - before, 9) for before, after in itertools.pairwise(positions)}
        if len(gaps) > 1 or self.apart:
            return None
        return positions[-1] + gaps.pop()


@dataclass(kw_only=True, eq=False)
class LogRun:
    """What a log says of one run.

    Only its methods change it. They are called in this order: for each row `contradicts` and
    `begins_another`, which change nothing, and then `take`, or `take` of a `successor`. After the
    last row of the log `lose`, where `lacks_its_loss`; and then `end`, once.
    """

    facts: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)  # its settings
    # texts of columns that are the same in each row
    common: dict[str, str] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)  # the last number of each key
    points: list[dict[str, float]] = field(default_factory=list)  # rows with a loss
    finals: dict[str, float] = field(default_factory=dict)  # what was measured after training
    # of its arm, where several columns name it
    levels: dict[str, str] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)  # the furthest on each axis
    begins: dict[str, float] = field(default_factory=dict)  # the first on each axis
    rows: int = 0
    has_clock: bool = True  # its seconds never went back
    has_two_losses: bool = False  # a step had several that differ
    calls_follow: bool = False  # W&B's count goes on by one: it is no step
    loss_cells: LossCells = field(default_factory=LossCells)

    # --- what is read -----------------------------------------------------------------------------

    @property
    def axis(self) -> str | None:
        """Return what says how far it is."""
        return next((axis for axis in AXES if axis in self.reached), None)

    @property
    def at(self) -> float | None:
        """Return how far it is now."""
        return self.now.get(self.axis) if self.axis else None

    @property
    def has_loss(self) -> bool:
        """Say whether a row has a loss, or one was measured after training."""
        return bool(self.points or self.finals)

    @property
    def has_mark(self) -> bool:
        """Say whether its rows name it."""
        return bool(self.facts.keys() & {*MARKS})

    @property
    def lacks_its_loss(self) -> bool:
        """Say whether it is a row of a table that names a run which ended, with an empty cell for
        its loss."""
        is_over = self.facts.get("ended", "finished") == "finished"
        is_row = self.rows == 1 and self.loss_cells.is_empty
        return self.has_mark and is_over and is_row and not self.has_loss

    def last(self, key: str) -> float | None:
        """Return a key's number in the last row with a loss that has one."""
        return next((point[key] for point in reversed(self.points) if key in point), None)

    def contradicts(self, marks: Mapping[str, str]) -> bool:
        """Say whether marks are not those that are known of it."""
        return any(self.facts.get(key, mark) != mark for key, mark in marks.items())

    def begins_another(self, numbers: Mapping[str, float]) -> bool:
        """Say whether a row begins another run: where steps go back to the first, or where there
        are none, and this one has its loss."""
        if self.axis is None:
            is_named = bool(self.facts.keys() & {"run", "seed"}) and bool(self.points)
            return is_named and any(key in self.points[-1] for key in numbers if key in LOSSES)
        start = numbers.get(self.axis)
        now = self.now.get(self.axis)
        if start is None or now is None:
            return False
        return start < now and start <= self.begins[self.axis]

    def successor(self) -> LogRun:
        """Return a run without rows that has the name, hardware and settings of this one."""
        facts = {key: fact for key, fact in self.facts.items() if key in (*MARKS, "hardware")}
        return LogRun(facts=facts, config=dict(self.config))

    # --- a row ------------------------------------------------------------------------------------

    def take(self, row: LogRow) -> str | None:
        """Go on with a row. Return a line where the steps went back."""
        self._compare(row)
        self.rows += 1
        self.facts |= row.facts
        self.levels |= row.levels
        self.config |= row.config
        self.finals |= row.finals
        self._count_calls(row)
        line = self._add(row.numbers)
        is_empty = row.has_empty_loss
        if is_empty is not None:
            self.loss_cells.see(is_empty=is_empty, at=self.at, last=self._last_loss_at())
        return line

    def _compare(self, row: LogRow) -> None:
        """Keep what is the same in all rows, and which no key has: it may tell the arm."""
        if self.rows == 0:
            self.common = row.others()
            return
        self.common = {name: text for name, text in self.common.items() if row.has(name, text)}

    def _count_calls(self, row: LogRow) -> None:
        """Take note where W&B's count goes on by one, or always does."""
        call = row.numbers.get("call", math.inf)
        self.calls_follow |= self.now.get("call", -math.inf) >= call - 1
        self.calls_follow |= row.counts_calls

    def _add(self, numbers: Mapping[str, float]) -> str | None:
        """Add the numbers of a row. Return a line where the steps went back."""
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
                    self.has_two_losses |= _other(numbers[key], point[key], most)
            self.now = point | self.now
        self.points.append(self.now)
        if not dropped:
            return None
        name = PLURALS.get(axis, axis)
        return (
            f"its {name} go back to {at:g}, so nocap leaves out {dropped} earlier rows beyond "
            "this point"
        )

    def _go_on(self, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a row; a loss stands for its row alone."""
        if numbers.get("train_s", math.inf) < self.now.get("train_s", -math.inf):
            self.has_clock = False
        rest = {key: x for key, x in self.now.items() if key not in LOSSES}
        self.now = {**rest, **numbers}
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

    def _last_loss_at(self) -> float | None:
        """Return where the last loss stands; `None`: there is none."""
        if not self.points:
            return None
        return self.points[-1].get(self.axis or "", math.nan)

    # --- the end ----------------------------------------------------------------------------------

    def lose(self, losses: Sequence[str]) -> None:
        """Add that it diverged, as the row of its table has an empty cell for these losses."""
        self.points.append({**self.now, **dict.fromkeys(losses, math.nan)})

    def end(self) -> None:
        """Add what follows from all rows."""
        self._add_divergence()
        self._settle_calls()

    def _add_divergence(self) -> None:
        """Add that the run diverged, where a cell is empty at which a loss was due: a program that
        writes strict JSON, or a table, leaves the cell of what is no number empty."""
        if self.axis is None:
            return
        due = self.loss_cells.due([point.get(self.axis, math.nan) for point in self.points])
        if due is not None:
            losses = [key for key in LOSSES if key in self.points[-1]]
            self.points.append({**self.now, self.axis: due, **dict.fromkeys(losses, math.nan)})

    def _settle_calls(self) -> None:
        """Take W&B's count as steps where the program gave it: it then goes on by more than one."""
        if self.axis != "call" or self.calls_follow:
            return
        for point in self.points:
            point["step"] = point["call"]
        self.reached["step"] = self.reached["call"]


def _other(x: float, y: float, most: float) -> bool:
    """Say whether a loss is another one: by more than a share of it."""
    return abs(x - y) > most * abs(y) or math.isnan(x) != math.isnan(y)
