"""What an option of each group must pass. `nocap check` runs it on a folder's, the test suite on
nocap's own.

A check takes an `OptionTrial` and returns what it measured, in a line. It fails by raising.
"""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.checks.trial import OptionTrial, SkippedError, expect
from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.option import declared
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.data.prepare import prepare, verify
from nocap.data.tokenizer import END_OF_TEXT, token_bytes
from nocap.generation.engines import UncachedError, check_cached
from nocap.measure.roofline import count
from nocap.measure.timed_arm import random_tokens
from nocap.model.build import build_model, count_parameters
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.language_model import LanguageModel
from nocap.options.attention import Attention
from nocap.options.ideas import Idea
from nocap.row_keys import NOISE, TRAIN_LOSS, VAL_LOSS
from nocap.store.checkpoints import step_of
from nocap.store.rows_file import Row, RowsFile
from nocap.training import memory
from nocap.training.build import Trainee, build, configure_numerics
from nocap.training.ledger import Ledger
from nocap.training.probe import differences, first_difference
from nocap.training.step import take_step

TEXT = "Über 12 naïve cafés, 東京\n\tdef f(x): return x  # 😀\r\n\x00end"
DECODED = 128  # tokens
MODES = ("training", "validation")
RELATIVE = 1e-5  # of a loss, between one rank and two

# --- the option by itself ----------


def composes(trial: OptionTrial) -> str:
    """Compose the option with its keys' values."""
    missing = trial.missing()
    if missing:
        raise SkippedError(f"{', '.join(missing)} must have a value")
    expect(trial.options, f"its yaml must begin with '# @package ideas.{trial.name}'")
    values: dict[str, object] = {}
    for option in trial.options:
        values |= asdict(option)
    shown = []
    for key, value in values.items():
        if not key.startswith("_"):
            shown.append(f"{key}={getattr(value, 'name', value)}")
    return ", ".join(shown)


def rates(trial: OptionTrial) -> str:
    """Factors in [0, 1] for every step, a warm-up that rises to the peak, and a `free_until` that
    is so."""
    schedule = trial.run.schedule
    steps = trial.run.trainer.steps
    factors = [schedule.multiplier(step=step, steps=steps) for step in range(steps)]
    for step, factor in enumerate(factors):
        expect(
            -1e-9 <= factor <= 1 + 1e-6,
            f"the factor of step {step} of {steps} is {factor}: it must be in [0, 1]",
        )
    rising = factors[: schedule.warmup_steps]
    ends_at_peak = not rising or math.isclose(rising[-1], 1.0, rel_tol=1e-6)
    shown = ", ".join(f"{factor:.3g}" for factor in rising)
    expect(
        sorted(rising) == rising and ends_at_peak,
        f"the warm-up of {len(rising)} steps must rise to 1, got {shown}",
    )
    free = min(schedule.free_until(steps), steps)
    longer = [schedule.multiplier(step=step, steps=2 * steps) for step in range(free)]
    expect(
        longer == factors[:free],
        f"free_until({steps}) says {free}, and a factor before that step depends on the number of "
        "steps",
    )
    return (
        f"{factors[0]:.3g} … {max(factors):.3g} … {factors[-1]:.3g} in {steps} steps, "
        f"{len(rising)} of warm-up"
    )


def prepares(trial: OptionTrial) -> str:
    """Made twice it is the same, and every byte verifies. In a user's cache, nothing is fetched
    twice."""
    run = trial.run
    cache = cache_root(run.cache_dir)
    another = cache
    if trial.folder in cache.parents:
        another = trial.folder / "another"
    data = prepare(run.data, run.tokenizer, cache_dir=cache)
    again = prepare(run.data, run.tokenizer, cache_dir=another)
    first = data.fingerprint[:12]
    expect(
        data.fingerprint == again.fingerprint,
        f"made twice, its fingerprints are {first}… and {again.fingerprint[:12]}…",
    )
    _, invalid = verify(run.data, run.tokenizer, cache_dir=cache)
    expect(not invalid, "".join(invalid[:1]))
    train = sum(shard.tokens for shard in data.train)
    val = sum(shard.tokens for shard in data.val)
    return (
        f"{train:,} train and {val:,} val tokens of {data.vocab_size:,} ids, fingerprint {first}…"
    )


def encodes(trial: OptionTrial) -> str:
    """Text to ids and back, every id below `vocab_size`, with an end-of-text."""
    tokenizer = trial.run.tokenizer
    encoding = tokenizer.load(cache_dir=cache_root(trial.run.cache_dir))
    n = encoding.n_vocab
    ids = encoding.encode_ordinary(TEXT)
    expect(
        n == tokenizer.vocab_size <= 2**16,
        "vocab_size must be the number of tokens of the encoding, and fit into 16 bits, got "
        f"{tokenizer.vocab_size} and {n} tokens",
    )
    expect(END_OF_TEXT in encoding.special_tokens_set, f"the tokenizer has no {END_OF_TEXT}")
    decoded = encoding.decode(ids)
    expect(decoded == TEXT, f"{TEXT!r} comes back as {decoded!r}")
    n_bytes = len(TEXT.encode())
    by_ids = int(token_bytes(encoding)[ids].sum())
    expect(by_ids == n_bytes, f"its tokens stand for {by_ids} bytes, but the text has {n_bytes}")
    return f"{tokenizer.name}: {n:,} tokens; {n_bytes} bytes in {len(ids)}"


# --- in the model ----------


def builds(trial: OptionTrial) -> str:
    """Build the model and its optimizers, and make two steps."""
    trainee, _ = _steps(trial.run, 2)
    model = trainee.model
    tokens = _tokens(trial.run)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.total.backward()
    idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    expect(
        not idle,
        f"{', '.join(idle[:1])} gets no gradient, and two ranks would wait for it; {len(idle)} "
        "such parameters",
    )
    return f"{count_parameters(model)['total']:,} parameters"


def causal(trial: OptionTrial) -> str:
    """Check that no logit changes with a later token, or with another sequence, in training and
    validation."""
    model = _moved(trial.run)
    tokens = _tokens(trial.run)[:, :-1]
    V = trial.run.tokenizer.vocab_size
    for mode in MODES:
        model.train(mode == "training")
        for t, earlier, later in differences(lambda shown: _logits(model, shown), tokens, V):
            expect(
                earlier is None,
                f"in {mode}, the logits of token {earlier} change with the tokens from {t} on",
            )
            expect(
                later is not None,
                f"in {mode}, the logits do not change with the tokens from {t} on",
            )
        other_tokens = torch.cat([tokens[:1], (tokens[1:] + 1) % V])
        others = _logits(model, other_tokens)
        at = first_difference(_logits(model, tokens)[:1], others[:1])
        expect(
            at is None, f"in {mode}, a sequence's logits change with another sequence of the batch"
        )
    return f"{tokens.shape[1]} tokens, in training and in validation"


def scores(trial: OptionTrial) -> str:
    """Check that validation is the plain next-token loss of the logits, and that the training loss
    is the sum of its parts."""
    model = _moved(trial.run)
    tokens = _tokens(trial.run)
    inputs = tokens[:, :-1]
    targets = tokens[:, 1:]
    for mode in MODES:
        model.train(mode == "training")
        logits = _logits(model, inputs).float().flatten(0, 1)
        plain = F.cross_entropy(logits, targets.flatten()).item()
        torch.manual_seed(0)
        loss = model(inputs, targets)
        next_token = loss.next_token.item()
        total = loss.total.item()
        expect(
            math.isclose(next_token, plain, rel_tol=1e-4),
            f"in {mode}, next_token is {next_token:.5f}, and the logits' cross-entropy {plain:.5f}",
        )
        parts = total
        if loss.parts:
            parts = sum(part.item() for part in loss.parts.values())
        expect(
            math.isclose(total, parts, rel_tol=1e-4),
            f"the training loss is {total:.5f}, and the sum of its parts {parts:.5f}",
        )
    expect(not loss.parts, f"in validation the loss has parts: {', '.join(loss.parts)}")
    return "in training and in validation"


def counts(trial: OptionTrial) -> str:
    """FLOPs and memory, as the record and the profile know them."""
    run = trial.run
    vocab_size = run.tokenizer.vocab_size
    flops, basis = flops_per_token(run, vocab_size=vocab_size)
    expect(flops is None or flops > 0, f"{flops} FLOPs a token, by {basis}")
    _check_formulas(run, vocab_size)
    step = count(run, vocab_size=vocab_size)
    activations = "not counted"
    if not step.not_counted:
        activations_mib = sum(step.ranges.kept.values()) / memory.MIB
        activations = f"{activations_mib:.2f} MiB"
    work = basis
    if flops is not None:
        work = f"{flops / 1e6:.3f} MFLOPs a token ({basis})"
    return f"{work}; activations {activations}"


def _check_formulas(run: Run, vocab_size: int) -> None:
    """Hold what the options say of their FLOPs against what is counted, where it can be. Attention
    may say less: counting does not see a window that lies in a mask."""
    by_formulas = component_flops(run, vocab_size=vocab_size)
    by_counting = component_flops(run, vocab_size=vocab_size, formulas=False)
    for name, counted in by_counting.items():
        claim = by_formulas.get(name, 0.0)
        if claim is None or counted is None:
            continue
        has_window = name == "scores" and claim < counted
        is_right = math.isclose(claim, counted, rel_tol=0.01, abs_tol=0.5)
        expect(
            has_window or is_right,
            f"a formula says {claim:,.0f} FLOPs a token for {name}, and {counted:,.0f} are counted",
        )


def compiles(trial: OptionTrial) -> str:
    """Compile the model to one graph without a break, and compare its losses with eager's."""
    run = trial.compose("trainer.compile=full")
    try:
        hardware.check_compiler("trainer.compile=full", run.trainer.device)
    except ValueError as error:
        raise SkippedError(str(error)) from None
    torch._dynamo.reset()
    _, eager_losses = _steps(trial.compose("trainer.compile=off"), 2)
    with torch._inductor.config.patch(fallback_random=True):  # an option that draws, draws the same
        _, compiled_losses = _steps(run, 2)
    pairs = zip(eager_losses, compiled_losses, strict=True)
    for step, (eager, compiled) in enumerate(pairs):
        expect(
            math.isclose(eager, compiled, rel_tol=1e-4),
            f"the loss of step {step} is {compiled:.6f} compiled, and {eager:.6f} eager",
        )
    return "without a graph break, with eager's losses"


def decodes(trial: OptionTrial) -> str:
    """Decode from a cache as from the whole prefix, or say that there is no cache."""
    option = trial.options[0]
    by_slots = False
    if isinstance(option, Attention):
        by_slots = declared(option, "cache_slots", of=("build", "mixer")) is not None
    try:
        check_cached(_moved(trial.run).eval(), trial.run, most=DECODED)
    except UncachedError as error:
        per_token = isinstance(option, Idea) and option.PER_TOKEN
        is_claimed = by_slots or per_token
        claim = "cache_slots" if by_slots else "PER_TOKEN"
        is_wrong = "logits differ" in str(error)
        expect(not is_claimed or not is_wrong, f"the option says {claim}, and {error}")
        return f"no cache: {error}"
    return "from the cache as from the whole prefix"


# --- in training, as a user starts it: in processes of its own ----------


def learns(trial: OptionTrial) -> str:
    """Train a short run. It must not diverge, must end below where it began, and its tracker must
    not fail."""
    first, *_, last = [row[VAL_LOSS] for row in _rows(trial.clean) if VAL_LOSS in row]
    losses = f"validation loss {first:.4f} → {last:.4f} in {trial.run.trainer.steps} steps"
    expect(last < first, f"{losses}: the loss must end below where it began")
    return losses


def resumes(trial: OptionTrial) -> str:
    """Resume from what a kill past the first checkpoint leaves. The run must end as if undisturbed,
    bit for bit."""
    killed = trial.folder / "killed" / "runs" / trial.clean.name
    shutil.copytree(trial.clean, killed)
    first_checkpoint, *later = sorted((killed / "checkpoints").iterdir())
    for path in later:
        shutil.rmtree(path)
    (killed / "summary.json").unlink()
    trial.train("killed")
    line = f"resuming from step {step_of(first_checkpoint)}"
    log = (killed / "train.log").read_text()
    expect(line in log, "the run did not continue from its checkpoint when it started again")
    rows = _rows(killed)
    for row, clean_row in zip(rows, _rows(trial.clean), strict=True):
        _check_rows(row, clean_row)
    last_checkpoint = max((trial.clean / "checkpoints").iterdir())
    for file in sorted(last_checkpoint.glob("*.safetensors")):
        resumed = killed / file.relative_to(trial.clean)
        is_same = resumed.read_bytes() == file.read_bytes()
        expect(is_same, f"the last {file.name} differs from the undisturbed run's")
    return f"{line}; weights, optimizer and {len(rows)} rows are equal"


def _check_rows(row: Row, clean_row: Row) -> None:
    """Refuse a row of a resumed run that is not the undisturbed run's, speed and memory apart."""
    for key in sorted({*row, *clean_row}):
        value = row.get(key)
        clean_value = clean_row.get(key)
        expect(
            value == clean_value or key.startswith(NOISE),
            f"step {clean_row['step']}: {key} is {value}, and undisturbed {clean_value}",
        )


def ranks(trial: OptionTrial) -> str:
    """Check that two ranks, each with half of a step's micro-batches, give what one gives."""
    try:
        compose(trial.overrides("trainer.devices=2"))
    except ValueError as error:
        raise SkippedError(str(error)) from None
    (run_dir,) = trial.train("ranks", "trainer.devices=2")
    for one, two in zip(_rows(trial.clean), _rows(run_dir), strict=True):
        for key in one.keys() & {VAL_LOSS, TRAIN_LOSS}:
            is_close = math.isclose(one[key], two[key], rel_tol=RELATIVE)
            losses = f"{two[key]:.6f} on two ranks and {one[key]:.6f} on one"
            expect(is_close, f"step {one['step']}: {key} is {losses}")
    return f"losses are equal within {RELATIVE:.0e}"


def grid(trial: OptionTrial) -> str:
    """Train a grid of two cells of four steps."""
    words = (
        "trainer.steps=4",
        "trainer.keep_steps=[]",
        "trainer.val_every=0",
        "trainer.checkpoint_every=0",
    )
    cells = trial.train("grid", "--multirun", "seed=0,1", *words)
    expect(len(cells) == 2, f"{len(cells)} of 2 cells are there")
    return "2 cells finished"


# --- which group has which, and how they are run ----------

Check = Callable[[OptionTrial], str]

GROUPS_IN_MODEL = ("attention", "mlp", "norm", "position", "model", "ideas")
IN_MODEL: tuple[Check, ...] = (composes, builds, causal, scores, counts, decodes, compiles)
TRAINED: tuple[Check, ...] = (learns, resumes, ranks)
CHECKS: dict[str, tuple[Check, ...]] = {
    **dict.fromkeys(GROUPS_IN_MODEL, (*IN_MODEL, *TRAINED)),
    "objective": (composes, builds, scores, counts, compiles, *TRAINED),
    "optimizer": (composes, builds, counts, *TRAINED),
    "schedule": (composes, rates, builds, learns, resumes),
    "data": (composes, prepares, builds, *TRAINED),
    "tokenizer": (composes, encodes, prepares, builds, learns, resumes),
    "tracker": (composes, learns, resumes),
    "launcher": (composes, grid),
}
# where one of them does not end well, what comes after it would not either
FIRST = ("composes", "learns")


def results(trial: OptionTrial, only: str = "") -> Iterator[tuple[str, str, str]]:
    """Run the checks one after the other, or `only` the one of this name, after `composes`. Yield
    of each its status (ok, FAIL or skip), its name, and what it measured or why it failed. The
    trial's folder gets a failure's traceback, with what the training printed."""
    for check in CHECKS[trial.group]:
        name = check.__name__
        is_chosen = only in ("", name)
        if not is_chosen and name != "composes":
            continue
        began = time.monotonic()
        log = ""
        try:
            status = "ok"
            detail = check(trial)
        except SkippedError as error:
            status = "skip"
            detail = str(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a library's panic is no Exception
            status = "FAIL"
            detail = str(error)
            if not isinstance(error, ValueError):
                detail = f"{type(error).__name__}: {error}"
            log = f"  (see {trial.folder / name}.log)"
            (trial.folder / f"{name}.log").write_text(traceback.format_exc())
        if is_chosen or status != "ok":
            words = " ".join(detail.split())
            seconds = time.monotonic() - began
            yield status, name, f"{words:.400}{log}  {seconds:.1f} s"
        if name in FIRST and status != "ok":
            return


# --- what they share ----------


def _tokens(run: Run) -> Tensor:
    """Return two sequences and their last targets."""
    shape = (2, run.model.seq_len + 1)
    generator = torch.Generator().manual_seed(1)
    return torch.randint(run.tokenizer.vocab_size, shape, generator=generator)


def _moved(run: Run) -> LanguageModel:
    """Return the model with every weight moved a little: one that starts at zero would hide an
    error."""
    configure_numerics(run)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    run.attention.prepare(run, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


@torch.no_grad()
def _logits(model: LanguageModel, tokens: Tensor) -> Tensor:
    torch.manual_seed(0)  # an option that draws, draws the same again
    return model.logits(tokens)


def _steps(run: Run, n: int) -> tuple[Trainee, list[float]]:
    """Built as the trainer does it, and its first steps' losses."""
    configure_numerics(run)
    with random_tokens(run) as job:
        trainee = build(job)
    ledger = Ledger(started=job.started)
    losses = [take_step(job, trainee, ledger, step=step).loss for step in range(n)]
    return trainee, losses


def _rows(run_dir: Path) -> list[Row]:
    return RowsFile(run_dir / "metrics.jsonl").rows()
