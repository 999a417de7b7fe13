"""SOAP (arXiv:2409.11321), Adam in the eigenbasis of Shampoo's preconditioner, for the blocks'
matrices; AdamW for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from nocap.training.optimizer import Group, States, Tensors


@dataclass(kw_only=True, slots=True)
class Soap(AdamW):
    """SOAP for the matrices inside the blocks; AdamW, with the same keys, for embeddings, head and
    vectors."""

    kind: str = "soap"
    basis_every: int = key(ge=1, le=10**9)  # steps between two updates of the eigenvectors

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training.optimizer import ByRule, split_matrices

        matrices, rest = split_matrices(model)
        return [self.adamw(rest), ByRule(self, self.groups(matrices))]

    def period(self) -> int:
        return self.basis_every

    def update(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """Update parameters of one shape. For a matrix W with gradient G, L and R are the averages
        of GGᵀ and GᵀG by β₂, and Q_L and Q_R their eigenvectors:

        G' = Q_LᵀGQ_R, M the average of G' by β₁, V that of G'² by β₂, W ← W - lr·(Q_L·(M̂ / (√V̂ +
        ε))·Q_Rᵀ + λ·W).

        The bases follow L and R by one step of orthogonal iteration, Q ← the orthonormal part of
        LQ, every `basis_every` updates, and M turns with them. A first step makes them and leaves
        the weights alone: in the basis of one gradient, that gradient says nothing about the other
        directions. Gradients and steps are turned in bf16 where the device computes it, and the
        bases are kept in it; averages are fp32.
        """
        for p, grad, state in zip(params, grads, states, strict=True):
            if state:
                self._update(group, p, grad, state)
            else:
                state.update(self._first(grad))

    def _first(self, grad: Tensor) -> dict[str, Tensor]:
        """Return a parameter's state from its first gradient, the eigenvectors as rows by falling
        eigenvalues, the order that orthogonal iteration keeps."""
        import torch

        from nocap.training.optimizer import matmul_dtype

        state = {"exp_avg": torch.zeros_like(grad), "exp_avg_sq": torch.zeros_like(grad)}
        dtype = matmul_dtype(grad)
        for side, product in (("left", grad @ grad.mT), ("right", grad.mT @ grad)):
            average = (1 - self.beta2) * product
            # on a GPU an update with NaN is launched, too, and not kept: eigh must not end the run
            finite = average.nan_to_num(0.0, 0.0, 0.0)
            basis = torch.linalg.eigh(finite).eigenvectors.mT.flip(0)
            state[side] = average
            state[f"{side}_basis"] = basis.to(dtype, memory_format=torch.contiguous_format)
        return state

    def _update(self, group: Group, p: Tensor, grad: Tensor, state: dict[str, Tensor]) -> None:
        """Take Adam's step in the eigenbases, then let these follow."""
        lr = group["lr"]
        step = group["step"] - 1  # the first one made the bases
        left_basis = state["left_basis"]
        right_basis = state["right_basis"]
        mean = state["exp_avg"]
        mean_sq = state["exp_avg_sq"]
        basis_dtype = left_basis.dtype

        low_grad = grad.to(basis_dtype)
        low_in_basis = left_basis @ (low_grad @ right_basis.mT)
        grad_in_basis = low_in_basis.to(grad.dtype)
        mean.lerp_(grad_in_basis, 1 - self.beta1)
        mean_sq.mul_(self.beta2).addcmul_(grad_in_basis, grad_in_basis, value=1 - self.beta2)

        mean_sq_bias = math.sqrt(1 - self.beta2**step)
        scale = mean_sq.sqrt().div_(mean_sq_bias).add_(self.eps)
        update_in_basis = (mean / scale).to(basis_dtype)
        update = left_basis.mT @ (update_in_basis @ right_basis)
        mean_bias = 1 - self.beta1**step
        p.mul_(1 - lr * group["weight_decay"])
        p.add_(update, alpha=-lr / mean_bias)

        left_product = low_grad @ low_grad.mT
        right_product = low_grad.mT @ low_grad
        state["left"].mul_(self.beta2).add_(left_product, alpha=1 - self.beta2)
        state["right"].mul_(self.beta2).add_(right_product, alpha=1 - self.beta2)
        if step % self.basis_every == 0:
            turn_bases(state)


def turn_bases(state: dict[str, Tensor]) -> None:
    """Let both bases follow their averages by one step, and take the gradient's mean along."""
    left_basis = state["left_basis"]
    right_basis = state["right_basis"]
    mean_in_basis = state["exp_avg"]
    dtype = mean_in_basis.dtype
    mean = left_basis.mT.to(dtype) @ (mean_in_basis @ right_basis.to(dtype))
    new_left = follow(state["left"], left_basis)
    new_right = follow(state["right"], right_basis)
    mean_in_basis.copy_(new_left @ (mean @ new_right.mT))


def follow(average: Tensor, basis: Tensor) -> Tensor:
    """Take the basis, (A, A) by rows, one step of orthogonal iteration further, in place. Return it
    in the average's precision."""
    import torch

    # the average is symmetric; LAPACK reads and writes columns
    product = basis.to(average.dtype) @ average
    q = torch.linalg.qr(product.mT).Q.mT
    return basis.copy_(q).to(average.dtype)
