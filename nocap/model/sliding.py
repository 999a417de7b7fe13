"""Sliding-window mixers: by chunks anywhere, by FlexAttention on CUDA.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.config.trainer import Precision
from nocap.model.attention import Mixer, autocast_like, repeat_heads

if TYPE_CHECKING:
    from nocap.model.documents import Documents

MIN_BLOCK = 64  # tokens: smaller windows share a block, so that the matrix products stay worth their launch


def blocks(window: int) -> Mixer:
    """Sliding window by chunks: each block of queries meets its own keys and those of the block before, and a band mask of one block × two.

    Cost: T·2·max(window, 64) scores a head, linear in T.
    """

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None) -> Tensor:
        B, T = q_BHTD.shape[0], q_BHTD.shape[2]
        size = min(T, max(window, MIN_BLOCK))
        n_block = math.ceil(T / size)
        k_BHTD, v_BHTD = repeat_heads(q_BHTD, k_BKTD), repeat_heads(q_BHTD, v_BKTD)
        # Padding lies after every real query, so causality hides it.
        q, k, v = (F.pad(x, (0, 0, 0, n_block * size - T)).unflatten(2, (n_block, size)) for x in (q_BHTD, k_BHTD, v_BHTD))
        # Each token's document, as a head of one channel: cut and put together as the keys are.
        pad = (0, n_block * size - T)
        ids = None if documents is None else F.pad(documents.ids_BT, pad).unflatten(1, (n_block, size))[:, None, ..., None]

        def attend(q_: Tensor, k_: Tensor, v_: Tensor, *, same: Tensor | None) -> Tensor:
            """(B, H, blocks, queries, D) against (B, H, blocks, keys, D); the keys end where the queries end. `same`: whether a pair is of
            the same document."""
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
        rest = attend(q[:, :, 1:], _after_the_block_before(k), _after_the_block_before(v), same=same)
        return torch.cat([first, rest], dim=2).flatten(2, 3)[:, :, :T]

    return mix


def _after_the_block_before(x: Tensor) -> Tensor:
    """Each block but the first, (B, H, blocks, tokens, D), after the block before it."""
    return torch.cat([x[:, :, :-1], x[:, :, 1:]], dim=3)


def _band(n_query: int, n_key: int, window: int, device: torch.device) -> Tensor:
    """True where the query sees the key: the same position or up to window - 1 before."""
    query = torch.arange(n_key - n_query, n_key, device=device)[:, None]
    distance = query - torch.arange(n_key, device=device)
    return (distance >= 0) & (distance < window)


def flex(window: int | None) -> Mixer:
    """A window, or all earlier tokens, through FlexAttention (arXiv:2412.05496), which skips the tiles that no query sees. CUDA only,
    always compiled."""

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None) -> Tensor:
        prepared = _flex_prepared.get((window, q_BHTD.shape[2], q_BHTD.device.type))
        assert prepared is not None, "prepare_flex must run first: a mask made inside a compiled region is made at every step"
        kernel, mask = prepared[0], prepared[1] if documents is None else documents.flex[window]
        # FlexAttention is outside autocast: queries and keys come out of the rotation in fp32.
        q, k, v = (x.to(torch.bfloat16) if autocast_like(x) is Precision.bf16 else x for x in (q_BHTD, k_BKTD, v_BKTD))
        y: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return y

    return mix


_flex_prepared: dict[tuple[int | None, int, str], tuple[Any, Any]] = {}  # (window, T, device type) → compiled FlexAttention and block mask


def prepare_flex(window: int | None, *, seq_len: int, device: torch.device) -> None:
    """Make what the mixers of `flex` look up."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from nocap.model.compiled import compiled

    mask = create_block_mask(_visible(window or seq_len), None, None, seq_len, seq_len, device=str(device))
    _flex_prepared[window, seq_len, device.type] = compiled(flex_attention), mask


def flex_mask(ids_BT: Tensor, window: int | None) -> Any:
    """FlexAttention's mask of a batch whose tokens see those of their own document (of one id) in their window."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, T = ids_BT.shape
    in_window = _visible(window or T)

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return in_window(b, h, query, key) & (ids_BT[b, query] == ids_BT[b, key])

    return create_block_mask(visible, B, None, T, T, device=str(ids_BT.device))


def _visible(window: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    return visible
