"""Distillation (arXiv:1503.02531): learn from the probabilities of a finished run, too. Its
training counts as this run's time.

With p = softmax(logits/τ) of the teacher T and the model S, the loss is (1 - w)·CE +
w·τ²·KL(p_T‖p_S); w is `weight`, τ `temperature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.config.trainer import Compile
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context, Head


@dataclass(kw_only=True, slots=True)
class Distill(Idea):
    PER_TOKEN: ClassVar[bool] = True
    kind: str = "distill"
    run: str = key(identity=False)  # the teacher's folder, as outputs/runs/RUN
    weight: float = key(ge=0, le=1)  # of the teacher in the loss; 1: nothing else
    temperature: float = key(gt=0, le=1000)  # by which both models' logits are divided

    def check(self, run: Run) -> None:
        chunks = run.objective.loss_chunks
        require(
            chunks <= 1,
            "objective.loss_chunks",
            "be 0 or 1 beside ideas.distill, which compares all logits",
            chunks,
        )

    def learns_from(self) -> str | None:
        return self.run

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        # a function of the tokens, so that nothing of the teacher is trained, counted, copied or
        # saved
        part.teacher = None
        return part

    def prepare(self, part: Any, *, run: Run, device: torch.device) -> None:
        import torch

        from nocap.model.compiled import compile_in_place
        from nocap.training.trained import teacher_of

        model = teacher_of(self.run, "ideas.distill.run", run=run, device=device)
        if (how := run.trainer.compile) in (Compile.regional, Compile.max):
            compile_in_place(list(model.regions()), tuned=how is Compile.max)
        part.teacher = torch.no_grad()(model.logits)

    def flops_beside(self, run: Run, *, vocab_size: int) -> float:
        from nocap.model.flops import flops_per_token
        from nocap.training.trained import run_of

        # a forward, which has no backward
        return flops_per_token(run_of(self.run), vocab_size=vocab_size)[0] / 3

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        if part.training and part.teacher is not None:
            part.logits_BTV = part.teacher(context.tokens_BT)
        return x_BTC

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Any:
        from torch.nn import functional as F

        if part.teacher is None:  # the model is counted or looked at, not trained
            return None
        own, teacher_logits = (
            logits_BTV.flatten(0, 1).float() for logits_BTV in (head.logits(x_BTC), part.logits_BTV)
        )
        q, p = (
            (logits_NV / self.temperature).log_softmax(-1) for logits_NV in (own, teacher_logits)
        )
        divergence = self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)
        return self.weight * (divergence - F.cross_entropy(own, targets_BT.flatten()))
