"""What nanochat's base_train prints: `Step 00250 | Validation bpb: 0.912345`, in bits per byte, and
after each step its total time in minutes, which leaves out the first ten. How many GPUs there are
is the tokens of a micro-batch over those of a rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.log *.txt *.out"

GPU = re.compile(r"GPU: (.+?) \| Peak FLOPS")
BATCH = re.compile(r"Tokens / micro-batch( / rank)?: (?:.*= )?([\d,]+)$")
STEP = re.compile(r"step (\d+)/(\d+) .*\| total time: ([\d.]+)m")
BEGINS = re.compile(r"Step \d+ \| Validation bpb:")
VALIDATION = re.compile(r"Step (\d+) \| Validation bpb: (\d+\.\d+|nan)$")


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION)


def read(path: Path) -> Iterator[Row]:
    clock = dict[str, float]()
    gpu = ""
    tokens = dict[bool, int]()
    for number, line in printed(path):
        if match := GPU.match(line):
            gpu = match[1]
        elif match := BATCH.match(line):
            tokens[bool(match[1])] = int(match[2].replace(",", ""))
        elif match := STEP.match(line):
            clock["train_s"] = 60 * float(match[3])
            yield {"line": number, "step": int(match[1]), "total_steps": int(match[2])}
        elif BEGINS.match(line):
            match = full_match(VALIDATION.match(line), number, line)
            row: dict[str, Any] = {
                "line": number,
                "step": int(match[1]),
                "val_bpb": float(match[2]),
                **clock,
            }
            if gpu and len(tokens) == 2:
                row["hardware"] = f"{tokens[False] // tokens[True]} × {gpu}"
            yield row
