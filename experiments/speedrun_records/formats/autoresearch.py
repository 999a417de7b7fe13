"""The table of karpathy/autoresearch's loop, results.tsv: a run a line, with its commit, bits per
byte (0 where it crashed), memory, status and description. Each commit is an arm of one run. All are
trained for as long, so there is no time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "results.tsv"

HEAD = ["commit", "val_bpb", "memory_gb", "status", "description"]


def read(path: Path) -> Iterator[Row]:
    rows = csv.reader((text for _, text in lines(path)), delimiter="\t", quoting=csv.QUOTE_NONE)
    require(next(rows, []) == HEAD, "line 1", f"be the names {', '.join(HEAD)}", "others")
    for cells in filter(None, rows):
        require(
            len(cells) == len(HEAD), f"line {rows.line_num}", f"have {len(HEAD)} cells", len(cells)
        )
        row = dict(zip(HEAD, cells, strict=True))
        if row["status"] != "crash":
            yield {
                "line": rows.line_num,
                "arm": row["commit"],
                "val_bpb": row["val_bpb"],
                "memory_gb": row["memory_gb"],
            }
