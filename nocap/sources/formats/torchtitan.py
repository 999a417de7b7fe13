"""What torchtitan prints, its colours aside: `step: 250  loss:  1.76863  …` of training, and
`validate step: 250 loss:  1.6434  …`. Ranks without the last stage of a pipeline print a loss of
-1. Its tokens a second are of one device, and it prints no time of training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.log *.txt *.out"

BEFORE = r".*?(?:INFO - |^)"
NUMBER = r"(-?\d+\.\d+|nan|inf)"
BEGINS = re.compile(rf"{BEFORE}validate step:")
VALIDATION = re.compile(rf"{BEFORE}validate step:\s*(\d+)\s+loss:\s*{NUMBER}\s")
TRAINING = re.compile(rf"{BEFORE}step:\s*(\d+)\s+loss:\s*{NUMBER}\s")
ELSEWHERE = -1.0  # another rank has the loss


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION)


def read(path: Path) -> Iterator[Row]:
    for number, line in printed(path):
        if BEGINS.match(line):
            step, loss = full_match(VALIDATION.match(f"{line} "), number, line).groups()
            if float(loss) != ELSEWHERE:
                yield {"line": number, "step": int(step), "val_loss": float(loss)}
        elif match := TRAINING.match(line):
            yield {"line": number, "step": int(match[1]), "train_loss": match[2]}
