"""llm.c's main.log, `s:250 tel:1.6434` of a validation and `s:250 trl:1.7686 …` of a step; or what
it prints, where a validation, `val loss 1.643414`, stands before the step that follows it,
`step  251/1000 | loss …`. A HellaSwag score, `s:250 eval:0.2520`, is no loss. A
resumed run appends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nocap.sources.log_reading import Row, Sample, full_match, printed

PATTERN = "*.log *.txt *.out"

NUMBER = r"(\d+\.\d+|nan|inf)"
LOGGED = re.compile(rf"s:(\d+) (tel|trl):{NUMBER}(?: |$)")
BEGINS = re.compile(r"s:\d+ (?:tel|trl):|val loss ")
VALIDATION = re.compile(rf"val loss {NUMBER}$")
STEP = re.compile(rf"step\s+(\d+)/(\d+) \| (?:train )?loss {NUMBER}")


def recognises(sample: Sample) -> bool:
    return sample.has(LOGGED) or (sample.has(VALIDATION) and sample.has(STEP))


def read(path: Path) -> Iterator[Row]:
    done = total = 0
    for number, line in printed(path):
        row: dict[str, object] = {"line": number}
        if match := STEP.match(line):
            done, total = map(int, match.group(1, 2))
            yield row | {"step": done, "total_steps": total}
        elif BEGINS.match(line):
            match = VALIDATION.match(line) or full_match(LOGGED.match(line), number, line, "row")
            if match.re is VALIDATION:
                yield row | {"step": done, "val_loss": float(match[1])}
            elif match[2] == "tel":
                yield row | {"step": int(match[1]), "val_loss": float(match[3])}
            else:
                yield row | {"step": int(match[1]), "train_loss": float(match[3])}
