"""Which earlier tokens a query sees: those in its window, and those of its own document.

B: batch, T: tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor


def flex_mask(ids_BT: Tensor, window: int | None) -> Any:
    """Return FlexAttention's mask of a batch whose tokens see those of their own document (of one
    id) in their window."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, T = ids_BT.shape
    in_window = visible_within(window or T)

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return in_window(b, h, query, key) & (ids_BT[b, query] == ids_BT[b, key])

    return create_block_mask(visible, B, None, T, T, device=str(ids_BT.device))


def visible_within(window: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Say as a function for FlexAttention whether a query sees a key."""

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    return visible


class Documents:
    """The documents of one forward's tokens, for all its layers. A document begins with the token
    `start`, and goes on to the next."""

    def __init__(
        self, tokens_BT: Tensor, *, start: int, dense: bool, flex_windows: Collection[int | None]
    ) -> None:
        """`dense`: for kernels that take a mask of all pairs; `flex_windows`: those of the layers
        that FlexAttention computes."""
        self.ids_BT = (tokens_BT == start).cumsum(1)
        self.seen_B1TT: Tensor | None = None
        if dense:
            self.seen_B1TT = seen(self.ids_BT)
        self.flex = dict[int | None, Any]()
        for window in flex_windows:
            self.flex[window] = flex_mask(self.ids_BT, window)

    def all_pairs(self) -> Tensor:
        """Return the mask of all pairs, (B, 1, T, T): true where a query sees a key."""
        assert self.seen_B1TT is not None, "Documents must be dense for this kernel"
        return self.seen_B1TT


def seen(ids_BT: Tensor) -> Tensor:
    """Say whether a query sees a key, (B, 1, T, T): one of its own document, and not after it."""
    T = ids_BT.shape[1]
    same_B1TT = ids_BT[:, None, :, None] == ids_BT[:, None, None, :]
    earlier_TT = torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()
    return same_B1TT & earlier_TT
