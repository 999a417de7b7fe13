"""`python -m nocap.generate`: text from a run's checkpoint, and how fast it comes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config import hardware
from nocap.config.trainer import Device, Precision
from nocap.generation.request import Generate
from nocap.generation.text import Sample, for_a_terminal
from nocap.launch.plan import COPIES
from nocap.options.attention import kernel_name
from nocap.store.record import write_json, writing
from nocap.store.runs import find_one

if TYPE_CHECKING:
    from nocap.generation.load import Trained

BATCH_SIZES = "1,4,16"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(outside.arguments(argv))
    from nocap.config.compose import from_words, refusals  # Hydra comes with it: --help does without

    with refusals():
        asked = from_words(Generate, options.words)
        if not options.latency and options.batch_sizes:
            raise ValueError("--batch-sizes is for --latency; several texts are samples=N")
        if options.latency and asked.samples != 1:
            raise ValueError(f"samples must be left out with --latency, which has --batch-sizes, got {asked.samples}")
        run_dir, device = find_one(asked.run, outputs=Path(asked.output_dir)), asked.device or hardware.default_device()
        if options.allow_code and (run_dir / COPIES).is_dir():
            outside.use([run_dir / COPIES])
        hardware.check_device(device, 1, key="device")
        if asked.compile:
            hardware.check_compiler("compile=true", device)
        threads = asked.threads or hardware.default_threads(device, 1)
        trained = _load(run_dir, device, threads)
        prompt = trained.encoding.encode_ordinary(asked.prompt) or [trained.encoding.eot_token]
        if len(prompt) > (context := trained.run.model.seq_len):
            raise ValueError(f"prompt must be at most the model's context, model.seq_len={context} tokens, got {len(prompt)}")
        if options.latency:
            content = _latency(asked, trained, prompt, run_dir, threads, _sizes(options.batch_sizes or BATCH_SIZES))
        else:
            content = _text(asked, trained, prompt, run_dir)
        if options.json:
            with writing("--json", options.json):
                write_json(options.json, content)
    return 0


def _parser() -> argparse.ArgumentParser:
    stated = {f.name: "" if f.default in (MISSING, None, "") else f" (default: {f.default})" for f in fields(Generate)}
    keys = "".join(f"  {f.name:<12} {f.metadata['help']}{stated[f.name]}\n" for f in fields(Generate))
    parser = argparse.ArgumentParser(
        prog="python -m nocap.generate",
        description="Text from the newest valid checkpoint of a run, over a cache of keys and values.",
        epilog=f"keys:\n{keys}\nexample: python -m nocap.generate run=3f2a9c prompt='def main' temperature=0.8 top_k=50 samples=3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="what to generate: see keys")
    parser.add_argument("--latency", action="store_true", help="time it, against no cache; leaves latency.json in the run's folder")
    parser.add_argument("--batch-sizes", metavar="N,N", help=f"with --latency (default: {BATCH_SIZES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the texts, or the latency, as JSON")
    outside.document(parser)
    parser.add_argument("--allow-code", action="store_true", help="run the copy of its options that the record of the run holds")
    return parser


def _load(run_dir: Path, device: Device, threads: int) -> Trained:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch comes: threads that wait must not hold the cores (LOG.md)
    import torch

    from nocap.generation.load import load

    torch.set_num_threads(threads)
    return load(run_dir, device=torch.device(device.value), say=_note)


def _note(line: str) -> None:
    print(f"nocap: {line}", file=sys.stderr, flush=True)


# --- text --------------------------------------------------------------------------------------------------------------------------


def _text(asked: Generate, trained: Trained, prompt: list[int], run_dir: Path) -> dict[str, Any]:
    """Print the texts: a single one on a terminal as it comes, else each as a whole."""
    import torch

    from nocap.generation.engine import engine_for
    from nocap.generation.sample import Sampler, generate

    room = trained.run.model.seq_len - len(prompt) + 1  # the last new token needs no place: nothing is asked of it
    new = min(asked.max_tokens, room)
    live = sys.stdout.isatty() and asked.samples == 1
    shown = for_a_terminal if sys.stdout.isatty() else str
    samples = [Sample(encoding=trained.encoding) for _ in range(asked.samples)]
    if live:
        samples[0].say = lambda text: print(shown(text), end="", flush=True)
        print(shown(asked.prompt), end="", flush=True)
    capacity = len(prompt) + new - 1
    decoder = engine_for(trained.model, trained.run, batch=asked.samples, capacity=capacity, compiled=asked.compile, say=_note)
    sampler = Sampler(temperature=asked.temperature, top_k=asked.top_k, seed=asked.seed, sequences=asked.samples, max_tokens=new)
    prompt_1T = torch.tensor([prompt], device=next(trained.model.parameters()).device)
    for tokens_B in generate(decoder, prompt_1T, sampler, max_tokens=new):
        for sample, token in zip(samples, tokens_B.tolist(), strict=True):
            sample.take(token)
        if all(sample.ended for sample in samples):
            break
    for number, sample in enumerate(samples, start=1):
        sample.finish()
        if asked.samples > 1:
            print(f"--- sample {number} of {asked.samples}")
        print("" if live else shown(asked.prompt + sample.text), flush=True)
    if new < asked.max_tokens and not all(sample.ended for sample in samples):
        context = f"the model's context, model.seq_len={trained.run.model.seq_len}"
        _note(f"stopped at {context}: {new} new tokens, not max_tokens={asked.max_tokens}")
    stopped = "max_tokens" if new == asked.max_tokens else "context"
    return {
        "run": run_dir.name,
        "checkpoint_step": trained.step,
        "prompt": asked.prompt,
        "prompt_tokens": len(prompt),
        **{key: getattr(asked, key) for key in ("temperature", "top_k", "seed")},
        "samples": [{"text": s.text, "tokens": s.tokens, "stopped": "end_of_text" if s.ended else stopped} for s in samples],
    }


# --- latency -----------------------------------------------------------------------------------------------------------------------


def _sizes(text: str) -> list[int]:
    sizes = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    if min(sizes) < 1:
        raise ValueError(f"--batch-sizes must be whole numbers of at least 1 with commas between, got {text!r}")
    return sizes


def _latency(
    asked: Generate, trained: Trained, prompt: list[int], run_dir: Path, threads: int, batch_sizes: Sequence[int]
) -> dict[str, Any]:
    """Time each batch size, print the table and leave it in the run's folder. Without a prompt, half the context is random tokens."""
    import torch

    from nocap.generation import latency
    from nocap.generation.sample import Sampler
    from nocap.show.table import table

    model, run = trained.model, trained.run
    context, device = run.model.seq_len, next(model.parameters()).device
    one = torch.tensor([prompt]) if asked.prompt else latency.random_prompt(context // 2 or 1, vocab_size=trained.encoding.n_vocab)
    T = one.shape[1]
    new = min(asked.max_tokens, context - T)
    if new < 2:
        raise ValueError(f"prompt must leave room for 2 tokens in model.seq_len={context} with --latency, got {T} tokens")
    kv_bytes, rows = latency.kv_bytes_per_token(model, run, say=_note), []
    for batch in batch_sizes:
        sampler = Sampler(temperature=asked.temperature, top_k=asked.top_k, seed=asked.seed, sequences=batch, max_tokens=new + 1)
        timed = latency.measure(model, run, one.expand(batch, -1).to(device), new=new, sampler=sampler, compiled=asked.compile)
        rows += [each.row(T) for each in timed]
    place = Device(device.type)
    content = {
        "run": run_dir.name,
        "checkpoint_step": trained.step,
        "prompt_tokens": T,
        "new_tokens": new,
        "precision": "fp32",
        "kernel": {"prefill": kernel_name(run.attention, place, Precision.fp32), "decode": "scaled_dot_product_attention"},
        "kv_bytes_per_token": kv_bytes,
        "hardware": hardware.describe(place, threads),
        "rows": rows,
    }
    record = run_dir / "latency.json"
    with writing("run", record):
        write_json(record, content)
    where = f"fp32 on {hardware.device_name(place)}, {threads} CPU thread(s)"
    print(f"{run_dir.name} at step {trained.step}: {T} tokens of prompt, {new} new; {where}")
    print(table(*latency.table(rows)))
    if kv_bytes is not None:
        print(f"KV cache: {kv_bytes:,.0f} bytes a token, over the whole context of {context}")
    return content


if __name__ == "__main__":
    raise SystemExit(main())
