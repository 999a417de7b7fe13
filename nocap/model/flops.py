"""Floating-point operations of a training token: forward and backward, 2 a multiply-add.

Matrix products count 6 a weight. Attention scores and values count 12·d a key that a query meets,
and causal attention meets T/2 on average: in this convention GPT-2 124M at T=1024 costs 797.8M a
token. `causal=False` counts all T, as FlopCounterMode does (854.4M).

An option without a formula is counted by running it on tensors that have shapes and no memory, and
is named in the basis. With all pairs of tokens and open windows, n tokens cost c + a·n + b·n²,
which three lengths tell apart. The convention keeps c and a·n, and of the n keys of each query in
b·n² those that the query meets: so an option that is counted has the figure that its formula would
give. What cannot be counted is null, and the basis says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from nocap.config.option import Option, declared
from nocap.config.run import Run
from nocap.config.trainer import ActivationCheckpointing
from nocap.model.build import build_model
from nocap.model.context import Context
from nocap.model.counted_flops import Cost, Forward, NotCountedError, counted_cost
from nocap.model.gpt import GPTHead
from nocap.options.attention import Attention, causal_keys
from nocap.options.ideas import MODEL_JOINTS, Idea
from nocap.options.model import Model, NormPlacement
from nocap.options.model.gpt import Gpt


def flops_per_token(run: Run, *, vocab_size: int, causal: bool = True) -> tuple[float | None, str]:
    """Count the FLOPs of one training token (the matrices, the attention products, the head; what
    is done to each number by itself is not counted), and how they are known: `arithmetic`, or with
    what was counted, or why they are not known."""
    tally = _Tally(run=run, vocab_size=vocab_size, causal=causal).filled()
    return tally.total(), tally.basis()


def component_flops(
    run: Run, *, vocab_size: int, causal: bool = True, formulas: bool = True
) -> dict[str, float | None]:
    """Count the same by component, in FLOPs a training token; null where it could not be counted.
    Without `formulas` all but the projections of nocap's own attention are counted, which shows
    whether a formula is right."""
    tally = _Tally(run=run, vocab_size=vocab_size, causal=causal, formulas=formulas)
    return tally.filled().components


@dataclass(kw_only=True, slots=True)
class _Tally:
    """The components of a run's FLOPs, and how each of them is known."""

    run: Run
    vocab_size: int
    causal: bool
    formulas: bool = True
    counting: bool = True  # else what has no formula stays unknown
    components: dict[str, float | None] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    not_counted: list[str] = field(default_factory=list)

    def total(self) -> float | None:
        known = [flops for flops in self.components.values() if flops is not None]
        if len(known) < len(self.components):
            return None
        return sum(known)

    def basis(self) -> str:
        if self.not_counted:
            return f"not counted ({'; '.join(self.not_counted)})"
        parts = ["arithmetic"]
        if self.counted:
            parts.append(f"counted: {', '.join(self.counted)}")
        if self.run.data.document_mask:
            parts.append("at most: as if a sequence were one document")
        return "; ".join(parts)

    def filled(self) -> Self:
        """Add every component, and return the tally itself."""
        m = self.run.model
        if _has_nocaps_parts(m):
            self._attention()
            self._mlp()
            self._norm()
            self._position()
            self._head()
            self._ideas()
            return self
        formula = self._formula(m, "flops_per_token", "build", "build_block")
        if formula:
            self.components["model"] = formula(self.run, vocab_size=self.vocab_size)
            self._ideas()
        else:  # its ideas are counted with it
            self._count("model", "model", self._whole_model)
        return self

    # --- the components

    def _attention(self) -> None:
        m = self.run.model
        option = self.run.attention
        if type(option).build is not Attention.build:
            self._own_attention()
            return
        d_kv = m.d_model // m.n_head * option.n_kv_heads
        self.components["qkv"] = 6.0 * m.n_layer * m.d_model * (m.d_model + 2 * d_kv)
        self.components["attention_out"] = 6.0 * m.n_layer * m.d_model**2
        keys_met = self._formula(option, "keys_met", "mixer")
        if keys_met is None:
            self._count("scores", "attention", lambda: self._of_layers(_mixer))
            return
        keys: float = m.n_layer * m.seq_len
        if self.causal:
            keys = sum(keys_met(layer, m.seq_len) for layer in range(m.n_layer))
        self.components["scores"] = 12.0 * m.d_model * keys

    def _own_attention(self) -> None:
        """Add an attention that builds its own module: all that it does goes to the scores."""
        run = self.run
        self.components["qkv"] = 0.0
        self.components["attention_out"] = 0.0
        formula = self._formula(run.attention, "flops_per_token", "build", "mixer")
        if formula and self.causal:
            per_layer = [formula(run, layer) for layer in range(run.model.n_layer)]
            self.components["scores"] = sum(per_layer)
        else:
            self._count("scores", "attention", lambda: self._of_layers(_attention_module))

    def _of_layers(self, make: Callable[[Run, int], Forward]) -> float:
        """Sum over all layers, each with the keys that its own queries meet."""
        total = 0.0
        for layer in range(self.run.model.n_layer):
            cost = counted_cost(partial(make, countable(self.run), layer))
            total += self._per_token(cost, self._keys(layer))
        return total

    def _mlp(self) -> None:
        n_layer = self.run.model.n_layer
        option = self.run.mlp
        formula = self._formula(option, "flops_per_token", "build")
        if formula:
            self.components["mlp"] = n_layer * formula(self.run.model.d_model)
        else:
            self._count("mlp", "mlp", lambda: n_layer * self._of_module(option.build))

    def _norm(self) -> None:
        """Add the norms: before or after each branch, or both, and before the head."""
        m = self.run.model
        option = self.run.norm
        per_branch = 2 if m.norm_placement is NormPlacement.both else 1
        n_branches = 2 * m.n_layer
        n_norms = n_branches * per_branch + 1
        formula = self._formula(option, "flops_per_token", "build")
        if formula:
            self.components["norm"] = n_norms * formula(m.d_model)
        else:
            self._count("norm", "norm", lambda: n_norms * self._of_module(option.build))

    def _of_module(self, build: Callable[[int], nn.Module]) -> float:
        """Count a module that reads the residual stream alone, once."""
        C = self.run.model.d_model

        def make() -> Forward:
            module = build(C)
            return lambda n: module(_numbers(1, n, C))

        return self._per_token(counted_cost(make))

    def _position(self) -> None:
        joints = ("build", "embed", "tables", "turn")
        formula = self._formula(self.run.position, "flops_per_token", *joints)
        if formula:
            self.components["position"] = formula(self.run)
        else:
            make = partial(_position, countable(self.run))
            self._count("position", "position", lambda: self._per_token(counted_cost(make)))

    def _head(self) -> None:
        """Add the unembedding, and all that the objective does."""
        run = self.run
        formula = self._formula(run.objective, "flops_per_token", "loss")
        if formula:
            self.components["head"] = formula(run, vocab_size=self.vocab_size)
            return
        make = partial(_head, countable(run), self.vocab_size)

        def count_without_norm() -> float:
            # its norm is counted with the others
            return self._per_token(counted_cost(make)) - self._of_module(run.norm.build)

        self._count("head", "objective", count_without_norm)

    def _ideas(self) -> None:
        """Add the ideas: formulas, the model's cost with the others less its cost without, other
        models."""
        run = self.run
        if not run.ideas:
            return
        known: list[float] = []
        ideas_with_formula: dict[str, Idea] = {}
        without_formula: list[str] = []
        for name, idea in run.ideas.items():
            formula = self._idea_formula(idea)
            if formula is None:
                without_formula.append(name)
            else:
                ideas_with_formula[name] = idea
                known.append(formula(run, vocab_size=self.vocab_size))
        known.append(self._of_other_models())
        if not without_formula:
            self.components["ideas"] = sum(known)
            return

        def count_the_others() -> float:
            full_cost = counted_cost(partial(_model, countable(run), self.vocab_size))
            cost_without = self._cost_of(countable(run.varied(ideas=ideas_with_formula)))
            counted = self._per_token(lambda n: full_cost(n) - cost_without(n))
            return counted + sum(known)

        self._count("ideas", "ideas", count_the_others, kind="+".join(without_formula))

    def _cost_of(self, run: Run) -> Cost:
        """Return a countable model's cost: by arithmetic where all of it has a formula, else
        counted."""
        if self._arithmetic(run, run.model.seq_len) is None:
            return counted_cost(partial(_model, run, self.vocab_size))
        return lambda n: cast(float, self._arithmetic(run, n))

    def _arithmetic(self, run: Run, n: int) -> float | None:
        """Return the cost of n tokens in a model whose parts all have a formula for all pairs of
        tokens; None for another."""
        if run.ideas or not _has_nocaps_parts(run.model):
            return None
        attention = run.attention.at_window(n)
        at_n = run.varied(model=replace(run.model, seq_len=n), attention=attention)
        tally = _Tally(
            run=at_n,
            vocab_size=self.vocab_size,
            causal=False,
            formulas=self.formulas,
            counting=False,
        )
        per_token = tally.filled().total()
        if per_token is None:
            return None
        return n * per_token

    def _idea_formula(self, idea: Idea) -> Callable[..., float] | None:
        joints = (*MODEL_JOINTS, "build", "build_layer", "built")
        return self._formula(idea, "flops_per_token", *joints)

    def _whole_model(self) -> float:
        keys = fmean(map(self._keys, range(self.run.model.n_layer)))
        cost = counted_cost(partial(_model, countable(self.run), self.vocab_size))
        return self._per_token(cost, keys) + self._of_other_models()

    def _of_other_models(self) -> float:
        """Sum over the other models that ideas run."""
        ideas = self.run.ideas.values()
        return sum(idea.flops_beside(self.run, vocab_size=self.vocab_size) for idea in ideas)

    # --- how they become known

    def _formula(self, option: Option, fact: str, *of: str) -> Callable[..., float] | None:
        if not self.formulas:
            return None
        return declared(option, fact, of=of)

    def _count(
        self, component: str, group: str, flops: Callable[[], float], *, kind: str = ""
    ) -> None:
        """Take a component from counting the option of this group."""
        option = group
        if group != "model":
            kind = kind or getattr(self.run, group).kind
            option = f"{group}={kind}"
        try:
            if not self.counting:
                raise NotCountedError("it has no formula")
            self.components[component] = flops()
        except NotCountedError as error:
            self.components[component] = None
            self.not_counted.append(f"{option}: {error}")
        else:
            self.counted.append(option)

    def _keys(self, layer: int) -> float:
        """Return how many keys a query of this layer meets on average."""
        T = self.run.model.seq_len
        if not self.causal:
            return T
        return causal_keys(self.run.attention.window_of(layer), T)

    def _per_token(self, cost: Cost, keys: float | None = None) -> float:
        """Return FLOPs a token where a query meets so many keys, by default those under the causal
        mask."""
        T = self.run.model.seq_len
        if keys is None and self.causal:
            keys = causal_keys(None, T)
        elif keys is None:
            keys = T
        hidden_keys = T - keys
        return cost(T) / T - _by_pair(cost, T) * hidden_keys


def _has_nocaps_parts(model: Model) -> bool:
    """Return whether a model is made of the parts that are counted one by one."""
    return type(model).build is Gpt.build and type(model).build_block is Gpt.build_block


def _by_pair(cost: Cost, T: int) -> float:
    """Return b of a cost of c + a·n + b·n² by its second difference, which is 0 where cost grows
    with n alone. A text of one token does not show it."""
    long = T
    middle = T // 2
    short = T // 4
    is_linear = cost(middle) * long == cost(long) * middle
    if middle == 0 or is_linear:
        return 0.0
    upper_slope = (cost(long) - cost(middle)) / (long - middle)
    lower_slope = (cost(middle) - cost(short)) / (middle - short)
    return max(0.0, (upper_slope - lower_slope) / (long - short))


# --- what is counted ------------------------------------------------------------------------------


def countable(run: Run) -> Run:
    """Vary a run to the same mathematics with open windows, by kernels that run on tensors without
    memory, nothing padded, nothing computed twice, and a sequence one document."""
    return without_documents(run).varied(
        attention=run.attention.at_window(run.model.seq_len).countable(),
        model=replace(run.model, fp8_head=False, pad_logits=False),
        trainer=replace(run.trainer, activation_checkpointing=ActivationCheckpointing.off),
    )


def without_documents(run: Run) -> Run:
    """Vary a run to attention over whole sequences."""
    return run.varied(data=replace(run.data, document_mask=False))


def _numbers(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)


def _tokens(n: int) -> Tensor:
    return torch.zeros(1, n, dtype=torch.long)


def _mixer(run: Run, layer: int) -> Forward:
    m = run.model
    mixer = run.attention.mixer(run, layer)
    d_head = m.d_model // m.n_head

    def forward(n: int) -> Any:
        q = _numbers(1, m.n_head, n, d_head)
        k = _numbers(1, run.attention.n_kv_heads, n, d_head)
        v = _numbers(1, run.attention.n_kv_heads, n, d_head)
        return mixer(q, k, v)

    return forward


def _attention_module(run: Run, layer: int) -> Forward:
    """Return a layer's attention as a function of the residual stream alone."""
    module = run.attention.build(run, layer)
    positions = run.position.build(run.model)

    def forward(n: int) -> Any:
        x_BTC = _numbers(1, n, run.model.d_model)
        tables = run.position.tables(positions, slice(0, n))
        return module(x_BTC, Context(_tokens(n), x_BTC, tables, None))

    return forward


def _position(run: Run) -> Forward:
    """Make the embedding and the turns of all layers; a module from outside turns inside."""
    m = run.model
    option = run.position
    part = option.build(m)
    D = m.d_model // m.n_head
    n_turns = m.n_layer if type(run.attention).build is Attention.build else 0

    def forward(n: int) -> Any:
        where = slice(0, n)
        embedded = option.embed(part, _numbers(1, n, m.d_model), where)
        q_BTHD = _numbers(1, n, m.n_head, D)
        k_BTKD = _numbers(1, n, run.attention.n_kv_heads, D)
        tables = option.tables(part, where)
        turned = [option.turn(q_BTHD, k_BTKD, tables) for _ in range(n_turns)]
        return embedded, turned

    return forward


def _head(run: Run, vocab_size: int) -> Forward:
    head = GPTHead(run, vocab_size)
    return lambda n: head(_numbers(1, n, run.model.d_model), _tokens(n)).total


def _model(run: Run, vocab_size: int) -> Forward:
    model = build_model(run, vocab_size=vocab_size)
    return lambda n: model(_tokens(n), _tokens(n)).total
