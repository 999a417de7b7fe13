"""What nanoGPT's train.py prints: `step 250: train loss 1.7104, val loss 1.6434`, and between these
`iter 240: loss 1.7630, time 83.51ms, mfu 2.01%`, whose time is that of one iteration: no clock of
training. It names no seed, which is 1337 unless the program was changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.log *.txt *.out"

NUMBER = r"(\d+\.\d+|nan|inf)"
VALIDATION = re.compile(rf"step (\d+): train loss {NUMBER}, val loss {NUMBER}$")
TRAINING = re.compile(rf"iter (\d+): loss {NUMBER}, time ")


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION)


def read(path: Path) -> Iterator[Row]:
    for number, line in printed(path):
        if line.startswith("step ") and ": train loss " in line:
            step, train, val = full_match(VALIDATION.match(line), number, line).groups()
            yield {
                "line": number,
                "step": int(step),
                "train_loss": float(train),
                "val_loss": float(val),
            }
        elif match := TRAINING.match(line):
            yield {"line": number, "step": int(match[1]), "train_loss": float(match[2])}
