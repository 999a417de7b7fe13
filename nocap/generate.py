"""`python -m nocap.generate`: text from a run's checkpoint."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config import defaults, hardware
from nocap.config.trainer import Device
from nocap.launch.head import use_copies
from nocap.measure.request import Generate
from nocap.store.find import find_one
from nocap.store.record import check_writable, write_json, writing

if TYPE_CHECKING:
    from nocap.measure.generation import Trained


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(outside.arguments(argv))
    from nocap.config.compose import from_overrides  # Hydra comes with it: --help does without
    from nocap.config.errors import refusals

    with refusals():
        if options.json:
            check_writable("--json", options.json)
        content = _generate(options, from_overrides(Generate, options.overrides))
        if options.json:
            with writing("--json", options.json) as path:
                write_json(path, content)
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = {f.name: "" if f.default in (MISSING, None, "") else f" (default: {f.default})" for f in fields(Generate)}
    keys = "".join(f"  {f.name:<12} {f.metadata['help']}{defaults[f.name]}\n" for f in fields(Generate))
    parser = argparse.ArgumentParser(
        prog="python -m nocap.generate",
        description="Text from the newest valid checkpoint of a run, over a cache of keys and values.",
        epilog=f"keys:\n{keys}\nexample: python -m nocap.generate run=3f2a9c prompt='def main' temperature=0.8 top_k=50 samples=3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="what to generate: see keys")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the texts as JSON")
    outside.document(parser)
    parser.add_argument("--allow-code", action="store_true", help="run the copy of its options that the record of the run holds")
    return parser


def _generate(options: argparse.Namespace, asked: Generate) -> dict[str, Any]:
    run_dir, device = find_one(asked.run, outputs=Path(asked.output_dir)), asked.device or defaults.device()
    if options.allow_code:
        use_copies(run_dir)
    hardware.check_device(device, 1, key="device")
    if asked.compile:
        hardware.check_compiler("compile=true", device)
    threads = asked.threads or defaults.threads(device, 1)
    trained = _load(run_dir, device, threads)
    prompt = trained.encoding.encode_ordinary(asked.prompt) or [trained.encoding.eot_token]
    if len(prompt) > (context := trained.run.model.seq_len):
        raise ValueError(f"prompt must be at most the model's context, model.seq_len={context} tokens, got {len(prompt)}")
    from nocap.measure.generation import write_texts

    return write_texts(asked, trained, prompt, run_name=run_dir.name, log=_log)


def _load(run_dir: Path, device: Device, threads: int) -> Trained:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch comes: threads that wait must not hold the cores (LOG.md)
    import torch

    from nocap.measure.generation import load

    torch.set_num_threads(threads)
    return load(run_dir, device=torch.device(device.value), log=_log)


def _log(line: str) -> None:
    print(f"nocap: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
