"""Attention inside a document only: which tokens of a sequence share one, in the form that each kernel takes.

B: batch, T: tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from nocap.model.flex import flex_mask


class Documents:
    """Of one forward's tokens, for all its layers. A document begins with the token `start`, and goes on to the next."""

    def __init__(self, tokens_BT: Tensor, *, start: int, dense: bool, flex_windows: Collection[int | None]) -> None:
        """`dense`: for kernels that take a mask of all pairs; `flex_windows`: those of the layers that FlexAttention computes."""
        self.ids_BT = (tokens_BT == start).cumsum(1)
        self.seen_B1TT = seen(self.ids_BT) if dense else None
        self.flex: dict[int | None, Any] = {window: flex_mask(self.ids_BT, window) for window in flex_windows}


def seen(ids_BT: Tensor) -> Tensor:
    """Whether a query sees a key, (B, 1, T, T): of its own document, and not after it."""
    same_B1TT = ids_BT[:, None, :, None] == ids_BT[:, None, None, :]
    T = ids_BT.shape[1]
    return same_B1TT & torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()
