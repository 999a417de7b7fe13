"""What a grid or a study can show, before it is trained: the least difference that it finds in four
of five cases, by the noise of runs like its own.

The noise is that of a pair: an arm's loss less another arm's, of one seed, pooled over all pairs of
arms that share three seeds or more. What such noise lets a table show is simulated, by the interval
that decides. Of the time at equal loss the runs are simulated, and each table is read as a grid's
is (`judge.equal_loss`): a table that is refused shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from nocap.judge.arms import Arm, swept_keys
from nocap.judge.confounders import machines_differ
from nocap.judge.differences import scaled
from nocap.judge.equal_loss import (
    SHARES,
    STEPS,
    is_between,
    is_known,
    lengths_around,
    slopes,
    times,
)
from nocap.judge.grouping import group
from nocap.judge.interval import (
    LEAST_PAIRS,
    Array,
    Width,
    analyses,
    analysis_of,
    half_width,
    of_arms,
)
from nocap.judge.pace import TOKEN_US
from nocap.store.record import Config, Record
from nocap.store.record_files import RunStatus

POWER = 0.8  # how surely a plan shows what it can show: in four of five cases, as is usual
TABLES = 1000  # simulated
LIKE = ("model.", "data.", "tokenizer.")  # groups, and keys of the trainer, that make runs alike
LIKE_KEYS = ("trainer.batch_tokens", "trainer.val_tokens")
RATIO = SHARES[1] / SHARES[0]  # of the baseline's two other lengths


# --- the noise of runs that are there -------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The standard deviation of a pair, in nats per token, and how many pairs it is from."""

    sd: float
    pairs: int
    loss: float  # the mean

    def of_level(self, others: int) -> float:
        """Return that of a level's difference, a mean over so many combinations of the other
        keys."""
        return self.sd / math.sqrt(others)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseAtEqualLoss:
    """What the noise of a time at equal loss is made of, all of logarithms."""

    loss: float  # the standard deviation of a pair
    pace: float  # that of a pair of times a token
    slope: float  # by which the baseline's loss falls for each factor e of steps: below 0
    ends: float  # the standard deviation of a loss at one of the baseline's other lengths


def noise_of(records: Sequence[Record], config: Config) -> dict[int, Noise]:
    """Return the noise of finished runs with this config's model, data and batch, by their
    steps."""
    by_steps: dict[int, list[Record]] = {}
    for record in _alike(records, config):
        by_steps.setdefault(int(record.config[STEPS]), []).append(record)
    known = {steps: _of_losses(group(of_length)) for steps, of_length in by_steps.items()}
    return {steps: noise for steps, noise in sorted(known.items()) if noise is not None}


def noise_at_equal_loss(records: Sequence[Record], config: Config) -> NoiseAtEqualLoss | str:
    """Return the noise of the time at equal loss beside the baseline with this config, from
    finished runs with its model, data and batch: of its steps, and of the baseline at other
    lengths. Or say which are missing."""
    arms = group(_alike(records, config))
    own = [arm for arm in arms if arm.config[STEPS] == config[STEPS]]
    losses = _of_losses(own)
    paces = _pooled(own, TOKEN_US)
    if losses is None or paces is None:
        return "no two arms have three common seeds with a time a token on one machine"
    baseline = {key: value for key, value in config.items() if key != "seed"}
    for base in own:
        falls = _falls(base, arms)
        if falls is not None and not swept_keys([base.config, baseline]):
            loss = losses.sd / losses.loss
            slope = float(falls.logarithms.mean()) / math.log(falls.ratio)
            ends = float(falls.logarithms.std(ddof=1)) / math.sqrt(2)
            return NoiseAtEqualLoss(loss=loss, pace=paces.sd, slope=slope, ends=ends)
    return "there are no runs of the baseline with three seeds at a shorter and at a longer length"


def _alike(records: Sequence[Record], config: Config) -> list[Record]:
    like = _like(config)
    finished = [
        record
        for record in records
        if record.status == RunStatus.finished and record.val_loss is not None
    ]
    return [record for record in finished if _like(record.config) == like]


def _like(config: Config) -> Config:
    return {key: value for key, value in config.items() if key.startswith(LIKE) or key in LIKE_KEYS}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spread:
    sd: float
    pairs: int


def _of_losses(arms: Sequence[Arm]) -> Noise | None:
    """Return the noise of the arms' losses; `None`: no two arms share three seeds."""
    spread = _pooled(arms, "val_loss")
    if spread is None:
        return None
    losses = list[float]()
    for arm in arms:
        losses += arm.values["val_loss"].values()
    return Noise(sd=spread.sd, pairs=spread.pairs, loss=float(np.mean(losses)))


def _pooled(arms: Sequence[Arm], metric: str) -> _Spread | None:
    """Return the spread of the arms' pairs, of times a token in logarithms and on one machine;
    `None`: no two arms share three seeds."""
    squares = 0.0
    freedom = 0
    pairs = 0
    for one, other in combinations(arms, 2):
        a = scaled(one, metric)
        b = scaled(other, metric)
        seeds = sorted(a.keys() & b.keys())
        apart = metric == TOKEN_US and machines_differ(one, other) is not None
        if len(seeds) >= LEAST_PAIRS and not apart:
            difference = np.array([a[seed] - b[seed] for seed in seeds])
            squares += float(((difference - difference.mean()) ** 2).sum())
            freedom += len(seeds) - 1
            pairs += len(seeds)
    if not squares:
        return None
    return _Spread(sd=math.sqrt(squares / freedom), pairs=pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Falls:
    """How far a baseline's loss falls from a shorter to a longer length."""

    logarithms: Array  # seed by seed
    ratio: float  # of the lengths


def _falls(base: Arm, arms: Sequence[Arm]) -> _Falls | None:
    """Return those of a baseline's next lengths; `None`: it has none with three seeds."""
    ends = lengths_around(base, arms)
    if ends is None:
        return None
    short, long = ends
    losses = short.values["val_loss"]
    lower = long.values["val_loss"]
    seeds = sorted(losses.keys() & lower.keys())
    if len(seeds) < LEAST_PAIRS:
        return None
    logarithms = np.array([math.log(lower[seed] / losses[seed]) for seed in seeds])
    ratio = long.config[STEPS] / short.config[STEPS]
    return _Falls(logarithms=logarithms, ratio=ratio)


# --- what it lets be shown ------------------------------------------------------------------------


def detectable(sd: float, seeds: int, *, arms: int) -> float:
    """Return the least true difference that a table of so many arms beside a baseline shows in four
    of five cases; endless below three seeds. `sd`: of a pair."""
    if seeds < LEAST_PAIRS:
        return math.inf
    return sd * _least(seeds, arms)


@lru_cache
def _least(seeds: int, arms: int) -> float:
    """Return that of pairs with a standard deviation of 1, by simulated tables of arms that are
    equally noisy: in each, the difference that its interval would just show."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, math.sqrt(0.5), (TABLES, arms + 1, seeds))
    tables = noise[:, 1:] - noise[:, :1]
    first = (of_arms(table.tolist())[0] for table in tables)
    return _in_most([estimate.half_width - estimate.mid for estimate in first])


def detectable_by_claim(sd: float, n: int, *, width: Width = half_width) -> float:
    """Return the least true gain that a claim's last analysis of `n` pairs shows in four of five
    cases. `sd`: of a pair; `width`: of the interval."""
    look = max(analysis_of(n), 1)
    size = analyses()[look - 1]
    rng = np.random.default_rng(0)
    needed = list[float]()
    for pairs in rng.normal(0, sd, (TABLES, size)):
        reach = width(float(pairs.std(ddof=1)), size, look)
        needed.append(reach - float(pairs.mean()))
    return _in_most(needed)


@lru_cache
def detectable_time(
    noise: NoiseAtEqualLoss, seeds: int, *, levels: int, others: int = 1, look: int = 1
) -> float:
    """Return the least gain in the time at equal loss that is shown in four of five cases, as a
    share of that time: 0.06 where the arm takes 0.94 of it. Endless where so many seeds do not show
    any.

    Of a table of so many arms beside a baseline, or of levels of a key, each a mean over so many
    `others`: the combinations of the other keys. The gain is one of speed; one of loss has the
    slope's noise in it too, which is small beside the rest.
    """
    if seeds < LEAST_PAIRS:
        return math.inf
    rng = np.random.default_rng(0)
    least = _in_most([_needed(noise, rng, seeds, levels, others, look) for _ in range(TABLES)])
    if not math.isfinite(least):
        return math.inf
    return 1 - math.exp(-least)


def _needed(
    noise: NoiseAtEqualLoss,
    rng: np.random.Generator,
    seeds: int,
    levels: int,
    others: int,
    look: int,
) -> float:
    """Return the logarithm of the gain that a simulated table of arms without an effect would just
    show of its first level; endless where it is refused."""
    shape = (levels + 1, others, seeds)  # the first of each is the baseline's
    losses = np.exp(rng.normal(0, noise.loss / math.sqrt(2), shape))
    pace = rng.normal(0, noise.pace / math.sqrt(2), shape)
    ends = [rng.normal(noise.slope * math.log(share), noise.ends, seeds) for share in SHARES]
    short, long = np.exp(ends)
    slope = slopes(short, long, ratio=RATIO)
    compared = losses[:2].reshape(-1, seeds)
    if not is_known(slope) or not all(is_between(arm, short, long) for arm in compared):
        return math.inf
    z = times(losses, losses[0, 0], slope, pace - pace[0, 0])
    effects = (z[1:] - z[:1]).mean(axis=1)
    first = of_arms(effects.tolist(), look=look)[0]
    return first.half_width + first.mid


def _in_most(needed: Sequence[float]) -> float:
    """Return what is enough in four of five cases."""
    return float(np.quantile(needed, POWER, method="higher"))
