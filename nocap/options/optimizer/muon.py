"""Muon (Keller Jordan, 2024) for the blocks' matrices, AdamW for the rest. Muon is torch's own,
with the matrices of one shape orthogonalised together, in fewer and larger products.

Options: Polar Express (arXiv:2505.16932), NorMuon (arXiv:2510.05491), and a momentum that rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.config.option import require_default
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor, nn

    from nocap.training.optimizer import Group, States, Tensors

# numbers in a stack: a CPU gains with small matrices only, a GPU must have room for some copies
AT_ONCE = {"cpu": 2**17, "cuda": 2**26}
EPS = 1e-7  # torch's: the least norm of a matrix that is divided by it
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the odd polynomial ax + bx³ + cx⁵
# Polar Express: for each iteration the odd polynomial ax + bx³ + cx⁵ that is nearest to 1 on the
# interval in which the iterations before it leave the singular values, from [0.001, 1] on; an
# interval counts as beginning at 0.024 of its end at least. The numbers are the paper's list;
# tests/test_optimizers.py derives them again.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),  # and for all after it
)
# each but the last is used of x / 1.01, as in the paper: a singular value that rounding puts beyond
# the interval still converges
SAFETY = 1.01


class Iteration(Enum):
    """The polynomials that bring a matrix's singular values to 1."""

    # one for all iterations, which leaves them within about 0.3 of 1
    newton_schulz = "newton_schulz"
    # one for each, the best for what the one before leaves (arXiv:2505.16932)
    polar_express = "polar_express"


class MuonScale(Enum):
    """How Muon's step is scaled by a matrix's shape (torch's `adjust_lr_fn`)."""

    original = "original"
    match_rms_adamw = "match_rms_adamw"


@dataclass(kw_only=True, slots=True)
class Muon(AdamW):
    """Muon for the matrices inside the blocks; AdamW, with the inherited keys, for embeddings, head
    and vectors."""

    kind: str = "muon"
    # peak learning rate of the matrices inside the blocks; optimizer.lr is for the other parameters
    muon_lr: float = key(gt=0, le=1000)
    momentum: float = key(ge=0, lt=1)  # momentum of the matrices' updates
    # momentum at the beginning of its warm-up
    momentum_start: float = key(ge=0, lt=1, default=0.85)
    # steps in which the momentum rises in a straight line from its start
    momentum_warmup_steps: int = key(ge=0, le=10**9, default=0)
    ns_steps: int = key(ge=1, le=99)  # number of iterations of the orthogonalisation
    iteration: Iteration = Iteration.newton_schulz  # polynomials of the orthogonalisation
    # decay rate of the rows' second moments, as in NorMuon with 0.95 (arXiv:2510.05491); null: none
    row_beta2: float | None = key(ge=0, lt=1, default=None)
    scale: MuonScale  # factor on a step that depends on the shape of the matrix

    def __post_init__(self) -> None:
        AdamW.__post_init__(self)
        if self.momentum_warmup_steps == 0:
            why = "with optimizer.momentum_warmup_steps=0, because only the warm-up reads this key"
            require_default(self, "optimizer.momentum_start", why)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training.optimizer import ByRule, split_matrices

        matrices, rest = split_matrices(model)
        params = list(matrices.values())
        by_rule = ByRule(self, params, lr=self.muon_lr, weight_decay=self.weight_decay)
        return [self.adamw(rest), by_rule]

    def update(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """Update as torch's Muon does: the same bits on a CPU with bf16 products. On one without,
        fp32 in place of bf16. On CUDA a product of a stack may be summed in another order than that
        of a matrix."""
        by_shape: dict[torch.Size, list[int]] = {}
        for i, p in enumerate(params):
            by_shape.setdefault(p.shape, []).append(i)
        at_once = AT_ONCE[params[0].device.type]
        for shape, indices in by_shape.items():
            stack_size = max(1, at_once // shape.numel())
            for first in range(0, len(indices), stack_size):
                stack = indices[first : first + stack_size]
                self._update_stack(
                    group,
                    [params[i] for i in stack],
                    [grads[i] for i in stack],
                    [states[i] for i in stack],
                )

    def _update_stack(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """Update parameters that have one shape."""
        import torch
        from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

        from nocap.training.optimizer import buffers, matmul_dtype

        momenta = buffers(states, "momentum_buffer", params)
        momentum = self.momentum_at(group["step"])
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        # Nesterov's look ahead
        updates: Sequence[Tensor] = torch._foreach_lerp(grads, momenta, momentum)
        dtype = matmul_dtype(params[0])
        is_torchs = dtype is torch.bfloat16 and self.iteration is Iteration.newton_schulz
        if len(updates) == 1 and is_torchs:
            updates = [_zeropower_via_newtonschulz(updates[0], NEWTON_SCHULZ, self.ns_steps, EPS)]
        else:
            updates = orthogonalized(torch.stack(list(updates)), self.polynomials(), dtype)
        if self.row_beta2 is not None:
            first_columns = [p[:, :1] for p in params]  # which have a number a row
            moments = buffers(states, "row_second_moment", first_columns)
            updates = _even_rows(updates, moments, self.row_beta2)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        lr = _adjust_lr(group["lr"], self.scale.value, params[0].shape)
        torch._foreach_add_(params, updates, alpha=-lr)

    def momentum_at(self, step: int) -> float:
        """Return the momentum of a step, counted from 1."""
        steps = self.momentum_warmup_steps
        if step > steps:
            return self.momentum
        start = self.momentum_start
        return start + (self.momentum - start) * (step - 1) / steps

    def polynomials(self) -> list[tuple[float, float, float]]:
        """Return a, b and c of each iteration."""
        if self.iteration is Iteration.newton_schulz:
            return [NEWTON_SCHULZ] * self.ns_steps
        polynomials = []
        for i in range(self.ns_steps):
            if i < len(POLAR_EXPRESS) - 1:
                a, b, c = POLAR_EXPRESS[i]
                polynomials.append((a / SAFETY, b / SAFETY**3, c / SAFETY**5))
            else:
                polynomials.append(POLAR_EXPRESS[-1])
        return polynomials


def orthogonalized(
    x_NAB: Tensor, polynomials: list[tuple[float, float, float]], dtype: torch.dtype
) -> list[Tensor]:
    """Return N matrices with singular values near 1, by an iteration for each polynomial: X ← a·X +
    (b·G + c·G²)·X with G = X·Xᵀ. `x_NAB` may be lost."""
    import torch

    x = x_NAB.to(dtype)
    norm_N = torch.stack(torch._foreach_norm(x.unbind()))
    x.div_(norm_N.clamp(min=EPS)[:, None, None])
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    for a, b, c in polynomials:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    if is_tall:
        x = x.mT
    # exact, and as CUDA's fast path wants it
    x = x.to(x_NAB.dtype, memory_format=torch.contiguous_format)
    return list(x.unbind())


def _even_rows(updates: Sequence[Tensor], moments: list[Tensor], beta2: float) -> list[Tensor]:
    """NorMuon: each row over the root of its second moment, and the whole as long as an orthogonal
    matrix, √min(A, B)."""
    import torch

    means = [update.square().mean(1, keepdim=True) for update in updates]
    torch._foreach_lerp_(moments, means, 1 - beta2)
    evened = []
    for update, moment in zip(updates, moments, strict=True):
        evened.append(update / (moment.sqrt() + 1e-10))
    lengths = torch.stack(torch._foreach_norm(evened)).clamp(min=1e-10)
    length = math.sqrt(min(updates[0].shape))
    factors = (length / lengths).unbind()
    torch._foreach_mul_(evened, list(factors))
    return evened
