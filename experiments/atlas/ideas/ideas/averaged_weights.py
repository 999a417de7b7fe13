"""Validate and generate with an average of the weights; training goes on with the weights.

`averaged_weights`: an exponential moving average (Polyak and Juditsky, 1992): average ←
decay·average + (1 - decay)·weights, after each step. `tail_average`: the mean of the weights after
each of the last steps (Ruppert, 1988), and before them the weights themselves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel


@dataclass(kw_only=True, slots=True)
class _Average(Idea):
    """Keeps an average of every parameter, which begins as the weights at the start."""

    def check(self, run: Run) -> None:
        averages = [name for name, idea in run.ideas.items() if isinstance(idea, _Average)]
        rule = "hold one average at most: the weights that are validated would be the last one's"
        require(len(averages) == 1, "ideas", rule, ", ".join(averages))

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module:
        from torch import nn

        part = nn.Module()
        for name, p in model.named_parameters():
            part.register_buffer(name.replace(".", "/"), p.detach().clone())
        return part

    def validating(self, part: Any, model: LanguageModel) -> AbstractContextManager[object]:
        from nocap.model.language_model import lent

        return lent(_pairs(part, model))


def _pairs(part: nn.Module, model: LanguageModel) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with its average."""
    return [(p, part.get_buffer(name.replace(".", "/"))) for name, p in model.named_parameters()]


def _average(part: nn.Module, model: LanguageModel, share: float) -> None:
    """Let the weights be this share of the average."""
    import torch

    params, averages = zip(*_pairs(part, model), strict=True)
    torch._foreach_lerp_(averages, [p.detach() for p in params], share)


@dataclass(kw_only=True, slots=True)
class AveragedWeights(_Average):
    kind: str = "averaged_weights"
    decay: float = key(ge=0, lt=1)  # share of the average that stays at each step

    def after_step(self, part: Any, model: LanguageModel, *, step: int) -> None:
        _average(part, model, 1 - self.decay)


@dataclass(kw_only=True, slots=True)
class TailAverage(_Average):
    kind: str = "tail_average"
    share: float = key(gt=0, le=1)  # of the run's steps, the last ones

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module:
        import torch

        part: Any = _Average.build_around(self, run, model)
        # in the average; no parameter has such a name
        part.register_buffer("/steps", torch.zeros((), dtype=torch.int64))
        part.first = run.trainer.steps - max(1, round(self.share * run.trainer.steps))
        return part

    def after_step(self, part: Any, model: LanguageModel, *, step: int) -> None:
        if step >= part.first:
            _average(part, model, 1 / (step - part.first + 1))
            part.get_buffer("/steps").fill_(step - part.first + 1)

    def validating(self, part: Any, model: LanguageModel) -> AbstractContextManager[object]:
        return (
            _Average.validating(self, part, model)
            if part.get_buffer("/steps").item()
            else nullcontext()
        )

    def in_the_end(self) -> Idea:
        """Average from the first step on: a step's cost is that of the last ones."""
        return replace(self, share=1.0)
