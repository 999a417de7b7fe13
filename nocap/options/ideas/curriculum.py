"""Data in an order, and without its worst part: curriculum learning (Bengio et al., 2009), pruning by perplexity (arXiv:2309.04564).

A window's score is the mean loss of a finished run on it, or how many tokens of it there are a document; the lower, the easier. Those with
the highest scores are left out. Of the rest, an epoch's windows that the run will read are put into the order of
(1 - noise)·(rank of the score) + noise·(place in the shuffled order): 0 is easy first, 1 shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.data import Order
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.data.batches import Windows
    from nocap.training.step import Job


@dataclass(kw_only=True, slots=True)
class Curriculum(Idea):
    kind: str = "curriculum"
    run: str | None = key(identity=False)  # whose loss the score is: the folder of a finished run, as outputs/runs/RUN
    document_start: int | None = key(ge=0, le=65535)  # or the token that a document begins with, where the score is their length
    keep: float = key(gt=0, le=1)  # share of the windows that is not left out
    noise: float = key(ge=0, le=1)  # 0: easy first; 1: shuffled

    def check(self, run: Run) -> None:
        one = (self.run is None) != (self.document_start is None)
        require(one, "ideas.curriculum.run", "be null or ideas.curriculum.document_start, and not both", self.run)
        rule = "be shuffled beside ideas.curriculum"
        require(run.data.order is Order.shuffled, "data.order", rule, run.data.order.value)

    def learns_from(self) -> str | None:
        return self.run

    def arrange(self, windows: Windows, job: Job) -> tuple[float, float]:
        from nocap.training.scores import document_lengths, window_losses

        if self.run is None:
            scores, seconds, now = document_lengths(windows, self.document_start), 0.0, 0.0
        else:
            scores, seconds, now = window_losses(self.run, "ideas.curriculum.run", windows, job)
        sequences = job.run.tokens_before(job.run.trainer.steps) // job.run.model.seq_len
        windows.arrange(scores, keep=self.keep, noise=self.noise, sequences=sequences)
        return seconds, now

    def in_the_end(self) -> Idea | None:
        return None
