"""What `python -m nocap.generate` can be asked. No torch, and no part of a run's config, so that it changes no run's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nocap.config.keys import require
from nocap.config.trainer import Device


@dataclass(kw_only=True, slots=True)
class Generate:
    """The keys of the command; `help` describes each."""

    run: str = field(metadata={"help": "a run's folder, name or identity"})
    prompt: str = field(default="", metadata={"help": "the text to continue; empty: the beginning of a document"})
    max_tokens: int = field(default=200, metadata={"help": "new tokens a sample; fewer where the model's context ends"})
    samples: int = field(default=1, metadata={"help": "texts, decoded in one batch"})
    temperature: float = field(default=1.0, metadata={"help": "0 takes the most probable token"})
    top_k: int = field(default=0, metadata={"help": "draw among the k most probable tokens; 0: among all"})
    seed: int = field(default=0, metadata={"help": "of the draws; a sample is the same however many are drawn beside it"})
    compile: bool = field(default=False, metadata={"help": "decode through torch.compile"})
    device: Device | None = field(default=None, metadata={"help": "cpu or cuda (default: a GPU where there is one)"})
    threads: int | None = field(default=None, metadata={"help": "CPU threads (default: the cores there are)"})
    output_dir: str = field(default="outputs", metadata={"help": "its runs are searched for names and identities"})

    def __post_init__(self) -> None:
        for key in ("max_tokens", "samples"):
            require(getattr(self, key) >= 1, key, "be at least 1", getattr(self, key))
        require(self.prompt.isascii() or not any("\ud800" <= c <= "\udfff" for c in self.prompt), "prompt", "be UTF-8", repr(self.prompt))
        require(0 <= self.temperature < math.inf, "temperature", "be a number of at least 0", self.temperature)
        require(self.top_k >= 0, "top_k", "be at least 0 (0: the whole vocabulary)", self.top_k)
        require(0 <= self.seed < 2**63, "seed", "be in [0, 2^63)", self.seed)
        require(self.threads is None or self.threads >= 1, "threads", "be at least 1", self.threads)
