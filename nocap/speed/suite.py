"""The standard suites: the same arms on every machine, so that their results can be laid side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from nocap.config.compose import compose
from nocap.config.paths import conf_dir
from nocap.config.trainer import Trainer
from nocap.options.objective import Objective
from nocap.speed.arms import compose_arm
from nocap.speed.clock import Clock

BASE = {
    "cpu": "model=tiny tokenizer=bytes trainer.device=cpu trainer.micro_batch=2 trainer.batch_tokens=512",
    "gpu": "model=d12 tokenizer=gpt2 trainer.device=cuda",
}
PLAIN = {  # the baseline, spelt out: what each arm changes one word of
    "cpu": "attention=flash mlp=gelu4x trainer.precision=fp32 trainer.compile=off",
    "gpu": "attention=flash mlp=gelu4x trainer.precision=bf16 trainer.compile=regional",
}
OTHERS = {  # what takes longest to warm up comes last: it is what a short time leaves out
    "cpu": ("trainer.precision=bf16", "trainer.compile=regional"),
    "gpu": ("trainer.compile=off", "trainer.precision=fp32", "trainer.compile=full"),
}
SECONDS = {"cpu": 285.0, "gpu": 420.0}  # five and eight minutes, less the start, the search for the batch and the last round
MEMORY_SAVERS = {  # key → arm; an arm where the schemas have the key
    "loss_chunks": "objective.loss_chunks=8",
    "activation_checkpointing": "trainer.activation_checkpointing=block",
}
BATCHES = (128, 64, 32, 16, 8, 4, 2, 1)  # sequences of a GPU step, largest first


@dataclass(frozen=True, kw_only=True)
class Suite:
    base: list[str]
    arms: list[str]  # the first is the baseline
    seconds: float


def suite(name: str, words: Sequence[str]) -> Suite:
    """The suite of this name, the user's words over its base. On a GPU the batch is the largest that all arms fit with.

    Errors:
        ValueError: the words do not compose.
    """
    base = [*BASE[name].split(), *PLAIN[name].split(), *words]
    if name == "gpu" and not any(word.startswith("trainer.micro_batch=") for word in words):
        T = compose(base).model.seq_len
        base += batch_words(largest_batch(lambda size: _fits([*base, *batch_words(size, T)])), T)
    return Suite(base=base, arms=suite_arms(name), seconds=SECONDS[name])


def suite_arms(name: str) -> list[str]:
    """The baseline, then each attention and MLP that there is, and the rest, one change an arm."""
    plain = PLAIN[name].split()
    options = [f"{group}={path.stem}" for group in ("attention", "mlp") for path in sorted((conf_dir() / group).glob("*.yaml"))]
    made = [option for option in options if option not in plain]
    known = {f.name for schema in (Objective, Trainer) for f in fields(schema)}
    memory_savers = [word for key, word in MEMORY_SAVERS.items() if key in known]
    return [" ".join(plain), *made, *memory_savers, *OTHERS[name]]


def batch_words(size: int, seq_len: int) -> list[str]:
    """A step of one micro-batch of `size` sequences."""
    return [f"trainer.micro_batch={size}", f"trainer.batch_tokens={size * seq_len}"]


def largest_batch(fits: Callable[[int], bool]) -> int:
    """The first of `BATCHES` that fits.

    Errors:
        ValueError: not even one sequence does.
    """
    for size in BATCHES:
        if fits(size):
            return size
    raise ValueError("--suite gpu: a batch of one sequence must fit in the GPU's memory, and does not")


def _fits(base: list[str]) -> bool:
    """Whether the hungriest arm (scores and logits in memory) takes a step beside what all arms hold for good, with a tenth to spare."""
    import torch

    from nocap.speed.contestant import Contestant
    from nocap.training import memory

    arm = compose_arm(base, "attention=mha trainer.compile=off")
    try:
        contestant = Contestant(arm, clock=Clock.cuda)
        contestant.block()
    except Exception as error:
        if not memory.ran_out(error):
            raise
        error.__traceback__ = None  # its frames hold the tensors
        torch.cuda.empty_cache()
        return False
    parts = contestant.facts()["memory_mib"]
    contestant.close()
    held = (parts["parameters"] + parts["optimizer"]) * len(suite_arms("gpu"))
    return bool((parts["peak"] + held) * memory.MIB < 0.9 * torch.cuda.get_device_properties(0).total_memory)
