"""Text from a trained run: its checkpoint, the sampler, and tokens as text while they come.

B: sequences, T: tokens of the prompt, N: new tokens, V: vocabulary.
"""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import torch
from torch import Tensor

from nocap import outside
from nocap.config.outward import trusted
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.measure.decode import Engine, Recompute, engine_for
from nocap.measure.request import Generate
from nocap.model.language_model import LanguageModel
from nocap.store.record import read_json
from nocap.training.exported import exported
from nocap.training.trained import trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A checkpoint's model in fp32, ready to read, with the run that it belongs to."""

    run: Run
    model: LanguageModel
    encoding: tiktoken.Encoding
    step: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load(run_dir: Path, *, device: torch.device, log: Callable[[str], None]) -> Trained:
    """The newest valid checkpoint of the run, on `device`; or the model of an exported file. What is wrong with a newer checkpoint goes to
    the log.

    Errors:
        ValueError: no config, no checkpoint, none that is valid, or one that is another model's or whose weights are not finite.
    """
    for line in other_code(run_dir) if run_dir.is_dir() else ():
        log(line)
    run, model, step = trained(run_dir, log=log) if run_dir.is_dir() else exported(run_dir)
    encoding = run.tokenizer.load(cache_dir=cache_root(run.cache_dir))
    return Trained(run=run, model=model.to(device), encoding=encoding, step=step)


def other_code(run_dir: Path) -> list[str]:
    """A line for each option from outside that is not, byte for byte, the one that the run was trained with."""
    trained = {(row["group"], row["name"]): row["sha256"] for row in (read_json(run_dir / "manifest.json") or {}).get("outside", ())}
    changed = [file for file in outside.files() if trained.get((file.group, file.name), file.sha256) != file.sha256]
    return [f"{file.path} is not the code that this run was trained with; its record has a copy (--allow-code)" for file in changed]


# --- from logits to tokens


class Sampler:
    """Draws by the inverse of the distribution function, in fp64: the i-th new token of a sequence needs one uniform number, and that
    number is a function of (seed, sequence, i) alone. So a sample is the same on every device and in every batch.

    `temperature` 0 takes the most probable token. `top_k` keeps the k most probable (ties with the last of them too); 0 keeps all.
    """

    def __init__(self, *, temperature: float, top_k: int, seed: int, sequences: int, max_tokens: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        # fp32 draws stay so far below 1 that their product with a sum in fp64 stays below the sum.
        rows = [np.random.default_rng([seed, i]).random(max_tokens, dtype=np.float32) for i in range(sequences)]
        self.draws_BN = torch.from_numpy(np.stack(rows))

    def __call__(self, logits_BV: Tensor, i: int) -> Tensor:
        """The i-th new token of each sequence, (B,)."""
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        if 0 < self.top_k < logits_BV.shape[1]:
            least = logits_BV.topk(self.top_k).values[:, -1:]
            logits_BV = logits_BV.masked_fill(logits_BV < least, -torch.inf)
        # Less the largest, before a small temperature could make it infinite.
        scores_BV = (logits_BV.double() - logits_BV.amax(-1, keepdim=True)) / self.temperature
        cumulated_BV = scores_BV.softmax(-1).cumsum(-1)
        draw_B1 = self.draws_BN[:, i : i + 1].to(logits_BV.device, torch.float64)
        return torch.searchsorted(cumulated_BV, draw_B1 * cumulated_BV[:, -1:], right=True)[:, 0]


def generate(engine: Engine, prompt_BT: Tensor, sampler: Sampler, *, max_tokens: int) -> Iterator[Tensor]:
    """New tokens, (B,) at a time. The prompt may be one sequence for all of the sampler's."""
    logits_BV = engine.prefill(prompt_BT).expand(len(sampler.draws_BN), -1)
    for i in range(max_tokens):
        tokens_B = sampler(logits_BV, i)
        yield tokens_B
        if i + 1 < max_tokens:
            logits_BV = engine.decode(tokens_B)


# --- from tokens to text


@dataclass(kw_only=True, slots=True)
class Sample:
    """One text as it grows. A token may hold a part of a character: `show` gets whole ones, and invalid UTF-8 becomes U+FFFD."""

    encoding: tiktoken.Encoding
    show: Callable[[str], None] = lambda text: None
    tokens: list[int] = field(default_factory=list)  # an end-of-text included
    text: str = ""
    ended: bool = False  # by an end-of-text: tokens after it, in its place in the batch, are not part of it
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, token: int) -> None:
        """The next token, unless the text has ended."""
        if self.ended:
            return
        self.tokens.append(token)
        self.ended = token == self.encoding.eot_token
        if not self.ended:
            self._add(self._decoder.decode(self.encoding.decode_single_token_bytes(token)))

    def finish(self) -> None:
        """No token follows: bytes that still wait for the rest of their character will not get it."""
        self._add(self._decoder.decode(b"", final=True))

    def _add(self, text: str) -> None:
        self.text += text
        self.show(text)


def for_a_terminal(text: str) -> str:
    """The text without control characters, which a model of bytes also writes."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def write_texts(asked: Generate, trained: Trained, prompt: list[int], *, run_name: str, log: Callable[[str], None]) -> dict[str, Any]:
    """Print the texts: a single one on a terminal as it comes, else each as a whole. Returns them as JSON, with the tokens/s of all from
    the second token on (wall clock; null where there is none): what `cache` and `compile` change."""
    context = trained.run.model.seq_len
    new = min(asked.max_tokens, context - len(prompt) + 1)  # the last new token needs no place in the context
    shown, out = (for_a_terminal if sys.stdout.isatty() else str), trusted(sys.stdout)  # a file or pipe gets the text as it is
    live = sys.stdout.isatty() and asked.samples == 1
    samples = [Sample(encoding=trained.encoding) for _ in range(asked.samples)]
    if live:
        samples[0].show = lambda text: print(shown(text), end="", file=out, flush=True)
        print(shown(asked.prompt), end="", file=out, flush=True)
    engine: Engine = Recompute(trained.model)
    if asked.cache:
        capacity = len(prompt) + new - 1
        engine = engine_for(trained.model, trained.run, batch=asked.samples, capacity=capacity, compiled=asked.compile, log=log)
    sampler = Sampler(temperature=asked.temperature, top_k=asked.top_k, seed=asked.seed, sequences=asked.samples, max_tokens=new)
    marks = []
    for tokens_B in generate(engine, torch.tensor([prompt], device=trained.device), sampler, max_tokens=new):
        for sample, token in zip(samples, tokens_B.tolist(), strict=True):
            sample.take(token)
        marks.append(time.perf_counter())
        if all(sample.ended for sample in samples):
            break
    for number, sample in enumerate(samples, start=1):
        sample.finish()
        if asked.samples > 1:
            print(f"--- sample {number} of {asked.samples}", file=out)
        print("" if live else shown(asked.prompt + sample.text), file=out, flush=True)
    if new < asked.max_tokens and not all(sample.ended for sample in samples):
        log(f"stopped at the model's context, model.seq_len={context}: {new} new tokens, not max_tokens={asked.max_tokens}")
    stopped = "max_tokens" if new == asked.max_tokens else "context"
    return {
        "run": run_name,
        "checkpoint_step": trained.step,
        "prompt": asked.prompt,
        "prompt_tokens": len(prompt),
        **{key: getattr(asked, key) for key in ("temperature", "top_k", "seed", "cache", "compile")},
        "decode_tokens_per_s": asked.samples * (len(marks) - 1) / (marks[-1] - marks[0]) if len(marks) > 1 else None,
        "samples": [{"text": s.text, "tokens": s.tokens, "stopped": "end_of_text" if s.ended else stopped} for s in samples],
    }
