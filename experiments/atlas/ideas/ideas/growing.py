"""What begins with a part of something and doubles it, in stages of equal length, until it is the whole:
sequences, batches, windows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nocap.config.keys import InputError, key, require
from nocap.options.attention import Attention, first_window
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel


@dataclass(kw_only=True, slots=True)
class _Growing(Idea):
    start: int = key(ge=1, le=2**20)  # it begins with 1/start of the whole
    until: float = key(gt=0, lt=1)  # share of the steps from which on it is whole

    def __post_init__(self) -> None:
        require(self.start & (self.start - 1) == 0, f"ideas.{self.kind}.start", "be a power of 2", self.start)

    def divisor(self, *, step: int, steps: int) -> int:
        """What the whole is divided by at this step."""
        return self.start >> sum(first <= step for first in self.changes_at(steps)[1:])

    def changes_at(self, steps: int) -> list[int]:
        doublings, whole_at = self.start.bit_length() - 1, round(self.until * steps)
        return [0, *(max(1, whole_at * i // doublings) for i in range(1, doublings + 1))]

    def in_the_end(self) -> Idea | None:
        return None

    def build(self, run: Run, *, vocab_size: int) -> nn.Module | None:
        from torch import nn

        part: Any = nn.Module()
        part.run = run
        return part


@dataclass(kw_only=True, slots=True)
class ShortSequences(_Growing):
    """Short sequences first (arXiv:2108.06084): attention over a long context is learnt, and paid for, later.

    A stage's sequences are the windows of the data cut into equal parts. So each step reads the same tokens
    as without, in the same order; a part begins at position 0 and sees nothing of the part before it.
    """

    kind: str = "short_sequences"

    def check(self, run: Run) -> None:
        T = run.model.seq_len
        require(T % self.start == 0, "ideas.short_sequences.start", f"divide model.seq_len={T}", self.start)

    def shaped_at(self, run: Run, *, step: int) -> Run:
        length = run.model.seq_len // self.divisor(step=step, steps=run.trainer.steps)
        return run.varied(model=replace(run.model, seq_len=length), ideas={})

    def micro_batch(
        self, part: Any, tokens_BT: Tensor, targets_BT: Tensor, *, step: int
    ) -> tuple[Tensor, Tensor]:
        length = tokens_BT.shape[1] // self.divisor(step=step, steps=part.run.trainer.steps)
        if length == tokens_BT.shape[1]:
            return tokens_BT, targets_BT
        return tokens_BT.reshape(-1, length), targets_BT.reshape(-1, length)


@dataclass(kw_only=True, slots=True)
class SmallBatches(_Growing):
    """Small batches first (arXiv:1711.00489, arXiv:2505.23971): early gradients point much the same way in a
    small batch as in a large one.

    A step's batch is `trainer.batch_tokens` divided by a power of 2; the tokens follow each other in the same
    order. `trainer.steps` counts updates: with small ones among them, a run reads fewer tokens.
    """

    kind: str = "small_batches"

    def check(self, run: Run) -> None:
        t = run.trainer
        unit = t.micro_batch * run.model.seq_len * t.devices
        rule = (
            f"divide trainer.batch_tokens={t.batch_tokens} into multiples of micro_batch × "
            f"seq_len × devices = {unit}"
        )
        require(t.batch_tokens % (self.start * unit) == 0, "ideas.small_batches.start", rule, self.start)
        fixed = run.optimizer.at_batch(t.batch_tokens // self.start) == run.optimizer
        require(
            fixed,
            "ideas.small_batches",
            "be left out beside a beta2 that follows from the batch's tokens",
            run.optimizer.kind,
        )

    def build(self, run: Run, *, vocab_size: int) -> nn.Module | None:
        return None

    def batch_divisor(self, *, step: int, steps: int) -> int:
        return self.divisor(step=step, steps=steps)


@dataclass(kw_only=True, slots=True)
class ShortWindows(_Growing):
    """Short windows first (modded-nanogpt's records): in training, layers with a sliding window begin with a
    part of it.

    Validation, and what is generated, has the whole window from the start.
    """

    kind: str = "short_windows"

    def check(self, run: Run) -> None:
        window = first_window(run) or 0
        require(
            window >= self.start,
            "ideas.short_windows.start",
            f"be at most attention's window, of {window} tokens",
            self.start,
        )

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module | None:
        return self.build(run, vocab_size=0)

    def _attention(self, run: Run, step: int) -> Attention:
        return run.attention.at_window(
            (first_window(run) or 0) // self.divisor(step=step, steps=run.trainer.steps)
        )

    def shaped_at(self, run: Run, *, step: int) -> Run:
        return run.varied(attention=self._attention(run, step), ideas={})

    def before_forward(self, part: Any, model: LanguageModel, *, step: int) -> None:
        _mix_as(model, self._attention(part.run, step), part.run)

    def validating(self, part: Any, model: LanguageModel) -> AbstractContextManager[object]:
        _mix_as(model, part.run.attention, part.run)
        return nullcontext()


def _mix_as(model: Any, attention: Attention, run: Run) -> None:
    """Let attention be computed as by this option from here on: other mixers, the same weights.

    Errors:
        InputError: the model's layers do not mix by functions of its option's.
    """
    from torch import nn

    from nocap.model.attention import CausalSelfAttention
    from nocap.model.gpt import GPT, Block, documents_of

    if attention == getattr(model, "mixed_as", run.attention):
        return
    layers = (
        [block.attention.f for block in model.blocks if type(block) is Block]
        if isinstance(model, GPT)
        else []
    )
    changeable = [isinstance(f, CausalSelfAttention) and not isinstance(f.mixer, nn.Module) for f in layers]
    if len(layers) < run.model.n_layer or not all(changeable):
        raise InputError(
            f"model.kind={run.model.kind} must have layers whose attention can be changed, and has none"
        )
    for layer, f in enumerate(layers):
        f.mixer = attention.mixer(run, layer)
    model.mixed_as, model.documents = attention, documents_of(attention, run)
