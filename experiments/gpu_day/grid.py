"""Where the time of a grid's short cells goes: two attentions with three seeds, in the order of
`nocap.train
--multirun`, with all defaults of the device.

    python experiments/gpu_day/grid.py [OVERRIDES …] [--device cuda] [--small] [--json FILE]

OVERRIDES are nocap's. The JSON has the clock ledger of each cell; after a request to stop, of those
that there are. The first cell of an arm compiles.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from script import parser, report

from nocap.store.record_files import read_json, write_json

GRID = ("--multirun", "attention=flash,gqa", "seed=0,1,2", "data=synthetic", "tracker=none")
LENGTH = ("trainer.val_every=0", "trainer.checkpoint_every=0")
D12 = ("model=d12", "tokenizer=gpt2", "trainer.steps=120", "trainer.batch_tokens=32768")
D12 += ("data.train_tokens=4000000", "trainer.val_tokens=65536")
FIGURES = ("status", "arm", "seed", "tokens_per_s", "val_loss", "clock_s")
NANO = ("model=nano", "tokenizer=bytes", "trainer.steps=10", "trainer.threads=1")


def cells(folder: Path) -> list[dict[str, Any]]:
    """List what each cell took, in the order in which they were trained."""
    rows = list[dict[str, Any]]()
    for path in folder.glob("runs/*/summary.json"):
        summary, manifest = read_json(path), read_json(path.with_name("manifest.json"))
        assert summary is not None
        assert manifest is not None
        row = {key: summary.get(key) for key in FIGURES}
        config = manifest["parts"]["config"]
        row["attention"] = manifest["options"]["attention"]
        row["trainer"] = {
            key: config["trainer"][key] for key in ("micro_batch", "compile", "cuda_graphs")
        }
        rows.append({**row, "started": manifest["attempts"][0]["started"]})
    return sorted(rows, key=lambda row: (row["seed"], row["attention"]))


def main() -> int:
    flags = parser(__doc__)
    flags.add_argument("overrides", nargs="*", metavar="OVERRIDES")
    options = flags.parse_intermixed_args()
    shape = [*GRID, *LENGTH, *(NANO if options.small else D12), *options.overrides]
    words = [*shape, f"trainer.device={options.device.value}"]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        command = [sys.executable, "-m", "nocap.train", *words, f"output_dir={scratch}"]
        grid = subprocess.Popen(command)

        def write() -> None:
            """Write what the cells have left so far."""
            if options.json:
                found = {"rc": grid.poll(), "cells": cells(Path(scratch))}
                write_json(options.json, report("grid", options.device, words=words, **found))

        def stop(number: int, _: object) -> None:
            """Pass the request on. A grid that saves may outlast what is left of a time limit."""
            write()
            grid.send_signal(number)

        signal.signal(signal.SIGTERM, stop)
        code = grid.wait()
        write()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
