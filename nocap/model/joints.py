"""Ideas plugged into a place: the parts they built there, and the order of their joints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from nocap.model.seeds import keyed

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.options.ideas import Idea

Joined = tuple[tuple[str, "Idea", nn.Module], ...]  # name, idea, part: what a place loops over; empty: nothing is plugged in


def joined(run: Run, place: str, build: Callable[[Idea], nn.Module | None]) -> tuple[nn.ModuleDict, Joined]:
    """The ideas' parts for this place, to be registered under its name, and who is to be called with which."""
    parts: dict[str, nn.Module] = {}
    for name, idea in run.ideas.items():
        with keyed(run.seed, f"{place}.{name}"):
            part = build(idea)
        if part is not None:
            parts[name] = part
    return nn.ModuleDict(parts), tuple((name, run.ideas[name], part) for name, part in parts.items())
