"""The rule for a program's proposals: fresh batches of pairs, each of which must show the gain by
itself.

A program proposes until something is accepted. A t-interval with looks accepts one of 32 proposals
without an effect, so a campaign of 200 would always err. Here every batch of four pairs must lie
above the gain that is asked for: the lower end of its plain 95% t-interval. Among 200 proposals
without an effect one passes four batches in at most 5% of campaigns, also where noise is skewed
(`experiments/program_loop`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

import numpy as np

from nocap.judge.interval import BATCH, BATCHES, CONFIDENCE, quantile


class ProposalWord(Enum):
    """The word for a proposal."""

    accepted = "accepted"
    not_shown = "not shown"
    undecided = "undecided"  # the next batch decides


@dataclass(frozen=True, kw_only=True, slots=True)
class LossPair:
    """The losses of a proposal and of its baseline with one seed. None: that run diverged."""

    loss: float | None
    baseline: float | None

    @property
    def gain(self) -> float:
        """Return by how much the proposal's loss is lower: minus infinity where the proposal
        diverged, NaN where only the baseline did."""
        if self.loss is None:
            return -math.inf
        if self.baseline is None:
            return math.nan
        return self.baseline - self.loss


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchQuestion:
    """What a proposal is asked: does every batch show a gain above `bar`, in nats or the metric's
    unit?"""

    bar: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """What the pairs of a proposal show so far."""

    pairs: int
    gain: float  # the mean; not finite where a run diverged
    word: ProposalWord
    diverged: bool  # the proposal, with one seed or more


def judge(pairs: Sequence[LossPair], question: BatchQuestion) -> BatchResult:
    """Return the word for a proposal from whole batches of its pairs, one or more, by seed."""
    gains = [pair.gain for pair in pairs]
    if not batches_above(gains, question.bar):
        word = ProposalWord.not_shown
    elif len(gains) < BATCH * BATCHES:
        word = ProposalWord.undecided
    else:
        word = ProposalWord.accepted
    return BatchResult(pairs=len(gains), gain=fmean(gains), word=word, diverged=-math.inf in gains)


def batches_above(values: Sequence[float], bar: float) -> bool:
    """Say whether every batch of four shows a mean above the bar by itself. An incomplete batch
    shows nothing, nor does one with a value that is not finite."""
    if not values or len(values) % BATCH:
        return False
    rows = np.asarray(values, dtype=np.float64).reshape(-1, BATCH)
    if not np.isfinite(rows).all():
        return False
    reach = quantile(BATCH - 1, (1 - CONFIDENCE) / 2) / math.sqrt(BATCH)
    low = rows.mean(axis=1) - reach * rows.std(axis=1, ddof=1)
    return bool((low > bar).all())
