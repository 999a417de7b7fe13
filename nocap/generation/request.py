"""What `python -m nocap.generate` is asked, without torch. It is no part of a run's config, so that it changes no run's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nocap.schema import Device, require


@dataclass(kw_only=True, slots=True)
class Generate:
    """Text from the newest valid checkpoint of `run`."""

    run: str  # a run's folder, name or identity
    prompt: str = ""  # empty: the text begins after an end-of-text token, as the training documents do
    max_tokens: int = 200  # new tokens a sample
    samples: int = 1
    temperature: float = 1.0  # 0: always the most probable token
    top_k: int = 0  # draw among the k most probable tokens; 0: among all
    seed: int = 0  # of the sampling; sample i is the same however many others are drawn beside it
    compile: bool = False  # torch.compile for the step that decodes a token
    device: Device | None = None  # null: a GPU where there is one
    threads: int | None = None  # CPU threads; null: the cores there are
    output_dir: str = "outputs"  # names and identities are looked for in its runs/

    def __post_init__(self) -> None:
        for key in ("max_tokens", "samples"):
            require(getattr(self, key) >= 1, key, "be at least 1", getattr(self, key))
        require(0 <= self.temperature < math.inf, "temperature", "be a number of at least 0", self.temperature)
        require(self.top_k >= 0, "top_k", "be at least 0 (0: the whole vocabulary)", self.top_k)
        require(0 <= self.seed < 2**63, "seed", "be in [0, 2^63)", self.seed)
        require(self.threads is None or self.threads >= 1, "threads", "be at least 1", self.threads)
