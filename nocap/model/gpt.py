"""GPT: embedding, blocks, head. The training forward returns the loss only, so that no logits outlive the head.

B: batch, T: tokens, C: channels, V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nocap import schema
from nocap.model.attention import CausalSelfAttention, Mixer, build_mixer
from nocap.model.chunked import chunk_step, chunked_cross_entropy, wide
from nocap.model.mlp import build_mlp
from nocap.model.norm import build_norm
from nocap.model.position import rotary_tables
from nocap.schema import ActivationCheckpointing, NormPlacement, ResidualScale


def recomputed(f: Callable[..., Tensor], *args: Any) -> Tensor:
    """f(*args), kept for the backward pass as its arguments alone: what is inside f is computed again there (arXiv:1604.06174)."""
    y: Tensor = checkpoint(f, *args, use_reentrant=False, preserve_rng_state=False)  # nothing in the model is random
    return y


class Branch(nn.Module):
    """One residual branch f with its norms and scale: x + s·f(norm(x)), norm(x + s·f(x)), or x + s·norm(f(norm(x)))."""

    def __init__(self, f: nn.Module, *, norm: schema.Norm, model: schema.Model, scale: float) -> None:
        super().__init__()
        self.f, self.scale, self.placement = f, scale, model.norm_placement
        self.norm = build_norm(norm, model.d_model)
        self.norm_after = build_norm(norm, model.d_model) if self.placement is NormPlacement.both else None

    def forward(self, x_BTC: Tensor, *context: object) -> Tensor:
        if self.placement is NormPlacement.post:
            y_BTC: Tensor = self.norm(x_BTC + self.scale * self.f(x_BTC, *context))
            return y_BTC
        y_BTC = self.f(self.norm(x_BTC), *context)
        if self.norm_after is not None:
            y_BTC = self.norm_after(y_BTC)
        return x_BTC + self.scale * y_BTC


class Block(nn.Module):
    """Attention, then MLP."""

    def __init__(self, run: schema.Run, layer: int) -> None:
        super().__init__()
        m = run.model
        attention = CausalSelfAttention(
            d_model=m.d_model,
            n_head=m.n_head,
            n_kv_heads=run.attention.n_kv_heads,
            qk_norm=m.qk_norm,
            mixer=build_mixer(run.attention, layer),
        )
        small, kind = 1 / math.sqrt(2 * m.n_layer), m.residual_scale
        self.attention = Branch(attention, norm=run.norm, model=m, scale=1.0 if kind is ResidualScale.none else small)
        self.mlp = Branch(build_mlp(run.mlp, m.d_model), norm=run.norm, model=m, scale=small if kind is ResidualScale.both else 1.0)
        self.checkpointing = run.trainer.activation_checkpointing

    def forward(self, x_BTC: Tensor, rotary: tuple[Tensor, Tensor] | None, mixer: Mixer | None = None) -> Tensor:
        if self.checkpointing is ActivationCheckpointing.block:
            return recomputed(self.branches, x_BTC, rotary, mixer)
        return self.branches(x_BTC, rotary, mixer)

    def branches(self, x_BTC: Tensor, rotary: tuple[Tensor, Tensor] | None, mixer: Mixer | None) -> Tensor:
        attention, mlp = ActivationCheckpointing.attention, ActivationCheckpointing.mlp
        x_BTC = (
            recomputed(self.attention, x_BTC, rotary, mixer) if self.checkpointing is attention else self.attention(x_BTC, rotary, mixer)
        )
        return recomputed(self.mlp, x_BTC) if self.checkpointing is mlp else self.mlp(x_BTC)


class Head(nn.Module):
    """Final norm, unembedding and loss in one module: compiled as one region, the logits' extra passes over memory are fused away."""

    def __init__(self, run: schema.Run, vocab_size: int) -> None:
        super().__init__()
        self.norm = build_norm(run.norm, run.model.d_model)
        self.unembed = nn.Linear(run.model.d_model, vocab_size, bias=False)
        self.softcap, self.z_loss, self.chunks = run.model.logit_softcap, run.objective.z_loss, run.objective.loss_chunks
        self.chunk_step = chunk_step

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """The head as one region; where its loss is in chunks, what is done to one of them: else each would be compiled by itself."""
        if self.chunks > 1:
            self.chunk_step = torch.compile(chunk_step, *args, **kwargs)
        else:
            super().compile(*args, **kwargs)

    def logits(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.unembed(self.norm(x_BTC))
        if self.softcap is not None:
            logits_BTV = self.softcap * torch.tanh(logits_BTV / self.softcap)
        return logits_BTV

    def forward(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean loss in nats per token, fp32. The z-loss joins in training only."""
        if self.chunks > 1:
            return chunked_cross_entropy(
                self.norm(x_BTC).flatten(0, 1),
                self.unembed.weight,
                targets_BT.flatten(),
                chunks=self.chunks,
                softcap=self.softcap,
                z_loss=self.z_loss if self.training else 0.0,
                step=self.chunk_step,
            )
        logits_NV = wide(self.logits(x_BTC).flatten(0, 1))
        loss = F.cross_entropy(logits_NV, targets_BT.flatten())
        if self.training and self.z_loss > 0:
            loss = loss + self.z_loss * logits_NV.logsumexp(-1).square().mean()
        return loss


class GPT(nn.Module):
    """A decoder-only transformer.

    Every matrix, the embedding included, starts as PyTorch's `nn.Linear` does: uniform in ±1/√fan_in. For the embedding, tied or not,
    fan_in is d_model. Rotary tables are buffers outside the checkpoint.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, run: schema.Run, *, vocab_size: int) -> None:
        super().__init__()
        m = run.model
        self.embedding = nn.Embedding(vocab_size, m.d_model)
        self.blocks = nn.ModuleList(Block(run, layer) for layer in range(m.n_layer))
        self.head = Head(run, vocab_size)
        self.position = nn.Embedding(m.seq_len, m.d_model) if isinstance(run.position, schema.Learned) else None
        for table in (self.embedding, self.position):
            if table is not None:
                nn.init.uniform_(table.weight, -1 / math.sqrt(m.d_model), 1 / math.sqrt(m.d_model))
        if m.tie_head:
            self.embedding.weight = self.head.unembed.weight
        if isinstance(run.position, schema.Rope):
            cos, sin = rotary_tables(seq_len=m.seq_len, d_head=m.d_model // m.n_head, base=run.position.base)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.rope = isinstance(run.position, schema.Rope)

    def trunk(self, tokens_BT: Tensor) -> Tensor:
        """Token ids to the residual stream before the final norm, (B, T, C)."""
        x_BTC: Tensor = self.embedding(tokens_BT)
        if self.position is not None:
            x_BTC = x_BTC + self.position.weight[: tokens_BT.shape[1]]
        rotary = (self.cos, self.sin) if self.rope else None
        for block in self.blocks:
            x_BTC = block(x_BTC, rotary)
        return x_BTC

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean next-token loss, a scalar in nats per token."""
        loss: Tensor = self.head(self.trunk(tokens_BT), targets_BT)
        return loss

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Next-token logits (B, T, V), for generation and tests."""
        return self.head.logits(self.trunk(tokens_BT))


def build_model(run: schema.Run, *, vocab_size: int) -> GPT:
    """The run's model on the CPU, its weights a function of the seed alone: the same for every device and world size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        return GPT(run, vocab_size=vocab_size)


def count_parameters(model: GPT) -> dict[str, int]:
    """`total` counts a tied matrix once; `non_embedding` leaves out the embedding, the positions and the head."""
    total = sum(p.numel() for p in model.parameters())
    embeddings = {id(t.weight): t.weight.numel() for t in (model.embedding, model.position, model.head.unembed) if t is not None}
    return {"total": total, "non_embedding": total - sum(embeddings.values())}
