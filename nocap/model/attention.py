"""The mixers of causal self-attention that an option chooses from.

B: batch, T: tokens, C: channels, H: query heads, K: key/value heads, D: channels of a head. A mixer
maps q_BHTD, k_BKTD, v_BKTD to BHTD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.config.trainer import Device, Precision
from nocap.model.documents import Documents, visible_within
from nocap.model.precision import product_precision
from nocap.options.attention.kernel import Kernel, sdpa_kernels

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.context import Mixer

_BACKENDS = {
    Kernel.flash: SDPBackend.FLASH_ATTENTION,
    Kernel.efficient: SDPBackend.EFFICIENT_ATTENTION,
    Kernel.cudnn: SDPBackend.CUDNN_ATTENTION,
}


def repeat_heads(q_BHTD: Tensor, kv_BKTD: Tensor) -> Tensor:
    """Return each key/value head once per query head of its group."""
    groups = q_BHTD.shape[1] // kv_BKTD.shape[1]
    if groups == 1:
        return kv_BKTD
    return kv_BKTD.repeat_interleave(groups, dim=1)


def materialized(
    q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
) -> Tensor:
    """Return softmax(q·kᵀ/√D + causal mask)·v, with the T×T matrix in memory. The softmax is fp32,
    which autocast sees to on CUDA only."""
    D = q_BHTD.shape[3]
    k_BHTD = repeat_heads(q_BHTD, k_BKTD)
    v_BHTD = repeat_heads(q_BHTD, v_BKTD)
    scores_BHTT = q_BHTD @ k_BHTD.transpose(2, 3)
    scores_BHTT = scores_BHTT / math.sqrt(D)
    hidden = _hidden(q_BHTD, documents)
    scores_BHTT = scores_BHTT.masked_fill(hidden, float("-inf"))
    weights_BHTT = scores_BHTT.softmax(dim=-1, dtype=torch.float32).type_as(v_BHTD)
    return weights_BHTT @ v_BHTD


def _hidden(q_BHTD: Tensor, documents: Documents | None) -> Tensor:
    """Say which keys a query does not see: (T, T), or with documents (B, 1, T, T)."""
    if documents is not None:
        return ~documents.all_pairs()
    T = q_BHTD.shape[2]
    return torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)


def fused(kernel: Kernel) -> Mixer:
    """Return a fused kernel: where none of those allowed can run torch raises; the math kernel
    never stands in."""

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        device = Device.cuda if q_BHTD.is_cuda else Device.cpu
        precision = product_precision(q_BHTD)
        mask_B1TT = None if documents is None else documents.all_pairs()
        causal = mask_B1TT is None
        kernels = sdpa_kernels(kernel, device, precision, masked=not causal)
        if kernels == (Kernel.efficient,):  # the one kernel without grouped heads
            k_BKTD = repeat_heads(q_BHTD, k_BKTD)
            v_BKTD = repeat_heads(q_BHTD, v_BKTD)
        grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
        with sdpa_kernel(_backends(kernels)):
            return F.scaled_dot_product_attention(
                q_BHTD, k_BKTD, v_BKTD, attn_mask=mask_B1TT, is_causal=causal, enable_gqa=grouped
            )

    return mix


def _backends(kernels: Sequence[Kernel]) -> list[SDPBackend]:
    """Return torch's names of these kernels."""
    return [_BACKENDS[kernel] for kernel in kernels]


def torchs_choice(run: Run, n_kv_heads: int, kernels: Sequence[Kernel]) -> Kernel:
    """Return the kernel, of these, that torch takes for the run's training attention in bf16 on
    this GPU."""
    n_head = run.model.n_head
    q = _empty_heads(run, n_head)
    k = _empty_heads(run, n_kv_heads)
    v = _empty_heads(run, n_kv_heads)
    with sdpa_kernel(_backends(kernels)):
        grouped = n_kv_heads != n_head
        chosen = torch._fused_sdp_choice(q, k, v, is_causal=True, enable_gqa=grouped)
    return next(kernel for kernel in kernels if _BACKENDS[kernel].value == chosen)


def _empty_heads(run: Run, n: int) -> Tensor:
    """Return n heads of one sequence on the GPU, in bf16."""
    m = run.model
    shape = (1, n, m.seq_len, m.d_model // m.n_head)
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)


# --- FlexAttention --------------------------------------------------------------------------------


def flex(window: int | None) -> Mixer:
    """Return FlexAttention (arXiv:2412.05496) over a window, or with None over all earlier tokens.
    It skips tiles that no query sees. CUDA only, always compiled."""

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        prepared = _flex_prepared.get((window, q_BHTD.shape[2], q_BHTD.device.type))
        assert prepared is not None, (
            "prepare_flex must run first: a mask made inside a compiled region is made at every "
            "step"
        )
        kernel, mask = prepared
        if documents is not None:
            mask = documents.flex[window]
        q = _as_products(q_BHTD)
        k = _as_products(k_BKTD)
        v = _as_products(v_BKTD)
        grouped = q.shape[1] != k.shape[1]
        y: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=grouped)
        return y

    return mix


def _as_products(x: Tensor) -> Tensor:
    """Return x in the precision of its products. FlexAttention is outside autocast, and queries and
    keys come out of the rotation in fp32."""
    if product_precision(x) is Precision.bf16:
        return x.to(torch.bfloat16)
    return x


# (window, T, device type) → compiled FlexAttention and block mask
_flex_prepared: dict[tuple[int | None, int, str], tuple[Any, Any]] = {}


def prepare_flex(window: int | None, *, seq_len: int, device: torch.device) -> None:
    """Make what the mixers of `flex` look up."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from nocap.model.compiled import compiled

    visible = visible_within(window or seq_len)
    mask = create_block_mask(visible, None, None, seq_len, seq_len, device=str(device))
    _flex_prepared[window, seq_len, device.type] = compiled(flex_attention), mask
