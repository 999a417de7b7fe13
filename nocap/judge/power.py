"""What a grid can show, before it is trained: the least difference that it finds in four of five cases, by
the noise of runs like its own.

The noise is that of a pair: an arm's loss less another arm's, of one seed, pooled over all pairs of arms that
share three seeds or more. What such noise lets a table show is simulated, by the interval that decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from nocap.judge.arms import Arm, group
from nocap.judge.equal_loss import STEPS
from nocap.judge.interval import LEAST_PAIRS, of_arms
from nocap.store.runs import Record

POWER = 0.8
TABLES = 1000  # simulated
LIKE = ("model.", "data.", "tokenizer.")  # groups, and keys of the trainer, that make runs alike
LIKE_KEYS = ("trainer.batch_tokens", "trainer.val_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The standard deviation of a pair, in nats per token, and how many pairs it is from."""

    sd: float
    pairs: int
    loss: float  # the mean

    def of_level(self, others: int) -> float:
        """Return that of a level's difference, a mean over so many combinations of the other keys."""
        return self.sd / math.sqrt(others)


def noise_of(records: Sequence[Record], config: Mapping[str, Any]) -> dict[int, Noise]:
    """Return the noise of finished runs with this config's model, data and batch, by their steps."""
    wanted = _like(config)
    alike = [
        record
        for record in records
        if record.status == "finished" and record.val_loss is not None and _like(record.config) == wanted
    ]
    by_steps: dict[int, list[Record]] = {}
    for record in alike:
        by_steps.setdefault(int(record.config[STEPS]), []).append(record)
    known = {steps: _pooled(group(of_length)) for steps, of_length in by_steps.items()}
    return {steps: noise for steps, noise in sorted(known.items()) if noise is not None}


def _like(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.startswith(LIKE) or key in LIKE_KEYS}


def _pooled(arms: Sequence[Arm]) -> Noise | None:
    """Return the noise of the arms' pairs; `None`: no two arms share three seeds."""
    squares = 0.0
    freedom = 0
    pairs = 0
    for one, other in combinations(arms, 2):
        a = one.values["val_loss"]
        b = other.values["val_loss"]
        seeds = sorted(a.keys() & b.keys())
        if len(seeds) >= LEAST_PAIRS:
            difference = np.array([a[seed] - b[seed] for seed in seeds])
            squares += float(((difference - difference.mean()) ** 2).sum())
            freedom += len(seeds) - 1
            pairs += len(seeds)
    if not squares:
        return None
    losses = [loss for arm in arms for loss in arm.values["val_loss"].values()]
    return Noise(sd=math.sqrt(squares / freedom), pairs=pairs, loss=float(np.mean(losses)))


def detectable(sd: float, seeds: int, *, arms: int) -> float:
    """Return the least true difference that a table of so many arms beside a baseline shows in four of five
    cases; endless below three seeds. `sd`: of a pair."""
    return math.inf if seeds < LEAST_PAIRS else sd * _least(seeds, arms)


@lru_cache
def _least(seeds: int, arms: int) -> float:
    """Return that of pairs with a standard deviation of 1, by simulated tables of arms that are equally
    noisy: in each, the difference that its interval would just show."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, math.sqrt(0.5), (TABLES, arms + 1, seeds))
    tables = noise[:, 1:] - noise[:, :1]
    first = (of_arms(table.tolist())[0] for table in tables)
    return float(np.quantile([estimate.half_width - estimate.mid for estimate in first], POWER))
