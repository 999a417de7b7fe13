"""How fast a model answers and what it allocates: prefill and decoding, with a cache, compiled, and by recomputing the prefix.

Times are wall-clock from token to token, sampling included: what somebody waits for. Only the first call of every shape, made before,
is not in them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Device, Precision
from nocap.measure.decode import Cached, Engine, Recompute, UncachedError, check_cached, engine_for
from nocap.measure.generation import Sampler, Trained
from nocap.measure.parts import memory_events, profiler
from nocap.measure.request import Generate
from nocap.measure.text import render_latency
from nocap.model.language_model import LanguageModel
from nocap.options.attention import kernel_name
from nocap.store.measurement import Measurement, now
from nocap.store.metrics import METRICS
from nocap.store.record import write_json, writing

COMPILED = "cache, compiled"
ROUNDS = 3  # engines take turns, so that a machine whose speed drifts slows all of them
RECOMPUTED = 4  # positions a round at which the prefix is recomputed, spread over all that are decoded


def report(
    asked: Generate,
    trained: Trained,
    prompt: list[int],
    *,
    run_dir: Path,
    threads: int,
    batch_sizes: Sequence[int],
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Time each batch size, print the table and leave `latency.json` in the run's folder. Without a prompt, half the context is random
    tokens. Returns the content of the file.

    Errors:
        ValueError: the prompt leaves no room for two tokens.
    """
    model, place = trained.model, Device(trained.device.type)
    run = replace(trained.run, trainer=replace(trained.run.trainer, device=place))
    context = run.model.seq_len
    one = torch.tensor([prompt]) if asked.prompt else random_prompt(context // 2 or 1, vocab_size=trained.encoding.n_vocab)
    T = one.shape[1]
    new = min(asked.max_tokens, context - T)
    if new < 2:
        raise ValueError(f"prompt must leave room for 2 tokens in model.seq_len={context} with --latency, got {T} tokens")
    rows: list[dict[str, Any]] = []
    for batch in batch_sizes:
        sampler = Sampler(temperature=asked.temperature, top_k=asked.top_k, seed=asked.seed, sequences=batch, max_tokens=new + 1)
        prompt_BT = one.expand(batch, -1).to(trained.device)
        rows += [timed.plain(T) for timed in measure(model, run, prompt_BT, new=new, sampler=sampler, compiled=asked.compile)]
    content = {
        "run": run_dir.name,
        "checkpoint_step": trained.step,
        "prompt_tokens": T,
        "new_tokens": new,
        "precision": "fp32",
        "kernel": {"prefill": kernel_name(run, Precision.fp32), "decode": "scaled_dot_product_attention"},
        "kv_bytes_per_token": kv_bytes_per_token(model, run, log=log),
        "hardware": hardware.describe(place, threads),
        "rows": rows,
        "measurements": [one.json() for one in _measurements(rows, str(hardware.describe(place, threads)["fingerprint"]))],
    }
    with writing("run", run_dir / "latency.json", follow=False) as path:
        write_json(path, content)
    print(render_latency(content, context=context))
    return content


def _measurements(rows: Sequence[Mapping[str, Any]], where: str) -> list[Measurement]:
    """The decoding speed of each engine and batch size."""
    metric, when = METRICS["decode_tokens_per_s"], now()
    return [
        Measurement(arm=f"{row['engine']}, batch {row['batch']}", repeat=0, metric=metric, value=row[metric.name], where=where, when=when)
        for row in rows
    ]


@dataclass(kw_only=True, slots=True)
class EngineTimes:
    """One engine at one batch size. Lists are over rounds, and over rounds and tokens."""

    engine: str
    batch: int
    compile_s: float | None = None  # the first decoded token's surplus
    prefill_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    allocated_bytes_per_token: float | None = None

    def add(self, through: Through) -> None:
        self.prefill_s.append(through.prefill_s)
        self.token_s += through.token_s

    def plain(self, prompt_tokens: int) -> dict[str, Any]:
        """As JSON. Rates are of the median, which other work on the machine moves least; the 95th percentile shows what it does."""
        prefill_s, (p50_s, p95_s) = float(np.median(self.prefill_s)), np.percentile(self.token_s, [50, 95]).tolist()
        return {
            "engine": self.engine,
            "batch": self.batch,
            "prefill_ms": prefill_s * 1e3,
            "prefill_tokens_per_s": self.batch * prompt_tokens / prefill_s,
            "decode_tokens_per_s": self.batch / p50_s,
            "ms_per_token": {"p50": p50_s * 1e3, "p95": p95_s * 1e3},
            "allocated_bytes_per_token": self.allocated_bytes_per_token,
            "compile_s": self.compile_s,
        }


def measure(model: LanguageModel, run: Run, prompt_BT: Tensor, *, new: int, sampler: Sampler, compiled: bool) -> list[EngineTimes]:
    """Time `new` tokens after the prompt with a cache, compiled too if asked, and by recomputing the prefix, in turns."""
    batch, T = prompt_BT.shape
    again, engines = Recompute(model), _engines(model, run, batch=batch, capacity=T + new, compiled=compiled)
    timed = {name: EngineTimes(engine=name, batch=batch) for name in (*engines, "no cache")}
    for name, engine in engines.items():
        first, second = run_through(engine, prompt_BT, 2, sampler).token_s
        timed[name].compile_s = first - second if name == COMPILED else None
    text_BT = torch.cat([prompt_BT, run_through(engines.get("cache", again), prompt_BT, new, sampler).tokens], dim=1)
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            timed[name].add(run_through(engine, prompt_BT, new, sampler))
        timed["no cache"].add(_recompute(again, text_BT, T, new, sampler))
    for name, engine in engines.items():
        engine.prefill(prompt_BT)
        timed[name].allocated_bytes_per_token = allocated_bytes(engine.decode, prompt_BT[:, 0]) / batch
    timed["no cache"].allocated_bytes_per_token = allocated_bytes(again.prefill, text_BT[:, : T + new // 2]) / batch
    return list(timed.values())


def _engines(model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool) -> dict[str, Engine]:
    """Those with a cache; none where the model has none."""
    try:
        check_cached(model, run)
    except UncachedError:
        return {}
    names = ("cache", COMPILED) if compiled else ("cache",)
    return {name: Cached(model, run, batch=batch, capacity=capacity, compiled=name == COMPILED) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class Through:
    """One text, timed: the prompt with its first token, then each token after it."""

    prefill_s: float
    token_s: list[float]
    tokens: Tensor  # (B, 1 + N)


def _recompute(engine: Recompute, text_BT: Tensor, T: int, new: int, sampler: Sampler) -> Through:
    """The prompt of T tokens, then the prefix again at some places of the text after it."""
    through = run_through(engine, text_BT[:, :T], 0, sampler)
    for i in np.unique(np.linspace(0, new - 1, RECOMPUTED).round().astype(int)).tolist():
        began = time.perf_counter()
        sampler(engine.prefill(text_BT[:, : T + i + 1]), i).tolist()
        through.token_s.append(time.perf_counter() - began)
    return through


def run_through(engine: Engine, prompt_BT: Tensor, n: int, sampler: Sampler) -> Through:
    """Decode n tokens after the first. `tolist` waits for the device, as a reader of the text would."""
    began = time.perf_counter()
    new = [sampler(engine.prefill(prompt_BT), 0)]
    new[0].tolist()
    marks = [time.perf_counter()]
    for i in range(1, n + 1):
        new.append(sampler(engine.decode(new[-1]), i))
        new[-1].tolist()
        marks.append(time.perf_counter())
    return Through(prefill_s=marks[0] - began, token_s=np.diff(marks).tolist(), tokens=torch.stack(new, dim=1))


def allocated_bytes(call: Callable[..., object], *arguments: object) -> int:
    """Bytes that the call asks torch's allocator for, whether it gives them back or not: the device's own counter on CUDA, on the CPU the
    profiler's record of each allocation (compiled code's included)."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
        call(*arguments)
        return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before)
    with _without_native_stderr(), profiler(on_cuda=False) as seen:
        call(*arguments)
    return sum(max(0, n) for _, _, n in memory_events(seen))


@contextmanager
def _without_native_stderr() -> Iterator[None]:
    """The profiler's C++ marks its start and end on stderr, whatever its log level. Python's own errors come after the block."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def kv_bytes_per_token(model: LanguageModel, run: Run, *, log: Callable[[str], None]) -> float | None:
    """Bytes of cache a token of context, for one sequence of the model's whole context: windows make it less. None, with a line in the
    log, where the model has no cache."""
    whole = engine_for(model, run, batch=1, capacity=run.model.seq_len, log=log)
    return whole.n_bytes / run.model.seq_len if isinstance(whole, Cached) else None


def random_prompt(tokens: int, *, vocab_size: int) -> Tensor:
    """(1, tokens) of random tokens: which ones changes no time."""
    return torch.randint(vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
