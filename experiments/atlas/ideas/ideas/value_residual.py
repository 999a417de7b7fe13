"""Value residual: every later layer's values are mixed with the first layer's (arXiv:2410.17897): v
← (1 - λ)·v + λ·v₁.

A learned λ a layer. At 0 the model is the one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.config.trainer import ActivationCheckpointing, Compile
from nocap.options.ideas import WithRate, learned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context


@dataclass(kw_only=True, slots=True)
class ValueResidual(WithRate):
    PER_TOKEN = True
    LEAST_LAYERS = 2
    kind: str = "value_residual"
    start: float = key(ge=-1e3, le=1e3)  # the first layer's share at the start

    def check(self, run: Run) -> None:
        WithRate.check(self, run)
        again, t = (ActivationCheckpointing.block, ActivationCheckpointing.attention), run.trainer
        rule = (
            "be off or mlp beside ideas.value_residual where trainer.compile is on: no value can "
            "leave what is computed again"
        )
        ok = t.compile is Compile.off or t.activation_checkpointing not in again
        require(ok, "trainer.activation_checkpointing", rule, t.activation_checkpointing.value)

    def build_layer(self, run: Run, layer: int) -> nn.Module:
        return learned(share=self.start) if layer else learned()

    def qkv(
        self, part: Any, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        if "share" not in part:
            context.memory[self.kind] = v_BTKD
            return q_BTHD, k_BTKD, v_BTKD
        share = part["share"]
        return q_BTHD, k_BTKD, (1 - share) * v_BTKD + share * context.memory[self.kind]
