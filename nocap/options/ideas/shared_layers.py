"""Shared layers: so many layers in a row have one set of weights, as ALBERT's (arXiv:1909.11942).

The FLOPs stay, the parameters do not. What ideas keep for a layer stays the layer's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import InputError, key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class SharedLayers(Idea):
    PER_TOKEN = True
    kind: str = "shared_layers"
    repeat: int = key(ge=2, le=4096)  # number of layers in a row that share one set of weights

    def check(self, run: Run) -> None:
        n_layer = run.model.n_layer
        rule = f"be at most model.n_layer={n_layer}"
        require(self.repeat <= n_layer, "ideas.shared_layers.repeat", rule, self.repeat)

    def flops_per_token(self, run: Run, *, vocab_size: int) -> float:
        return 0.0

    def built(self, run: Run, model: Any) -> None:
        blocks = list(getattr(model, "blocks", ()))
        own = [_weights(block) for block in blocks]
        shapes = [_shapes(weights) for weights in own]
        if not shapes or any(block_shapes != shapes[0] for block_shapes in shapes):
            raise InputError(
                f"model.kind={run.model.kind} must have blocks with weights of the same shapes for "
                "ideas.shared_layers"
            )
        for layer, block in enumerate(blocks):
            for name, weight in own[layer - layer % self.repeat].items():
                place, _, last = name.rpartition(".")
                setattr(block.get_submodule(place), last, weight)


def _weights(block: nn.Module) -> dict[str, nn.Parameter]:
    """Return a block's parameters but for those of ideas."""
    named = block.named_parameters()
    return {name: p for name, p in named if not name.startswith("ideas.")}


def _shapes(weights: Mapping[str, nn.Parameter]) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in weights.items()}
