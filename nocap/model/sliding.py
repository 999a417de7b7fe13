"""The sliding-window mixer that runs anywhere: by chunks.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.model.attention import Documents, Mixer, repeat_heads

MIN_BLOCK = (
    64  # tokens: smaller windows share a block, so that the matrix products stay worth their launch
)


def blocks(window: int) -> Mixer:
    """Sliding window by chunks: each block of queries meets its own keys and those of the block
    before, and a band mask of one block × two.

    Cost: T·2·max(window, 64) scores a head, linear in T.
    """

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        B, T = q_BHTD.shape[0], q_BHTD.shape[2]
        size = min(T, max(window, MIN_BLOCK))
        n_block = math.ceil(T / size)
        k_BHTD, v_BHTD = repeat_heads(q_BHTD, k_BKTD), repeat_heads(q_BHTD, v_BKTD)
        # Padding lies after every real query, so causality hides it.
        q, k, v = (
            F.pad(x, (0, 0, 0, n_block * size - T)).unflatten(2, (n_block, size))
            for x in (q_BHTD, k_BHTD, v_BHTD)
        )
        # Each token's document, as a head of one channel: cut and put together as the keys are.
        pad = (0, n_block * size - T)
        ids = (
            None
            if documents is None
            else F.pad(documents.ids_BT, pad).unflatten(1, (n_block, size))[:, None, ..., None]
        )

        def attend(q_: Tensor, k_: Tensor, v_: Tensor, *, same: Tensor | None) -> Tensor:
            """(B, H, blocks, queries, D) against (B, H, blocks, keys, D); the keys end where the
            queries end. `same`: whether a pair is of the same document."""
            mask = _band(q_.shape[3], k_.shape[3], window, q_.device)
            mask = mask if same is None else mask & same.transpose(1, 2).flatten(0, 1)
            q_, k_, v_ = (x.transpose(1, 2).flatten(0, 1) for x in (q_, k_, v_))
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
                y = F.scaled_dot_product_attention(q_, k_, v_, attn_mask=mask)
            return y.unflatten(0, (B, -1)).transpose(1, 2)

        same = None if ids is None else ids[:, :, :1] == ids[:, :, :1].mT
        first = attend(q[:, :, :1], k[:, :, :1], v[:, :, :1], same=same)
        if n_block == 1:
            return first.flatten(2, 3)[:, :, :T]
        same = None if ids is None else ids[:, :, 1:] == _after_the_block_before(ids).mT
        rest = attend(
            q[:, :, 1:], _after_the_block_before(k), _after_the_block_before(v), same=same
        )
        return torch.cat([first, rest], dim=2).flatten(2, 3)[:, :, :T]

    return mix


def _after_the_block_before(x: Tensor) -> Tensor:
    """Return each block but the first, (B, H, blocks, tokens, D), after the block before it."""
    return torch.cat([x[:, :, :-1], x[:, :, 1:]], dim=3)


def _band(n_query: int, n_key: int, window: int, device: torch.device) -> Tensor:
    """Return a mask, true where the query sees the key: the same position or up to window - 1
    before."""
    query = torch.arange(n_key - n_query, n_key, device=device)[:, None]
    distance = query - torch.arange(n_key, device=device)
    return (distance >= 0) & (distance < window)
