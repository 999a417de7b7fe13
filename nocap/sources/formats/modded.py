"""modded-nanogpt's logs: the program, what nvidia-smi and the program printed, then for each validation a
line such as `step:125/3500 val_loss:4.6511 train_time:19115ms step_avg:152.92ms`. Its times are those of
training alone, in s or ms. A file may hold several runs one after the other: their steps begin again. Some
name their seed, and some a second loss, of averaged weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "*.txt"

SEED = re.compile(r"Using seed=(\d+)\s*$")
GPU = re.compile(r"\|\s+\d+\s+(\S.*?)\s{2,}(?:On|Off)\s")  # a row of nvidia-smi's table
BEGINS = re.compile(r"step:\d+/\d+ val_loss:")
NUMBER = r"(?:[\d.]+|nan|inf)"
VALIDATION = re.compile(
    rf"step:(\d+)/\d+ ((?:val_\w*loss:{NUMBER} )+)train_time:(\d+(?:\.\d+)?)(ms|s) step_avg:{NUMBER}ms\b"
)
LOSS = re.compile(r"(val_\w*loss):(\S+)")


def read(path: Path) -> Iterator[Row]:
    """Its validations in order: `run` from 1, `step`, `val_loss` and other losses (nats per token),
    `train_s`, and where the log names them `seed` and `hardware`.

    Errors:
        ValueError: a validation's line that is cut or damaged.
    """
    gpus, seed, run, last = list[str](), dict[str, int](), 1, -1
    for number, line in lines(path):
        if match := GPU.match(line):
            gpus.append(match[1])
        elif match := SEED.match(line):
            seed = {"seed": int(match[1])}
        elif BEGINS.match(line):
            whole = VALIDATION.match(line)
            require(whole is not None, f"line {number}", "be a whole validation", repr(line.strip()[:80]))
            assert whole
            step = int(whole[1])
            run, last = run + (step <= last), step
            losses = {name: float(value) for name, value in LOSS.findall(whole[2])}
            hardware = {"hardware": f"{len(gpus)} × {gpus[0]}"} if gpus else {}
            train_s = float(whole[3]) / (1000 if whole[4] == "ms" else 1)
            yield {"line": number, "run": run, "step": step, **losses, "train_s": train_s, **seed, **hardware}
