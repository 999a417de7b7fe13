"""The objectives: what training minimises. Validation always reports the plain next-token loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key, require
from nocap.config.option import AnyRun, Option
from nocap.options.run_parts import RunParts

if TYPE_CHECKING:
    from torch import Tensor

    from nocap.model.head import Head
    from nocap.model.loss import Loss


@dataclass(kw_only=True, slots=True)
class Objective(Option):
    """The training loss. Ideas may add parts to it: see `nocap.options.ideas`.

    Optional, about `loss` (see `nocap.config.option.declared`):

        flops_per_token(run, *, vocab_size) -> float    of forward and backward, with the head's
                                                        product; without it they are counted
    """

    READ_BY: ClassVar[dict[str, tuple[str, ...]]] = {"loss": ("objective.loss_chunks",)}

    # number of chunks of a micro-batch; nocap holds the logits of one chunk at a time. 0: one chunk
    loss_chunks: int = key(ge=0, le=2**40, default=1)

    def check(self, run: AnyRun) -> None:
        parts: RunParts = run
        size = parts.trainer.micro_batch
        T = parts.model.seq_len
        rule = f"be at most trainer.micro_batch × model.seq_len = {size} × {T} = {size * T}"
        require(self.loss_chunks <= size * T, "objective.loss_chunks", rule, self.loss_chunks)

    def loss(self, head: Head, x_BTC: Tensor, targets_BT: Tensor) -> Loss:
        """Return the loss of the residual stream before the head's norm, in nats per token, and its
        parts. `next_token` is one of them, the plain loss, so that `train/loss` means the same for
        every objective."""
        raise NotImplementedError(f"objective.kind={self.kind} must define the method loss")
