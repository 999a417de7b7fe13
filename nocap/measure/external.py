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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nocap.config.bounded import read_bytes
from nocap.config.keys import InputError, require
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.data.batches import microbatches, sequences_of, train_windows
from nocap.measure.arms import BenchArm, compose_arm
from nocap.measure.clock import Clock
from nocap.measure.contestant import Contestant, DivergedError, StepInfo
from nocap.training import memory
from nocap.training.step import Update

FLAG = "--arm-external"
SOURCE_BYTES = 1 << 20
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

    @classmethod
    def of(cls, run: Run) -> Request:
        m, t = run.model, run.trainer
        return cls(
            n_layer=m.n_layer,
            d_model=m.d_model,
            n_head=m.n_head,
            vocab_size=run.tokenizer.vocab_size,
            seq_len=m.seq_len,
            micro_batch=t.micro_batch,
            batch_tokens=t.batch_tokens,
            device=t.device.value,
            precision=t.precision.value,
            compile=t.compile.value,
            threads=t.threads,
            seed=run.seed,
        )

    @property
    def microbatches(self) -> int:
        """Forwards a step."""
        return self.batch_tokens // (self.micro_batch * self.seq_len)


@dataclass(frozen=True, kw_only=True, slots=True)
class External:
    """A file that was run, and the options for its `build`."""

    path: Path
    sha256: str
    options: dict[str, str]
    build: Callable[..., Any]

    def config(self, run: Run) -> dict[str, Any]:
        """What the arm is, as plain JSON types."""
        return {"external": {"file": self.path.name, "sha256": self.sha256, "options": self.options, "request": asdict(Request.of(run))}}


# --- from the command line -----------------------------------------------------------------------------------------------------------


def compose_externals(base: Sequence[str], typed: Sequence[str], baseline: BenchArm) -> list[BenchArm]:
    """An arm for each FLAG as typed in a shell: the file, then its options (`name=value`) and overrides of its own. Runs the files.

    Errors:
        ValueError: a wrong word, or what is wrong with a file; tokens of another shape than the baseline's; the same arm twice.
    """
    arms = [_compose(base, words, baseline) for words in typed]
    for i, arm in enumerate(arms):
        twin = next((other.label for other in arms[:i] if other.config == arm.config), None)
        if twin is not None:
            raise InputError(f"{FLAG} {arm.label!r} must differ from the others, got {twin!r}")
    return arms


def _compose(base: Sequence[str], typed: str, baseline: BenchArm) -> BenchArm:
    try:
        file, *words = shlex.split(typed) or [""]
        overrides = [word for word in words if "." in word.partition("=")[0]]
        for word in overrides:
            require(word.partition("=")[0] in OVERRIDES, "an override", f"be of {', '.join(OVERRIDES)}", word)
        run = compose_arm(base, shlex.join(overrides)).run
        _check_same_tokens(run, baseline.run)
        external = load(expanded(file), [word for word in words if word not in overrides])
    except (OSError, ValueError) as error:
        raise InputError(f"{FLAG} {typed!r}: {error}") from error
    return BenchArm(label=" ".join([external.path.name, *words]), run=run, external=external)


def _check_same_tokens(run: Run, baseline: Run) -> None:
    """A step of another number of tokens, or of other tokens, is another measurement."""
    for key, ours, theirs in (
        ("trainer.device", run.trainer.device.value, baseline.trainer.device.value),
        ("trainer.batch_tokens", run.trainer.batch_tokens, baseline.trainer.batch_tokens),
        ("model.seq_len", run.model.seq_len, baseline.model.seq_len),
        ("the vocabulary", run.tokenizer.vocab_size, baseline.tokenizer.vocab_size),
    ):
        require(ours == theirs, key, f"be the baseline's {theirs}: set it for all arms, outside --arm", ours)


def load(path: Path, words: Sequence[str]) -> External:
    """Run the file, and bind the options `name=value` to its `build`.

    Errors:
        OSError, ValueError: it cannot be read or run, defines no `build`, or one that does not take these options.
    """
    for word in words:
        require("=" in word, "an option of the file", "be name=value", word)
    options = dict(word.split("=", 1) for word in words)
    source = read_bytes(path, SOURCE_BYTES)
    sha256 = hashlib.sha256(source).hexdigest()
    build = _executed(path, source, sha256).__dict__.get("build")
    if not callable(build):
        raise InputError(f"{path} must define a function build(request), got {type(build).__name__}")
    try:
        inspect.signature(build).bind(object(), **options)
    except TypeError as error:
        raise InputError(f"{path}: build{inspect.signature(build)}: {error}") from error
    return External(path=path, sha256=sha256, options=options, build=build)


def _executed(path: Path, source: bytes, sha256: str) -> ModuleType:
    """The file as a module; the compiler and dataclasses look for it among those imported."""
    module = ModuleType(f"external_{path.stem}_{sha256[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with named(path, "cannot be run"), _like_a_script(path):
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    return module


@contextmanager
def _like_a_script(path: Path) -> Iterator[None]:
    """Its neighbours can be imported, and what it prints goes to stderr: stdout is the result's."""
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path.remove(folder)


@contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """An error of the file's code as one line that names it. Memory that runs out is no mistake, and passes."""
    try:
        yield
    except (Exception, SystemExit) as error:  # the file may raise anything
        if memory.ran_out(error):
            raise
        first = next(iter(str(error).strip().splitlines()), "")
        raise InputError(f"{path} {what}: {type(error).__name__}{_line_of(path, error)}: {first}") from error.with_traceback(None)


def _line_of(path: Path, error: BaseException) -> str:
    """Where in the file it went wrong."""
    lines = [error.lineno] if isinstance(error, SyntaxError) else []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f", line {lines[-1]}" if lines else ""


# --- the arm in the bench ------------------------------------------------------------------------------------------------------------


class ExternalContestant(Contestant):
    """An external arm.

    Errors, of building:
        InputError: the file's `build`, what it returned, or its first steps break the protocol.
    """

    def __init__(self, arm: BenchArm, *, clock: Clock, block_s: float | None = None) -> None:
        assert arm.external is not None
        self._external = arm.external
        super().__init__(arm, clock=clock, block_s=block_s)

    def _prepare(self) -> float:
        """Build; one step, which must change a parameter, gives the MiB that a forward keeps for its backward."""
        path, request = self._external.path, Request.of(self.run)
        with named(path, "cannot build its step"), _like_a_script(path), _own_generators(self._job.world.device):
            torch.manual_seed(request.seed)
            self._call = self._external.build(request, **self._external.options)
            self._about = _about(self._call)
        self._windows = train_windows(self.run, self._job.train_shards)
        self._ahead = self._tokens()
        before = [_bits(p) for p in self._about.parameters]
        on_gpu = self._job.world.device.type == "cuda"  # memory is measured there
        counting: AbstractContextManager[dict[int, int]]
        counting = nullcontext({}) if on_gpu else memory.saved_for_backward(self._about.parameters)
        with _like_a_script(path), counting as kept:
            self.step()
        if [_bits(p) for p in self._about.parameters] == before:
            raise InputError(f"{path} must update its parameters, got a step that changes none")
        return sum(kept.values()) / request.microbatches / memory.MIB

    def step(self) -> Update:
        """The file's step on the next random batch; the batch after it is read before its loss."""
        with named(self._external.path, "cannot take a step"):
            loss = self._call(self._ahead)
            self._step += 1
            self._ahead = self._tokens()
            mean = float(loss)
        if not math.isfinite(mean):
            raise DivergedError(f"the loss is {mean!r} after {self._step} steps")
        return Update(loss=mean, grad_norm=math.nan, lrs={}, stop=False, step_ms=math.nan)

    def _tokens(self) -> Tensor:
        run, n = self.run, microbatches(self.run)
        first = self._step % run.trainer.steps * n * run.trainer.micro_batch
        rows = sequences_of(first=first, rank=0, world=1, microbatches=n, micro_batch=run.trainer.micro_batch)
        return torch.from_numpy(self._windows.read(rows)).to(self._job.world.device).long()

    def info(self) -> StepInfo:
        about = self._about
        return StepInfo(
            tokens_per_step=self.run.trainer.batch_tokens,
            steps_per_block=self.steps,
            warm_up_s=self.warm_up_s,
            flops_per_token=about.flops_per_token,
            flops_basis=None if about.flops_per_token is None else "the file's own",
            params=sum(p.numel() for p in about.parameters),
            kernel=None,
            memory_mib=self._memory(memory.parts_mib(about.parameters, about.optimizers)),
            settings=about.settings,
        )

    def close(self) -> None:
        del self._call, self._about, self._ahead
        memory.give_back(self._job.world.device)


def _own_generators(device: torch.device) -> AbstractContextManager[None]:
    """Inside, torch's generators can be seeded; after it they are as before. Without a list torch warns where there are several GPUs."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.type == "cuda" else [])


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a step says of itself."""

    parameters: list[Tensor]
    optimizers: list[torch.optim.Optimizer]
    settings: dict[str, Any]
    flops_per_token: float | None


def _about(step: Any) -> About:
    """The attributes of what a `build` returned.

    Errors:
        TypeError: it is not callable, or an attribute is missing or of another kind.
    """
    parameters = list({id(p): p for p in getattr(step, "parameters", ())}.values())
    optimizers = list(getattr(step, "optimizers", ()))
    settings, flops = getattr(step, "settings", None), getattr(step, "flops_per_token", None)
    for ok, what, got in (
        (callable(step), "a callable step", step),
        (parameters and all(isinstance(p, Tensor) for p in parameters), "a step with its tensors as parameters", parameters),
        (all(isinstance(o, torch.optim.Optimizer) for o in optimizers), "a step whose optimizers are torch's", optimizers),
        (_is_plain(settings), "a step with settings, a dict of plain JSON values", settings),
        (flops is None or (isinstance(flops, int | float) and 0 < flops < math.inf), "a step whose flops_per_token is above 0", flops),
    ):
        if not ok:
            raise TypeError(f"build must return {what}, got {repr(got)[:100]}")
    assert isinstance(settings, dict)
    return About(parameters=parameters, optimizers=optimizers, settings=settings, flops_per_token=flops)


def _is_plain(settings: object) -> bool:
    try:
        return isinstance(settings, dict) and json.loads(json.dumps(settings, allow_nan=False)) == settings
    except (TypeError, ValueError):
        return False


def _bits(p: Tensor) -> int:
    """A sum over the bytes, which an update changes."""
    return int(p.detach().flatten().view(torch.uint8).sum(dtype=torch.int64))
