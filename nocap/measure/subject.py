"""What a profile can be of: a training step, a forward, or the two parts of generating text. No
torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Compile, Precision


class SubjectKind(Enum):
    """What is taken apart."""

    step = "step"
    forward = "forward"  # of one micro-batch to its loss, without gradients
    prefill = "prefill"  # the prompt, in one pass
    token = "token"  # one decoded token of each text

    @property
    def title(self) -> str:
        """Return a noun for a sentence."""
        if self is SubjectKind.token:
            return "decoded token"
        return self.value

    @property
    def trains(self) -> bool:
        return self is SubjectKind.step

    @property
    def generates(self) -> bool:
        return self in (SubjectKind.prefill, SubjectKind.token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is taken apart, and of what size: the keys of the run say the rest."""

    of: SubjectKind = SubjectKind.step
    prompt: int = 0  # tokens, where text is generated
    texts: int = 1  # decoded together
    cached: bool = True  # over keys and values that are kept; else the prefix again for each token

    def tokens(self, run: Run) -> int:
        """Return the tokens that one device works on."""
        t = run.trainer
        sizes = {
            SubjectKind.step: t.batch_tokens // t.devices,
            SubjectKind.forward: t.micro_batch * run.model.seq_len,
            SubjectKind.prefill: self.prompt,
            SubjectKind.token: self.texts,
        }
        return sizes[self.of]

    def run(self, run: Run) -> Run:
        """Return the run whose one micro-batch is taken apart. A text is generated as
        `nocap.generate` does it: in fp32, by kernels that take any length, with nothing
        compiled."""
        if self.of.trains:
            return run
        run = run.in_the_end()
        t = run.trainer
        T = run.model.seq_len
        if not self.of.generates:
            return run.varied(trainer=replace(t, batch_tokens=t.micro_batch * T * t.devices))
        trainer = replace(
            t,
            micro_batch=self.texts,
            batch_tokens=self.texts * T * t.devices,
            precision=Precision.fp32,
            compile=Compile.off,
            cuda_graphs=False,
        )
        return run.varied(trainer=trainer, attention=run.attention.portable())


def prompt_tokens(run: Run, asked: int | None) -> int:
    """Return the length of the prompt: half of the model's context, unless another is asked for.

    Errors:
        ValueError: it leaves no place for a token after it.
    """
    context = run.model.seq_len
    rule = "be at least 2 with --generate, for a prompt and a token after it"
    require(context >= 2, "model.seq_len", rule, context)
    prompt = asked
    if prompt is None:
        prompt = context // 2
    rule = f"be from 1 to {context - 1}, so that one more token fits into model.seq_len={context}"
    require(1 <= prompt < context, "--prompt", rule, prompt)
    return prompt
