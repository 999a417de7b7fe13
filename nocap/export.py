"""`python -m nocap.export`: a run's model as one safetensors file, which `nocap.api.load_model`
reads, and plain torch; or as a folder that Hugging Face's transformers reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nocap.command_line import add_allow_code, add_outputs, check_writable, command, writing
from nocap.config import entry
from nocap.config.keys import require
from nocap.outside import use_copies
from nocap.store.runs import LAST, find_one


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _export, argv, answer="the facts of the run")


def _export(options: argparse.Namespace) -> int:
    if options.hf is not None:
        return _export_hf(options)
    if options.file is None:  # one word alone is the file
        options.file = options.run and Path(options.run)
        options.run = LAST
    if options.file is None:
        raise ValueError("nocap.export needs FILE, as in model.safetensors, or --hf FOLDER")
    options.run = options.run or LAST
    require(options.file.suffix == ".safetensors", "FILE", "end in .safetensors", options.file)
    check_writable("FILE", options.file)
    run_dir = find_one(options.run, outputs=options.output_dir)
    if options.allow_code:
        use_copies(run_dir)
    from nocap.training.export_file import write_export  # torch

    with writing("FILE", options.file) as path:
        about = write_export(
            run_dir, path, log=lambda line: print(f"nocap: {line}", file=sys.stderr)
        )
    print(f"{about['name']} at step {about['step']}, {options.file.stat().st_size / 2**20:.1f} MiB")
    options.answer({**about, "file": str(options.file)})
    return 0


def _export_hf(options: argparse.Namespace) -> int:
    folder = options.hf
    if options.file is not None:
        raise ValueError(f"--hf does not work with FILE, got {options.file}")
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_free, "--hf", "be a new or empty folder", folder)
    run_dir = find_one(options.run or LAST, outputs=options.output_dir)
    if options.allow_code:
        use_copies(run_dir)
    from nocap.training.transformers_export import export_hf  # torch

    about = export_hf(run_dir, folder, log=lambda line: print(f"nocap: {line}", file=sys.stderr))
    print(f"{about['name']} at step {about['step']}, as {about['model_type']}: {folder}")
    options.answer(about)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.export",
        description="Write the model of a run's newest checkpoint, with its config, as one "
        "safetensors file.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a name, the beginning of a name, an identity, a folder, or last (default)",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", type=Path, help="file to write, as in model.safetensors"
    )
    about = "write a new folder for transformers, with a GPT-2 or a Llama model"
    parser.add_argument("--hf", metavar="FOLDER", type=Path, help=about)
    add_outputs(parser)
    add_allow_code(parser)
    return parser


if __name__ == "__main__":
    entry.run(main)
