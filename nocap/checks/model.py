"""The option in the model: what it builds, that it is causal, what it costs, how it compiles and decodes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.checks.trial import SkippedError, Trial, expect
from nocap.config import hardware
from nocap.config.option import declared
from nocap.config.run import Run
from nocap.measure.decode import UncachedError, check_cached
from nocap.measure.roofline import count
from nocap.model.flops import counted, flops_per_token
from nocap.model.gpt import build_model, count_parameters
from nocap.model.language_model import LanguageModel
from nocap.options.attention import Attention
from nocap.options.ideas import Idea
from nocap.options.mlp import Mlp
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.probe import differences, first_difference
from nocap.training.step import Job, build, configure_numerics, take_step
from nocap.training.world import join

if TYPE_CHECKING:
    from nocap.training.step import Trainee

DECODED = 128  # tokens
LAYERS, COMPILED = 4, 2  # a block of four layers is compiled so often at most: once, and once more for another kind of layer


def builds(trial: Trial) -> str:
    """The model and its optimizers, and two steps."""
    trainee, losses = _steps(trial, trial.run, 2)
    expect(all(map(math.isfinite, losses)), f"the loss is not finite: {losses}")
    tokens = _tokens(trial)
    trainee.model(tokens[:, :-1], tokens[:, 1:]).total.backward()
    idle = [name for name, p in trainee.model.named_parameters() if p.requires_grad and p.grad is None]
    expect(not idle, f"{', '.join(idle[:1])} gets no gradient, for which two ranks would wait; {len(idle)} parameters in all")
    return f"{count_parameters(trainee.model)['total']:,} parameters"


def causal(trial: Trial) -> str:
    """No logit changes with a later token, or with another sequence of the batch; in training, and in validation."""
    model, tokens = _moved(trial), _tokens(trial)[:, :-1]
    T, V = tokens.shape[1], trial.data.vocab_size
    for mode in _modes(model):
        for t, earlier, later in differences(partial(_logits, model), tokens, V):
            expect(earlier is None, f"in {mode}, the logits of token {earlier} change with the tokens from {t} on")
            expect(later is not None, f"in {mode}, the logits do not change with the tokens from {t} on")
        others = _logits(model, torch.cat([tokens[:1], (tokens[1:] + 1) % V]))
        at = first_difference(_logits(model, tokens)[:1], others[:1])
        expect(at is None, f"in {mode}, a sequence's logits change with another sequence of the batch")
    return f"{T} tokens, in training and in validation"


def scores(trial: Trial) -> str:
    """Validation is the plain next-token loss of the logits; the training loss is the sum of its parts, that one among them."""
    model, tokens = _moved(trial), _tokens(trial)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    for mode in _modes(model):
        plain = float(F.cross_entropy(_logits(model, inputs).float().flatten(0, 1), targets.flatten()))
        torch.manual_seed(0)
        with torch.no_grad():
            loss = model(inputs, targets)
        next_token, total, parts = float(loss.next_token), float(loss.total), {name: float(part) for name, part in loss.parts.items()}
        expect(mode == "training" or not parts, f"in validation the loss has parts: {', '.join(parts)}")
        close = math.isclose(next_token, plain, rel_tol=1e-4)
        expect(close, f"in {mode}, next_token is {next_token:.5f}, and the logits' cross-entropy {plain:.5f}")
        close = not parts or math.isclose(total, sum(parts.values()), rel_tol=1e-4)
        expect(close, f"the training loss is {total:.5f}, and the sum of its parts {sum(parts.values()):.5f}")
    return "in training and in validation"


def counts(trial: Trial) -> str:
    """FLOPs and memory, as the record and the profile know them."""
    run, option, vocab_size = trial.run, trial.option(), trial.data.vocab_size
    flops, basis = flops_per_token(run, vocab_size=vocab_size)
    expect(flops > 0, f"{flops:g} FLOPs a token, by {basis}")
    if isinstance(option, Mlp) and (claimed := declared(option, "flops_per_token", of="build")):
        T, C = run.model.seq_len, run.model.d_model
        claim, really = claimed(C), counted(lambda: option.build(C), (1, T, C)) / T
        expect(math.isclose(claim, really, rel_tol=0.01), f"flops_per_token says {claim:,.0f}, and {really:,.0f} are counted")
    kept = sum(count(run, vocab_size=vocab_size).ranges.kept.values()) / memory.MIB
    return f"{flops / 1e6:.3f} MFLOPs a token ({basis}); activations {kept:.2f} MiB"


def compiles(trial: Trial) -> str:
    """Each block one graph without a break, the same for all layers, with eager's losses."""
    layers = f"model.n_layer={LAYERS}"
    run = trial.compose(layers, "trainer.compile=regional")
    try:
        hardware.check_compiler("it", run.trainer.device)
    except ValueError as error:
        raise SkippedError(str(error)) from None
    eager = _steps(trial, trial.compose(layers, "trainer.compile=off"), 2)[1]
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    compiled = _steps(trial, run, 2)[1]
    graphs = [m for m in torch._dynamo.utils.get_compilation_metrics() if m.is_forward and m.co_name]
    times = Counter((m.co_filename, m.co_firstlineno, m.co_name) for m in graphs)
    (path, line, name), most = times.most_common(1)[0]
    for step, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        expect(math.isclose(a, b, rel_tol=1e-4), f"the loss of step {step} is {b:.6f} compiled, and {a:.6f} eager")
    by_layer = f"; start-up grows with depth: {name} ({path}, line {line}) differs by layer" if most > COMPILED else ""
    return f"{len(graphs)} graphs for {LAYERS} layers and the head, with eager's losses{by_layer}"


def decodes(trial: Trial) -> str:
    """From a cache as from the whole prefix; or the line that says that there is no cache."""
    model, option = _moved(trial).eval(), trial.option()
    slots = isinstance(option, Attention) and declared(option, "cache_slots", of=("build", "mixer"))
    claim = "cache_slots" if slots else "PER_TOKEN" if isinstance(option, Idea) and option.PER_TOKEN else ""
    try:
        check_cached(model, trial.run, most=DECODED)
    except UncachedError as error:
        expect(not claim or "logits differ" not in str(error), f"it says {claim}, and {error}")
        return f"no cache: {error}"
    return "from the cache as from the whole prefix"


# --- what they share ---------------------------------------------------------------------------------------------------------------


def _moved(trial: Trial) -> LanguageModel:
    """The model with every weight moved a little from its start: a weight that starts at zero would hide an error."""
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


@torch.no_grad()
def _logits(model: LanguageModel, tokens: Tensor) -> Tensor:
    torch.manual_seed(0)  # an option that draws, draws the same again
    return model.logits(tokens)


def _modes(model: LanguageModel) -> Iterator[str]:
    for mode in ("training", "validation"):
        model.train(mode == "training")
        yield mode


def _steps(trial: Trial, run: Run, n: int) -> tuple[Trainee, list[float]]:
    """Built as the trainer does it, and its first steps' losses."""
    configure_numerics(run)
    job = Job(
        run=run,
        train_shards=trial.data.train,
        val_shards=trial.data.val,
        vocab_size=trial.data.vocab_size,
        run_dir=trial.folder,
        world=join(run.trainer.device),
        started=time.monotonic(),
    )
    trainee, ledger = build(job), Ledger(started=job.started)
    return trainee, [take_step(job, trainee, ledger, step=step).loss for step in range(n)]
