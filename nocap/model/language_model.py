"""What every model is to the training, whatever is inside."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from torch import Tensor, nn

from nocap.model.joints import Joined, joined

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.loss import Loss


class LanguageModel(nn.Module):
    """A causal language model. `forward` and `logits` are its own; the rest has defaults that are right for any.

    B: batch, T: tokens, V: vocabulary.
    """

    joined_around: Joined = ()  # ideas around the step

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Loss:
        """The mean loss in nats per token: plain next-token cross-entropy unless `self.training`."""
        raise NotImplementedError

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Next-token logits, (B, T, V)."""
        raise NotImplementedError

    def next_logits(self, tokens_BT: Tensor) -> Tensor:
        """The logits of the token after the last, (B, V)."""
        return self.logits(tokens_BT)[:, -1]

    def regions(self) -> list[nn.Module]:
        """The modules that `trainer.compile=regional` compiles, each as one graph."""
        return [self]

    def plug_in_around(self, run: Run) -> None:
        """Let ideas build what they keep around the step; the last line of a constructor."""
        self.around, self.joined_around = joined(run, "around", lambda idea: idea.build_around(run, self))

    def validating(self) -> AbstractContextManager[object]:
        """Inside, the weights are those that are validated and generated from."""
        with ExitStack() as stack:
            for _, idea, part in self.joined_around:
                stack.enter_context(idea.validating(part, self))
            return stack.pop_all()
