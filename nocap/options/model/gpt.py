"""GPT: blocks of attention and MLP, pre-norm by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nocap.config.hardware import capability
from nocap.config.keys import require
from nocap.config.trainer import Device, Precision
from nocap.options.model import BLOCK_KEYS, WHOLE_KEYS, Model

if TYPE_CHECKING:
    from torch import nn

    from nocap.config.run import Run
    from nocap.model.gpt import GPT


@dataclass(kw_only=True, slots=True)
class Gpt(Model):
    """nocap's own model and block, which read all keys."""

    READS: ClassVar[tuple[str, ...]] = (*BLOCK_KEYS, *WHOLE_KEYS)
    kind: str = "gpt"

    def check(self, run: Run) -> None:
        Model.check(self, run)
        own = self.residual_precision
        products = run.trainer.precision
        fits = own is Precision.fp32 or products is Precision.bf16
        require(
            fits,
            "model.residual_precision",
            f"be fp32 with trainer.precision={products.value}",
            own.value,
        )
        if self.fp8_head:
            self._check_fp8(run, products)

    def _check_fp8(self, run: Run, products: Precision) -> None:
        def refuse_unless(ok: bool, where: str) -> None:
            require(ok, "model.fp8_head", f"be false {where}", self.fp8_head)

        tokens = run.trainer.micro_batch * self.seq_len
        chunks = run.objective.loss_chunks
        refuse_unless(chunks <= 1, f"with objective.loss_chunks={chunks}")
        refuse_unless(products is Precision.bf16, f"with trainer.precision={products.value}")
        refuse_unless(
            not self.pad_logits, "with model.pad_logits=true, because the fp8 head pads too"
        )
        are_multiples = self.d_model % 16 == 0 and tokens % 16 == 0
        where = "if model.d_model or a micro-batch's tokens are no multiple of 16"
        refuse_unless(are_multiples, where)
        if run.trainer.device is not Device.cuda:
            return
        gpu = capability()
        if gpu is not None:
            major, minor = gpu
            where = f"on a GPU before capability 8.9, as this of {major}.{minor}"
            refuse_unless(gpu >= (8, 9), where)

    def build(self, run: Run, *, vocab_size: int) -> GPT:
        from nocap.model.gpt import GPT

        return GPT(run, vocab_size=vocab_size)

    def build_block(self, run: Run, layer: int) -> nn.Module:
        from nocap.model.gpt import Block

        return Block(run, layer)
