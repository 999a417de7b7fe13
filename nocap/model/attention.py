"""Causal self-attention: one projection module, and the mixers that an option chooses between.

B: batch, T: tokens, C: channels, H: query heads, K: key/value heads, D: channels of a head. A mixer maps q_BHTD, k_BKTD, v_BKTD to BHTD.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap import hardware
from nocap.model.norm import rms_norm
from nocap.model.position import rotate
from nocap.schema import Attention, Device, Hybrid, Kernel, Precision, Sliding

Mixer = Callable[[Tensor, Tensor, Tensor], Tensor]

_BACKENDS = {
    Kernel.flash: SDPBackend.FLASH_ATTENTION,
    Kernel.efficient: SDPBackend.EFFICIENT_ATTENTION,
    Kernel.cudnn: SDPBackend.CUDNN_ATTENTION,
}
MIN_BLOCK = 64  # tokens: smaller windows share a block, so that the matrix products stay worth their launch


def _repeat_heads(q_BHTD: Tensor, kv_BKTD: Tensor) -> Tensor:
    """Each key/value head once per query head of its group."""
    groups = q_BHTD.shape[1] // kv_BKTD.shape[1]
    return kv_BKTD if groups == 1 else kv_BKTD.repeat_interleave(groups, dim=1)


def materialized(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
    """softmax(q·kᵀ/√D + causal mask)·v with the T×T matrix in memory. The softmax is fp32, which autocast sees to on CUDA only."""
    T, D = q_BHTD.shape[2:]
    k_BHTD, v_BHTD = _repeat_heads(q_BHTD, k_BKTD), _repeat_heads(q_BHTD, v_BKTD)
    scores_BHTT = (q_BHTD @ k_BHTD.transpose(2, 3)) / math.sqrt(D)
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    return scores_BHTT.masked_fill(future_TT, float("-inf")).softmax(dim=-1, dtype=torch.float32).type_as(v_BHTD) @ v_BHTD


def _autocast_like(x: Tensor) -> Precision:
    """The precision a product of x runs in: autocast's where it is on, else the tensor's own."""
    bf16 = torch.is_autocast_enabled(x.device.type) or x.dtype is torch.bfloat16
    return Precision.bf16 if bf16 else Precision.fp32


def fused(kernel: Kernel) -> Mixer:
    """A fused kernel, pinned: where it cannot run torch raises; the math kernel never stands in."""

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        chosen = hardware.sdpa_kernel(kernel, Device.cuda if q_BHTD.is_cuda else Device.cpu, _autocast_like(q_BHTD))
        if chosen is Kernel.efficient:  # the one kernel without grouped heads
            k_BKTD, v_BKTD = _repeat_heads(q_BHTD, k_BKTD), _repeat_heads(q_BHTD, v_BKTD)
        grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
        with sdpa_kernel(_BACKENDS[chosen]):
            return F.scaled_dot_product_attention(q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=grouped)

    return mix


def blocks(window: int) -> Mixer:
    """Sliding window by chunks: each block of queries meets its own keys and those of the block before, and a band mask of one block × two.

    Cost: T·2·max(window, 64) scores a head, linear in T.
    """

    def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        B, T = q_BHTD.shape[0], q_BHTD.shape[2]
        size = min(T, max(window, MIN_BLOCK))
        n_block = math.ceil(T / size)
        k_BHTD, v_BHTD = _repeat_heads(q_BHTD, k_BKTD), _repeat_heads(q_BHTD, v_BKTD)
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
        q, k, v = (x.to(torch.bfloat16) if _autocast_like(x) is Precision.bf16 else x for x in (q_BHTD, k_BKTD, v_BKTD))
        y: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return y

    return mix


_flex_prepared: dict[tuple[int, int, str], tuple[Any, Any]] = {}  # (window, T, device type) → compiled FlexAttention and block mask


def prepare_flex(spec: Attention, *, seq_len: int, device: torch.device) -> None:
    """Make what `flex` layers look up, if this option has such layers."""
    if not isinstance(spec, Sliding) or spec.kernel_of_local is not Kernel.flex:
        return
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window = spec.window

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    mask = create_block_mask(visible, None, None, seq_len, seq_len, device=str(device))
    _flex_prepared[window, seq_len, device.type] = torch.compile(flex_attention, dynamic=False), mask


class CausalSelfAttention(nn.Module):
    """Project, rotate, mix, project. Queries, keys and values have a matrix each: Muon must orthogonalise them one by one."""

    def __init__(self, *, d_model: int, n_head: int, n_kv_heads: int, qk_norm: bool, mixer: Mixer) -> None:
        super().__init__()
        self.n_head, self.n_kv_heads, self.d_head = n_head, n_kv_heads, d_model // n_head
        self.qk_norm, self.mixer = qk_norm, mixer
        self.q_proj = nn.Linear(d_model, n_head * self.d_head, bias=False)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTC: Tensor, rotary: tuple[Tensor, Tensor] | None, mixer: Mixer | None = None) -> Tensor:
        """`mixer` takes the place of the layer's own: generation's reads and writes a cache."""
        mix = self.mixer if mixer is None else mixer
        q_BTHD = self.q_proj(x_BTC).unflatten(2, (self.n_head, self.d_head))
        k_BTKD = self.k_proj(x_BTC).unflatten(2, (self.n_kv_heads, self.d_head))
        v_BTKD = self.v_proj(x_BTC).unflatten(2, (self.n_kv_heads, self.d_head))
        if self.qk_norm:
            q_BTHD, k_BTKD = rms_norm(q_BTHD, 1e-6), rms_norm(k_BTKD, 1e-6)
        if rotary is not None:
            q_BTHD, k_BTKD = rotate(q_BTHD, *rotary), rotate(k_BTKD, *rotary)
        y_BHTD = mix(q_BTHD.transpose(1, 2), k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2))
        return self.out_proj(y_BHTD.transpose(1, 2).flatten(2))


def is_local(spec: Attention, layer: int) -> bool:
    """Whether this layer's attention is the sliding window."""
    if isinstance(spec, Hybrid):
        return spec.pattern[layer % len(spec.pattern)] == "L"
    return isinstance(spec, Sliding)


def build_mixer(spec: Attention, layer: int) -> Mixer:
    if isinstance(spec, Sliding) and is_local(spec, layer):
        return flex(spec.window) if spec.kernel_of_local is Kernel.flex else blocks(spec.window)
    return materialized if spec.kernel is Kernel.materialized else fused(spec.kernel)
