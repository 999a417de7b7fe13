"""What chunking the loss and checkpointing activations save in memory, and what they cost in time.

    python experiments/head_loss/head_loss.py
    python experiments/head_loss/head_loss.py --device cuda --precision bf16 --micro-batch 16 --seq-len 1024 --json head_loss.json

The head with its loss (final norm, unembedding, cross-entropy; forward and backward) of the model's width and the GPT-2 vocabulary: plain
and chunked, each eager and compiled, on the same tokens. Its peak counts every allocation after the weights and the input are there, the
gradient of the weights included: torch's allocator on a GPU, the allocations in a torch.profiler trace on the CPU. Then the
blocks of the same model under each kind of activation checkpointing: what their forward keeps for its backward, and both passes' time.

Arms take turns, so that a machine whose speed drifts slows all; the first arm runs twice, as a control. Times on the CPU are of the
process, on one thread unless told otherwise. Ratios are to the first arm of the same round: median, least and most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.config.trainer import ActivationCheckpointing
from nocap.model.gpt import GPT, Head, build_model
from nocap.training.memory import MIB, saved_for_backward
from nocap.training.step import autocast

VOCAB = 50257  # GPT-2's

Pass = Callable[[], None]


def run_of(args: argparse.Namespace, *words: str) -> Run:
    shape = [f"model.seq_len={args.seq_len}", f"trainer.micro_batch={args.micro_batch}", f"trainer.threads={args.threads}"]
    place = [f"trainer.device={args.device}", f"trainer.precision={args.precision}"]
    return compose(["tracker=none", f"model={args.model}", *shape, *place, *words])


def head_pass(args: argparse.Namespace, chunks: int, *, compiled: bool) -> Pass:
    run = run_of(args, f"objective.loss_chunks={chunks}")
    head = Head(run, VOCAB).to(args.device)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(args.micro_batch, args.seq_len, run.model.d_model, generator=generator).to(args.device).requires_grad_()
    targets = torch.randint(VOCAB, x.shape[:2], generator=generator).to(args.device)
    if compiled:
        head.compile(fullgraph=True, dynamic=False)
    return training_pass(run, [x, *head.parameters()], lambda: head(x, targets).total)


def training_pass(run: Run, leaves: list[Tensor], forward: Callable[[], Tensor]) -> Pass:
    """Forward and backward from no gradients to no gradients."""

    def once() -> None:
        with autocast(run, run.trainer.precision):
            loss = forward()
        loss.backward()
        for leaf in leaves:
            leaf.grad = None

    return once


def peak_mib(once: Pass, device: str) -> float:
    """Most MiB that the pass holds at once, over what was there before."""
    once()  # what is compiled or cached at the first call is no part of it
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        once()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most / MIB


def timed(arms: dict[str, Pass], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Median milliseconds of each arm, and its ratios to the first arm."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    arms = {**arms, "control": next(iter(arms.values()))}
    ms: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(args.rounds + 1):
        for name in list(arms) if i % 2 == 0 else list(arms)[::-1]:
            began = clock()
            arms[name]()
            if args.device == "cuda":
                torch.cuda.synchronize()
            if i > 0:  # the first round warms up
                ms[name].append((clock() - began) * 1e3)
    first = next(iter(ms.values()))
    return {name: {"ms": statistics.median(each), **spread([a / b for a, b in zip(each, first, strict=True)])} for name, each in ms.items()}


def spread(ratios: list[float]) -> dict[str, float]:
    return {"time_ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def measure_head(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    arms = {
        "plain": head_pass(args, 1, compiled=False),
        f"{args.chunks} chunks": head_pass(args, args.chunks, compiled=False),
    }
    if not args.eager_only:
        arms["plain, compiled"] = head_pass(args, 1, compiled=True)
        arms[f"{args.chunks} chunks, compiled"] = head_pass(args, args.chunks, compiled=True)
    peaks = {name: peak_mib(once, args.device) for name, once in arms.items()}
    times = timed(arms, args)
    return {name: {"peak_mib": peaks[name], "memory_ratio": peaks["plain"] / peaks[name], **times[name]} for name in arms} | {
        "control (plain again)": times["control"]
    }


def measure_blocks(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The model up to the head, under each kind of activation checkpointing."""
    passes: dict[str, Pass] = {}
    saved: dict[str, float] = {}
    for kind in ActivationCheckpointing:
        run = run_of(args, f"trainer.activation_checkpointing={kind.value}")
        model = build_model(run, vocab_size=256).to(args.device)
        passes[kind.value] = trunk_pass(run, model)
        tokens = torch.zeros(args.micro_batch, args.seq_len, dtype=torch.long, device=args.device)
        with saved_for_backward(model.parameters()) as kept, autocast(run, run.trainer.precision):
            model.trunk(tokens)
        saved[kind.value] = sum(kept.values()) / MIB
    times = timed(passes, args)
    return {name: {"kept_mib": saved[name], "memory_ratio": saved["off"] / saved[name], **times[name]} for name in passes} | {
        "control (off again)": times["control"]
    }


def trunk_pass(run: Run, model: GPT) -> Pass:
    tokens = torch.zeros(run.trainer.micro_batch, run.model.seq_len, dtype=torch.long, device=run.trainer.device.value)
    return training_pass(run, list(model.parameters()), lambda: model.trunk(tokens).float().square().mean())


def show(title: str, rows: dict[str, dict[str, float]], memory: str) -> None:
    print(f"\n{title}\n{'':24}{memory:>10}{'less by':>9}{'ms':>10}{'time':>7}  (least–most)")
    for name, row in rows.items():
        held = f"{row[memory]:10.1f}{row['memory_ratio']:8.2f}×" if memory in row else " " * 19
        print(f"{name:24}{held}{row['ms']:10.1f}{row['time_ratio']:6.2f}×  ({row['least']:.2f}–{row['most']:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="d12")
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=["head", "blocks", "both"], default="both")
    parser.add_argument("--eager-only", action="store_true", help="leave out the compiled heads")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    report: dict[str, object] = {
        "date": date.today().isoformat(),
        "hardware": hardware.describe(run_of(args).trainer.device, 1),
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
    }
    where = f"{args.model}, B={args.micro_batch}, T={args.seq_len}, {args.precision}, {args.device}"
    if args.part != "blocks":
        report["head"] = rows = measure_head(args)
        show(f"Head and loss, forward and backward: {where}, V={VOCAB:,}", rows, "peak_mib")
    if args.part != "head":
        report["blocks"] = rows = measure_blocks(args)
        show(f"Blocks, forward and backward: {where}", rows, "kept_mib")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
