"""The options that are no part of the model: optimizers, schedules, data, tokenizers, trackers, launchers."""

from __future__ import annotations

import io
import math
from collections import Counter
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

from nocap.checks.option import chosen
from nocap.checks.trial import FailedError, Trial
from nocap.config.compose import to_plain
from nocap.config.paths import cache_root
from nocap.options.launcher import Launcher, Share
from nocap.options.tracker import RunFacts, TrackerSession

if TYPE_CHECKING:
    from nocap.data.prepare import Dataset

TEXT = "Über 12 naïve cafés, 東京\n\tdef f(x): return x  # 😀\r\n\x00end"


def keeps_its_state(trial: Trial) -> str:
    """Saved and restored, the optimizers go on the same; found by trying."""
    from nocap.model.gpt import build_model
    from nocap.training.checkpoint import Leaf
    from nocap.training.kept import kept_state, state_numbers

    model = build_model(trial.run, vocab_size=trial.data.vocab_size)
    kept = kept_state(trial.run, model)
    names = Counter(name.partition("/")[2] for fields in kept.values() for name in fields)
    each = state_numbers(kept, model) / sum(p.numel() for p in model.parameters())
    nests = any(leaf in (Leaf.nest, Leaf.other) for fields in kept.values() for leaf in fields.values())
    more = ", and tensors of other sizes" if nests else ""
    return f"{each:.2f} numbers a parameter{more} ({', '.join(names) or 'it keeps no tensors'})"


def multiplies(trial: Trial) -> str:
    """Factors in [0, 1] for every step, after a warm-up that rises to the peak; and what `free_until` says is so."""
    schedule, steps = trial.run.schedule, trial.run.trainer.steps
    factors = [schedule.multiplier(step=step, steps=steps) for step in range(steps)]
    for step, factor in enumerate(factors):
        if not (math.isfinite(factor) and -1e-9 <= factor <= 1 + 1e-6):
            raise FailedError(f"the factor of step {step} of {steps} is {factor}: it must be in [0, 1]")
    rising = factors[: schedule.warmup_steps]
    if rising and (sorted(rising) != rising or not math.isclose(rising[-1], 1.0, rel_tol=1e-6)):
        raise FailedError(f"the warm-up of {len(rising)} steps must rise to 1, got {', '.join(f'{factor:.3g}' for factor in rising)}")
    free = schedule.free_until(steps)
    for step in range(min(free, steps)):
        if schedule.multiplier(step=step, steps=2 * steps) != factors[step]:
            raise FailedError(f"free_until({steps}) says {free}, and the factor of step {step} depends on the number of steps")
    return f"{factors[0]:.3g} … {max(factors):.3g} … {factors[-1]:.3g} in {steps} steps, {len(rising)} of warm-up"


def prepares(trial: Trial) -> str:
    """Made twice it is the same, and every byte verifies. With a cache of the user's, nothing is fetched twice."""
    from nocap.data.prepare import prepare, verify

    run = trial.run
    cache = cache_root(run.cache_dir)
    own = not any(word.startswith("cache_dir=") for word in trial.more)
    again = prepare(run.data, run.tokenizer, cache_dir=trial.room / "another" if own else cache)
    if again.fingerprint != trial.data.fingerprint:
        raise FailedError(f"made twice, its fingerprints are {trial.data.fingerprint[:12]}… and {again.fingerprint[:12]}…")
    if bad := verify(run.data, run.tokenizer, cache_dir=cache)[1]:
        raise FailedError(bad[0])
    return f"{_tokens_of(trial.data)}, fingerprint {again.fingerprint[:12]}…"


def _tokens_of(data: Dataset) -> str:
    train, val = (sum(shard.tokens for shard in shards) for shards in (data.train, data.val))
    return f"{train:,} train and {val:,} val tokens of {data.vocab_size:,} ids"


def encodes(trial: Trial) -> str:
    """Text to ids and back, every id below `vocab_size`, with an end-of-text."""
    from nocap.data.tokenizer import END_OF_TEXT, token_bytes

    tokenizer = trial.run.tokenizer
    encoding = tokenizer.load(cache_dir=cache_root(trial.run.cache_dir))
    if encoding.n_vocab != tokenizer.vocab_size:
        raise FailedError(f"vocab_size says {tokenizer.vocab_size}, and the encoding has {encoding.n_vocab} tokens")
    if encoding.n_vocab > 2**16:
        raise FailedError(f"its {encoding.n_vocab} tokens do not fit a shard's 16 bits")
    if END_OF_TEXT not in encoding.special_tokens_set:
        raise FailedError(f"it has no {END_OF_TEXT}")
    ids = encoding.encode_ordinary(TEXT)
    if (back := encoding.decode(ids)) != TEXT:
        raise FailedError(f"{TEXT!r} comes back as {back!r}")
    if (said := int(token_bytes(encoding)[ids].sum())) != len(TEXT.encode()):
        raise FailedError(f"its tokens stand for {said} bytes of a text of {len(TEXT.encode())}")
    return f"{tokenizer.name}: {encoding.n_vocab:,} tokens; {len(TEXT.encode())} bytes in {len(ids)}"


def mirrors(trial: Trial) -> str:
    """Rows, a finish, a second opening as after a resume; and one that fails is one warning."""
    from nocap.store.tracking import Guarded

    tracker, folder = trial.run.tracker, trial.room / "mirror"
    folder.mkdir()
    facts = RunFacts(identity="0" * 12, name="check", arm="check", seed=0, run_dir=folder, config=to_plain(trial.run))
    for status, summary in (("failed", {}), ("finished", {"status": "finished", "step": 2})):
        session = tracker.open(facts)
        if not isinstance(session, TrackerSession):
            raise FailedError(f"open must return a TrackerSession, got {type(session).__name__}")
        for row in _rows():
            session.log(row)
        session.finish(summary=summary, status=status)
    session = tracker.open(facts)
    session.log = _fail  # type: ignore[method-assign]
    with redirect_stderr(io.StringIO()) as said:
        guarded = Guarded(tracker, session)
        for row in _rows():
            guarded.log(row)
        guarded.finish(summary={}, status="failed")
    if said.getvalue().count("\n") != 1:
        raise FailedError(f"a failure inside must be one warning, got {said.getvalue()!r}")
    return f"{len(_rows())} rows and a finish, twice; {session.url_or_hint or 'no address'}"


def _fail(row: object) -> None:
    raise RuntimeError("on purpose")


def _rows() -> list[dict[str, Any]]:
    """As a run has them: not every key in every row, and a loss that is no number as null."""
    first = {"step": 0, "tokens": 0, "val/loss": 5.5, "train/loss": 5.5, "train/grad_norm": 1.0, "train/lr": 0.003, "perf/step_ms": 9.5}
    return [first, {"step": 1, "tokens": 2048, "train/loss": None, "train/grad_norm": None}, {"step": 2, "tokens": 4096, "val/loss": 5.1}]


def has_slots(trial: Trial) -> str:
    """A share for a cell, and again once it is given back."""
    launcher = chosen(trial)
    assert isinstance(launcher, Launcher)
    slots, run = launcher.slots(), trial.run
    for _ in range(2):
        if not isinstance(share := slots.take(run), Share):
            raise FailedError(f"take must return a Share while nothing runs, got {share!r}")
        slots.give_back(share)
    about = slots.describe([run, run])
    if about is not None and (not isinstance(about, str) or "\n" in about):
        raise FailedError(f"describe must return a line or None, got {about!r}")
    return about or "a share for a cell, and again once it is given back"
