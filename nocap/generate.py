"""`python -m nocap.generate`: text from a run's checkpoint."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from nocap.command_line import add_allow_code, command
from nocap.config import defaults, entry, hardware
from nocap.config.keys import key, require
from nocap.config.outgoing_text import trusted
from nocap.config.trainer import Device
from nocap.store.runs import LAST


@dataclass(kw_only=True, slots=True)
class Generate:
    """The keys of the command; `help` describes each."""

    run: str = field(
        default=LAST,
        metadata={"help": "a run's name, identity or folder, or a file of nocap.export"},
    )
    prompt: str = key(
        free=True, default="", help="text to continue; an empty prompt begins a document"
    )
    max_tokens: int = key(
        ge=1,
        le=2**24,
        default=200,
        help="largest number of new tokens; the context may end a text earlier",
    )
    samples: int = key(ge=1, le=4096, default=1, help="number of texts, decoded in one batch")
    temperature: float = key(
        ge=0, le=1e6, default=1.0, help="temperature of the draws; 0 takes the most probable token"
    )
    top_k: int = key(
        ge=0, le=2**24, default=0, help="draw from the k most probable tokens; 0 draws from all"
    )
    seed: int = key(
        ge=0,
        lt=2**63,
        default=0,
        help="seed of the draws; the first text does not depend on samples",
    )
    cache: bool = field(
        default=True,
        metadata={"help": "keep keys and values; false computes the prefix again for each token"},
    )
    compile: bool = field(
        default=False, metadata={"help": "compile decoding with torch.compile; needs the cache"}
    )
    device: Device | None = field(
        default=None, metadata={"help": "cpu or cuda (default: cuda if there is a GPU)"}
    )
    threads: int | None = key(ge=1, le=4096, default=None, help="CPU threads (default: all cores)")
    output_dir: str = field(
        default="outputs", metadata={"help": "folder in which nocap looks for a run by its name"}
    )

    def __post_init__(self) -> None:
        has_surrogate = any("\ud800" <= c <= "\udfff" for c in self.prompt)
        require(not has_surrogate, "prompt", "be UTF-8", repr(self.prompt))
        if self.temperature == 0:
            rule = "be 0 with temperature=0, which draws no random numbers"
            require(self.top_k == 0, "top_k", rule, self.top_k)
            require(self.seed == 0, "seed", rule, self.seed)
        rule = "be false with cache=false, because nocap compiles only decoding with the cache"
        require(self.cache or not self.compile, "compile", rule, self.compile)


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _generate, argv, answer="the texts")


def _parser() -> argparse.ArgumentParser:
    keys = ""
    for f in fields(Generate):
        about = f.metadata["help"]
        if f.default not in (MISSING, None, ""):
            about += f" (default: {f.default})"
        keys += f"  {f.name:<12} {about}\n"
    parser = argparse.ArgumentParser(
        prog="python -m nocap.generate",
        description="Write text from the newest valid checkpoint of a run, with a cache of keys "
        "and values.",
        epilog=f"keys:\n{keys}\nexample:\n  python -m nocap.generate run=3f2a9c prompt='def main' "
        "temperature=0.8 top_k=50 samples=3",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings of the text, listed below"
    )
    add_allow_code(parser)
    return parser


def _generate(options: argparse.Namespace) -> int:
    """Print the texts. The answer has how fast they came, too: what `cache` and `compile`
    change."""
    from nocap.config.compose import from_overrides  # Hydra

    request = from_overrides(Generate, options.overrides)
    device = request.device or defaults.device()
    if request.compile:
        hardware.check_compiler("compile=true", device)
    # before torch comes: threads that wait must not hold the cores (LOG.md)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import torch

    from nocap.training import allocator

    allocator.use(defaults.malloc(device))
    from nocap.generation.engines import Engine, Recompute, engine_for
    from nocap.generation.sampling import TokenSampler, load_typed, log, write

    torch.set_num_threads(request.threads or defaults.threads(device, 1))
    trained = load_typed(
        request.run, outputs=Path(request.output_dir), device=device, allow_code=options.allow_code
    )
    prompt = trained.encoding.encode_ordinary(request.prompt) or [trained.encoding.eot_token]
    context = trained.run.model.seq_len
    rule = f"have at most model.seq_len={context} tokens, the model's context"
    require(len(prompt) <= context, "prompt", rule, len(prompt))
    # the last new token needs no place in the context
    new = min(request.max_tokens, context - len(prompt) + 1)
    n = request.samples
    engine: Engine = Recompute(trained.model)
    if request.cache:
        size = {"batch": n, "capacity": len(prompt) + new - 1}
        engine = engine_for(trained.model, trained.run, **size, compiled=request.compile, log=log)
    sampler = TokenSampler(
        temperature=request.temperature,
        top_k=request.top_k,
        seed=request.seed,
        sequences=n,
        max_tokens=new,
    )
    written = write(trained, engine, prompt, sampler)
    end = "max_tokens" if new == request.max_tokens else "context"
    samples = list[dict[str, Any]]()
    for tokens in written.texts:
        stopped = end
        if tokens[-1] == trained.encoding.eot_token:
            stopped = "end_of_text"
        samples.append({"text": trained.text(tokens), "tokens": tokens, "stopped": stopped})
    _print(request.prompt, samples)
    if any(sample["stopped"] == "context" for sample in samples):
        log(
            f"stopped at the model's context, model.seq_len={context}: {new} new tokens, not "
            f"max_tokens={request.max_tokens}"
        )
    answer = {
        "run": trained.name,
        "checkpoint_step": trained.step,
        "prompt_tokens": len(prompt),
        "decode_tokens_per_s": written.tokens_per_s,
        "first_token_ms": written.first_token_ms,
        "decode_ms": written.decode_ms,
    }
    for name in ("prompt", "temperature", "top_k", "seed", "cache", "compile"):
        answer[name] = getattr(request, name)
    answer["samples"] = samples
    options.answer(answer)
    return 0


def _print(prompt: str, samples: Sequence[dict[str, Any]]) -> None:
    out = sys.stdout
    if not out.isatty():  # a file or pipe gets the text as it is
        out = trusted(out)
    for number, sample in enumerate(samples, start=1):
        if len(samples) > 1:
            print(f"--- sample {number} of {len(samples)}", file=out)
        print(prompt + sample["text"], file=out)


if __name__ == "__main__":
    entry.run(main)
