"""`--until-shown N`: the same grid with more seeds for every arm, look by look, until what is open
is shown or the arms have N seeds. The looks are planned: each has twice the seeds of the one
before. The judge counts them from the records, so that a command that was killed and is typed again
goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override

from nocap.config.choices import overrides_of
from nocap.config.keys import require
from nocap.display import listed, shorten
from nocap.judge.compare import compare
from nocap.judge.findings import extended
from nocap.judge.interval import LEAST_PAIRS
from nocap.launch.grid import values_of
from nocap.store.runs import load_runs as load

FLAG = "--until-shown"


def budget(text: str) -> int:
    """Return the most seeds of an arm.

    Errors:
        ValueError: it is no number of them.
    """
    require(text.isdecimal(), FLAG, "be the most seeds of an arm, as in --until-shown 24", text)
    return int(text)


def looks(overrides: Sequence[Override], most: int) -> list[list[Override]]:
    """Return the overrides of each look, the first of which has the seeds that were given.

    Errors:
        ValueError: too few seeds are given, or no fewer than `most`.
    """
    own = next((override for override in overrides if override.key_or_group == "seed"), None)
    values = values_of(own) if own is not None and own.is_sweep_override() else []
    rule = f"list {LEAST_PAIRS} or more with {FLAG}, as in seed=0,1,2"
    require(len(values) >= LEAST_PAIRS, "seed", rule, own.input_line if own is not None else "none")
    seeds = [int(value) for value in values]
    require(most > len(seeds), FLAG, f"be more than the {len(seeds)} seeds that are given", most)
    sizes = [len(seeds)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return [
        [_seeded(each, seeds, size) if each is own else each for each in overrides]
        for size in sizes
    ]


def _seeded(override: Override, seeds: Sequence[int], size: int) -> Override:
    if size == len(seeds):
        return override
    (more,) = overrides_of([f"seed={','.join(map(str, extended(seeds, size)))}"])
    return more


def seeds_in(overrides: Sequence[Override]) -> int:
    """Return how many seeds an arm has at a look."""
    return next(len(values_of(each)) for each in overrides if each.key_or_group == "seed")


def plan_of(every: Sequence[Sequence[Override]]) -> str:
    sizes = listed([str(seeds_in(overrides)) for overrides in every])
    return f"until shown: looks at {sizes} seeds of each arm, and no more runs once nothing is open"


def open_in(folder: Path) -> list[str]:
    """Name what a grid's comparison does not show yet."""
    return [finding.name for finding in compare(load([folder])).findings.found if finding.is_open]


def told(still: Sequence[str], n: int, *, last: bool) -> str:
    """Say after a look what is open, and what comes next."""
    if not still:
        return f"until shown: nothing is open after {n} seeds"
    then = "its budget of seeds has ended" if last else "more seeds for every arm"
    return f"until shown: open after {n} seeds: {shorten(still, most=6)}; {then}"
