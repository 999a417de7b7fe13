"""litgpt's pretraining: what it prints, or the table of its CSV logger. A validation is printed
after so many iterations, which are micro-batches: `iter 50: val loss 2.4044, …`; lines such as
`Epoch 1 | iter 60 step 30 | …` say how many of them are a step. In the table `step` counts
micro-batches too, so it has no step that counts; its `tokens` are of one device, and `total_tokens`
of all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.sources.formats import csv
from nocap.sources.log_reading import Row, Sample, full_match, printed, sample

PATTERN = "*.csv *.log *.txt *.out"

NUMBER = r"(\d+\.\d+|nan|inf)"
BEGINS = re.compile(r"iter \d+: val loss ")
VALIDATION = re.compile(rf"iter (\d+): val loss {NUMBER}, val time")
STEP = re.compile(r"Epoch \d+ \| iter (\d+) step (\d+) \| loss train:")
COLUMNS = {"iter", "iter_time", "total_tokens", "val_loss", "time"}


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION) or sample.has(STEP) or {*csv.names_of(sample)} >= COLUMNS


def read(path: Path) -> Iterator[Row]:
    yield from _of_table(path) if {*csv.names_of(sample(path))} >= COLUMNS else _of_print(path)


def _of_table(path: Path) -> Iterator[Row]:
    for row in csv.read(path):
        values = {"line": row["line"], "tokens": row["total_tokens"], "train_s": row["time"]}
        yield values | {"val_loss": row["val_loss"]} if row["val_loss"] else values


def _of_print(path: Path) -> Iterator[Row]:
    batches = 1.0  # micro-batches of a step
    for number, line in printed(path):
        if match := STEP.match(line):
            if int(match[2]):
                batches = int(match[1]) / int(match[2])
            yield {"line": number, "step": int(match[2])}
        elif BEGINS.match(line):
            match = full_match(VALIDATION.match(line), number, line)
            yield {"line": number, "step": int(int(match[1]) / batches), "val_loss": match[2]}
