"""An arm from a file that the command line names: anybody's training step, timed by the code that times nocap's own.

The file defines `build(request, **options)`. It gets what a step is to be built for (`requested`), and as strings the options that follow
the file on the command line; it returns a callable `step`. `step(tokens)` takes one training step (forward, backward, optimizer) on tokens
of shape (batch_tokens / seq_len, seq_len + 1), int64, on the request's device: inputs and, one further, targets. It returns the mean loss
in nats per token, a float or a tensor of one element, which the bench reads once a step. The callable has these attributes:

    parameters          the tensors that a step updates
    settings            what it is: a dict of plain JSON values, shown below the table
    optimizers          optional: those of torch whose state counts as memory
    flops_per_token     optional: a number, for MFU

The tokens are those of nocap's own arms, read by the same code inside the time that counts. Before each block the bench sets the number of
threads, and that fp32 means fp32 (no TF32).
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nocap.config.keys import InputError, require
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.data.batches import microbatches, sequences_of, train_windows
from nocap.measure.arms import compose_arm
from nocap.measure.timed import DivergedError, TimedArm
from nocap.training import memory

FLAG = "--arm-external"
OVERRIDES = ("trainer.compile", "trainer.micro_batch", "trainer.precision")  # what such an arm may set for itself


def requested(run: Run) -> dict[str, Any]:
    """The attributes of a request. Sizes are the shared overrides'; what a file cannot do, it refuses."""
    return {
        **{key: getattr(run.model, key) for key in ("n_layer", "d_model", "n_head", "seq_len")},
        **{key: getattr(run.trainer, key).value for key in ("device", "precision", "compile")},
        **{key: getattr(run.trainer, key) for key in ("micro_batch", "batch_tokens", "threads")},
        "microbatches": microbatches(run),
        "vocab_size": run.tokenizer.vocab_size,
        "seed": run.seed,
    }


def compose_externals(base: Sequence[str], typed: Sequence[str], baseline: Run) -> list[ExternalArm]:
    """An arm for each FLAG as typed in a shell: the file, then its options (`name=value`) and overrides of its own. Runs the files.

    Errors:
        ValueError: a wrong word, or what is wrong with a file; tokens of another shape than the baseline's.
    """
    arms = []
    for words in typed:
        try:
            arms.append(_compose(base, words, baseline))
        except (OSError, ValueError) as error:
            raise InputError(f"{FLAG} {words!r}: {error}") from error
    return arms


def _compose(base: Sequence[str], typed: str, baseline: Run) -> ExternalArm:
    file, *words = shlex.split(typed) or [""]
    for word in words:
        require("=" in word, "an option of the file", "be name=value", word)
    overrides = [word for word in words if "." in word.partition("=")[0]]
    for word in overrides:
        require(word.partition("=")[0] in OVERRIDES, "an override", f"be of {', '.join(OVERRIDES)}", word)
    _, run = compose_arm(base, shlex.join(overrides))
    for key, own, expected in (  # a step of another number of tokens, or of other tokens, is another measurement
        ("trainer.device", run.trainer.device.value, baseline.trainer.device.value),
        ("trainer.batch_tokens", run.trainer.batch_tokens, baseline.trainer.batch_tokens),
        ("model.seq_len", run.model.seq_len, baseline.model.seq_len),
        ("the vocabulary", run.tokenizer.vocab_size, baseline.tokenizer.vocab_size),
    ):
        require(own == expected, key, f"be the baseline's {expected}: set it for all arms, outside --arm", own)
    path, options = expanded(file), dict(word.split("=", 1) for word in words if word not in overrides)
    return ExternalArm(" ".join([path.name, *words]), run, path, options)


class ExternalArm(TimedArm):
    """Runs the file.

    Errors, also of `warm`:
        OSError, InputError: the file, its `build`, what that returned, or its first steps break the protocol.
    """

    def __init__(self, label: str, run: Run, path: Path, options: dict[str, str]) -> None:
        super().__init__(label, run)
        self.path, self.options, self.request = path, options, requested(run)
        source = path.read_bytes()
        sha256 = hashlib.sha256(source).hexdigest()
        self.config = {"external": {"file": path.name, "sha256": sha256, "options": options, "request": self.request}}
        self.module = ModuleType(f"external_{path.stem}_{sha256[:12]}")
        sys.modules[self.module.__name__] = self.module  # the compiler and dataclasses look for it there
        sys.path.insert(0, str(path.absolute().parent))  # its neighbours can be imported, as a script's
        with self._named("cannot be run"):
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(self.module))
        require(hasattr(self.module, "build"), str(path), "define a function build(request)", "none")

    def build(self) -> float:
        """Build; one step, which must change a parameter, gives the MiB that a forward keeps for its backward."""
        torch.manual_seed(self.request["seed"])
        with self._named("cannot build its step"):
            step = self.module.build(SimpleNamespace(**self.request), **self.options)
            self.built = SimpleNamespace(
                call=step,
                parameters=list(dict.fromkeys(step.parameters)),
                optimizers=list(getattr(step, "optimizers", ())),
                settings=json.loads(json.dumps(dict(step.settings), allow_nan=False)),
                flops=getattr(step, "flops_per_token", None),
            )
            before, _ = [_bits(p) for p in self.built.parameters], self.describe()
        self.windows = train_windows(self.run, self.job.train_shards)
        self.built.ahead = self._tokens()
        counted: AbstractContextManager[dict[int, int]] = memory.saved_for_backward(self.built.parameters)
        with nullcontext({}) if self.device.type == "cuda" else counted as kept:  # on a GPU memory is measured
            self.step()
        if [_bits(p) for p in self.built.parameters] == before:
            raise InputError(f"{self.path} must update its parameters, got a step that changes none")
        return sum(kept.values()) / self.request["microbatches"] / memory.MIB

    def step(self) -> float:
        """The file's step on the next random batch; the batch after it is read before its loss."""
        with self._named("cannot take a step"):
            loss = self.built.call(self.built.ahead)
            self.at += 1
            self.built.ahead = self._tokens()
            mean = float(loss)
        if not math.isfinite(mean):
            raise DivergedError(f"the loss is {mean!r} after {self.at} steps")
        return mean

    def describe(self) -> dict[str, Any]:
        known = self.built
        counts = {"flops_per_token": known.flops, "flops_basis": known.flops and "the file's own", "settings": known.settings}
        mib = memory.parts_mib(known.parameters, known.optimizers)
        return {**counts, "params": sum(p.numel() for p in known.parameters), "memory_mib": mib}

    def _tokens(self) -> Tensor:
        run, n = self.run, self.request["microbatches"]
        first = self.at % run.trainer.steps * n * run.trainer.micro_batch
        rows = sequences_of(first=first, rank=0, world=1, microbatches=n, micro_batch=run.trainer.micro_batch)
        return torch.from_numpy(self.windows.read(rows)).to(self.device).long()

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """An error of the file's code as one line that names it; what it prints goes to stderr. Memory that runs out is no mistake."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except (Exception, SystemExit) as error:  # the file may raise anything
            if memory.ran_out(error):
                raise
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)]
            where, first = f", line {lines[-1]}" if lines else "", next(iter(str(error).strip().splitlines()), "")
            raise InputError(f"{self.path} {what}: {type(error).__name__}{where}: {first}") from error.with_traceback(None)


def _bits(p: Tensor) -> int:
    """A sum over the bytes, which an update changes."""
    return int(p.detach().flatten().view(torch.uint8).sum(dtype=torch.int64))
