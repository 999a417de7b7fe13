"""What a model's forward returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Loss(NamedTuple):
    """A scalar to minimise, in nats per token, and what it is the sum of.

    `parts` is empty where the loss is the next-token loss alone; else it holds that one as
    `next_token`, and every other part as it enters the sum, all without gradients.
    """

    total: Tensor
    parts: dict[str, Tensor] = {}  # shared and never changed  # noqa: RUF012
    # `logged`: what modules log beside it, see `nocap.model.logged`
    logged: dict[str, Tensor] = {}  # noqa: RUF012

    def plus(self, more: dict[str, Tensor]) -> Loss:
        """Return the loss with further parts, which have gradients."""
        if not more:
            return self
        total = self.total
        for part in more.values():
            total = total + part
        parts = dict(self.parts) or {"next_token": self.total.detach()}
        for name, part in more.items():
            parts[name] = part.detach()
        return Loss(total, parts)

    @property
    def next_token(self) -> Tensor:
        return self.parts.get("next_token", self.total)
