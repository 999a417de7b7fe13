"""JSON lines: an object a line. What is nested is joined by slashes: `val/loss` of {"val": {"loss": 3.2}}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import flat, require
from nocap.sources.formats import Row, lines

PATTERN = "*.jsonl *.ndjson"


def read(path: Path) -> Iterator[Row]:
    for number, text in lines(path):
        if text.strip():
            try:
                row = json.loads(text)
                require(isinstance(row, dict), "it", "be an object", type(row).__name__)
                row = dict(flat(row, "/"))
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} must be a JSON object, got {text.strip()[:60]!r}") from None
            yield {**row, "line": number}
