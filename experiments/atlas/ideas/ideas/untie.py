"""Untie the head from the embedding at a share of training (modded-nanogpt's records): from that
step on each has a gradient of its own.

Both are there from the start, with equal weights. Until step round(at·steps) the embedding has the
sum of both gradients, as a tied matrix has, and the head gets its gradient and its weights: so the
optimizer keeps the same for both when they part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import InputError, key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import nn

    from nocap.config.run import Run
    from nocap.model.language_model import LanguageModel

EMBEDDING, HEAD = "embedding.weight", "head.unembed.weight"


@dataclass(kw_only=True, slots=True)
class Untie(Idea):
    kind: str = "untie"
    at: float = key(ge=0, le=1)  # share of the steps; 1: they stay tied

    def check(self, run: Run) -> None:
        require(
            run.model.tie_head,
            "model.tie_head",
            "be true beside ideas.untie, which begins with it",
            run.model.tie_head,
        )

    def built(self, run: Run, model: LanguageModel) -> None:
        from torch import nn

        named = dict(model.named_parameters(remove_duplicate=False))
        if EMBEDDING not in named or named[EMBEDDING] is not named.get(HEAD):
            raise InputError(
                "ideas.untie must have a head that is tied to the embedding, and "
                f"model.kind={run.model.kind} has none"
            )
        model.get_submodule("head.unembed").weight = nn.Parameter(named[EMBEDDING].detach().clone())

    def build_around(self, run: Run, model: LanguageModel) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        part.until = round(self.at * run.trainer.steps)
        return part

    def before_clip(self, part: Any, model: LanguageModel, *, step: int) -> None:
        if step < part.until:
            embedding, head = (model.get_parameter(name) for name in (EMBEDDING, HEAD))
            embedding.grad += head.grad  # type: ignore[operator]  # both have one
            head.grad = None

    def before_step(self, part: Any, model: LanguageModel, *, step: int) -> None:
        if step < part.until:
            model.get_parameter(HEAD).grad = model.get_parameter(EMBEDDING).grad

    def after_step(self, part: Any, model: LanguageModel, *, step: int) -> None:
        if step < part.until:
            model.get_parameter(HEAD).data.copy_(model.get_parameter(EMBEDDING))
