"""`--until-shown N`: the same grid with more seeds for every arm, look by look, until what is open
is shown or the arms have N seeds. The looks are planned: each has twice the seeds of the one
before. The judge counts them from the records, so that a command that was killed and is typed again
goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override

from nocap.config.flags import UNTIL_SHOWN
from nocap.config.keys import require
from nocap.config.overrides import overrides_of
from nocap.display import listed, shorten
from nocap.judge.compare import compare
from nocap.judge.findings import extended
from nocap.judge.interval import LEAST_PAIRS
from nocap.launch.sweep import values_of
from nocap.store.runs import load_runs


def looks(overrides: Sequence[Override], most: int) -> list[Sequence[Override]]:
    """Return the overrides of each look, the first of which has the seeds that were given.

    Errors:
        ValueError: too few seeds are given, or no fewer than `most`.
    """
    seeds = _seeds(overrides)
    rule = f"be more than {len(seeds)}, the number of seeds in this command"
    require(most > len(seeds), UNTIL_SHOWN, rule, most)
    every: list[Sequence[Override]] = [overrides]
    size = len(seeds)
    while size < most:
        size = min(2 * size, most)
        every.append(_with_seeds(overrides, extended(seeds, size)))
    return every


def _seeds(overrides: Sequence[Override]) -> list[int]:
    """Return the seeds of each arm.

    Errors:
        ValueError: there are too few.
    """
    values = list[str]()
    typed: str | None = "none"
    for override in overrides:
        if override.key_or_group == "seed":
            typed = override.input_line
            if override.is_sweep_override():
                values = values_of(override)
    rule = f"list {LEAST_PAIRS} or more seeds with {UNTIL_SHOWN} (as in seed=0,1,2)"
    require(len(values) >= LEAST_PAIRS, "seed", rule, typed)
    return [int(value) for value in values]


def _with_seeds(overrides: Sequence[Override], seeds: Sequence[int]) -> list[Override]:
    """Return the same overrides with these seeds."""
    (with_seeds,) = overrides_of([f"seed={','.join(map(str, seeds))}"])
    replaced = list[Override]()
    for override in overrides:
        if override.key_or_group == "seed":
            override = with_seeds
        replaced.append(override)
    return replaced


def seeds_in(overrides: Sequence[Override]) -> int:
    """Return how many seeds an arm has at a look."""
    return next(len(values_of(each)) for each in overrides if each.key_or_group == "seed")


def plan_of(every: Sequence[Sequence[Override]]) -> str:
    """Say before the first run how many seeds the looks have."""
    sizes = listed([str(seeds_in(overrides)) for overrides in every])
    return (
        f"--until-shown compares the arms after {sizes} seeds, and stops when no difference is open"
    )


def open_in(folder: Path) -> list[str]:
    """Name what a grid's comparison does not show yet."""
    findings = compare(load_runs([folder])).findings
    return [finding.name for finding in findings.found if finding.is_open]


def state_line(names: Sequence[str], n: int, *, is_last: bool) -> str:
    """Say after a look at so many seeds what is open, and what comes next. `names`: as `open_in`
    has them."""
    if not names:
        return f"--until-shown: no difference is open after {n} seeds"
    following = "more seeds for every arm"
    if is_last:
        following = "no more seeds are allowed"
    return f"--until-shown: open after {n} seeds: {shorten(names, most=6)}; {following}"
