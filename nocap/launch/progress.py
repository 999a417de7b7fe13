"""The progress of a run while it trains: a bar on a terminal, plain lines elsewhere, and all lines
also in `train.log`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.outgoing_text import redact, trusted, visible
from nocap.display import time_left
from nocap.row_keys import TOKENS_PER_S, TRAIN_LOSS, VAL_BPB, VAL_LOSS
from nocap.store.file_writing import append_text
from nocap.store.rows_file import Row

LINE_EVERY_S = 5.0  # at most one plain line in this time, validation apart


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstRow:
    """The first row of this process with a training loss."""

    time: float  # by time.monotonic()
    step: int


class Reporter:
    """Progress of one run, on stdout and in `train.log`. Without a `log_path`, as in all ranks but
    the first, it is silent."""

    def __init__(self, *, log_path: Path | None, steps: int) -> None:
        self._log_path = log_path
        self._steps = steps
        self._bar: Any = None
        self._last_line = 0.0
        self._first_row: FirstRow | None = None
        self._val = ""

    def log(self, text: str, *, drawn: bool = False) -> None:
        """Print a line, and append it to the log. `drawn`: a bar, where there is one, has it."""
        if self._log_path is None:
            return
        with suppress(OSError):  # on a full disk, the next row stops the run, not this line
            append_text(self._log_path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if self._bar is None:
            print(text, flush=True)
        elif not drawn:
            self._bar.write(visible(redact(text)), file=trusted(sys.stdout))

    def start(self, step: int) -> None:
        """Draw a bar from this step on, on a terminal."""
        if self._log_path is not None and sys.stdout.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._steps,
                initial=step,
                unit="step",
                file=trusted(sys.stdout),
                dynamic_ncols=True,
                leave=False,
            )

    def row(self, row: Row) -> None:
        """Show a row: with the bar, or in a line now and then."""
        now = time.monotonic()
        step = row["step"]
        parts = [f"step {step:>6}/{self._steps}"]
        if TRAIN_LOSS in row:
            loss = _number(row[TRAIN_LOSS])
            parts.append(f"train {loss}")
        if VAL_LOSS in row:
            self._val = f"val {_number(row[VAL_LOSS])}"
            bpb = ""
            if row.get(VAL_BPB) is not None:
                bpb = f" ({row[VAL_BPB]:.3f} bits per byte)"
            parts.append(self._val + bpb)
        if TRAIN_LOSS in row:
            speed = f"{row[TOKENS_PER_S]:,.0f}"
            if self._first_row is None:
                self._first_row = FirstRow(time=now, step=step)
            if self._bar is not None:
                self._bar.update(step + 1 - self._bar.n)
                self._bar.set_postfix_str(f"loss {loss} {self._val} {speed} tok/s", refresh=False)
            parts.append(f"{speed} tokens/s")
            first = self._first_row
            rest = time_left(step - first.step, self._steps - step, now - first.time)
            if rest:
                parts.append(rest)
        if VAL_LOSS in row or (self._bar is None and now - self._last_line >= LINE_EVERY_S):
            self._last_line = now
            self.log("  ".join(parts), drawn=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _number(value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:.4f}"
