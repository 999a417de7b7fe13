"""Sliding-window mixers: by chunks anywhere, by FlexAttention on CUDA.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.config.trainer import Precision
from nocap.model.attention import Mixer, autocast_like, repeat_heads

MIN_BLOCK = 64  # tokens: smaller windows share a block, so that the matrix products stay worth their launch


def blocks(window: int) -> Mixer:
    """Sliding window by chunks: each block of queries meets its own keys and those of the block before, and a band mask of one block × two.

    Cost: T·2·max(window, 64) scores a head, linear in T.
    """

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        B, T = q_BHTD.shape[0], q_BHTD.shape[2]
        size = min(T, max(window, MIN_BLOCK))
        n_block = math.ceil(T / size)
        k_BHTD, v_BHTD = repeat_heads(q_BHTD, k_BKTD), repeat_heads(q_BHTD, v_BKTD)
        # Padding lies after every real query, so causality hides it.
        q, k, v = (F.pad(x, (0, 0, 0, n_block * size - T)).unflatten(2, (n_block, size)) for x in (q_BHTD, k_BHTD, v_BHTD))

        def attend(q_: Tensor, k_: Tensor, v_: Tensor) -> Tensor:
            """(B, H, blocks, queries, D) against (B, H, blocks, keys, D); the keys end where the queries end."""
            mask = _band(q_.shape[3], k_.shape[3], window, q_.device)
            q_, k_, v_ = (x.transpose(1, 2).flatten(0, 1) for x in (q_, k_, v_))
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
                y = F.scaled_dot_product_attention(q_, k_, v_, attn_mask=mask)
            return y.unflatten(0, (B, -1)).transpose(1, 2)

        first = attend(q[:, :, :1], k[:, :, :1], v[:, :, :1])
        if n_block == 1:
            return first.flatten(2, 3)[:, :, :T]
        pairs = [torch.cat([x[:, :, :-1], x[:, :, 1:]], dim=3) for x in (k, v)]
        rest = attend(q[:, :, 1:], *pairs)
        return torch.cat([first, rest], dim=2).flatten(2, 3)[:, :, :T]

    return mix


def _band(n_query: int, n_key: int, window: int, device: torch.device) -> Tensor:
    """True where the query sees the key: the same position or up to window - 1 before."""
    query = torch.arange(n_key - n_query, n_key, device=device)[:, None]
    distance = query - torch.arange(n_key, device=device)
    return (distance >= 0) & (distance < window)


def flex(window: int) -> Mixer:
    """Sliding window through FlexAttention (arXiv:2412.05496), which skips the tiles outside the band. CUDA only, always compiled."""

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        prepared = _flex_prepared.get((window, q_BHTD.shape[2], q_BHTD.device.type))
        assert prepared is not None, "prepare_flex must run first: a mask made inside a compiled region is made at every step"
        kernel, mask = prepared
        # FlexAttention is outside autocast: queries and keys come out of the rotation in fp32.
        q, k, v = (x.to(torch.bfloat16) if autocast_like(x) is Precision.bf16 else x for x in (q_BHTD, k_BKTD, v_BKTD))
        y: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return y

    return mix


_flex_prepared: dict[tuple[int, int, str], tuple[Any, Any]] = {}  # (window, T, device type) → compiled FlexAttention and block mask


def prepare_flex(window: int, *, seq_len: int, device: torch.device) -> None:
    """Make what the mixers of `flex` look up."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from nocap.model.compiled import compiled

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    mask = create_block_mask(visible, None, None, seq_len, seq_len, device=str(device))
    _flex_prepared[window, seq_len, device.type] = compiled(flex_attention), mask
