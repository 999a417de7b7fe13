"""An arm from a file that the command line names: anybody's training step, timed by the code that times nocap's own.

The file defines `build(request, **options)`. It gets a `Request`, and as strings the options that follow the file on the command line; it
returns a callable `step`. `step(tokens)` takes one training step (forward, backward, optimizer) on tokens of shape
(batch_tokens / seq_len, seq_len + 1), int64, on the request's device: inputs and, one further, targets. It returns the mean loss in nats
per token, a float or a tensor of one element, which the bench reads once a step. The callable has these attributes:

    parameters          the tensors that a step updates
    settings            what it is: a dict of plain JSON values, shown below the table
    optimizers          optional: those of torch whose state counts as memory
    flops_per_token     optional: a number, for MFU

The tokens are those of nocap's own arms, read by the same code inside the time that counts. Before each block the bench sets the number of
threads, and that fp32 means fp32 (no TF32).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a step is to be built for. Sizes are the shared overrides'; what a file cannot do, it refuses."""

    n_layer: int
    d_model: int
    n_head: int
    vocab_size: int
    seq_len: int  # tokens
    micro_batch: int  # sequences a forward
    batch_tokens: int  # a step
    device: str  # cpu or cuda
    precision: str  # fp32 or bf16
    compile: str  # off, regional or full
    threads: int  # of the CPU
    seed: int  # torch's generators begin with it

    @property
    def microbatches(self) -> int:
        """Forwards a step."""
        return self.batch_tokens // (self.micro_batch * self.seq_len)


def request_of(run: Run) -> Request:
    m, t = run.model, run.trainer
    sizes = {key: getattr(m, key) for key in ("n_layer", "d_model", "n_head", "seq_len")}
    words = {key: getattr(t, key).value for key in ("device", "precision", "compile")}
    numbers = {key: getattr(t, key) for key in ("micro_batch", "batch_tokens", "threads")}
    return Request(**sizes, **words, **numbers, vocab_size=run.tokenizer.vocab_size, seed=run.seed)


@contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """An error of the file's code as one line that names it; what it prints goes to stderr. Memory that runs out is no mistake."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:  # the file may raise anything
        if memory.ran_out(error):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        lines += [error.lineno] if isinstance(error, SyntaxError) else []
        where = f", line {lines[-1]}" if lines else ""
        first = next(iter(str(error).strip().splitlines()), "")
        raise InputError(f"{path} {what}: {type(error).__name__}{where}: {first}") from error.with_traceback(None)


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
    for key, ours, theirs in (  # a step of another number of tokens, or of other tokens, is another measurement
        ("trainer.device", run.trainer.device.value, baseline.trainer.device.value),
        ("trainer.batch_tokens", run.trainer.batch_tokens, baseline.trainer.batch_tokens),
        ("model.seq_len", run.model.seq_len, baseline.model.seq_len),
        ("the vocabulary", run.tokenizer.vocab_size, baseline.tokenizer.vocab_size),
    ):
        require(ours == theirs, key, f"be the baseline's {theirs}: set it for all arms, outside --arm", ours)
    path, options = expanded(file), dict(word.split("=", 1) for word in words if word not in overrides)
    return ExternalArm(" ".join([path.name, *words]), run, path, options)


class ExternalArm(TimedArm):
    """Runs the file, and binds the options to its `build`.

    Errors, also of `warm`:
        OSError, InputError: the file, its `build`, what that returned, or its first steps break the protocol.
    """

    strict = True

    def __init__(self, label: str, run: Run, path: Path, options: dict[str, str]) -> None:
        super().__init__(label, run)
        self.path, self.options, self.request = path, options, request_of(run)
        source = path.read_bytes()
        sha256 = hashlib.sha256(source).hexdigest()
        self.config = {"external": {"file": path.name, "sha256": sha256, "options": options, "request": asdict(self.request)}}
        module = ModuleType(f"external_{path.stem}_{sha256[:12]}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # the compiler and dataclasses look for it there
        sys.path.insert(0, str(path.absolute().parent))  # its neighbours can be imported, as a script's
        with named(path, "cannot be run"):
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
        build: Callable[..., Any] | None = vars(module).get("build")
        if not callable(build):
            raise InputError(f"{path} must define a function build(request), got {type(build).__name__}")
        self._build = build
        try:
            inspect.signature(build).bind(object(), **options)
        except TypeError as error:
            raise InputError(f"{path}: build{inspect.signature(build)}: {error}") from error

    def build(self) -> float:
        """Build; one step, which must change a parameter, gives the MiB that a forward keeps for its backward."""
        with named(self.path, "cannot build its step"):
            torch.manual_seed(self.request.seed)
            self.built = _checked(self._build(self.request, **self.options))
        self.windows = train_windows(self.run, self.job.train_shards)
        self.built.ahead = self._tokens()
        before = [_bits(p) for p in self.built.parameters]
        counted: AbstractContextManager[dict[int, int]] = memory.saved_for_backward(self.built.parameters)
        with nullcontext({}) if self.device.type == "cuda" else counted as kept:  # on a GPU memory is measured
            self.step()
        if [_bits(p) for p in self.built.parameters] == before:
            raise InputError(f"{self.path} must update its parameters, got a step that changes none")
        return sum(kept.values()) / self.request.microbatches / memory.MIB

    def step(self) -> float:
        """The file's step on the next random batch; the batch after it is read before its loss."""
        with named(self.path, "cannot take a step"):
            loss = self.built.call(self.built.ahead)
            self.at += 1
            self.built.ahead = self._tokens()
            mean = float(loss)
        if not math.isfinite(mean):
            raise DivergedError(f"the loss is {mean!r} after {self.at} steps")
        return mean

    def _tokens(self) -> Tensor:
        run, n = self.run, microbatches(self.run)
        first = self.at % run.trainer.steps * n * run.trainer.micro_batch
        rows = sequences_of(first=first, rank=0, world=1, microbatches=n, micro_batch=run.trainer.micro_batch)
        return torch.from_numpy(self.windows.read(rows)).to(self.device).long()

    def describe(self) -> dict[str, Any]:
        its, flops = self.built, self.built.flops_per_token
        counts = {"flops_per_token": flops, "flops_basis": flops and "the file's own", "params": sum(p.numel() for p in its.parameters)}
        return {**counts, "settings": its.settings, "memory_mib": memory.parts_mib(its.parameters, its.optimizers)}


def _checked(step: Any) -> SimpleNamespace:
    """What a `build` returned, and what it says of itself.

    Errors:
        TypeError, ValueError: it is not callable, or an attribute is missing or of another kind.
    """
    parameters = list({id(p): p for p in getattr(step, "parameters", ())}.values())
    optimizers = list(getattr(step, "optimizers", ()))
    settings, flops = getattr(step, "settings", None), getattr(step, "flops_per_token", None)
    for ok, what, got in (
        (callable(step), "a callable step", step),
        (parameters and all(isinstance(p, Tensor) for p in parameters), "a step with its tensors as parameters", parameters),
        (all(isinstance(o, torch.optim.Optimizer) for o in optimizers), "a step whose optimizers are torch's", optimizers),
        (isinstance(settings, dict), "a step with settings, a dict of plain JSON values", settings),
        (flops is None or (isinstance(flops, int | float) and 0 < flops < math.inf), "a step whose flops_per_token is above 0", flops),
    ):
        if not ok:
            raise TypeError(f"build must return {what}, got {repr(got)[:100]}")
    json.dumps(settings, allow_nan=False)
    return SimpleNamespace(call=step, parameters=parameters, optimizers=optimizers, settings=settings, flops_per_token=flops)


def _bits(p: Tensor) -> int:
    """A sum over the bytes, which an update changes."""
    return int(p.detach().flatten().view(torch.uint8).sum(dtype=torch.int64))
