"""GPT: embedding, blocks, head. The training forward returns the loss only, so that no logits
outlive the head.

B: batch, T: tokens, C: channels, V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nocap.config.option import declared
from nocap.config.trainer import ActivationCheckpointing, Precision
from nocap.model.context import Context
from nocap.model.fp8 import Fp8Linear
from nocap.model.head import Head, Padded
from nocap.model.language_model import Joined, LanguageModel, joined
from nocap.model.loss import Loss
from nocap.model.position import document_positions
from nocap.model.precision import product_precision
from nocap.options.ideas import overrides
from nocap.options.model import NormPlacement, ResidualScale

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.model.context import Mixer
    from nocap.options.model import Model
    from nocap.options.norm import Norm


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
        """Return f(*args). Where this part is checkpointed, the backward pass computes what is
        inside f again (arXiv:1604.06174)."""
        if self.checkpointing is not part:
            return f(*args)
        # what an option draws is drawn again alike
        y: Tensor = checkpoint(f, *args, use_reentrant=False, preserve_rng_state=self.draws)
        return y


class GPTHead(Head):
    """The head with the run's objective and ideas: the training loss in one module. Compiled as one
    region, the logits' extra passes over memory are fused away."""

    def __init__(self, run: Run, vocab_size: int, *, ideas: Joined = ()) -> None:
        """`ideas`: the model's; some change what is unembedded, some add a loss to this one."""
        m = run.model
        product: type[nn.Linear] = nn.Linear
        if m.fp8_head:
            product = Fp8Linear
        elif m.pad_logits:
            product = Padded
        super().__init__(
            run.norm.build(m.d_model),
            product(m.d_model, vocab_size, bias=False),
            softcap=m.logit_softcap,
            chunks=run.objective.loss_chunks,
        )
        self.objective = run.objective
        self.joined = ideas

    def normed(self, x_BTC: Tensor) -> Tensor:
        """Return what the matrix multiplies."""
        x_BTC = self.norm(x_BTC)
        for _, idea, part in self.joined:
            x_BTC = idea.unembed(part, x_BTC)
        return x_BTC

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


class GPT(LanguageModel):
    """A decoder-only transformer.

    Every matrix, the embedding included, starts as PyTorch's `nn.Linear` does: uniform in
    ±1/√fan_in. For the embedding, tied or not, fan_in is d_model.
    """

    def __init__(self, run: Run, *, vocab_size: int) -> None:
        super().__init__()
        m = run.model
        # built first, for the head reads them; what they draw changes no other weight
        ideas, self.joined = joined(
            run, "ideas", lambda idea: idea.build(run, vocab_size=vocab_size)
        )
        self.embedding = nn.Embedding(vocab_size, m.d_model)
        self.blocks = nn.ModuleList(m.build_block(run, layer) for layer in range(m.n_layer))
        self.head = GPTHead(run, vocab_size, ideas=self.joined)
        self.residual_precision = m.residual_precision
        self.documents_of = documents_of(run)
        # the token with which positions begin anew
        self.restart = run.document_token if run.position.restart else None
        self.position_option = run.position
        self.position = run.position.build(m)
        limit = 1 / math.sqrt(m.d_model)
        for table in (self.embedding, self.position):
            if isinstance(table, nn.Embedding):
                nn.init.uniform_(table.weight, -limit, limit)
        if m.tie_head:
            self.embedding.weight = self.head.unembed.weight
        self.ideas = ideas  # the last of its parts, as checkpoints have them
        self.plug_in_around(run)

    def trunk(
        self,
        tokens_BT: Tensor,
        *,
        where: slice | Tensor | None = None,
        mixers: Sequence[Mixer] | None = None,
    ) -> Tensor:
        """Return the residual stream of these token ids before the final norm, (B, T, C). `where`
        are the tokens' positions; default: `places`."""
        if where is None:
            where = self.places(tokens_BT)
        option = self.position_option
        x_BTC = option.embed(self.position, self.embedding(tokens_BT), where)
        x_BTC = self.carried(x_BTC)
        tables = option.tables(self.position, where)
        next_mixers = None if mixers is None else iter(mixers)
        documents = None if self.documents_of is None else self.documents_of(tokens_BT)
        context = Context(tokens_BT, x_BTC, tables, next_mixers, documents)
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
        if product_precision(x_BTC) is not Precision.bf16:
            return x_BTC
        return x_BTC.bfloat16()

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Loss:
        """Return the mean loss in nats per token."""
        loss: Loss = self.head(self.trunk(tokens_BT), targets_BT)
        return loss

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Return next-token logits (B, T, V), for generation and tests."""
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
