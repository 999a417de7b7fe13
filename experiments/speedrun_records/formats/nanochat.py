"""What karpathy/nanochat's base_train prints: `Step 00250 | Validation bpb: 0.912345`, and after each step
its total time in minutes, which leaves out the first ten. How many GPUs there are is the tokens of a
micro-batch over those of a rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "*.log *.txt"

GPU = re.compile(r"GPU: (.+?) \| Peak FLOPS")
BATCH = re.compile(r"Tokens / micro-batch( / rank)?: (?:.*= )?([\d,]+)\s*$")
TIME = re.compile(r"step \d+/\d+ .*\| total time: ([\d.]+)m")
VALIDATION = re.compile(r"Step (\d+) \| Validation bpb: (\d+\.\d+|nan)\s*$")


def read(path: Path) -> Iterator[Row]:
    train_s, gpu, tokens = 0.0, "", dict[bool, int]()
    for number, line in lines(path):
        if match := GPU.match(line):
            gpu = match[1]
        elif match := BATCH.match(line):
            tokens[bool(match[1])] = int(match[2].replace(",", ""))
        elif match := TIME.match(line):
            train_s = 60 * float(match[1])
        elif re.match(r"Step \d+ \| Validation bpb:", line):
            match = VALIDATION.match(line)
            require(match is not None, f"line {number}", "be a whole validation", repr(line.strip()[:80]))
            assert match
            hardware = (
                {"hardware": f"{tokens[False] // tokens[True]} × {gpu}"} if gpu and len(tokens) == 2 else {}
            )
            yield {
                "line": number,
                "step": int(match[1]),
                "val_bpb": float(match[2]),
                "train_s": train_s,
                **hardware,
            }
