"""Distillation (arXiv:1503.02531): learn from the probabilities of a finished run, too. Its training counts as this run's time.

With p = softmax(logits/τ) of the teacher T and the model S, the loss is (1 - w)·CE + w·τ²·KL(p_T‖p_S); w is `weight`, τ `temperature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor

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
        require(chunks <= 1, "objective.loss_chunks", "be 0 or 1 beside ideas.distill, which compares all logits", chunks)

    def learns_from(self) -> str | None:
        return self.run

    def build(self, run: Run, *, vocab_size: int) -> Any:
        from nocap.training.trained import Taught

        return Taught(self.run, "ideas.distill.run")

    def prepare(self, part: Any, *, run: Run, device: Any) -> None:
        part.find_teacher(run, device)

    def flops_beside(self, run: Run, *, vocab_size: int) -> float:
        return self.build(run, vocab_size=vocab_size).forward_flops(vocab_size)

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        part.hear(context.tokens_BT)
        return x_BTC

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Any:
        from torch.nn import functional as F

        if part.teacher is None:  # the model is counted or looked at, not trained
            return None
        own, theirs = (logits_BTV.flatten(0, 1).float() for logits_BTV in (head.logits(x_BTC), part.logits_BTV))
        q, p = ((logits_NV / self.temperature).log_softmax(-1) for logits_NV in (own, theirs))
        divergence = self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)
        return self.weight * (divergence - F.cross_entropy(own, targets_BT.flatten()))
