"""Ideas that fit no group and mix freely: `ideas=[x0,smear]`. Each plugs into a few named joints of
the model and the step.

    a joint                         where                                              its part
    prepare(part, …)                before the first of all forwards, on the device    build
    before_forward(part, model, …)  a step's first forward                             build
    micro_batch(part, tokens, …)    the tokens and targets of a step's forwards        build
    embed(part, x_BTC, context)     after the token and position embeddings            build
    enter(part, x_BTC, context)     a block's input                                    build_layer
    qkv(part, q, k, v, context)     a layer's queries, keys and values before they mix build_layer
    leave(part, x_BTC, context)     a block's output                                   build_layer
    readout(part, x_BTC, context)   before the head's norm                             build
    unembed(part, x_BTC)            after it: times the head's matrix, the logits      build
    loss(part, x_BTC, …)            a part of the training loss                        build
    arrange(windows, job)           which training data is read, in which order
    built(run, model)               the model when its first weights are drawn
    rates(name)                     a parameter's share of learning rate and weight decay
    before_clip(part, model, …)     a step's gradients, before their norm is taken     build_around
    before_step, after_step         around the optimizer's step                        build_around
    validating(part, model)         the weights that are validated                     build_around

Where an idea builds no part, the joints of that place are not called. With several ideas, each
joint goes in the order of their names. Parameters draw from a generator keyed by their place, so
that those of the rest stay the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.config.option import AnyRun, Option
from nocap.options.run_parts import RunParts

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from nocap.data.windows import Windows
    from nocap.model.context import Context
    from nocap.model.head import Head


# The joints, by what builds the part that they are called with.
JOINTS = {
    "build": ("embed", "readout", "unembed", "loss", "prepare", "before_forward", "micro_batch"),
    "build_layer": ("enter", "qkv", "leave"),
    "build_around": ("before_clip", "before_step", "after_step", "validating"),
}
STEP_JOINTS = ("before_forward", "micro_batch", "before_clip", "before_step", "after_step")
MODEL_JOINTS = (*JOINTS["build"], *JOINTS["build_layer"])
STREAM_JOINTS = ("embed", *JOINTS["build_layer"], "readout", "unembed")  # of all forwards


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Factors on a parameter's learning rate and weight decay."""

    lr: float = 1.0
    weight_decay: float = 1.0


@dataclass(kw_only=True, slots=True)
class Idea(Option):
    """An idea. Its yaml begins with `# @package ideas.NAME`."""

    # each token by itself, given the context: decodes from a cache, and takes `data.document_mask`.
    # Else the prefix is recomputed, and the mask refused
    PER_TOKEN: ClassVar[bool] = False

    def build(self, run: AnyRun, *, vocab_size: int) -> nn.Module | None:
        """Return the model's part, with its parameters and buffers; `nn.Module()` where it has
        none."""
        return None

    def build_layer(self, run: AnyRun, layer: int) -> nn.Module | None:
        """Return a block's part; None leaves this layer as it is. Read the layer's number here, not
        in a joint: a compiled block serves all layers."""
        return None

    def build_around(self, run: AnyRun, model: nn.Module) -> nn.Module | None:
        """Return the step's part. Its persistent buffers are saved in checkpoints."""
        return None

    # --- what it says of itself ---

    def flops_per_token(self, run: AnyRun, *, vocab_size: int) -> float:
        """Return the FLOPs of matrix products that it adds to a training token. It describes the
        joints of its own class, and no others (see `nocap.config.option.declared`): without it they
        are counted."""
        return 0.0

    def flops_beside(self, run: AnyRun, *, vocab_size: int) -> float:
        """Return the FLOPs of a training token that counting the model does not find: those of
        another model."""
        return 0.0

    def in_the_end(self) -> Idea | None:
        """Return the idea as the last steps have it, by which a step's cost is measured; None: it
        has no effect there."""
        return self

    # --- joints of the model ---

    def prepare(self, part: Any, *, run: AnyRun, device: torch.device) -> None:
        """Load what training alone needs; the model is on its device, and not compiled yet."""

    def before_forward(self, part: Any, model: nn.Module, *, step: int) -> None:
        """Begin a training step. What changes with the step is set here as a function of the step
        alone: so it needs no place in checkpoints."""

    def micro_batch(
        self, part: Any, tokens_BT: Tensor, targets_BT: Tensor, *, step: int
    ) -> tuple[Tensor, Tensor]:
        """Return what a training forward of this step is given; of as many tokens in all."""
        return tokens_BT, targets_BT

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC

    def enter(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC

    def qkv(
        self, part: Any, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        return q_BTHD, k_BTKD, v_BTKD

    def leave(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC

    def readout(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC

    def unembed(self, part: Any, x_BTC: Tensor) -> Tensor:
        """Change all that meets the head's matrix: in the training loss and its parts, in
        validation, in generation; before a soft-cap."""
        return x_BTC

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Tensor | None:
        """Return a scalar that is added to the training loss, logged as `train/loss_NAME`. `x_BTC`
        is before the head's norm; `head.next_token(x, t)` is the mean cross-entropy of the head's
        logits, in nats."""
        return None

    def built(self, run: AnyRun, model: nn.Module) -> None:
        """Set first weights, or tie some of them to others. The draws are over: those of the rest
        stay the same."""

    # --- joints of the data and the step ---

    def arrange(self, windows: Windows, job: Any) -> tuple[float, float]:
        """Change which windows of the training data are read, and in which order. Returns the
        seconds that it took to know that, and how many of them just now. `job`
        is a `nocap.training.job.Job`."""
        return 0.0, 0.0

    def rates(self, name: str) -> Rate:
        """Return the factor on the learning rate of the parameter of this name in the model, which
        need not be the idea's own."""
        return Rate()

    def before_clip(self, part: Any, model: nn.Module, *, step: int) -> None:
        """Act on gradients that are summed over ranks. Of those that are None here, no norm is
        taken."""

    def before_step(self, part: Any, model: nn.Module, *, step: int) -> None:
        """Act on gradients that are summed over ranks and clipped; weights are those of before."""

    def after_step(self, part: Any, model: nn.Module, *, step: int) -> None:
        """Act on updated weights; gradients are gone."""

    def validating(self, part: Any, model: nn.Module) -> AbstractContextManager[object]:
        """Give the model, inside the block, the weights that are validated, and generated from."""
        return nullcontext()


@dataclass(kw_only=True, slots=True)
class WithRate(Idea):
    """An idea whose parameters have a factor of their own on the learning rate. Its yaml is named
    as its kind."""

    LEAST_LAYERS: ClassVar[int] = 1  # that it makes sense in

    lr: float = key(gt=0, le=1e6)  # factor on the learning rate of the idea's own parameters

    def check(self, run: AnyRun) -> None:
        parts: RunParts = run
        name = next(name for name, idea in parts.ideas.items() if idea is self)
        rule = f"be named {self.kind}, like its kind (its lr finds the parameters by this name)"
        require(name == self.kind, f"ideas.{name}", rule, name)
        rule = f"be at least {self.LEAST_LAYERS} with ideas.{self.kind}"
        n_layer = parts.model.n_layer
        require(n_layer >= self.LEAST_LAYERS, "model.n_layer", rule, n_layer)

    def rates(self, name: str) -> Rate:
        is_own = f"ideas.{self.kind}." in name
        if is_own:
            return Rate(lr=self.lr)
        return Rate()


def learned(**starts: float | list[float]) -> nn.ParameterDict:
    """Return a part of numbers, or of a few together, that are learned from these on."""
    import torch
    from torch import nn

    parameters = {name: nn.Parameter(torch.tensor(start)) for name, start in starts.items()}
    return nn.ParameterDict(parameters)


def overrides(idea: Idea, *joints: str) -> bool:
    """Say whether the idea defines one of these joints itself."""
    return any(getattr(type(idea), joint) is not getattr(Idea, joint) for joint in joints)
