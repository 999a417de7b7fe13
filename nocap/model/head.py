"""The head of a model: final norm, unembedding and cross-entropy.

B: batch, T: tokens, C: channels, V: vocabulary, N: B·T.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocap.model.chunked import chunk_step, chunked_cross_entropy, wide


class Padded(nn.Linear):
    """A bias-free linear map whose product has a multiple of 64 columns, as a GPU's kernels want
    them; the columns of zeros are cut off."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, padded(self.weight))[..., : self.out_features]


def padded(weight_VC: Tensor) -> Tensor:
    """Return the matrix with rows of zeros up to a multiple of 64."""
    missing = -len(weight_VC) % 64
    return F.pad(weight_VC, (0, 0, 0, missing))


class Head(nn.Module):
    """Final norm, unembedding and cross-entropy: what an objective and an idea ask of a head."""

    def __init__(
        self, norm: nn.Module, unembed: nn.Linear, *, softcap: float | None, chunks: int
    ) -> None:
        """`softcap`: limit c of the logits, c·tanh(logits/c). `chunks`: of a micro-batch, whose
        logits exist one chunk at a time."""
        super().__init__()
        self.norm = norm
        self.unembed = unembed
        self.softcap = softcap
        self.chunks = chunks
        self.chunk_step = chunk_step

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the head as one region. Where its loss is in chunks, compile `chunk_step`: else
        each chunk would be compiled anew."""
        if self.chunks > 1:
            self.chunk_step = torch.compile(chunk_step, *args, **kwargs)
        else:
            super().compile(*args, **kwargs)

    def normed(self, x_BTC: Tensor) -> Tensor:
        """Return what the matrix multiplies."""
        normed_BTC: Tensor = self.norm(x_BTC)
        return normed_BTC

    def logits(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.unembed(self.normed(x_BTC))
        if self.softcap is not None:
            logits_BTV = self.softcap * torch.tanh(logits_BTV / self.softcap)
        return logits_BTV

    def next_token(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, fp32."""
        loss, _ = self.cross_entropy(x_BTC, targets_BT, z_loss=0.0)
        return loss

    def cross_entropy(
        self, x_BTC: Tensor, targets_BT: Tensor, *, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """Return the mean of cross-entropy + z_loss·logsumexp², and of the cross-entropy alone."""
        if self.chunks > 1:
            weight_VC = self.unembed.weight
            return chunked_cross_entropy(
                self.normed(x_BTC).flatten(0, 1),
                padded(weight_VC) if isinstance(self.unembed, Padded) else weight_VC,
                targets_BT.flatten(),
                chunks=self.chunks,
                softcap=self.softcap,
                z_loss=z_loss,
                vocab_size=len(weight_VC),
                step=self.chunk_step,
            )
        logits_NV = wide(self.logits(x_BTC).flatten(0, 1))
        plain = F.cross_entropy(logits_NV, targets_BT.flatten())
        if z_loss <= 0:
            return plain, plain
        log_z_N = logits_NV.logsumexp(-1)
        return plain + z_loss * log_z_N.square().mean(), plain
