"""An arm from a file that the command line names: anybody's training step, timed by the code that times
nocap's own.

The file defines `build(request, **options)`. It gets what a step is to be built for (`requested`), and as
strings the options that follow the file on the command line; it returns a callable `step`. `step(tokens)`
takes one training step (forward, backward, optimizer) on tokens of shape (batch_tokens / seq_len, seq_len +
1), int64, on the request's device: inputs and, one further, targets. It returns the mean loss in nats per
token, a float or a tensor of one element, which the bench reads once a step. The callable has these
attributes:

    parameters          the tensors that a step updates
    settings            what it is: a dict of plain JSON values, shown below the table
    optimizers          optional: those of torch whose state counts as memory
    flops_per_token     optional: a number, for MFU

The tokens are those of nocap's own arms, read by the same code inside the time that counts. Before each block
the bench sets the number of threads, and that fp32 means fp32 (no TF32). An error in the file fails its arm,
as any error fails any arm.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from nocap.config.keys import InputError, require
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.data.batches import microbatches, train_windows
from nocap.measure.arms import compose_arm
from nocap.measure.timed import DivergedError, TimedArm
from nocap.training import memory
from nocap.training.step import Trainee, fetch


def external_arm(base: Sequence[str], typed: str) -> ExternalArm:
    """The arm of an `--arm-external` as typed in a shell: the file, its options (`name=value`), and overrides
    (`group.key=value`) on top of `base`, the baseline's. Runs the file.

    Errors:
        InputError: a wrong word, or a file that cannot be run.
    """
    try:
        file, *words = shlex.split(typed) or [""]
        for word in words:
            require("=" in word, "an option of the file", "be name=value", word)
        overrides = [word for word in words if "." in word.partition("=")[0]]
        options = dict(word.split("=", 1) for word in words if word not in overrides)
        path, run = expanded(file), compose_arm(base, shlex.join(overrides)).run
        return ExternalArm(" ".join([file, *words]), run, path, options)
    except (OSError, ValueError) as error:
        raise InputError(f"--arm-external {typed!r}: {error}") from error


def requested(run: Run) -> dict[str, Any]:
    """The attributes of a request. What a file cannot do, it refuses."""
    return {
        **{key: getattr(run.model, key) for key in ("n_layer", "d_model", "n_head", "seq_len")},
        **{key: getattr(run.trainer, key).value for key in ("device", "precision", "compile")},
        **{key: getattr(run.trainer, key) for key in ("micro_batch", "batch_tokens", "threads")},
        "microbatches": microbatches(run),
        "vocab_size": run.tokenizer.vocab_size,
        "seed": run.seed,
    }


class ExternalArm(TimedArm):
    """Runs the file.

    Errors:
        OSError, InputError: the file cannot be run, or has no `build`.
    """

    def __init__(self, label: str, run: Run, path: Path, options: dict[str, str]) -> None:
        super().__init__(label, run, source=path)
        self.options, self.request, content = options, requested(run), path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self.config = {
            "external": {"file": path.name, "sha256": sha256, "options": options, "request": self.request}
        }
        self.module = ModuleType(f"external_{path.stem}_{sha256[:12]}")
        sys.modules[self.module.__name__] = self.module  # the compiler and dataclasses look for it there
        self.path = [str(path.absolute().parent)]  # its neighbours can be imported, as a script's
        self.neighbours = dict[str, ModuleType]()
        with self._at_home():
            try:
                exec(compile(content, str(path), "exec", dont_inherit=True), vars(self.module))
            except (Exception, SystemExit) as error:  # the file may raise anything
                raise InputError(f"{path} cannot be run: {self.told(error)}") from error
        require(hasattr(self.module, "build"), str(path), "define a function build(request)", "none")

    def tried(self, work: Callable[[], float | None]) -> float:
        with self._at_home():
            return super().tried(work)

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        """Let the file import its neighbours inside the block, and no other file's of the same name: the
        modules that it finds by a path of its own are its own."""
        path = sys.path[:]
        names = {*sys.modules}
        sys.path[:0] = self.path
        sys.modules.update(self.neighbours)
        try:
            yield
        finally:
            self.path = [place for place in sys.path if place not in path]
            sys.path[:] = path
            new = sys.modules.keys() - names
            own = {name for name in new if "." not in name and self._is_neighbour(sys.modules[name])}
            for name in new:
                if name.partition(".")[0] in own:
                    self.neighbours[name] = sys.modules.pop(name)

    def _is_neighbour(self, module: ModuleType) -> bool:
        """Return whether a module lies in a folder where this file alone looks."""
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
        return any(str(Path(place).parent) in self.path for place in places)

    def build(self) -> float:
        """Build; one step, which must change a parameter, gives the MiB that a forward keeps for its
        backward."""
        torch.manual_seed(self.request["seed"])
        self.reads = SimpleNamespace(train=train_windows(self.run, self.job.train_shards))
        self.built = self.module.build(SimpleNamespace(**self.request), **self.options)
        self.ahead, parameters = self._tokens(), list(self.built.parameters)
        before = [_bits(p) for p in parameters]
        counted: AbstractContextManager[dict[int, int]] = memory.saved_for_backward(parameters)
        # on a GPU memory is measured
        with nullcontext({}) if self.device.type == "cuda" else counted as kept:
            self.step()
        if [_bits(p) for p in parameters] == before:
            raise InputError("a step must update its parameters, got one that changes none")
        return sum(kept.values()) / self.request["microbatches"] / memory.MIB

    def step(self) -> float:
        """The file's step on the next random batch; the batch after it is read before its loss."""
        loss = self.built(self.ahead)
        self.at += 1
        self.ahead = self._tokens()
        mean = float(loss)
        if not math.isfinite(mean):
            raise DivergedError(f"a step must have a finite loss, got {mean!r} after {self.at} steps")
        return mean

    def describe(self) -> dict[str, Any]:
        step, flops = self.built, getattr(self.built, "flops_per_token", None)
        parameters = dict.fromkeys(step.parameters)
        return {
            "flops_per_token": flops,
            "flops_basis": flops and "the file's own",
            "params": sum(p.numel() for p in parameters),
            "memory_mib": memory.parts_mib(parameters, getattr(step, "optimizers", ())),
            "settings": json.loads(json.dumps(dict(step.settings), allow_nan=False)),
        }

    def _tokens(self) -> Tensor:
        step = self.at % self.run.trainer.steps
        return fetch(self.job, cast(Trainee, self.reads), step=step).long()


def _bits(p: Tensor) -> int:
    """A sum over the bytes, which an update changes."""
    return int(p.detach().flatten().view(torch.uint8).sum(dtype=torch.int64))
