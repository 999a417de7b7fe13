"""JSON lines: an object a line. What is nested is joined by slashes: `val/loss` of {"val": {"loss":
3.2}}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import flat, require
from nocap.sources.log_reading import CutError, Row, Sample, lines

PATTERN = "*.jsonl *.ndjson *.jsonl.gz *.ndjson.gz"
GENERAL = True
SURE = True


def recognises(sample: Sample) -> bool:
    first = sample.first.strip()
    return first.startswith('{"') and (first.endswith("}") or len(first) > 1000)


def read(path: Path) -> Iterator[Row]:
    """Yield the objects.

    Errors:
        CutError: the last line is cut, and was left out.
    """
    for number, text in lines(path):
        if text.strip():
            try:
                row = json.loads(text)
                require(isinstance(row, dict), "it", "be an object", type(row).__name__)
                row = dict(flat(row, "/"))
            except (ValueError, RecursionError):
                shown = repr(text.strip()[:60])
                if number > 1 and not text.endswith("\n"):
                    raise CutError(
                        f"line {number} is incomplete, so nocap leaves out this line: {shown}"
                    ) from None
                raise ValueError(f"line {number} must be a JSON object, got {shown}") from None
            yield {**row, "line": number}
