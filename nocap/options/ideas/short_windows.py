"""Short windows first (modded-nanogpt's records): in training, layers with a sliding window begin with a part of it.

Validation, and what is generated, has the whole window from the start.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nocap.config.keys import require
from nocap.options.attention import Attention, first_window
from nocap.options.ideas import Growing

if TYPE_CHECKING:
    from torch import nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel


@dataclass(kw_only=True, slots=True)
class ShortWindows(Growing):
    kind: str = "short_windows"

    def check(self, run: Run) -> None:
        window = first_window(run) or 0
        require(window >= self.start, "ideas.short_windows.start", f"be at most attention's window, of {window} tokens", self.start)

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        part.run = run
        return part

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module:
        return self.build(run, vocab_size=0)

    def _attention(self, run: Run, step: int) -> Attention:
        return run.attention.at_window((first_window(run) or 0) // self.divisor(step=step, steps=run.trainer.steps))

    def shaped_at(self, run: Run, *, step: int) -> Run:
        return replace(run, attention=self._attention(run, step), ideas={})

    def before_forward(self, part: Any, model: LanguageModel, *, step: int) -> None:
        model.mix_as(self._attention(part.run, step), part.run)

    def validating(self, part: Any, model: LanguageModel) -> AbstractContextManager[object]:
        model.mix_as(part.run.attention, part.run)
        return nullcontext()
