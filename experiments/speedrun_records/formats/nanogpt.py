"""What karpathy/nanoGPT's train.py prints: `step 250: train loss 3.9215, val loss 3.9402`. Its other lines
time single iterations, not all of them, so there is no time of training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "*.log *.txt"

STEP = re.compile(r"step (\d+): train loss (\d+\.\d+|nan), val loss (\d+\.\d+|nan)\s*$")


def read(path: Path) -> Iterator[Row]:
    for number, line in lines(path):
        if re.match(r"step \d+: train loss ", line):
            match = STEP.match(line)
            require(match is not None, f"line {number}", "be a whole validation", repr(line.strip()[:80]))
            assert match
            yield {
                "line": number,
                "step": int(match[1]),
                "train_loss": float(match[2]),
                "val_loss": float(match[3]),
            }
