"""The model options: the shape of the transformer, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key, require
from nocap.config.option import AnyRun, Option
from nocap.config.trainer import Precision

if TYPE_CHECKING:
    from torch import nn


class NormPlacement(Enum):
    pre = "pre"  # x + f(norm(x))
    post = "post"  # norm(x + f(x))
    both = "both"  # x + norm(f(norm(x)))


class ResidualScale(Enum):
    """Which branches are multiplied by 1/√(2·n_layer) before they join the residual stream."""

    none = "none"
    attention = "attention"  # the challenge's choice
    both = "both"


# What nocap's own block reads, and what the rest of its model does.
BLOCK_KEYS = ("model.norm_placement", "model.residual_scale", "trainer.activation_checkpointing")
WHOLE_KEYS = (
    "model.residual_precision",
    "model.tie_head",
    "model.pad_logits",
    "model.fp8_head",
    "model.logit_softcap",
    "data.document_mask",
    "position.restart",
)


@dataclass(kw_only=True, slots=True)
class Model(Option):
    """The transformer's shape. An option builds a whole model by `build`, or extends
    `nocap.options.model.gpt.Gpt` and replaces its block by `build_block`.

    A model that one of these replaces has its FLOPs counted, ideas included, unless it has a method
    `flops_per_token(run, *, vocab_size)`, and decodes by recomputing the prefix.
    """

    READ_BY: ClassVar[dict[str, tuple[str, ...]]] = {
        "build_block": BLOCK_KEYS,
        "build": (*BLOCK_KEYS, *WHOLE_KEYS),
    }

    n_layer: int = key(ge=1, le=4096)  # number of blocks
    n_head: int = key(ge=1, le=65536)  # number of query heads in each layer
    d_model: int = key(ge=1, le=2**20)  # width: channels of the residual stream
    seq_len: int = key(ge=1, le=2**24, losses=True)  # context length: tokens of one sequence
    norm_placement: NormPlacement = NormPlacement.pre  # place of the norm of each branch f
    # branches whose output is multiplied by 1/√(2·n_layer)
    residual_scale: ResidualScale = ResidualScale.attention
    # number format of the residual stream; bf16 halves its traffic, and rounds after each branch
    residual_precision: Precision = Precision.fp32
    # normalise the queries and keys of each head by their RMS, before the rotation
    qk_norm: bool = False
    tie_head: bool = True  # the head shares the matrix of the embedding
    # pad the head's product to a multiple of 64 columns; CUDA then uses another kernel, and rounds
    # differently
    pad_logits: bool = False
    # compute the head's products in fp8 while training; this needs a GPU of capability 8.9 or
    # newer, and is slow on a CPU
    fp8_head: bool = False
    # limit c of the logits: they become c·tanh(logits/c); null: no limit
    logit_softcap: float | None = key(gt=0, le=1e6, default=None)

    def check(self, run: AnyRun) -> None:
        divides = self.d_model % self.n_head == 0
        rule = f"be divisible by model.n_head={self.n_head}"
        require(divides, "model.d_model", rule, self.d_model)

    def build(self, run: AnyRun, *, vocab_size: int) -> nn.Module:
        """Return the model, a `nocap.model.language_model.LanguageModel`."""
        raise NotImplementedError(
            f"model.kind={self.kind} must define the method build, or extend Gpt"
        )

    def build_block(self, run: AnyRun, layer: int) -> nn.Module:
        """Return a block: a module from x_BTC and the forward's `nocap.model.context.Context` to
        BTC."""
        raise NotImplementedError(
            f"model.kind={self.kind} must define the method build_block, or extend Gpt"
        )
