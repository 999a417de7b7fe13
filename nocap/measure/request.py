"""What `python -m nocap.generate` can be asked. No torch, and no part of a run's config, so that it changes no run's identity."""

from __future__ import annotations

from dataclasses import dataclass, field

from nocap.config.keys import key, require
from nocap.config.trainer import Device


@dataclass(kw_only=True, slots=True)
class Generate:
    """The keys of the command; `help` describes each."""

    run: str = field(metadata={"help": "a run's folder or name, the beginning of its name or identity, or last"})
    prompt: str = key(free=True, default="", help="the text to continue; empty: the beginning of a document")
    max_tokens: int = key(ge=1, le=2**24, default=200, help="new tokens a sample; fewer where the model's context ends")
    samples: int = key(ge=1, le=4096, default=1, help="texts, decoded in one batch")
    temperature: float = key(ge=0, le=1e6, default=1.0, help="0 takes the most probable token")
    top_k: int = key(ge=0, le=2**24, default=0, help="draw among the k most probable tokens; 0: among all")
    seed: int = key(ge=0, lt=2**63, default=0, help="of the draws; a sample is the same however many are drawn beside it")
    cache: bool = field(default=True, metadata={"help": "over cached keys and values; false: the prefix again for each token"})
    compile: bool = field(default=False, metadata={"help": "decode from the cache through torch.compile"})
    device: Device | None = field(default=None, metadata={"help": "cpu or cuda (default: a GPU where there is one)"})
    threads: int | None = key(ge=1, le=4096, default=None, help="CPU threads (default: the cores there are)")
    output_dir: str = field(default="outputs", metadata={"help": "its runs are searched for names and identities"})

    def __post_init__(self) -> None:
        require(self.prompt.isascii() or not any("\ud800" <= c <= "\udfff" for c in self.prompt), "prompt", "be UTF-8", repr(self.prompt))
        require(self.cache or not self.compile, "compile", "be false with cache=false, for what is compiled has one", self.compile)
