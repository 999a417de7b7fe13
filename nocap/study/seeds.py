"""The seeds of a `study.yaml`, in full: what `max_seeds` adds, and what each claim has of them."""

from __future__ import annotations

import itertools
from typing import Any, TypeGuard

from nocap.config.keys import require
from nocap.store.runs import dig

MOST_SEEDS = 1000


def filled(plain: dict[str, Any]) -> dict[str, Any]:
    """With all the seeds that `max_seeds` allows, consecutive ones that are not the search's.

    Errors:
        ValueError: `max_seeds` is not more than the seeds, or too many.
    """
    most, seeds, searched = plain.get("max_seeds"), plain.get("seeds"), dig(plain, "tune", "seeds") or []
    if type(most) is not int or not _are_numbers(seeds) or not _are_numbers(searched):
        return plain  # the schema refuses what is wrong
    first = len(seeds)
    require(first < most <= MOST_SEEDS, "max_seeds", f"be more than the {first} seeds, and at most {MOST_SEEDS}", most)
    fresh = (seed for seed in itertools.count(max(seeds, default=0) + 1) if seed not in searched)
    return {**plain, "seeds": [*seeds, *itertools.islice(fresh, most - first)]}


def _are_numbers(given: object) -> TypeGuard[list[int]]:
    return isinstance(given, list) and all(type(one) is int for one in given)


def with_seeds(claim: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """A claim with the study's seeds, unless it names its own."""
    return {"seeds": study["seeds"], **claim}
