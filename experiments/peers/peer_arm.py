"""A peer's training step as an arm of a bench: timed by the code that times nocap's own, on the
same tokens.

A peer's file defines `build(request)`. It gets what a step is to be built for (`requested`), and
returns a callable `step`. `step(tokens)` takes one training step (forward, backward, optimizer) on
tokens of shape (batch_tokens / seq_len, seq_len + 1), int64, on the request's device: inputs and,
one further, targets. It returns the mean loss in nats per token, a float or a tensor of one
element, which the bench reads once a step. The callable has these attributes:

    parameters          the tensors that a step updates
    settings            what it is: a dict of plain JSON values
    optimizers          optional: those of torch whose state counts as memory
    flops_per_token     optional: a number, for MFU
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.data.batches import microbatches, train_windows
from nocap.measure.bench_result import Facts
from nocap.measure.timed_arm import DivergedError, TimedArm
from nocap.training import memory
from nocap.training.build import Trainee
from nocap.training.step import fetch


def requested(run: Run) -> dict[str, Any]:
    """Return the attributes of a request. What a file cannot do, it refuses."""
    return {
        "n_layer": run.model.n_layer,
        "d_model": run.model.d_model,
        "n_head": run.model.n_head,
        "seq_len": run.model.seq_len,
        "device": run.trainer.device.value,
        "precision": run.trainer.precision.value,
        "compile": run.trainer.compile.value,
        "micro_batch": run.trainer.micro_batch,
        "batch_tokens": run.trainer.batch_tokens,
        "threads": run.trainer.threads,
        "microbatches": microbatches(run),
        "vocab_size": run.tokenizer.vocab_size,
        "seed": run.seed,
    }


class PeerArm(TimedArm):
    """The step that the module NAME builds, which lies beside this file or on `sys.path`."""

    def __init__(self, label: str, run: Run, name: str) -> None:
        """Import the module.

        Errors:
            ModuleNotFoundError: there is none of this name.
        """
        super().__init__(label, run)
        self.request = requested(run)
        self.module = importlib.import_module(name)
        file = Path(str(self.module.__file__))
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        self.config = {"external": {"file": file.name, "sha256": sha256, "request": self.request}}

    def build(self) -> float:
        """Build, and take one step, which must change a parameter. Return the MiB that a forward
        keeps for its backward; on a GPU memory is measured, and this is 0.

        Errors:
            InputError: the step changes no parameter.
        """
        torch.manual_seed(self.request["seed"])
        self.reads = SimpleNamespace(train=train_windows(self.run, self.job.train_shards))
        self.built = self.module.build(SimpleNamespace(**self.request))
        self.ahead = self._tokens()
        parameters = list(self.built.parameters)
        settings = json.loads(json.dumps(dict(self.built.settings), allow_nan=False))
        self.config["external"]["settings"] = settings
        before = [_bits(p) for p in parameters]
        counted: AbstractContextManager[dict[int, int]] = nullcontext({})
        if self.device.type == "cpu":
            counted = memory.saved_for_backward(parameters)
        with counted as kept:
            self.step()
        if [_bits(p) for p in parameters] == before:
            raise InputError("a step must update its parameters, got one that changes none")
        return sum(kept.values()) / self.request["microbatches"] / memory.MIB

    def step(self) -> float:
        """Return the loss of the peer's step on the next random batch; the batch after it is read
        before its loss is.

        Errors:
            DivergedError: the loss is not finite.
        """
        loss = self.built(self.ahead)
        self.at += 1
        self.ahead = self._tokens()
        mean = float(loss)
        if not math.isfinite(mean):
            raise DivergedError(
                f"a step must have a finite loss, got {mean!r} after {self.at} steps"
            )
        return mean

    def describe(self) -> Facts:
        """Return the facts that the peer's step gives of itself."""
        step = self.built
        flops = getattr(step, "flops_per_token", None)
        parameters = dict.fromkeys(step.parameters)
        return Facts(
            flops_per_token=flops,
            flops_basis="the file's own" if flops else None,
            params=sum(p.numel() for p in parameters),
            memory_mib=memory.parts_mib(parameters, getattr(step, "optimizers", ())),
        )

    def _tokens(self) -> Tensor:
        """Return the tokens of the next step, as nocap's own arms read them."""
        step = self.at % self.run.trainer.steps
        return fetch(self.job, cast(Trainee, self.reads), step=step).long()


def _bits(p: Tensor) -> int:
    """Return a sum over the bytes, which an update changes."""
    return int(p.detach().flatten().view(torch.uint8).sum(dtype=torch.int64))
