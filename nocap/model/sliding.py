"""The sliding-window mixer that runs anywhere: by chunks.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head, N: blocks, Q: the
queries of a block, S: the keys that they meet.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.model.attention import repeat_heads
from nocap.model.context import Mixer
from nocap.model.documents import Documents

# tokens: smaller windows share a block, so that the matrix products stay worth their launch
MIN_BLOCK = 64


def blocks(window: int) -> Mixer:
    """Sliding window by chunks: each block of queries meets its own keys and those of the block
    before, and a band mask of one block × two.

    Cost: T·2·max(window, 64) scores a head, linear in T.
    """

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        T = q_BHTD.shape[2]
        size = min(T, max(window, MIN_BLOCK))
        k_BHTD = repeat_heads(q_BHTD, k_BKTD)
        v_BHTD = repeat_heads(q_BHTD, v_BKTD)
        q = _cut(q_BHTD, size)
        k = _cut(k_BHTD, size)
        v = _cut(v_BHTD, size)
        ids = None
        if documents is not None:
            # Each token's document, as a head of one channel: cut and joined as the keys are.
            ids = _cut(documents.ids_BT[:, None, :, None], size)

        same = None if ids is None else _same(_first(ids), _first(ids))
        first = _attend(_first(q), _first(k), _first(v), same, window)
        if q.shape[2] == 1:
            return first.flatten(2, 3)[:, :, :T]
        same = None if ids is None else _same(_later(ids), _with_the_block_before(ids))
        k = _with_the_block_before(k)
        v = _with_the_block_before(v)
        rest = _attend(_later(q), k, v, same, window)
        y_BHNQD = torch.cat([first, rest], dim=2)
        return y_BHNQD.flatten(2, 3)[:, :, :T]

    return mix


def _cut(x_BHTD: Tensor, size: int) -> Tensor:
    """Cut the tokens into blocks: (B, H, N, size, D). The last one is filled up with padding, which
    lies after every real query, so that causality hides it."""
    T = x_BHTD.shape[2]
    n_block = math.ceil(T / size)
    padded = F.pad(x_BHTD, (0, 0, 0, n_block * size - T))
    return padded.unflatten(2, (n_block, size))


def _attend(
    q_BHNQD: Tensor, k_BHNSD: Tensor, v_BHNSD: Tensor, same_B1NQS: Tensor | None, window: int
) -> Tensor:
    """Attend in each block; the keys end where the queries end. `same_B1NQS`: whether a pair is of
    one document."""
    B = q_BHNQD.shape[0]
    mask = _band(q_BHNQD.shape[3], k_BHNSD.shape[3], window, q_BHNQD.device)
    if same_B1NQS is not None:
        mask = mask & _as_batch(same_B1NQS)
    q = _as_batch(q_BHNQD)
    k = _as_batch(k_BHNSD)
    v = _as_batch(v_BHNSD)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return y.unflatten(0, (B, -1)).transpose(1, 2)


def _as_batch(x_BHNQD: Tensor) -> Tensor:
    """Make each block a sequence of its own: (B·N, H, Q, D)."""
    return x_BHNQD.transpose(1, 2).flatten(0, 1)


def _same(query_ids_B1NQ1: Tensor, key_ids_B1NS1: Tensor) -> Tensor:
    """Say whether query and key are of one document, (B, 1, N, Q, S)."""
    return query_ids_B1NQ1 == key_ids_B1NS1.mT


def _first(x_BHNQD: Tensor) -> Tensor:
    """Return the first block."""
    return x_BHNQD[:, :, :1]


def _later(x_BHNQD: Tensor) -> Tensor:
    """Return each block but the first."""
    return x_BHNQD[:, :, 1:]


def _with_the_block_before(x_BHNQD: Tensor) -> Tensor:
    """Return each block but the first, after the block before it: (B, H, N, S, D)."""
    before = x_BHNQD[:, :, :-1]
    return torch.cat([before, _later(x_BHNQD)], dim=3)


def _band(n_query: int, n_key: int, window: int, device: torch.device) -> Tensor:
    """Return a mask, true where the query sees the key: the same position or up to window - 1
    before."""
    query = torch.arange(n_key - n_query, n_key, device=device)[:, None]
    distance = query - torch.arange(n_key, device=device)
    return (distance >= 0) & (distance < window)
