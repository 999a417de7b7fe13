"""Text from a trained run: its checkpoint, the sampler, and the tokens with their rate.

B: sequences, T: tokens of the prompt, N: new tokens, V: vocabulary.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tiktoken
import torch
from torch import Tensor

from nocap import outside
from nocap.config import defaults, hardware
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.head import use_copies
from nocap.measure.decode import Engine
from nocap.model.language_model import LanguageModel
from nocap.store.record import read_json
from nocap.store.runs import find_one
from nocap.training.trained import exported, trained


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
        return next(self.model.parameters()).device

    def text(self, tokens: list[int]) -> str:
        """Without an end-of-text; invalid UTF-8 becomes U+FFFD."""
        return self.encoding.decode([token for token in tokens if token != self.encoding.eot_token])


def load(run_dir: Path, *, device: torch.device, log: Callable[[str], None]) -> Trained:
    """The newest valid checkpoint of the run, on `device`; or the model of an exported file. What is wrong with a newer checkpoint goes to
    the log.

    Errors:
        ValueError: no config, no checkpoint, none that is valid, or one that is another model's or whose weights are not finite.
    """
    if run_dir.is_dir():
        _log_other_code(run_dir, log)
    run, model, step = trained(run_dir, log=log) if run_dir.is_dir() else exported(run_dir)
    encoding = run.tokenizer.load(cache_dir=cache_root(run.cache_dir))
    return Trained(name=run_dir.name, run=run, model=model.to(device), encoding=encoding, step=step)


def load_typed(source: str, *, outputs: Path, device: Device | None, allow_code: bool) -> Trained:
    """As a command names it: a run's folder, name or identity, or an exported file; on a GPU where there is one, unless told otherwise.

    Errors:
        ValueError: as for `load`; no such run, or no such device.
    """
    device = device or defaults.device()
    hardware.check_device(device, 1, key="device")
    path = Path(source) if Path(source).is_file() else find_one(source, outputs=outputs)
    if allow_code:
        use_copies(path)
    return load(path, device=torch.device(device.value), log=log)


def log(line: str) -> None:
    print(f"nocap: {line}", file=sys.stderr, flush=True)


def _log_other_code(run_dir: Path, log: Callable[[str], None]) -> None:
    """A line for each option from outside that is not, byte for byte, the one that the run was trained with."""
    known = {(row["group"], row["name"]): row["sha256"] for row in (read_json(run_dir / "manifest.json") or {}).get("outside", ())}
    for file in outside.files():
        if known.get((file.group, file.name), file.sha256) != file.sha256:
            log(f"{file.path} is not the code that this run was trained with; its record has a copy (--allow-code)")


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


def write(trained: Trained, engine: Engine, prompt: list[int], sampler: Sampler) -> tuple[list[list[int]], float | None]:
    """As many tokens a sequence as the sampler has draws for, or up to its end-of-text; and the tokens/s of all from the second token on
    (wall clock)."""
    end, rows, marks, ended = trained.encoding.eot_token, list[list[int]](), list[float](), set[int]()
    for tokens_B in generate(engine, torch.tensor([prompt], device=trained.device), sampler, max_tokens=sampler.draws_BN.shape[1]):
        rows.append(tokens_B.tolist())
        marks.append(time.perf_counter())
        ended.update(i for i, token in enumerate(rows[-1]) if token == end)
        if len(ended) == len(rows[-1]):
            break
    texts = [list(text) for text in zip(*rows, strict=True)]
    rate = len(texts) * (len(marks) - 1) / (marks[-1] - marks[0]) if len(marks) > 1 else None
    return [text[: text.index(end) + 1] if end in text else text for text in texts], rate
