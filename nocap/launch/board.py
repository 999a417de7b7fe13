"""What a person sees of a grid: a line for each cell that starts or ends, and on a terminal a live board below them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REFRESH_S = 0.5
TAIL_BYTES = 4096  # holds the last row of a run's metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A cell that is running."""

    label: str
    run_dir: Path
    steps: int
    elapsed_s: float


class Board:
    """Lines that stay, above lines that change. Without a terminal the second kind is left out."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._drawn = 0
        self._next = 0.0

    def say(self, text: str) -> None:
        self._erase()
        self._next = 0.0
        print(text, flush=True)

    def due(self) -> bool:
        return self.live and time.monotonic() >= self._next

    def draw(self, counts: dict[str, int], running: Sequence[Line], *, left_s: float | None) -> None:
        self._erase()
        self._next = time.monotonic() + REFRESH_S
        parts = [f"{n} {name}" for name, n in counts.items() if n]
        parts += [f"about {duration(left_s)} left"] if left_s is not None else []
        lines = ["─ " + ", ".join(parts)]
        lines += [f"  {line.label}  step {_step(line.run_dir)}/{line.steps}  {duration(line.elapsed_s)}" for line in running]
        width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
        sys.stdout.write("".join(f"{line[:width]}\n" for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)

    def close(self) -> None:
        self._erase()
        sys.stdout.flush()

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0


def _step(run_dir: Path) -> int:
    """The last whole row's step."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            for line in reversed(file.read().splitlines()):
                try:
                    return int(json.loads(line)["step"])
                except (ValueError, KeyError, TypeError):
                    continue
    except OSError:
        pass
    return 0


def duration(seconds: float) -> str:
    """`42 s`, `7 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
