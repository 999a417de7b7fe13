"""Data in an order, and without its worst part: curriculum learning (Bengio et al., 2009) by the
length of documents.

A window's score is how many tokens of it there are a document; the lower, the easier. Those with
the highest scores are left out. Of the rest, an epoch's windows that the run will read are put into
the order of (1 - noise)·(rank of the score) + noise·(place in the shuffled order): 0 is easy first,
1 shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nocap.config.keys import key, require
from nocap.options.data import Order
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.data.batches import Windows
    from nocap.training.job import Job


@dataclass(kw_only=True, slots=True)
class Curriculum(Idea):
    kind: str = "curriculum"
    document_start: int = key(ge=0, le=65535)  # the token that a document begins with
    keep: float = key(gt=0, le=1)  # share of the windows that is not left out
    noise: float = key(ge=0, le=1)  # 0: easy first; 1: shuffled

    def check(self, run: Run) -> None:
        rule = "be shuffled beside ideas.curriculum"
        require(run.data.order is Order.shuffled, "data.order", rule, run.data.order.value)

    def arrange(self, windows: Windows, job: Job) -> tuple[float, float]:
        begun = [
            int((windows.at([window])[:, :-1] == self.document_start).sum())
            for window in range(windows.n)
        ]
        scores = windows.seq_len / np.maximum(1.0, np.array(begun, np.float64))
        sequences = job.run.tokens_before(job.run.trainer.steps) // job.run.model.seq_len
        windows.arrange(scores, keep=self.keep, noise=self.noise, sequences=sequences)
        return 0.0, 0.0

    def in_the_end(self) -> Idea | None:
        return None
