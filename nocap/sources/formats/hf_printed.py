"""What Hugging Face's Trainer prints: an object of Python a line, perhaps after a progress bar,
with numbers as texts of four digits in newer versions: `{'eval_loss': '2.201', 'eval_runtime':
'0.9983', …, 'epoch': '0.5'}`. It has epochs and no steps. `train_runtime` is printed once training
has ended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.log_reading import Row, Sample, printed

PATTERN = "*.log *.txt *.out"

BEGINS = re.compile(r"\{'(?:loss|eval_loss|train_runtime)': ")
WHOLE = re.compile(r"(\{'(?:loss|eval_\w+|train_runtime)': .*\})$")
NOT_FINITE = re.compile(r"(?<=: )(nan|inf)(?=[,}])")


def recognises(sample: Sample) -> bool:
    return sample.has(BEGINS)


def read(path: Path) -> Iterator[Row]:
    ended = "not finished"
    yield {"ended": ended}
    for number, line in printed(path):
        if not BEGINS.match(line):
            continue
        match = WHOLE.match(line)
        try:
            values = ast.literal_eval(NOT_FINITE.sub(r"'\1'", match[1])) if match else None
        except (ValueError, SyntaxError):
            values = None
        require(
            isinstance(values, dict),
            f"line {number}",
            "be a complete dict of Python",
            repr(line[:80]),
        )
        assert values
        if "train_runtime" in values:
            ended = "finished"
        elif "loss" in values:  # training went on, perhaps of another run
            ended = "not finished"
        values = {
            key: value for key, value in values.items() if key in ("loss", "eval_loss", "epoch")
        }
        yield {"line": number, **values, "ended": ended}
