"""What a command sweeps: the values of each override, and the cells that they make together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep

from nocap import outside
from nocap.config.keys import require
from nocap.config.override_keys import key_of
from nocap.config.override_text import texts_of_typed

MOST_CELLS = 10_000


def replaced(overrides: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return overrides of which some are replaced."""
    keys = {key_of(override) for override in more}
    others = [override for override in overrides if key_of(override) not in keys]
    return (*others, *more)


def values_of(override: Override) -> list[str]:
    """Return the values that an override sweeps over.

    Errors:
        ValueError: it has none, or too many.
    """
    name = override.get_key_element()
    swept = override.value()
    line = override.input_line
    if isinstance(swept, Glob):
        is_group = name in outside.groups()
        require(is_group, name, "be a group of options, because its value is a glob", line)
        return swept.filter(outside.yamls(name))
    is_interval = isinstance(swept, IntervalSweep)
    rule = "list its values, because only a search (search=tpe) draws values from an interval"
    require(not is_interval, name, rule, line)
    if isinstance(swept, RangeSweep):
        _check_range(name, swept, str(line))
    values = list(override.sweep_string_iterator())
    if not (isinstance(swept, ChoiceSweep) and swept.simple_form):
        return values
    # the characters that were typed, for a key of text: Hydra writes 1_000 as 1000
    typed = texts_of_typed(str(line))
    for i, value in enumerate(swept.list):
        if value is None or isinstance(value, int | float):
            values[i] = next(typed)
    return values


def _check_range(name: str, swept: RangeSweep, line: str) -> None:
    """Refuse a range that has no end, or too many numbers.

    Errors:
        ValueError: it is one of these.
    """
    start = swept.start or 0
    stop = swept.stop or 0
    is_finite = all(map(math.isfinite, (start, stop, swept.step)))
    require(is_finite and swept.step != 0, name, "be a range of numbers with a step", line)
    n = sum(1 for _ in itertools.islice(swept.range(), MOST_CELLS + 1))
    require(n <= MOST_CELLS, name, f"have at most {MOST_CELLS:,} values", line)


def expand(overrides: Sequence[Override], *, zipped: bool) -> list[tuple[str, ...]]:
    """Return the cells' overrides: every combination of what is swept. `zipped`: the first values
    together, the second, and so on, each with every seed.

    Errors:
        ValueError: nothing can be swept so.
    """
    in_pairs = list[list[str]]()
    crossed = list[list[str]]()
    for override in overrides:
        if zipped and override.is_sweep_override() and override.key_or_group != "seed":
            in_pairs.append(_words_of(override))
        else:
            crossed.append(_words_of(override))
    lengths = [len(words) for words in in_pairs]
    require(len({*lengths}) <= 1, "--zip", "have lists of equal length", lengths)
    rows: list[tuple[str, ...]] = [()]
    if in_pairs:
        rows = list(zip(*in_pairs, strict=True))
    total = len(rows) * math.prod(map(len, crossed))
    require(total <= MOST_CELLS, "a grid", f"have at most {MOST_CELLS:,} cells", f"{total:,}")
    cells = list[tuple[str, ...]]()
    for row in rows:
        for combination in itertools.product(*crossed):
            cells.append((*combination, *row))
    return cells


def _words_of(override: Override) -> list[str]:
    """Return the overrides of one value that an override stands for."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    name = override.get_key_element()
    return [f"{name}={value}" for value in values_of(override)]
