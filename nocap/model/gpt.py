"""GPT: embedding, blocks, head. The training forward returns the loss only, so that no logits
outlive the head.

B: batch, T: tokens, C: channels, V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nocap.config.keys import InputError
from nocap.config.option import declared
from nocap.config.trainer import ActivationCheckpointing, Precision
from nocap.model.attention import autocast_like
from nocap.model.chunked import chunk_step, chunked_cross_entropy, wide
from nocap.model.fp8 import Fp8Linear
from nocap.model.language_model import Joined, LanguageModel, Loss, joined
from nocap.model.position import document_positions
from nocap.options.ideas import JOINTS, overrides
from nocap.options.model import NormPlacement, ResidualScale

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.attention import Mixer
    from nocap.options.model import Model
    from nocap.options.norm import Norm


class Context:
    """What the layers of one forward share."""

    documents: Any = None  # the fourth argument of the mixers, where they have one

    def __init__(
        self, tokens_BT: Tensor, x0_BTC: Tensor, tables: Any, mixers: Iterator[Mixer] | None
    ) -> None:
        self.tokens_BT = tokens_BT
        self.x0_BTC = x0_BTC  # the residual stream where the first block finds it
        self.tables = tables  # of the positions, for `Position.turn`
        self.mixers = mixers  # one a layer, in place of the layers' own
        self.memory: dict[str, Tensor] = {}  # what an idea leaves for a later layer


class Branch(nn.Module):
    """One residual branch f with its norms and scale: x + s·f(norm(x)), norm(x + s·f(x)), or x +
    s·norm(f(norm(x)))."""

    def __init__(self, f: nn.Module, *, norm: Norm, model: Model, scale: float) -> None:
        super().__init__()
        self.f = f
        self.scale = scale
        self.placement = model.norm_placement
        self.norm = norm.build(model.d_model)
        self.norm_after: nn.Module | None = None
        if self.placement is NormPlacement.both:
            self.norm_after = norm.build(model.d_model)

    def forward(self, x_BTC: Tensor, *context: object) -> Tensor:
        if self.placement is NormPlacement.post:
            sum_BTC = x_BTC + self.scaled(self.f(x_BTC, *context))
            normed_BTC: Tensor = self.norm(sum_BTC)
            return normed_BTC.type_as(x_BTC)
        y_BTC = self.f(self.norm(x_BTC), *context)
        if self.norm_after is not None:
            y_BTC = self.norm_after(y_BTC)
        return (x_BTC + self.scaled(y_BTC)).type_as(x_BTC)

    def scaled(self, y_BTC: Tensor) -> Tensor:
        # eager, a factor of 1 would cost two passes over memory
        if self.scale == 1.0:
            return y_BTC
        return self.scale * y_BTC


class Block(nn.Module):
    """Attention, then MLP."""

    def __init__(self, run: Run, layer: int) -> None:
        super().__init__()
        m = run.model
        attention_scale = 1.0
        mlp_scale = 1.0
        small = 1 / math.sqrt(2 * m.n_layer)
        if m.residual_scale is not ResidualScale.none:
            attention_scale = small
        if m.residual_scale is ResidualScale.both:
            mlp_scale = small
        attention = run.attention.build(run, layer)
        self.attention = Branch(attention, norm=run.norm, model=m, scale=attention_scale)
        mlp = run.mlp.build(m.d_model)
        self.mlp = Branch(mlp, norm=run.norm, model=m, scale=mlp_scale)
        self.checkpointing = run.trainer.activation_checkpointing
        self.draws = run.draws
        self.ideas, self.joined = joined(
            run, f"blocks.{layer}.ideas", lambda idea: idea.build_layer(run, layer)
        )
        # Passed only where there are some: an attention module from outside need not know of ideas.
        self.of_qkv: tuple[Joined, ...] = ()
        if any(overrides(idea, "qkv") for _, idea, _ in self.joined):
            self.of_qkv = (self.joined,)

    def forward(self, x_BTC: Tensor, context: Context) -> Tensor:
        for _, idea, part in self.joined:
            x_BTC = idea.enter(part, x_BTC, context)
        x_BTC = self._call(ActivationCheckpointing.block, self.branches, x_BTC, context)
        for _, idea, part in self.joined:
            x_BTC = idea.leave(part, x_BTC, context)
        return x_BTC

    def branches(self, x_BTC: Tensor, context: Context) -> Tensor:
        part = ActivationCheckpointing.attention
        x_BTC = self._call(part, self.attention, x_BTC, context, *self.of_qkv)
        return self._call(ActivationCheckpointing.mlp, self.mlp, x_BTC)

    def _call(self, part: ActivationCheckpointing, f: Callable[..., Tensor], *args: Any) -> Tensor:
        """f(*args). Where this part is checkpointed, f's inside is computed again in the backward
        pass (arXiv:1604.06174)."""
        if self.checkpointing is not part:
            return f(*args)
        # nothing in the model is random
        y: Tensor = checkpoint(f, *args, use_reentrant=False, preserve_rng_state=self.draws)
        return y


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
    """Final norm, unembedding and loss in one module: compiled as one region, the logits' extra
    passes over memory are fused away."""

    def __init__(self, run: Run, vocab_size: int) -> None:
        super().__init__()
        self.norm = run.norm.build(run.model.d_model)
        product: type[nn.Linear] = nn.Linear
        if run.model.fp8_head:
            product = Fp8Linear
        elif run.model.pad_logits:
            product = Padded
        self.unembed = product(run.model.d_model, vocab_size, bias=False)
        self.pads = run.model.pad_logits
        self.softcap = run.model.logit_softcap
        self.objective = run.objective
        self.chunks = run.objective.loss_chunks
        self.chunk_step = chunk_step
        # the model's ideas: some change what is unembedded, some add a loss to this one
        self.joined: Joined = ()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the head as one region. Where its loss is in chunks, compile `chunk_step`: else
        each chunk would be compiled anew."""
        if self.chunks > 1:
            self.chunk_step = torch.compile(chunk_step, *args, **kwargs)
        else:
            super().compile(*args, **kwargs)

    def normed(self, x_BTC: Tensor) -> Tensor:
        """Return what the matrix multiplies."""
        x_BTC = self.norm(x_BTC)
        for _, idea, part in self.joined:
            x_BTC = idea.unembed(part, x_BTC)
        return x_BTC

    def logits(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.unembed(self.normed(x_BTC))
        if self.softcap is not None:
            logits_BTV = self.softcap * torch.tanh(logits_BTV / self.softcap)
        return logits_BTV

    def forward(self, x_BTC: Tensor, targets_BT: Tensor) -> Loss:
        """Return the training loss with its parts, in nats per token; in validation the plain
        next-token loss."""
        if not self.training:
            return Loss(self.next_token(x_BTC, targets_BT))
        of_ideas = {}
        for name, idea, part in self.joined:
            loss = idea.loss(part, x_BTC, targets_BT, self)
            if loss is not None:
                of_ideas[name] = loss
        of_objective: Loss = self.objective.loss(self, x_BTC, targets_BT)
        return of_objective.plus(of_ideas)

    def next_token(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token, fp32."""
        loss, _ = self.cross_entropy(x_BTC, targets_BT, z_loss=0.0)
        return loss

    def cross_entropy(
        self, x_BTC: Tensor, targets_BT: Tensor, *, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """Mean of cross-entropy + z_loss·logsumexp², and of the cross-entropy alone."""
        if self.chunks > 1:
            weight_VC = self.unembed.weight
            return chunked_cross_entropy(
                self.normed(x_BTC).flatten(0, 1),
                padded(weight_VC) if self.pads else weight_VC,
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


class GPT(LanguageModel):
    """A decoder-only transformer.

    Every matrix, the embedding included, starts as PyTorch's `nn.Linear` does: uniform in
    ±1/√fan_in. For the embedding, tied or not, fan_in is d_model.
    """

    def __init__(self, run: Run, *, vocab_size: int) -> None:
        super().__init__()
        m = run.model
        self.embedding = nn.Embedding(vocab_size, m.d_model)
        self.blocks = nn.ModuleList(m.build_block(run, layer) for layer in range(m.n_layer))
        self.head = Head(run, vocab_size)
        self.residual_precision = m.residual_precision
        self.documents = documents_of(run)
        # the token with which positions begin anew
        self.restart = run.document_start if run.position.restart else None
        self.position_option = run.position
        self.position = run.position.build(m)
        limit = 1 / math.sqrt(m.d_model)
        for table in (self.embedding, self.position):
            if isinstance(table, nn.Embedding):
                nn.init.uniform_(table.weight, -limit, limit)
        if m.tie_head:
            self.embedding.weight = self.head.unembed.weight
        self.ideas, self.joined = joined(
            run, "ideas", lambda idea: idea.build(run, vocab_size=vocab_size)
        )
        self.head.joined = self.joined
        self.plug_in_around(run)

    def trunk(
        self,
        tokens_BT: Tensor,
        *,
        where: slice | Tensor | None = None,
        mixers: Sequence[Mixer] | None = None,
    ) -> Tensor:
        """Token ids to the residual stream before the final norm, (B, T, C). `where` are their
        positions; default: `places`."""
        if where is None:
            where = self.places(tokens_BT)
        option = self.position_option
        x_BTC = option.embed(self.position, self.embedding(tokens_BT), where)
        x_BTC = self.carried(x_BTC)
        tables = option.tables(self.position, where)
        next_mixers = None if mixers is None else iter(mixers)
        context = Context(tokens_BT, x_BTC, tables, next_mixers)
        if self.documents is not None:
            context.documents = self.documents(tokens_BT)
        for _, idea, part in self.joined:
            x_BTC = self.carried(idea.embed(part, x_BTC, context))
            context.x0_BTC = x_BTC
        for block in self.blocks:
            x_BTC = self.carried(block(x_BTC, context))
        for _, idea, part in self.joined:
            x_BTC = idea.readout(part, x_BTC, context)
        return x_BTC

    def places(self, tokens_BT: Tensor) -> slice | Tensor:
        """Return the positions of these tokens: from 0 on, or from 0 on in each document."""
        if self.restart is None:
            return slice(0, tokens_BT.shape[1])
        return document_positions(tokens_BT, start=self.restart)

    def carried(self, x_BTC: Tensor) -> Tensor:
        """Return the residual stream in its own precision, whatever a part returned. Where products
        are fp32, as in validation, so is it."""
        if self.residual_precision is not Precision.bf16:
            return x_BTC
        if autocast_like(x_BTC) is not Precision.bf16:
            return x_BTC
        return x_BTC.bfloat16()

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Loss:
        """Mean loss in nats per token."""
        loss: Loss = self.head(self.trunk(tokens_BT), targets_BT)
        return loss

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Next-token logits (B, T, V), for generation and tests."""
        return self.head.logits(self.trunk(tokens_BT))

    def next_logits(self, tokens_BT: Tensor) -> Tensor:
        return self.head.logits(self.trunk(tokens_BT)[:, -1:])[:, 0]

    def regions(self) -> list[nn.Module]:
        return [*self.blocks, self.head]


def documents_of(run: Run) -> Callable[[Tensor], Any] | None:
    """Return the function from tokens to the fourth argument of the mixers, where attention stays
    inside a document."""
    if not run.data.document_mask:
        return None
    documents = declared(run.attention, "documents", of=("build", "mixer"))
    assert documents is not None, "Run refuses the mask beside attention without documents"
    of_tokens: Callable[[Tensor], Any] = documents(run)
    return of_tokens


def build_model(run: Run, *, vocab_size: int) -> LanguageModel:
    """Return the run's model on the CPU, its weights a function of the seed alone: the same for
    every device and world size.

    Errors:
        InputError: an idea has a joint that this model has no place for, or for which it built no
            part.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = run.model.build(run, vocab_size=vocab_size)
    check_plugged_in(run, model)
    return model


def check_plugged_in(run: Run, model: LanguageModel) -> None:
    """Refuse ideas with a joint that is never called: the option would have no effect, in
    silence."""
    places = {path for path, _ in model.named_modules()}
    for name, idea in run.ideas.items():
        has_part = {
            "build": f"ideas.{name}" in places,
            "build_layer": any(path.endswith(f".ideas.{name}") for path in places),
            "build_around": f"around.{name}" in places,
        }
        for builder, joints in JOINTS.items():
            own_joints = [joint for joint in joints if overrides(idea, joint)]
            if own_joints and not has_part[builder]:
                raise InputError(
                    f"ideas.{name} must make a part for its joint {own_joints[0]} in {builder}, "
                    f"but made none in model.kind={run.model.kind}"
                )
            if has_part[builder] and not own_joints:
                raise InputError(
                    f"ideas.{name} must have a joint for the part that its {builder} made: one of "
                    f"{', '.join(joints)}"
                )


def count_parameters(model: nn.Module) -> dict[str, int]:
    """`total` counts a tied matrix once; `non_embedding` leaves out every table of embeddings, and
    the head's matrix."""
    total = sum(p.numel() for p in model.parameters())
    head = getattr(model, "head", None)
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    if isinstance(head, Head):
        tables.append(head.unembed.weight)
    sizes = {id(t): t.numel() for t in tables}
    return {"total": total, "non_embedding": total - sum(sizes.values())}
