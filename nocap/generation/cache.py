"""The keys and values of one layer for the tokens so far, allocated once.

B: batch, T: tokens, H: query heads, K: key/value heads, G: query heads a key/value head, S: slots, D: channels of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.model.attention import Mixer


class LayerCache:
    """A ring: position p lies in slot p mod S. A global layer has a slot for every position and never goes round; a sliding layer has
    `window` slots, so that a new token takes the place of the one that it no longer sees. Softmax does not mind the slots' order.

    Each method gives a mixer, which stores the keys and values that it is handed and attends.
    """

    def __init__(self, *, batch: int, n_kv_heads: int, slots: int, like: Tensor, d_head: int) -> None:
        # Zeros: a compiled step multiplies what it hides by 0, and 0 × whatever lay there may be no number.
        self.k_BKSD = like.new_zeros(batch, n_kv_heads, slots, d_head)
        self.v_BKSD = torch.zeros_like(self.k_BKSD)
        self.slots = slots

    @property
    def n_bytes(self) -> int:
        return self.k_BKSD.nbytes + self.v_BKSD.nbytes

    def prefill(self, mixer: Mixer) -> Mixer:
        """Positions from 0 in one pass through `mixer`. A prompt that is one sequence serves every sequence of the cache."""

        def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
            T = k_BKTD.shape[2]
            kept = torch.arange(max(0, T - self.slots), T, device=k_BKTD.device)
            self.k_BKSD[:, :, kept % self.slots] = k_BKTD[:, :, kept]
            self.v_BKSD[:, :, kept % self.slots] = v_BKTD[:, :, kept]
            return mixer(q_BHTD, k_BKTD, v_BKTD)

        return mix

    def decode(self, position: int) -> Mixer:
        """One token at `position`, which reads no slot that is still empty."""
        slot, filled = position % self.slots, min(position + 1, self.slots)

        def mix(q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
            self.k_BKSD[:, :, slot : slot + 1], self.v_BKSD[:, :, slot : slot + 1] = k_BK1D, v_BK1D
            return attend(q_BH1D, self.k_BKSD[:, :, :filled], self.v_BKSD[:, :, :filled])

        return mix

    def decode_static(self, position: Tensor) -> Mixer:
        """The same in shapes that do not depend on `position`, a tensor of one integer: empty slots are read and hidden."""

        def mix(q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
            self.k_BKSD.index_copy_(2, position % self.slots, k_BK1D)
            self.v_BKSD.index_copy_(2, position % self.slots, v_BK1D)
            filled_S = torch.arange(self.slots, device=position.device) <= position
            return attend(q_BH1D, self.k_BKSD, self.v_BKSD, visible=filled_S[None, None, None])

        return mix


def attend(q_BH1D: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, visible: Tensor | None = None) -> Tensor:
    """One query a head against every slot (where `visible`): the queries that share a key/value head meet it together, unrepeated."""
    q_BKGD = q_BH1D.unflatten(1, (k_BKSD.shape[1], -1)).squeeze(3)
    y_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKSD, v_BKSD, attn_mask=visible)
    return y_BKGD.flatten(1, 2).unsqueeze(2)
