"""Causal self-attention: one module of projections, and the mixers that an option chooses from.

B: batch, T: tokens, C: channels, H: query heads, K: key/value heads, D: channels of a head. A mixer
maps q_BHTD, k_BKTD, v_BKTD to BHTD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nocap.config.trainer import Device, Precision
from nocap.model.language_model import Joined, keyed
from nocap.model.norm import rms_norm
from nocap.options.attention.softmax import Kernel, sdpa_kernels

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.gpt import Context

Mixer = Callable[
    ..., Tensor
]  # where attention stays inside a document, of a fourth argument: `Documents`

_BACKENDS = {
    Kernel.flash: SDPBackend.FLASH_ATTENTION,
    Kernel.efficient: SDPBackend.EFFICIENT_ATTENTION,
    Kernel.cudnn: SDPBackend.CUDNN_ATTENTION,
}


def repeat_heads(q_BHTD: Tensor, kv_BKTD: Tensor) -> Tensor:
    """Return each key/value head once per query head of its group."""
    groups = q_BHTD.shape[1] // kv_BKTD.shape[1]
    return kv_BKTD if groups == 1 else kv_BKTD.repeat_interleave(groups, dim=1)


def materialized(
    q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
) -> Tensor:
    """softmax(q·kᵀ/√D + causal mask)·v with the T×T matrix in memory. The softmax is fp32, which
    autocast sees to on CUDA only."""
    T, D = q_BHTD.shape[2:]
    k_BHTD, v_BHTD = repeat_heads(q_BHTD, k_BKTD), repeat_heads(q_BHTD, v_BKTD)
    scores_BHTT = (q_BHTD @ k_BHTD.transpose(2, 3)) / math.sqrt(D)
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    seen_B1TT = None if documents is None else documents.seen_B1TT
    hidden = future_TT if seen_B1TT is None else ~seen_B1TT
    return (
        scores_BHTT.masked_fill(hidden, float("-inf"))
        .softmax(dim=-1, dtype=torch.float32)
        .type_as(v_BHTD)
        @ v_BHTD
    )


def autocast_like(x: Tensor) -> Precision:
    """Return the precision a product of x runs in: autocast's where it is on, else the tensor's
    own."""
    bf16 = torch.is_autocast_enabled(x.device.type) or x.dtype is torch.bfloat16
    return Precision.bf16 if bf16 else Precision.fp32


def fused(kernel: Kernel) -> Mixer:
    """Return a fused kernel: where none of those allowed can run torch raises; the math kernel
    never stands in."""

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        device, seen_B1TT = (
            Device.cuda if q_BHTD.is_cuda else Device.cpu,
            None if documents is None else documents.seen_B1TT,
        )
        kernels = sdpa_kernels(kernel, device, autocast_like(q_BHTD), masked=seen_B1TT is not None)
        if kernels == (Kernel.efficient,):  # the one kernel without grouped heads
            k_BKTD, v_BKTD = repeat_heads(q_BHTD, k_BKTD), repeat_heads(q_BHTD, v_BKTD)
        grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
        with sdpa_kernel([_BACKENDS[kernel] for kernel in kernels]):
            causal = seen_B1TT is None
            return F.scaled_dot_product_attention(
                q_BHTD, k_BKTD, v_BKTD, attn_mask=seen_B1TT, is_causal=causal, enable_gqa=grouped
            )

    return mix


def torchs_choice(run: Run, n_kv_heads: int, kernels: Sequence[Kernel]) -> Kernel:
    """Return the kernel, of these, that torch takes for the run's training attention in bf16 on
    this GPU."""
    m = run.model

    def heads(n: int) -> Tensor:
        return torch.empty(
            1,
            n,
            m.seq_len,
            m.d_model // m.n_head,
            dtype=torch.bfloat16,
            device="cuda",
            requires_grad=True,
        )

    q, k, v = heads(m.n_head), heads(n_kv_heads), heads(n_kv_heads)
    with sdpa_kernel([_BACKENDS[kernel] for kernel in kernels]):
        chosen = torch._fused_sdp_choice(q, k, v, is_causal=True, enable_gqa=n_kv_heads != m.n_head)
    return next(kernel for kernel in kernels if _BACKENDS[kernel].value == chosen)


# --- FlexAttention, and attention inside a document -----------------------------------------------


def flex(window: int | None) -> Mixer:
    """FlexAttention (arXiv:2412.05496) over a window, or with None all earlier tokens; tiles that
    no query sees are skipped. CUDA only, always compiled."""

    def mix(
        q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, documents: Documents | None = None
    ) -> Tensor:
        prepared = _flex_prepared.get((window, q_BHTD.shape[2], q_BHTD.device.type))
        assert prepared is not None, (
            "prepare_flex must run first: a mask made inside a compiled region is made at every "
            "step"
        )
        kernel, mask = prepared[0], prepared[1] if documents is None else documents.flex[window]
        # FlexAttention is outside autocast: queries and keys come out of the rotation in fp32.
        q, k, v = (
            x.to(torch.bfloat16) if autocast_like(x) is Precision.bf16 else x
            for x in (q_BHTD, k_BKTD, v_BKTD)
        )
        y: Tensor = kernel(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return y

    return mix


# (window, T, device type) → compiled FlexAttention and block mask
_flex_prepared: dict[tuple[int | None, int, str], tuple[Any, Any]] = {}


def prepare_flex(window: int | None, *, seq_len: int, device: torch.device) -> None:
    """Make what the mixers of `flex` look up."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from nocap.model.compiled import compiled

    mask = create_block_mask(
        _visible(window or seq_len), None, None, seq_len, seq_len, device=str(device)
    )
    _flex_prepared[window, seq_len, device.type] = compiled(flex_attention), mask


def flex_mask(ids_BT: Tensor, window: int | None) -> Any:
    """FlexAttention's mask of a batch whose tokens see those of their own document (of one id) in
    their window."""
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


class Documents:
    """Of one forward's tokens, for all its layers. A document begins with the token `start`, and
    goes on to the next."""

    def __init__(
        self, tokens_BT: Tensor, *, start: int, dense: bool, flex_windows: Collection[int | None]
    ) -> None:
        """`dense`: for kernels that take a mask of all pairs; `flex_windows`: those of the layers
        that FlexAttention computes."""
        self.ids_BT = (tokens_BT == start).cumsum(1)
        self.seen_B1TT = seen(self.ids_BT) if dense else None
        self.flex: dict[int | None, Any] = {
            window: flex_mask(self.ids_BT, window) for window in flex_windows
        }


def seen(ids_BT: Tensor) -> Tensor:
    """Say whether a query sees a key, (B, 1, T, T): one of its own document, and not after it."""
    same_B1TT = ids_BT[:, None, :, None] == ids_BT[:, None, None, :]
    T = ids_BT.shape[1]
    return same_B1TT & torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()


# --- the module -----------------------------------------------------------------------------------


class Merged(nn.Module):
    """Several bias-free linear maps of one input as one product. The outputs are theirs; the
    input's gradient is rounded once, not once a map. The weights stay apart, for Muon, initial
    values and checkpoints."""

    def forward(self, x_BTC: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x_BTC, torch.cat(weights)).split(
            [weight.shape[0] for weight in weights], dim=2
        )


class CausalSelfAttention(nn.Module):
    """Project, turn, mix, project. Queries, keys and values have a matrix each: Muon must
    orthogonalise them one by one."""

    def __init__(self, run: Run, layer: int) -> None:
        super().__init__()
        m = run.model
        self.n_head, self.n_kv_heads, self.d_head = (
            m.n_head,
            run.attention.n_kv_heads,
            m.d_model // m.n_head,
        )
        self.qk_norm, self.position = m.qk_norm, run.position
        with keyed(run.seed, f"blocks.{layer}.attention.mixer"):
            self.mixer = run.attention.mixer(run, layer)
        self.q_proj = nn.Linear(m.d_model, self.n_head * self.d_head, bias=False)
        self.k_proj = nn.Linear(m.d_model, self.n_kv_heads * self.d_head, bias=False)
        self.v_proj = nn.Linear(m.d_model, self.n_kv_heads * self.d_head, bias=False)
        self.out_proj = nn.Linear(m.d_model, m.d_model, bias=False)
        self.merged = Merged() if run.attention.merge_qkv else None

    def forward(self, x_BTC: Tensor, context: Context, ideas: Joined = ()) -> Tensor:
        """`context.mixers` replace the layer's own mixer: those of generation read and write a
        cache."""
        mix = self.mixer if context.mixers is None else next(context.mixers)
        maps = self.q_proj, self.k_proj, self.v_proj
        made = (
            [projection(x_BTC) for projection in maps]
            if self.merged is None
            else self.merged(x_BTC, *(projection.weight for projection in maps))
        )
        q_BTHD, k_BTKD, v_BTKD = (y.unflatten(2, (-1, self.d_head)) for y in made)
        if self.qk_norm:
            q_BTHD, k_BTKD = rms_norm(q_BTHD, 1e-6), rms_norm(k_BTKD, 1e-6)
        q_BTHD, k_BTKD = self.position.turn(q_BTHD, k_BTKD, context.tables)
        for _, idea, part in ideas:
            q_BTHD, k_BTKD, v_BTKD = idea.qkv(part, q_BTHD, k_BTKD, v_BTKD, context)
        heads = q_BTHD.transpose(1, 2), k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2)
        y_BHTD = mix(*heads) if context.documents is None else mix(*heads, context.documents)
        return self.out_proj(y_BHTD.transpose(1, 2).flatten(2))
