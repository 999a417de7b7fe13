"""The model options: the shape of the transformer, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.config.option import Option

if TYPE_CHECKING:
    from torch import nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel


class NormPlacement(Enum):
    pre = "pre"  # x + f(norm(x))
    post = "post"  # norm(x + f(x))
    both = "both"  # x + norm(f(norm(x)))


class ResidualScale(Enum):
    """Which branches are multiplied by 1/√(2·n_layer) before they join the residual stream."""

    none = "none"
    attention = "attention"  # the challenge's choice
    both = "both"


@dataclass(kw_only=True, slots=True)
class Model(Option):
    """The transformer's shape. An option may replace a block by `build_block`, or the whole model by `build`.

    A model that one of these replaces has its FLOPs counted, and decodes by recomputing the prefix.
    """

    n_layer: int
    n_head: int
    d_model: int
    seq_len: int = key(losses=True)  # tokens
    norm_placement: NormPlacement = NormPlacement.pre
    residual_scale: ResidualScale = ResidualScale.attention
    qk_norm: bool = False  # RMS-normalise queries and keys per head, before the rotation
    tie_head: bool = True  # the head shares the embedding's matrix
    logit_softcap: float | None = None  # cap·tanh(logits/cap)

    def __post_init__(self) -> None:
        for name in ("n_layer", "n_head", "d_model", "seq_len"):
            require(getattr(self, name) >= 1, f"model.{name}", "be at least 1", getattr(self, name))
        require(self.d_model % self.n_head == 0, "model.d_model", f"be divisible by model.n_head={self.n_head}", self.d_model)
        cap = self.logit_softcap
        require(cap is None or cap > 0, "model.logit_softcap", "be above 0, or null for none", cap)

    def build(self, run: Run, *, vocab_size: int) -> LanguageModel:
        from nocap.model.gpt import GPT

        return GPT(run, vocab_size=vocab_size)

    def build_block(self, run: Run, layer: int) -> nn.Module:
        """A block: a module from x_BTC and the forward's `nocap.model.gpt.Context` to BTC."""
        from nocap.model.gpt import Block

        return Block(run, layer)
