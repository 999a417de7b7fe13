"""What every model is to the training, whatever is inside, and how ideas plug into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn

from nocap.config.keys import InputError
from nocap.model.first_weights import keyed

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.loss import Loss
    from nocap.options.ideas import Idea


# name, idea, part: what a place loops over; empty: nothing is plugged in
Joined = tuple[tuple[str, "Idea", nn.Module], ...]


def joined(
    run: Run, place: str, build: Callable[[Idea], nn.Module | None]
) -> tuple[nn.ModuleDict, Joined]:
    """Return the ideas' parts for this place, to be registered under its name, and each idea with
    its part, in the order of their joints."""
    parts: dict[str, nn.Module] = {}
    for name, idea in run.ideas.items():
        with keyed(run.seed, f"{place}.{name}"):
            part = build(idea)
        if part is not None:
            parts[name] = part
    with_parts = tuple((name, run.ideas[name], part) for name, part in parts.items())
    return nn.ModuleDict(parts), with_parts


class LanguageModel(nn.Module):
    """A causal language model. `forward` and `logits` are its own; the rest has defaults that are
    right for any.

    B: batch, T: tokens, V: vocabulary.
    """

    joined: Joined = ()  # the model's own ideas, where it has places for them
    joined_around: Joined = ()  # ideas around the step

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Loss:
        """Return the mean loss in nats per token: plain next-token cross-entropy unless
        `self.training`."""
        raise NotImplementedError

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Next-token logits, (B, T, V)."""
        raise NotImplementedError

    def next_logits(self, tokens_BT: Tensor) -> Tensor:
        """Return the logits of the token after the last, (B, V)."""
        return self.logits(tokens_BT)[:, -1]

    def regions(self) -> list[nn.Module]:
        """Return the modules that `trainer.compile=regional` compiles, each as one graph."""
        return [self]

    def plug_in_around(self, run: Run) -> None:
        """Let ideas change the first weights, then build what they keep around the step; the last
        line of a constructor."""
        for idea in run.ideas.values():
            idea.built(run, self)
        self.around, self.joined_around = joined(
            run, "around", lambda idea: idea.build_around(run, self)
        )

    def kept_around(self) -> list[Tensor]:
        """Return what ideas keep around the step, which is memory beside the optimizers' state."""
        return [buffer for _, _, part in self.joined_around for buffer in part.buffers()]

    def validating(self) -> AbstractContextManager[object]:
        """Inside, the weights are those that are validated and generated from."""
        with ExitStack() as stack:
            for _, idea, part in self.joined_around:
                stack.enter_context(idea.validating(part, self))
            return stack.pop_all()


@contextmanager
def lent(weights: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Lend each parameter the numbers of the tensor beside it inside the block; afterwards it has
    its own.

    Errors:
        InputError: one of them has another's already, which this would undo.
    """
    borrowers = list[Tensor]()
    loans = list[Tensor]()
    own_numbers = list[Tensor]()
    for p, tensor in weights:
        borrowers.append(p)
        loans.append(tensor)
        own_numbers.append(p.detach().clone())
    ids = set(map(id, borrowers))
    if ids & _LENT:
        raise InputError(
            "ideas must hold at most one idea that chooses the weights for validation, got more"
        )
    for p, tensor in zip(borrowers, loans, strict=True):
        p.data.copy_(tensor)
    _LENT.update(ids)
    try:
        yield
    finally:
        _LENT.difference_update(ids)
        for p, tensor in zip(borrowers, own_numbers, strict=True):
            p.data.copy_(tensor)


_LENT: set[int] = set()  # the ids of parameters that have another's numbers now
