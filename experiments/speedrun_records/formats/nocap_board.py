"""What BottleCapAI/NoCap-Test's trainer prints: `step:128/4768 | val loss 5.918`, and after each
step `step:128/4768 | loss 0.18 | train_time:535.2s | step_avg:4181ms`. A validation comes before
its step's training, and has the time until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "*.log"

STEP = re.compile(
    r"step:(\d+)/\d+ \| (?:val loss (\d+\.\d+|nan)|loss \S+ \| train_time:([\d.]+)s \| "
    r"step_avg:[\d.]+ms)\s*$"
)


def read(path: Path) -> Iterator[Row]:
    train_s = 0.0
    for number, line in lines(path):
        if line.startswith("step:"):
            match = STEP.match(line)
            require(match is not None, f"line {number}", "be a whole step", repr(line.strip()[:80]))
            assert match
            if match[2]:
                yield {
                    "line": number,
                    "step": int(match[1]),
                    "val_loss": float(match[2]),
                    "train_s": train_s,
                }
            else:
                train_s = float(match[3])
