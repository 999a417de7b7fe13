"""What a training forward returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Loss(NamedTuple):
    """A scalar to minimise, in nats per token, and what it is the sum of.

    `parts` is empty where the loss is the next-token loss alone; else it holds that one as `next_token`, and every other part as it enters
    the sum, all without gradients.
    """

    total: Tensor
    parts: dict[str, Tensor] = {}  # noqa: RUF012  # shared and never changed

    def plus(self, more: dict[str, Tensor]) -> Loss:
        """With further parts, which have gradients."""
        if not more:
            return self
        total = self.total
        for part in more.values():
            total = total + part
        known = self.parts or {"next_token": self.total.detach()}
        return Loss(total, {**known, **{name: part.detach() for name, part in more.items()}})

    @property
    def next_token(self) -> Tensor:
        return self.parts.get("next_token", self.total)
