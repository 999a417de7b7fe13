"""The order of blocks: A B C C B A, so that a machine whose speed drifts evenly slows all arms alike; then B C A A C B, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]  # (rounds, arms, 2): seconds a token in the two blocks of an arm; NaN from where an arm failed


def order(n: int, *, round_: int) -> list[int]:
    """The arms of a round's blocks: there and back. Over n rounds each arm has every place once; then the neighbours change."""
    cycle, shift = divmod(round_, n)
    there = np.roll(np.random.default_rng(cycle).permutation(n) if cycle else np.arange(n), -shift).tolist()
    return [*there, *reversed(there)]


def interleave(blocks: Sequence[Callable[[], float]], *, enough: Callable[[Times], bool]) -> Times:
    """Rounds of blocks until `enough` of the times so far; at least one round."""
    rounds: list[list[list[float]]] = []
    while not rounds or not enough(np.array(rounds)):
        rounds.append([[] for _ in blocks])
        for i in order(len(blocks), round_=len(rounds) - 1):
            rounds[-1][i].append(blocks[i]())
    return np.array(rounds)
