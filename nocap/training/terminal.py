"""What a person sees: a progress bar on a terminal, plain lines elsewhere, all lines also in
`train.log`, and a short table at the end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from nocap.config.outgoing_text import redact, trusted, visible
from nocap.display import duration
from nocap.store.file_writing import append_text
from nocap.store.record_files import Row

QUIET_S = 5.0  # at most one plain line in this time, validation apart


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
        """`drawn`: the bar has it, where there is one."""
        if self._log_path is None:
            return
        with suppress(OSError):  # on a full disk, the next row stops the run, not this line
            append_text(self._log_path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if self._bar is None:
            print(text, flush=True)
        elif not drawn:
            self._bar.write(visible(redact(text)), file=trusted(sys.stdout))

    def start(self, step: int) -> None:
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
        now = time.monotonic()
        step = row["step"]
        parts = [f"step {step:>6}/{self._steps}"]
        if "train/loss" in row:
            loss = _number(row["train/loss"])
            parts.append(f"train {loss}")
        if "val/loss" in row:
            self._val = f"val {_number(row['val/loss'])}"
            bpb = ""
            if row.get("val/bpb") is not None:
                bpb = f" ({row['val/bpb']:.3f} bits per byte)"
            parts.append(self._val + bpb)
        if "train/loss" in row:
            speed = f"{row['perf/tokens_per_s']:,.0f}"
            if self._first_row is None:
                self._first_row = FirstRow(time=now, step=step)
            if self._bar is not None:
                self._bar.update(step + 1 - self._bar.n)
                self._bar.set_postfix_str(f"loss {loss} {self._val} {speed} tok/s", refresh=False)
            parts.append(f"{speed} tokens/s")
            first = self._first_row
            rest = left(step - first.step, self._steps - step, now - first.time)
            if rest:
                parts.append(rest)
        if "val/loss" in row or (self._bar is None and now - self._last_line >= QUIET_S):
            self._last_line = now
            self.log("  ".join(parts), drawn=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def left(done: int, to_do: int, spent_s: float) -> str:
    """Return how long the rest will take, at the pace so far; nothing before there is one, or after
    the last."""
    if done <= 0 or to_do <= 0:
        return ""
    return f"about {duration(round(spent_s / done * to_do))} left"


def _number(value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:.4f}"


def ending(code: int) -> str:
    """Return a process's exit code as `subprocess` gives it, as text."""
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


def table(summary: Mapping[str, Any], *, run_dir: Path) -> str:
    """Return the run in a few lines."""
    rows: dict[str, str | None] = {
        "run": f"{summary['name']}  {summary['status']} at step {summary['steps']}",
        "validation": _validation(summary),
        "speed": _speed(summary),
        "epoch": _epoch(summary),
        "memory": _memory(summary),
        "clock": _clock(summary),
        "record": str(run_dir),
        "curve": None,
        "tracker": summary.get("tracker"),
    }
    if summary["val_loss"] is not None:
        rows["curve"] = f"python -m nocap.plot {shlex.quote(str(run_dir))}"
    return "\n".join(f"  {label:<11} {text}" for label, text in rows.items() if text)


def _validation(summary: Mapping[str, Any]) -> str | None:
    if summary["val_loss"] is None:
        return None
    if summary["val_bpb"] is None:
        bpb = f"no bits per byte: {shorten(summary['val_bpb_reason'], 90)}"
    else:
        bpb = f"{summary['val_bpb']:.4f} bits per byte"
    return f"{summary['val_loss']:.4f} nats per token, {bpb}"


def _epoch(summary: Mapping[str, Any]) -> str | None:
    """Say how long one pass over all training data takes at the run's average speed."""
    if summary.get("epoch_s") is None:  # as in older records
        return None
    return f"{duration(summary['epoch_s'])} for all training data once, at this speed"


def _memory(summary: Mapping[str, Any]) -> str | None:
    parts = dict(summary["memory_mib"])
    if not parts:
        return None
    peak = parts.pop("peak")
    shown = ", ".join(f"{name} {mib:,.0f}" for name, mib in parts.items())
    return f"{peak:,.0f} MiB peak; {shown}"


def _clock(summary: Mapping[str, Any]) -> str:
    """Say where the time went, the longest first."""
    clock_s = dict(summary["clock_s"])
    wall_s = clock_s.pop("wall")
    lines = [line for line, seconds in clock_s.items() if seconds >= 0.05]
    lines.sort(key=lambda line: -clock_s[line])
    shown = " + ".join(f"{line} {clock_s[line]:.1f}" for line in lines)
    return f"{wall_s:.1f} s = {shown}"


def _speed(summary: Mapping[str, Any]) -> str | None:
    if summary["tokens_per_s"] is None or summary["step_ms"] is None:
        return None
    if summary["mfu"] is None:
        mfu = f"no MFU: {summary['mfu_basis']}"
    else:
        mfu = f"MFU {summary['mfu']:.1%}"
    return (
        f"{summary['tokens_per_s']:,.0f} tokens/s on average, "
        f"{summary['step_ms']['median']:.1f} ms in the median step; {mfu}"
    )
