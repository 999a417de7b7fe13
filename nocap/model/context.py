"""What the layers of one forward share.

B: batch, T: tokens, C: channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

# q_BHTD, k_BKTD, v_BKTD → BHTD: H query heads, K key/value heads, D channels of a head. Where
# attention stays inside a document, there is a fourth argument.
Mixer = Callable[..., Tensor]


class Context:
    """What the layers of one forward share."""

    def __init__(
        self,
        tokens_BT: Tensor,
        x0_BTC: Tensor,
        tables: Any,
        mixers: Iterator[Mixer] | None,
        documents: Any = None,
    ) -> None:
        self.tokens_BT = tokens_BT
        self.x0_BTC = x0_BTC  # the residual stream where the first block finds it
        self.tables = tables  # of the positions, for `Position.turn`
        self.mixers = mixers  # one a layer, in place of the layers' own
        self.documents = documents  # the fourth argument of the mixers, where they have one
        self.memory: dict[str, Tensor] = {}  # what an idea leaves for a later layer
