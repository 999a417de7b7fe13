"""modded-nanogpt's logs: the program, what nvidia-smi and the program printed, then for each
validation a line such as `step:125/3500 val_loss:4.6511 train_time:19115ms step_avg:152.92ms`. Its
times are those of training alone, in s or ms. A file may hold several runs one after the other:
their steps begin again. Some name their seed, and some a second loss, of averaged weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.txt *.log"

SEED = re.compile(r"Using seed=(\d+)$")
GPU = re.compile(r"\|\s+\d+\s+(\S.*?)\s{2,}(?:On|Off)\s")  # a row of nvidia-smi's table
BEGINS = re.compile(r"step:\d+/\d+ val_loss:")
NUMBER = r"(?:[\d.]+|nan|inf)"
VALIDATION = re.compile(
    rf"step:(\d+)/(\d+) ((?:val_\w*loss:{NUMBER} )+)train_time:(\d+(?:\.\d+)?)(ms|s) "
    rf"step_avg:{NUMBER}ms\b"
)
TRAINING = re.compile(r"step:(\d+)/(\d+) train_time:")
LOSS = re.compile(r"(val_\w*loss):(\S+)")


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION)


def read(path: Path) -> Iterator[Row]:
    """Yield its validations in order: `run` from 1, `step`, `val_loss` and other losses (nats per
    token), `train_s`, and where the log names them `seed` and `hardware`; of other steps how far
    they are.

    Errors:
        ValueError: a validation's line that is cut or damaged.
    """
    gpus = list[str]()
    facts = dict[str, Any]()
    run = 1
    last = -1
    for number, line in printed(path):
        if match := GPU.match(line):
            gpus.append(match[1])
            facts["hardware"] = f"{len(gpus)} × {gpus[0]}"
        elif match := SEED.match(line):
            facts["seed"] = int(match[1])
        elif BEGINS.match(line):
            match = full_match(VALIDATION.match(line), number, line)
            step = int(match[1])
            run += step <= last
            last = step
            losses = {name: float(value) for name, value in LOSS.findall(match[3])}
            train_s = float(match[4]) / (1000 if match[5] == "ms" else 1)
            total = int(match[2])
            yield {
                "line": number,
                "run": run,
                "step": step,
                "total_steps": total,
                **losses,
                "train_s": train_s,
                **facts,
            }
        elif match := TRAINING.match(line):
            yield {"line": number, "step": int(match[1]), "total_steps": int(match[2])}
