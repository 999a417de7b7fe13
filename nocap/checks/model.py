"""The option in the model: what it builds, that it looks at no future, what it costs, how it compiles and decodes."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.checks.trial import FailedError, SkippedError, Trial
from nocap.config import hardware
from nocap.config.option import declared
from nocap.config.run import Run
from nocap.measure.decode import Cached, Recompute, engine_for, static_step
from nocap.measure.roofline import count
from nocap.model.flops import counted, flops_per_token
from nocap.model.gpt import build_model, count_parameters
from nocap.model.language_model import LanguageModel
from nocap.options.attention import Attention
from nocap.options.ideas import Idea
from nocap.options.mlp import Mlp
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.step import Job, build, configure_numerics, take_step
from nocap.training.world import join

if TYPE_CHECKING:
    from nocap.training.step import Trainee

CLOSE = 1e-5  # of the largest logit
LAYERS, COMPILED = 4, 2  # a block of four layers is compiled so often at most: once, and once more for another kind of layer


def builds(trial: Trial) -> str:
    """The model and its optimizers, and two steps."""
    trainee, losses = _steps(trial, trial.run, 2)
    if not all(map(torch.isfinite, map(torch.tensor, losses))):
        raise FailedError(f"the loss is no number: {losses}")
    tokens = _tokens(trial)
    trainee.model(tokens[:, :-1], tokens[:, 1:]).total.backward()
    idle = [name for name, p in trainee.model.named_parameters() if p.requires_grad and p.grad is None]
    if idle:
        raise FailedError(f"{idle[0]} gets no gradient, for which two ranks would wait; {len(idle)} parameters in all")
    return f"{count_parameters(trainee.model)['total']:,} parameters"


def causal(trial: Trial) -> str:
    """No logit changes with a later token, or with another sequence of the batch; in training, and in validation."""
    model, tokens = jolted(trial), _tokens(trial)[:, :-1]
    T = tokens.shape[1]
    with torch.no_grad():
        for training in (True, False):
            model.train(training)
            mode = "training" if training else "validation"
            before = _logits(model, tokens)
            for t in sorted({1, T // 2, T - 1}):
                after = _logits(model, _changed(tokens, slice(None), t, trial))
                if (at := _apart(before[:, :t], after[:, :t])) is not None:
                    raise FailedError(f"in {mode}, the logits of token {at} change with the tokens from {t} on")
                if _apart(before[:, t:], after[:, t:]) is None:
                    raise FailedError(f"in {mode}, the logits do not change with the tokens from {t} on")
            if _apart(before[:1], _logits(model, _changed(tokens, slice(1, None), 0, trial))[:1]) is not None:
                raise FailedError(f"in {mode}, a sequence's logits change with another sequence of the batch")
    return f"{T} tokens, in training and in validation"


def scores(trial: Trial) -> str:
    """Validation is the plain next-token loss of the logits; the training loss is the sum of its parts, that one among them."""
    model, tokens = jolted(trial), _tokens(trial)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.no_grad():
        for training in (False, True):
            model.train(training)
            plain = float(F.cross_entropy(_logits(model, inputs).float().flatten(0, 1), targets.flatten()))
            torch.manual_seed(0)
            loss = model(inputs, targets)
            if not training and loss.parts:
                raise FailedError(f"in validation the loss has parts: {', '.join(loss.parts)}")
            if abs(float(loss.next_token) - plain) > 1e-4 * plain:
                mode = "training" if training else "validation"
                raise FailedError(f"in {mode}, next_token is {float(loss.next_token):.5f}, and the logits' cross-entropy {plain:.5f}")
            total, parts = float(loss.total), sum(map(float, loss.parts.values()))
            if loss.parts and abs(total - parts) > 1e-4 * abs(total):
                raise FailedError(f"the training loss is {total:.5f}, and the sum of its parts {parts:.5f}")
    return f"training loss {' + '.join(loss.parts) or 'next_token'}"


def counts(trial: Trial) -> str:
    """FLOPs and memory, as the record and the profile know them."""
    run = trial.run
    flops, basis = flops_per_token(run, vocab_size=trial.data.vocab_size)
    if not flops > 0:
        raise FailedError(f"{flops:g} FLOPs a token, by {basis}")
    if isinstance(trial.option, Mlp) and (claimed := declared(trial.option, "flops_per_token", of="build")):
        T, C = run.model.seq_len, run.model.d_model
        really = counted(lambda: run.mlp.build(C), (1, T, C)) / T
        if abs(claimed(C) - really) > 0.01 * really:
            raise FailedError(f"flops_per_token says {claimed(C):,.0f}, and {really:,.0f} are counted")
    trainee, _ = _steps(trial, run, 1)
    parts = memory.parts_mib(trainee.model.parameters(), trainee.optimizers)
    kept = sum(count(run, vocab_size=trial.data.vocab_size).kept.values()) / memory.MIB
    held = ", ".join(f"{name} {mib:.2f}" for name, mib in {**parts, "activations": kept}.items())
    return f"{flops / 1e6:.3f} MFLOPs a token ({basis}); MiB: {held}"


# --- compiling ---------------------------------------------------------------------------------------------------------------------


def compiles(trial: Trial) -> str:
    """Each block one graph without a break, the same for all layers, with eager's losses."""
    layers = f"model.n_layer={LAYERS}"
    run = trial.compose(layers, "trainer.compile=regional")
    try:
        hardware.check_compiler("it", run.trainer.device)
    except ValueError as error:
        raise SkippedError(str(error)) from None
    _, eager = _steps(trial, trial.compose(layers, "trainer.compile=off"), 2)
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    try:
        _, mine = _steps(trial, run, 2)
        graphs = [m for m in torch._dynamo.utils.get_compilation_metrics() if m.is_forward and m.co_name]
    finally:
        torch._dynamo.reset()
    times = Counter((m.co_filename, m.co_firstlineno, m.co_name) for m in graphs)
    (path, line, name), most = times.most_common(1)[0]
    for step, (a, b) in enumerate(zip(eager, mine, strict=True)):
        if not abs(a - b) <= 1e-4 * abs(a):
            raise FailedError(f"the loss of step {step} is {b:.6f} compiled, and {a:.6f} eager")
    by_layer = f"; start-up grows with depth: {name} ({path}, line {line}) differs by layer" if most > COMPILED else ""
    graphs_of = f"{sum(times.values())} graphs for {LAYERS} layers and the head"
    return f"{graphs_of}; losses within {max(map(_difference, eager, mine)):.0e} of eager's{by_layer}"


def _difference(a: float, b: float) -> float:
    return abs(a - b)


# --- decoding ----------------------------------------------------------------------------------------------------------------------


def decodes(trial: Trial) -> str:
    """From a cache as from the whole prefix; or the line that says that there is no cache."""
    run, lines = trial.run, list[str]()
    model = jolted(trial).eval()
    T = min(run.model.seq_len, 128)
    engine = engine_for(model, run, batch=1, capacity=T, log=lines.append)
    if isinstance(engine, Recompute):
        if (claim := _claim(trial)) and "logits differ" in lines[0]:
            raise FailedError(f"{claim}, and {lines[0].removeprefix('no cache: ').partition(';')[0]}")
        return lines[0]
    assert isinstance(engine, Cached)
    for static in (False, True):
        _follow(engine, Recompute(model), _tokens(trial)[:1, :1], T, static=static)
    return f"{T} tokens from the cache ({engine.n_bytes / 1024:.0f} KiB) are those of the whole prefix"


@torch.no_grad()
def _follow(engine: Cached, again: Recompute, first: Tensor, T: int, *, static: bool) -> None:
    """Greedy tokens of both, up to the whole context; `static` with positions as a tensor, as the compiled decoder has them."""
    mine, theirs = engine.prefill(first), again.prefill(first)
    for t in range(1, T):
        if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())):
            apart = float((mine - theirs).abs().max())
            raise FailedError(f"after {t} tokens, the cache's logits differ from the whole prefix's by {apart:.2g}")
        token = theirs.argmax(-1)
        theirs = again.decode(token)
        if static:
            mine = static_step(engine, token, engine.position)
            engine.position += 1
        else:
            mine = engine.decode(token)


def _claim(trial: Trial) -> str | None:
    """What the option says of itself that makes a cache right."""
    option = trial.option
    if isinstance(option, Attention) and declared(option, "cache_slots", of=("build", "mixer")):
        return "it says cache_slots"
    return "it says PER_TOKEN" if isinstance(option, Idea) and option.PER_TOKEN else None


# --- what they share ---------------------------------------------------------------------------------------------------------------


def jolted(trial: Trial) -> LanguageModel:
    """The model with every weight a little off its start: what begins at zero would hide."""
    configure_numerics(trial.run)
    model = build_model(trial.run, vocab_size=trial.data.vocab_size)
    trial.run.attention.prepare(trial.run, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def _tokens(trial: Trial) -> Tensor:
    """Two sequences and their last targets."""
    shape = (2, trial.run.model.seq_len + 1)
    return torch.randint(trial.data.vocab_size, shape, generator=torch.Generator().manual_seed(1))


def _changed(tokens: Tensor, sequences: slice, first: int, trial: Trial) -> Tensor:
    other = tokens.clone()
    other[sequences, first:] = (other[sequences, first:] + 1) % trial.data.vocab_size
    return other


def _logits(model: LanguageModel, tokens: Tensor) -> Tensor:
    torch.manual_seed(0)  # an option that draws, draws the same again
    return model.logits(tokens)


def _apart(a: Tensor, b: Tensor) -> int | None:
    """The first token at which they differ."""
    differs = ((a - b).abs() > CLOSE * max(1.0, float(a.abs().max()))).any(-1).any(0)
    return int(differs.nonzero()[0]) if bool(differs.any()) else None


def _steps(trial: Trial, run: Run, n: int) -> tuple[Trainee, list[float]]:
    """Built as the trainer does it, and its first steps' losses."""
    configure_numerics(run)
    job = Job(
        run=run,
        train_shards=trial.data.train,
        val_shards=trial.data.val,
        vocab_size=trial.data.vocab_size,
        run_dir=trial.room,
        world=join(run.trainer.device),
        started=time.monotonic(),
    )
    trainee, ledger = build(job), Ledger(started=job.started)
    return trainee, [take_step(job, trainee, ledger, step=step).loss for step in range(n)]
