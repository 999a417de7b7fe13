"""Unembedding and loss a chunk of tokens at a time, so that no more than one chunk's logits exist
at once.

The gradients are computed in the forward pass, from the chunk's logits. In the backward pass that
would be a fourth product with the weights (a third more work) and save no memory: the head's
backward follows its forward at once.

N: tokens, C: channels, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 8192  # of the vocabulary: products this large fill a GPU
ChunkStep = Callable[..., tuple[Tensor, Tensor, Tensor | None]]


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, or in fp64 where it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def chunk_step(
    x_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    *,
    vocab_size: int,
    softcap: float | None,
    z_loss: float,
    gradient: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return one chunk's loss in nats, summed over its tokens (at least fp32), the same without
    z-loss, and the gradient of the first by the product h = x·weightᵀ, (N, V), or None. Columns
    from `vocab_size` on are no tokens.

    With l = cap·tanh(h/cap) and z = logsumexp(l), it is (softmax(l)·(1 + 2·z_loss·z) -
    onehot(target))·(1 - (l/cap)²).
    """
    logits_NV = x_NC @ weight_VC.t()
    slope_NV = None
    if softcap is not None:
        tanh_NV = logits_NV.div_(softcap).tanh_()
        logits_NV = softcap * tanh_NV
        if gradient:
            slope_NV = wide(tanh_NV).square().neg_().add_(1)
    logits_NV = wide(logits_NV)
    if vocab_size < logits_NV.shape[1]:
        logits_NV[:, vocab_size:] = -torch.inf
    wanted_N1 = logits_NV.gather(1, targets_N[:, None])
    top_N1 = logits_NV.amax(1, keepdim=True)
    # in place: torch's logsumexp would hold two more of this size
    exp_NV = logits_NV.sub_(top_N1).exp_()
    sum_N1 = exp_NV.sum(1, keepdim=True)
    log_z_N1 = top_N1 + sum_N1.log()
    loss = (log_z_N1 - wanted_N1 + z_loss * log_z_N1.square()).sum()
    plain = loss
    if z_loss:
        plain = (log_z_N1 - wanted_N1).sum()
    if not gradient:
        return loss, plain, None
    by_logits_NV = exp_NV.mul_((1 + 2 * z_loss * log_z_N1) / sum_N1)
    by_logits_NV.scatter_add_(1, targets_N[:, None], -torch.ones_like(sum_N1))
    if slope_NV is not None:
        by_logits_NV.mul_(slope_NV)
    return loss, plain, by_logits_NV.to(x_NC.dtype)


def chunked_cross_entropy(
    x_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    *,
    chunks: int,
    softcap: float | None,
    z_loss: float,
    vocab_size: int | None = None,
    step: ChunkStep = chunk_step,
) -> tuple[Tensor, Tensor]:
    """Mean over the tokens of cross-entropy + z_loss·logsumexp² of the (capped) logits x·weightᵀ,
    in nats, at least fp32; and the mean of the cross-entropy alone, which has no gradient.

    Every target is a token: there is no ignored index. `vocab_size`: where the weights have rows
    more, which are no tokens and get no gradient. The products run in autocast's dtype where
    it is on. The gradient of the weights is summed over chunks in the weights' own dtype. There is
    no second backward pass. `step` may be `chunk_step` compiled.
    """
    device = x_NC.device.type
    dtype = x_NC.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)

    how = {"vocab_size": vocab_size or len(weight_VC), "softcap": softcap, "z_loss": z_loss}

    def one(
        x: Tensor, weight: Tensor, targets: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        return step(x, weight, targets, gradient=gradient, **how)

    if torch.is_grad_enabled():
        both: tuple[Tensor, Tensor] = _ChunkedCrossEntropy.apply(
            x_NC, weight_VC, targets_N, chunks, dtype, one
        )  # type: ignore[no-untyped-call]
        return both
    weight = weight_VC.to(dtype)
    losses = []
    plains = []
    for x, targets in zip(x_NC.chunk(chunks), targets_N.chunk(chunks), strict=True):
        loss, plain, _ = one(x.to(dtype), weight, targets, False)
        losses.append(loss)
        plains.append(plain)
    N = x_NC.shape[0]
    return _mean(losses, N), _mean(plains, N)


def _mean(losses: Sequence[Tensor], n: int) -> Tensor:
    return torch.stack(list(losses)).sum() / n


def _add_product(sum_VC: Tensor, a_NV: Tensor, b_NC: Tensor) -> None:
    """sum += aᵀ·b; where the sum is wider than the product, some rows at a time, for no second (V,
    C) in between."""
    if sum_VC.dtype is a_NV.dtype:
        torch.addmm(sum_VC, a_NV.t(), b_NC, out=sum_VC)  # not addmm_, which FlopCounterMode misses
        return
    for rows, columns in zip(sum_VC.split(ROWS), a_NV.split(ROWS, dim=1), strict=True):
        rows.add_(columns.t() @ b_NC)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_VC: Tensor,
        targets_N: Tensor,
        chunks: int,
        dtype: torch.dtype,
        step: ChunkStep,
    ) -> tuple[Tensor, Tensor]:
        N = x_NC.shape[0]
        weight = weight_VC.to(dtype)
        by_x_NC = torch.empty_like(x_NC)
        by_weight_VC = torch.zeros_like(weight_VC)
        losses = []
        plains = []
        xs = x_NC.chunk(chunks)
        by_xs = by_x_NC.chunk(chunks)
        for x, targets, by_x in zip(xs, targets_N.chunk(chunks), by_xs, strict=True):
            x = x.to(dtype)
            loss, plain, by_logits = step(x, weight, targets, True)
            assert by_logits is not None
            losses.append(loss)
            plains.append(plain)
            by_x.copy_(by_logits @ weight)
            _add_product(by_weight_VC, by_logits, x)
            del by_logits  # or it would stand beside the next chunk's logits
        ctx.save_for_backward(by_x_NC, by_weight_VC)
        ctx.n_tokens = N
        mean = _mean(losses, N)
        plain_mean = _mean(plains, N)
        ctx.mark_non_differentiable(plain_mean)
        return mean, plain_mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        by_x_NC, by_weight_VC = ctx.saved_tensors
        scale = grad / ctx.n_tokens
        return by_x_NC.mul_(scale), by_weight_VC.mul_(scale), None, None, None, None
