"""Attention by FlexAttention (arXiv:2412.05496), over a window or all earlier tokens: CUDA only, always compiled.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nocap.config.trainer import Precision
from nocap.model.attention import Mixer, autocast_like

if TYPE_CHECKING:
    from nocap.model.documents import Documents


def flex(window: int | None) -> Mixer:
    """A window, or with None all earlier tokens; tiles that no query sees are skipped."""

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
