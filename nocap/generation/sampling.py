"""Text from a trained run: its checkpoint, the sampler, and the tokens with their rate.

B: batch, T: tokens, V: vocabulary, N: new tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import tiktoken
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocap.config import defaults, hardware
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.generation.engines import Engine
from nocap.model.language_model import LanguageModel
from nocap.outside import use_copies
from nocap.store.runs import find_one
from nocap.training.export_file import read_export
from nocap.training.trained import trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A checkpoint's model in fp32, ready to read, with the run that it belongs to."""

    name: str  # of the run's folder, or of the file
    run: Run
    model: LanguageModel
    encoding: tiktoken.Encoding
    step: int

    @property
    def device(self) -> torch.device:
        """Return where the model lies."""
        return next(self.model.parameters()).device

    def text(self, tokens: list[int]) -> str:
        """Return the text without an end-of-text; invalid UTF-8 becomes U+FFFD."""
        end = self.encoding.eot_token
        return self.encoding.decode([token for token in tokens if token != end])


def load(run_dir: Path, *, device: torch.device, log: Callable[[str], None]) -> Trained:
    """Return the newest valid checkpoint of the run, on `device`; or the model of an exported file.
    Say to the log what is wrong with a newer checkpoint.

    Errors:
        ValueError: no config, no checkpoint, none that is valid, or one that is another model's or
            whose weights are not finite.
    """
    if run_dir.is_dir():
        source = trained(run_dir, log=log)
    else:
        source = read_export(run_dir, log=log)
    run = source.run
    return Trained(
        name=run_dir.name,
        run=run,
        model=source.model.to(device),
        encoding=run.tokenizer.load(cache_dir=cache_root(run.cache_dir)),
        step=source.step,
    )


def load_typed(source: str, *, outputs: Path, device: Device | None, allow_code: bool) -> Trained:
    """Return what a command names: a run's folder, name or identity, or an exported file.
    `device`: None for a GPU where there is one.

    Errors:
        ValueError: as for `load`; no such run, or no such device.
    """
    device = device or defaults.device()
    hardware.check_device(device, 1, key="device")
    path = Path(source)
    if not path.is_file():
        path = find_one(source, outputs=outputs)
    if allow_code:
        use_copies(path)
    return load(path, device=torch.device(device.value), log=log)


def log(line: str) -> None:
    """Print a line to stderr."""
    print(f"nocap: {line}", file=sys.stderr, flush=True)


class TokenSampler:
    """Draws by the inverse of the distribution function, in fp64: the i-th new token of a sequence
    needs one uniform number, and that number is a function of (seed, sequence, i) alone. So a
    sample is the same on every device and in every batch.

    `temperature` 0 takes the most probable token. `top_k` keeps the k most probable (ties with the
    last of them too); 0 keeps all.
    """

    def __init__(
        self, *, temperature: float, top_k: int, seed: int, sequences: int, max_tokens: int
    ) -> None:
        self.temperature = temperature
        self.top_k = top_k
        rows = list[NDArray[np.float32]]()
        for i in range(sequences):
            generator = np.random.default_rng([seed, i])
            # fp32 draws stay so far below 1 that their product with a sum in fp64 stays below the
            # sum
            rows.append(generator.random(max_tokens, dtype=np.float32))
        self.draws_BN = torch.from_numpy(np.stack(rows))

    def __call__(self, logits_BV: Tensor, i: int) -> Tensor:
        """Return the i-th new token of each sequence, (B,)."""
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        if 0 < self.top_k < logits_BV.shape[1]:
            least = logits_BV.topk(self.top_k).values[:, -1:]
            logits_BV = logits_BV.masked_fill(logits_BV < least, -torch.inf)
        # Less the largest, before a small temperature could make it infinite.
        largest_B1 = logits_BV.amax(-1, keepdim=True)
        scores_BV = (logits_BV.double() - largest_B1) / self.temperature
        cumulated_BV = scores_BV.softmax(-1).cumsum(-1)
        draw_B1 = self.draws_BN[:, i : i + 1].to(logits_BV.device, torch.float64)
        return torch.searchsorted(cumulated_BV, draw_B1 * cumulated_BV[:, -1:], right=True)[:, 0]


def generate(
    engine: Engine, prompt_BT: Tensor, sampler: TokenSampler, *, max_tokens: int
) -> Iterator[Tensor]:
    """Give the new tokens, (B,) at a time. The prompt may be one sequence for all of the
    sampler's."""
    logits_BV = engine.prefill(prompt_BT).expand(len(sampler.draws_BN), -1)
    for i in range(max_tokens):
        tokens_B = sampler(logits_BV, i)
        yield tokens_B
        if i + 1 < max_tokens:
            logits_BV = engine.decode(tokens_B)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The tokens of each text, and how fast they came, by the wall clock."""

    texts: list[list[int]]
    first_token_ms: float  # from the prompt to the first token of each text
    # from one token to the next, the median; None where each text has one token
    decode_ms: float | None
    # of all texts from the second token on; None where each text has one token
    tokens_per_s: float | None


def write(trained: Trained, engine: Engine, prompt: list[int], sampler: TokenSampler) -> Written:
    """Write as many tokens a sequence as the sampler has draws for, or up to its end-of-text."""
    end = trained.encoding.eot_token
    prompt_1T = torch.tensor([prompt], device=trained.device)
    rows = list[list[int]]()  # a token of each text
    ended_texts = set[int]()
    moments = [time.perf_counter()]
    for tokens_B in generate(engine, prompt_1T, sampler, max_tokens=sampler.draws_BN.shape[1]):
        row = tokens_B.tolist()  # waits for the device
        moments.append(time.perf_counter())
        rows.append(row)
        ended_texts.update(i for i, token in enumerate(row) if token == end)
        if len(ended_texts) == len(row):
            break
    columns = zip(*rows, strict=True)
    texts = [_up_to(end, list(column)) for column in columns]
    first_s, *next_s = [after - before for before, after in pairwise(moments)]
    decode_ms = None
    tokens_per_s = None
    if next_s:
        decode_ms = median(next_s) * 1e3
        tokens_per_s = len(texts) * len(next_s) / sum(next_s)
    return Written(
        texts=texts, first_token_ms=first_s * 1e3, decode_ms=decode_ms, tokens_per_s=tokens_per_s
    )


def _up_to(end: int, tokens: list[int]) -> list[int]:
    """Return the tokens up to the first end-of-text, that one included."""
    if end not in tokens:
        return tokens
    return tokens[: tokens.index(end) + 1]
