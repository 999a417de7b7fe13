"""Validate and generate with an exponential moving average of the weights (Polyak and Juditsky, 1992); training goes on with the weights.

average ← decay·average + (1 - decay)·weights, after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel


@dataclass(kw_only=True, slots=True)
class AveragedWeights(Idea):
    kind: str = "averaged_weights"
    decay: float = key(ge=0, lt=1)

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module:
        from torch import nn

        part = nn.Module()
        for name, p in model.named_parameters():
            part.register_buffer(name.replace(".", "/"), p.detach().clone())
        return part

    def after_step(self, part: Any, model: LanguageModel, *, step: int) -> None:
        for average, p in zip(part.buffers(), model.parameters(), strict=True):
            average.lerp_(p.detach(), 1 - self.decay)

    @contextmanager
    def validating(self, part: Any, model: LanguageModel) -> Iterator[None]:
        kept = [p.detach().clone() for p in model.parameters()]
        for average, p in zip(part.buffers(), model.parameters(), strict=True):
            p.data.copy_(average)
        try:
            yield
        finally:
            for weights, p in zip(kept, model.parameters(), strict=True):
                p.data.copy_(weights)
