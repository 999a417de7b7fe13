"""What a cache of keys and values, and compiling the step that decodes a token, gain over recomputing the prefix for each token.

    python experiments/smallmind/decode.py

Two shapes with random weights, fp32, one sequence, on the CPU: `smallmind` (4 layers, 8 heads, 256 wide, 512 tokens of vocabulary, block
128; texts of 50 tokens from an empty start and up to the end of the block), and `long` (6 layers, 6 heads, 384 wide, 257 tokens of
vocabulary, the last 12 tokens before T=1024). Engines take turns in one process; times are process CPU time unless a name says `wall`, on
one thread by default, so that other work on the machine counts little. What the prompt costs is left out; so are the first text of every
engine, and the compilation in it, which is reported. Prints tables; `--json FILE` has everything.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.measure.decode import Cached, Engine, Recompute
from nocap.measure.generation import Sampler, generate
from nocap.measure.parts import allocated_bytes
from nocap.model.flops import component_flops
from nocap.model.gpt import build_model
from nocap.report.table import aligned

FIXED = ("trainer.device=cpu", "trainer.precision=fp32", "tracker=none")
SMALLMIND = ("model.n_layer=4", "model.n_head=8", "model.d_model=256", "model.seq_len=128")
LONG = ("model.n_layer=6", "model.n_head=6", "model.d_model=384", "model.seq_len=1024")


@dataclass(kw_only=True)
class Measured:
    """One engine; a number a text, except forward_s: one a decoded token. What the prompt costs is left out."""

    text_s: list[float] = field(default_factory=list)
    text_wall_s: list[float] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)
    collections: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    allocated_bytes: int = 0
    first_s: float = 0.0  # wall, of the first text: compilation is in it


class Watched:
    """An engine whose decoding is timed."""

    def __init__(self, engine: Engine, forward_s: list[float]) -> None:
        self.prefill, self._decode, self._forward_s = engine.prefill, engine.decode, forward_s

    def decode(self, tokens_B: torch.Tensor) -> torch.Tensor:
        began = time.process_time()
        logits = self._decode(tokens_B)
        self._forward_s.append(time.process_time() - began)
        return logits


def bench(words: tuple[str, ...], *, vocab_size: int, prompt: int, new: int, texts: int) -> dict[str, Any]:
    """All engines at one shape, in turns: `texts` texts, each a prompt with its first token, then `new` tokens more."""
    run = compose([*FIXED, *words])
    model = build_model(run, vocab_size=vocab_size).eval()
    prompt_1T = torch.randint(vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))
    cached = [Cached(model, run, batch=1, capacity=prompt + new, compiled=compiled) for compiled in (False, True)]
    engines = dict(zip(("no cache", "cache", "cache, compiled"), (Recompute(model), *cached), strict=True))
    measured = {name: Measured() for name in engines}

    def begin(engine: Engine, seed: int) -> Iterator[int]:
        sampler = Sampler(temperature=1.0, top_k=0, seed=seed, sequences=1, max_tokens=new + 1)
        text = map(int, generate(engine, prompt_1T, sampler, max_tokens=new + 1))
        next(text)
        return text

    for name, engine in engines.items():
        began = time.perf_counter()
        list(begin(engine, 0))
        measured[name].first_s = time.perf_counter() - began
        measured[name].allocated_bytes = allocated_bytes(list, begin(engine, 0))
    for seed in range(texts):
        for name in engines if seed % 2 == 0 else reversed(engines):
            m = measured[name]
            text, before = begin(Watched(engines[name], m.forward_s), seed), _collections()
            cpu, wall = time.process_time(), time.perf_counter()
            m.tokens.append(list(text))
            m.text_s.append(time.process_time() - cpu)
            m.text_wall_s.append(time.perf_counter() - wall)
            m.collections.append(_collections() - before)
    assert len({str(m.tokens) for m in measured.values()}) == 1, "the engines must write the same texts"
    flops = dict.fromkeys(engines, 0.0)
    for T in range(prompt + 1, prompt + new + 1):
        flops["no cache"] += forward_flops(run, fed=T, keys=T * (T + 1) / 2, vocab_size=vocab_size)
        flops["cache"] += forward_flops(run, fed=1, keys=T, vocab_size=vocab_size)
    flops["cache, compiled"] = flops["cache"]
    rows = [_row(name, m, measured["no cache"], flops[name] * texts, new) for name, m in measured.items()]
    return {"config": list(words), "vocab_size": vocab_size, "prompt": prompt, "new": new, "texts": texts, "engines": rows}


def _collections() -> int:
    """Runs of Python's garbage collector so far, all generations."""
    return sum(generation["collections"] for generation in gc.get_stats())


def forward_flops(run: Run, *, fed: int, keys: float, vocab_size: int) -> float:
    """FLOPs of the matrix products of one forward pass over `fed` tokens whose queries meet `keys` keys in all; the head sees one token."""
    training = component_flops(run, vocab_size=vocab_size)  # three times the forward's
    layers = training["qkv"] + training["attention_out"] + training["mlp"]
    return (layers * fed + training["head"]) / 3 + 4 * run.model.d_model * run.model.n_layer * keys


def _row(name: str, m: Measured, base: Measured, flops: float, new: int) -> dict[str, Any]:
    rates = sorted(new / s for s in m.text_s)
    return {
        "engine": name,
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_range": [rates[0], rates[-1]],
        "tokens_per_s_wall": new / statistics.median(m.text_wall_s),
        "times_no_cache": [b / s for b, s in zip(base.text_s, m.text_s, strict=True)],
        "forward_ms": statistics.median(m.forward_s) * 1e3,
        "allocated_mb_per_token": m.allocated_bytes / new / 1e6,
        "matmul_gflops": flops / sum(m.forward_s) / 1e9,
        "gc_runs_a_text": max(m.collections),
        "first_text_s": m.first_s,
    }


def matmul_peak(size: int = 1024, products: int = 60) -> float:
    """FLOP/s, in CPU time as all else here, of the fastest of some fp32 products of two square matrices."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(products):
        began = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - began)
    return 2 * size**3 / min(seconds)


def show(title: str, report: dict[str, Any], peak: float) -> None:
    head = ["engine", "tokens/s", "× no cache", "MB/token", "ms a forward", "matmul GFLOP/s", "of peak", "GC runs", "first text s"]
    rows = [
        [
            row["engine"],
            f"{row['tokens_per_s']:,.1f}",
            f"{statistics.median(row['times_no_cache']):.2f} [{min(row['times_no_cache']):.2f}, {max(row['times_no_cache']):.2f}]",
            f"{row['allocated_mb_per_token']:.3f}",
            f"{row['forward_ms']:.3f}",
            f"{row['matmul_gflops']:.2f}",
            f"{row['matmul_gflops'] * 1e9 / peak:.1%}",
            str(row["gc_runs_a_text"]),
            f"{row['first_text_s']:.2f}",
        ]
        for row in report["engines"]
    ]
    print(f"{title}: {report['texts']} texts of {report['new']} tokens after {report['prompt']}\n{aligned(head, rows)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=3, help="of each engine and shape")
    parser.add_argument("--only", choices=("smallmind", "long"), help="one of the shapes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    peak = matmul_peak()
    report: dict[str, Any] = {
        "schema_version": 1,
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "hardware": {key: value for key, value in hardware.describe(Device.cpu, args.threads).items() if key != "host"},
        "matmul_peak_gflops": peak / 1e9,
        "shapes": {},
    }
    print(f"{hardware.device_name(Device.cpu)}, {args.threads} thread(s): {peak / 1e9:.1f} GFLOP/s in a 1024 × 1024 fp32 product\n")
    shapes = {
        "smallmind": (SMALLMIND, {"vocab_size": 512, "prompt": 1, "new": 50}),
        "smallmind, full block": (SMALLMIND, {"vocab_size": 512, "prompt": 78, "new": 50}),
        "long": (LONG, {"vocab_size": 257, "prompt": 1024 - 12, "new": 12}),
    }
    for name, (words, sizes) in shapes.items():
        if args.only in (None, name.split(",")[0]):
            report["shapes"][name] = bench(words, **sizes, texts=args.texts)
            show(name, report["shapes"][name], peak)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
