"""The keys of a search, beside those of the run that it searches. `nocap.launch.search` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nocap.config.keys import check_keys, key


class Sampler(Enum):
    tpe = "tpe"  # tree-structured Parzen estimator (arXiv:2304.11127); its first ten trials are random
    random = "random"
    sobol = "sobol"  # scrambled: it covers the space evenly


@dataclass(kw_only=True, slots=True)
class Search:
    """`search=SAMPLER search.KEY=VALUE`, beside `--multirun`."""

    sampler: Sampler
    trials: int = key(ge=1, le=10_000, default=20)  # how many; the same search with more of them goes on
    # of the proposals and of the trials' runs: not one that a claim will use
    seed: int = key(ge=0, lt=2**63, default=100)

    def __post_init__(self) -> None:
        check_keys("search", self)
