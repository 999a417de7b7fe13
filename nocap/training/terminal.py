"""What a person sees: a progress bar on a terminal, plain lines elsewhere, all lines also in
`train.log`, and a short table at the end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

from nocap.config.outward import redact, trusted, visible
from nocap.display import duration
from nocap.store.files import append_text
from nocap.store.record import Row

QUIET_S = 5.0  # at most one plain line in this time, validation apart


class Reporter:
    """Progress of one run, on stdout and in `train.log`. Without a `log_path`, as in all ranks but
    the first, it is silent."""

    def __init__(self, *, log_path: Path | None, steps: int) -> None:
        self._log_path, self._steps = log_path, steps
        self._bar: Any = None
        self._last_line = 0.0
        self._began = (0.0, 0)  # when the first row came, and its step
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
        now, step, parts = time.monotonic(), row["step"], list[str]()
        if "val/loss" in row:
            bpb = f" ({row['val/bpb']:.3f} bits per byte)" if row.get("val/bpb") is not None else ""
            self._val = f"val {_number(row['val/loss'])}"
            parts.append(self._val + bpb)
        if "train/loss" in row:
            loss, speed = _number(row["train/loss"]), f"{row['perf/tokens_per_s']:,.0f}"
            self._began = self._began if self._began[0] else (now, step)
            if self._bar is not None:
                self._bar.update(step + 1 - self._bar.n)
                self._bar.set_postfix_str(f"loss {loss} {self._val} {speed} tok/s", refresh=False)
            parts = [
                f"train {loss}",
                *parts,
                f"{speed} tokens/s",
                left(step - self._began[1], self._steps - step, now - self._began[0]),
            ]
        if "val/loss" in row or (self._bar is None and now - self._last_line >= QUIET_S):
            self._last_line = now
            self.log("  ".join([f"step {step:>6}/{self._steps}", *filter(None, parts)]), drawn=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def left(done: int, to_do: int, spent_s: float) -> str:
    """Return how long the rest will take, at the pace so far; nothing before there is one, or after
    the last."""
    return f"about {duration(round(spent_s / done * to_do))} left" if done > 0 < to_do else ""


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4f}"


def ending(code: int) -> str:
    """Return a process's exit code as `subprocess` gives it, as text."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def table(summary: Mapping[str, Any], *, run_dir: Path) -> str:
    """Return the run in a few lines."""
    clock, memory = summary["clock_s"], dict(summary["memory_mib"])
    spent = sorted(
        ((line, s) for line, s in clock.items() if line != "wall" and s >= 0.05),
        key=lambda item: -item[1],
    )
    rows = {
        "run": f"{summary['name']}  {summary['status']} at step {summary['steps']}",
        "validation": summary["val_loss"] is not None and _validation(summary),
        "speed": summary["tokens_per_s"] is not None
        and summary["step_ms"] is not None
        and _speed(summary),
        "epoch": summary.get("epoch_s") is not None
        and _epoch(summary),  # records of before have none
        "memory": memory
        and f"{memory.pop('peak'):,.0f} MiB peak; "
        + ", ".join(f"{name} {mib:,.0f}" for name, mib in memory.items()),
        "clock": f"{clock['wall']:.1f} s = " + " + ".join(f"{line} {s:.1f}" for line, s in spent),
        "record": str(run_dir),
        "curve": summary["val_loss"] is not None
        and f"python -m nocap.plot {shlex.quote(str(run_dir))}",
        "tracker": summary.get("tracker"),
    }
    return "\n".join(f"  {label:<11} {text}" for label, text in rows.items() if text)


def _validation(summary: Mapping[str, Any]) -> str:
    known = summary["val_bpb"] is not None
    bpb = (
        f"{summary['val_bpb']:.4f} bits per byte"
        if known
        else f"no bits per byte: {shorten(summary['val_bpb_reason'], 90)}"
    )
    return f"{summary['val_loss']:.4f} nats per token, {bpb}"


def _epoch(summary: Mapping[str, Any]) -> str:
    """Say how long one pass over all training data takes at the run's average speed."""
    return f"{duration(summary['epoch_s'])} for all training data once, at this speed"


def _speed(summary: Mapping[str, Any]) -> str:
    mfu = (
        f"MFU {summary['mfu']:.1%}"
        if summary["mfu"] is not None
        else f"no MFU: {summary['mfu_basis']}"
    )
    return (
        f"{summary['tokens_per_s']:,.0f} tokens/s on average, "
        f"{summary['step_ms']['median']:.1f} ms in the median step; {mfu}"
    )
