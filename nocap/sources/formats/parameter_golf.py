"""parameter-golf's logs: perhaps the source of the program, then validations in either of two
shapes, `step:13780/20000 val_loss:2.0606 val_bpb:1.2172 train_time:600038ms step_avg:43.54ms` or
`5449/20000 val_loss: 2.5263 val_bpb: 1.0979`, the line that says that the budget of time ended
training, and then one score or several of what was packed: `final_int8_zlib_roundtrip_exact
val_loss:2.0727 val_bpb:1.22436570`. Losses in nats are of the record's own tokenizer, so bits per
byte alone are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.log *.txt"

NUMBER = r"(\d+\.\d+|nan|inf)"
SEED = re.compile(r"seed: ?(\d+)$")
BEGINS = re.compile(r"(?:step:)?\d+/\d+ val_loss:")
VALIDATION = re.compile(
    rf"(?:step:)?(\d+)/(\d+) val_loss: ?{NUMBER} val_bpb: ?{NUMBER}(?: train_time:(\d+)ms "
    rf"step_avg:\S+)?$"
)
TRAINING = re.compile(r"(?:step:)?(\d+)/(\d+) train_loss:")
STOPPED = re.compile(r"stopping_early: wallclock_cap train_time: ?(\d+)ms step: ?(\d+)/(\d+)$")
FINAL = re.compile(rf"([a-z][\w -]*?) val_loss: ?{NUMBER} val_bpb: ?{NUMBER}(?: eval_time:\S+)?$")


def recognises(sample: Sample) -> bool:
    return sample.has(VALIDATION)


def read(path: Path) -> Iterator[Row]:
    for number, line in printed(path):
        row: dict[str, object] = {"line": number}
        if match := SEED.match(line):
            row["seed"] = match[1]
        elif BEGINS.match(line):
            match = full_match(VALIDATION.match(line), number, line)
            row |= {"step": int(match[1]), "total_steps": int(match[2]), "val_bpb": match[4]}
            if match[5]:
                row["train_s"] = int(match[5]) / 1000
        elif match := TRAINING.match(line):
            row |= {"step": int(match[1]), "total_steps": int(match[2])}
        elif match := STOPPED.match(line):
            row |= {"step": int(match[2]), "budget": "time", "train_s": int(match[1]) / 1000}
        elif match := FINAL.match(line):
            row[f"final/{match[1]}"] = match[3]
        if len(row) > 1:
            yield row
