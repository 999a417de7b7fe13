"""The options that are no part of the model: optimizers, schedules, data, tokenizers, trackers, launchers."""

from __future__ import annotations

import math
from typing import Any

from nocap.checks.trial import Trial, expect
from nocap.config.paths import cache_root
from nocap.config.plain import to_plain
from nocap.options.launcher import Launcher, Share
from nocap.options.tracker import RunFacts, TrackerSession

TEXT = "Über 12 naïve cafés, 東京\n\tdef f(x): return x  # 😀\r\n\x00end"
ROWS: list[dict[str, Any]] = [  # as a run has them: not every key in every row, and a non-finite loss as null
    {"step": 0, "tokens": 0, "val/loss": 5.5, "train/loss": 5.5, "train/grad_norm": 1.0, "train/lr": 0.003, "perf/step_ms": 9.5},
    {"step": 1, "tokens": 2048, "train/loss": None, "train/grad_norm": None},
    {"step": 2, "tokens": 4096, "val/loss": 5.1},
]


def state(trial: Trial) -> str:
    """Saved and restored, the optimizers go on the same; found by trying."""
    from nocap.model.gpt import build_model, count_parameters
    from nocap.training.optimizer_trial import optimizer_numbers, optimizer_shapes

    model = build_model(trial.run, vocab_size=trial.data.vocab_size)
    shapes = optimizer_shapes(trial.run, model)
    fields = dict.fromkeys(key.split("/")[2] for key in shapes)
    each = optimizer_numbers(shapes, model) / count_parameters(model)["total"]
    return f"{each:.2f} numbers a parameter ({', '.join(fields) or 'it keeps no tensors'})"


def rates(trial: Trial) -> str:
    """Factors in [0, 1] for every step, after a warm-up that rises to the peak; and what `free_until` says is so."""
    schedule, steps = trial.run.schedule, trial.run.trainer.steps
    factors = [schedule.multiplier(step=step, steps=steps) for step in range(steps)]
    for step, factor in enumerate(factors):
        ok = math.isfinite(factor) and -1e-9 <= factor <= 1 + 1e-6
        expect(ok, f"the factor of step {step} of {steps} is {factor}: it must be in [0, 1]")
    rising = factors[: schedule.warmup_steps]
    ok = sorted(rising) == rising and all(math.isclose(peak, 1.0, rel_tol=1e-6) for peak in rising[-1:])
    expect(ok, f"the warm-up of {len(rising)} steps must rise to 1, got {', '.join(f'{factor:.3g}' for factor in rising)}")
    free = schedule.free_until(steps)
    for step in range(min(free, steps)):
        same = schedule.multiplier(step=step, steps=2 * steps) == factors[step]
        expect(same, f"free_until({steps}) says {free}, and the factor of step {step} depends on the number of steps")
    return f"{factors[0]:.3g} … {max(factors):.3g} … {factors[-1]:.3g} in {steps} steps, {len(rising)} of warm-up"


def prepares(trial: Trial) -> str:
    """Made twice it is the same, and every byte verifies. With a cache of the user's, nothing is fetched twice."""
    from nocap.data.prepare import prepare, verify

    run, data = trial.run, trial.data
    cache = cache_root(run.cache_dir)
    own = not any(override.startswith("cache_dir=") for override in trial.more)
    again = prepare(run.data, run.tokenizer, cache_dir=trial.folder / "another" if own else cache).fingerprint
    expect(again == data.fingerprint, f"made twice, its fingerprints are {data.fingerprint[:12]}… and {again[:12]}…")
    invalid = verify(run.data, run.tokenizer, cache_dir=cache)[1]
    expect(not invalid, "".join(invalid[:1]))
    train, val = (sum(shard.tokens for shard in shards) for shards in (data.train, data.val))
    return f"{train:,} train and {val:,} val tokens of {data.vocab_size:,} ids, fingerprint {again[:12]}…"


def encodes(trial: Trial) -> str:
    """Text to ids and back, every id below `vocab_size`, with an end-of-text."""
    from nocap.data.tokenizer import END_OF_TEXT, token_bytes

    tokenizer, n_bytes = trial.run.tokenizer, len(TEXT.encode())
    encoding = tokenizer.load(cache_dir=cache_root(trial.run.cache_dir))
    n = encoding.n_vocab
    expect(n == tokenizer.vocab_size, f"vocab_size says {tokenizer.vocab_size}, and the encoding has {n} tokens")
    expect(n <= 2**16, f"its {n} tokens do not fit a shard's 16 bits")
    expect(END_OF_TEXT in encoding.special_tokens_set, f"it has no {END_OF_TEXT}")
    ids = encoding.encode_ordinary(TEXT)
    back, counted = encoding.decode(ids), int(token_bytes(encoding)[ids].sum())
    expect(back == TEXT, f"{TEXT!r} comes back as {back!r}")
    expect(counted == n_bytes, f"its tokens stand for {counted} bytes of a text of {n_bytes}")
    return f"{tokenizer.name}: {n:,} tokens; {n_bytes} bytes in {len(ids)}"


def mirrors(trial: Trial) -> str:
    """Rows, a finish, a second opening as after a resume."""
    tracker, folder = trial.run.tracker, trial.folder / "mirror"
    folder.mkdir()
    facts = RunFacts(identity="0" * 12, name="check", arm="check", seed=0, run_dir=folder, config=to_plain(trial.run))
    for status, summary in (("failed", {}), ("finished", {"status": "finished", "step": 2})):
        session = tracker.open(facts)
        expect(isinstance(session, TrackerSession), f"open must return a TrackerSession, got {type(session).__name__}")
        for row in ROWS:
            session.log(row)
        session.finish(summary=summary, status=status)
    return f"{len(ROWS)} rows and a finish, twice; {session.url_or_hint or 'no address'}"


def slots(trial: Trial) -> str:
    """A share for a cell, and again once it is given back."""
    launcher = trial.option()
    assert isinstance(launcher, Launcher)
    slots, run = launcher.slots(), trial.run
    if slots is None:
        return "its cells run on other machines: not tried"
    for _ in range(2):
        share = slots.take(run)
        if not isinstance(share, Share):
            raise ValueError(f"take must return a Share while nothing runs, got {share!r}")
        slots.give_back(share)
    about = slots.describe([run, run])
    expect(about is None or (isinstance(about, str) and "\n" not in about), f"describe must return a line or None, got {about!r}")
    return about or "a share for a cell, and again once it is given back"
