"""`recipe_d12` against the challenge's baseline for 300 steps of real text: all runs at once, for their
losses.

    python experiments/gpu_day/recipe.py FOLDER [OVERRIDES …] [--seeds N] [--seconds S] [--device cuda|cpu]
        [--small] [--json FILE]

FOLDER has shards in the challenge's format, *train*.bin and *val*.bin; OVERRIDES are nocap's. Runs share the
device, so that no time of theirs means anything: `nocap.bench` times the two. The JSON has each run's
validation losses by step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from script import parser, report

from nocap.store.record import write_json

ARMS = ("nocap_baseline", "recipe_d12")
FULL = ("trainer.steps=300", "trainer.micro_batch=16", "trainer.batch_tokens=49152")  # 14.7 million tokens
FULL += ("schedule.warmup_steps=30", "schedule.decay_steps=100", "trainer.val_every=50")
SMALL = (
    "model=nano",
    "tokenizer=bytes",
    "trainer.steps=6",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=256",
)
SMALL += ("data.read_sequences=2", "schedule.warmup_steps=2", "schedule.decay_steps=2", "trainer.val_every=3")
SMALL += ("trainer.val_tokens=1024",)


def start(arm: str, seed: int, words: Sequence[str], out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "nocap.train",
        f"experiment={arm}",
        f"seed={seed}",
        "data=shards",
        *words,
    ]
    command += ["tracker=none", "trainer.checkpoint_every=0", f"output_dir={out}"]
    log = (out.parent / f"{out.name}.log").open("w")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)


def wait(process: subprocess.Popen[str], until: float) -> int:
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait()


def read(out: Path, code: int) -> dict[str, Any]:
    """What a run left; its last line where it failed."""
    lines = (out.parent / f"{out.name}.log").read_text().strip().splitlines()
    row: dict[str, Any] = {"rc": code, "error": lines[-1] if code and lines else None, "val_loss": {}}
    for metrics in out.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        row["val_loss"] = {each["step"]: each["val/loss"] for each in rows if "val/loss" in each}
    return row


def main() -> int:
    flags = parser(__doc__)
    flags.add_argument("folder", type=Path, metavar="FOLDER")
    flags.add_argument("overrides", nargs="*", metavar="OVERRIDES")
    flags.add_argument("--seeds", type=int, default=1, metavar="N")
    flags.add_argument("--seconds", type=float, default=540.0, help="then they are stopped (default: 540)")
    options = flags.parse_intermixed_args()
    folder = options.folder.absolute()
    words = [f"trainer.device={options.device.value}", "trainer.val_precision=bf16"]
    words += [*(SMALL if options.small else FULL), *options.overrides]
    data = [f"data.train={folder}/*train*.bin", f"data.val={folder}/*val*.bin"]
    pairs = [(arm, seed) for seed in range(options.seeds) for arm in ARMS]
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        outs = [Path(scratch) / f"{arm}-{seed}" for arm, seed in pairs]
        running = [start(*pair, [*data, *words], out) for pair, out in zip(pairs, outs, strict=True)]
        codes = [wait(process, began + options.seconds) for process in running]
        rows = [read(*pair) for pair in zip(outs, codes, strict=True)]
    runs = [{"arm": arm, "seed": seed, **row} for (arm, seed), row in zip(pairs, rows, strict=True)]
    for run in runs:
        print(json.dumps(run), flush=True)
    if options.json:
        write_json(options.json, report("recipe", options.device, words=words, runs=runs))
    return 1 if any(row["rc"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
