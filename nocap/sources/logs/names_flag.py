"""The flag `--names`: it says where in a path arm and seed stand, as in '{arm}/{seed}'."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nocap.config.keys import require
from nocap.sources.logs.run_names import RunNames

NAMES_FLAG = "--names"
PATTERNS = {"{arm}": r"(?P<arm>[^/]+?)", "{seed}": r"(?P<seed>\d+)", "*": "[^/]*"}


def read_by_template(runs: Sequence[RunNames], template: str) -> None:
    """Take arm and seed of each run from the places that the user names.

    Errors:
        ValueError: a template without a place, or one that does not fit each path.
    """
    pattern = _pattern_of(template)
    for run in runs:
        match = re.search(rf"(?:^|/){pattern}(?:\.[a-z][\w.]*)?$", run.path, re.IGNORECASE)
        require(
            match is not None, NAMES_FLAG, f"match every path, and so also {run.path}", template
        )
        assert match
        groups = match.groupdict()
        if "arm" in groups:
            run.arm = groups["arm"]
            run.arm_from = NAMES_FLAG
        if "seed" in groups:
            run.seed = groups["seed"]
            run.seed_from = NAMES_FLAG
            _take_out(run, match.span("seed"))


def _pattern_of(template: str) -> str:
    """Return a template as a pattern of paths."""
    pieces = re.split(r"(\{\w*\}|\*)", template)
    has_place = "{arm}" in pieces or "{seed}" in pieces
    require(has_place, NAMES_FLAG, "hold {arm} or {seed}, as in '{arm}/{seed}'", template)
    fields = [piece for piece in pieces if piece.startswith("{")]
    for piece in fields:
        require(
            piece in PATTERNS,
            NAMES_FLAG,
            "hold no other names than {arm} and {seed}, and no other wildcard than *",
            piece,
        )
        require(
            fields.count(piece) == 1, NAMES_FLAG, "hold {arm} and {seed} at most once each", piece
        )
    return "".join(PATTERNS.get(piece, re.escape(piece)) for piece in pieces)


def _take_out(run: RunNames, span: tuple[int, int]) -> None:
    """Take what names the seed out of a run's path, so that the rest may name the arm."""
    first, end = span
    before = run.path[:first].rpartition("/")[2]
    after = run.path[end:].partition("/")[0]
    part_with_seed = f"{before}{run.path[first:end]}{after}"
    rest = f"{before.rstrip('=_- .')}{after}".strip("=_- .")
    rests = {part_with_seed: rest}
    run.folders = [rests.get(part, part) for part in run.folders]
    if run.file == part_with_seed:
        run.file = rest
    if run.own == part_with_seed:
        run.own = rest
