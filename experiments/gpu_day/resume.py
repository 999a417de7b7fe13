"""SIGKILL a training run on the device and give the same command again: does it go on, and where does it end?

    python experiments/gpu_day/resume.py [--device cuda|cpu] [--small] [--json FILE]

The same run is trained once undisturbed and once killed with all its processes as soon as it has a checkpoint. Exit code 1 if the second
command did not go on from a checkpoint to the end.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.trainer import Device
from nocap.store.record import write_json

D12 = (
    "model=d12",
    "model.n_layer=4",
    "tokenizer=gpt2",
    "data.val_tokens=40000",
    "trainer.val_tokens=32768",
    "trainer.micro_batch=16",
    "trainer.batch_tokens=16384",
)
NANO = (
    "model=nano",
    "tokenizer=bytes",
    "data.val_tokens=5000",
    "trainer.val_tokens=4096",
    "trainer.micro_batch=8",
    "trainer.batch_tokens=1024",
)
RUN = ("data=synthetic", "tracker=none", "trainer.compile=off", "trainer.val_every=0")
RUN_S = 38.0  # of one command at most


def train(words: list[str], *, kill: Path | None = None) -> tuple[int | None, str, int | None]:
    """Exit code (`None`: longer than it may), output, and the last step in the rows at the kill: once `kill` has a run with a checkpoint.

    The worker dies with its parent.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "nocap.train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    began, step = time.monotonic(), None
    try:
        while kill is not None and process.poll() is None and time.monotonic() - began < RUN_S:
            if list(kill.glob("runs/*/checkpoints/step-*")):
                process.kill()
                step = (rows(kill) or [{"step": None}])[-1]["step"]
                break
            time.sleep(0.02)
        out, _ = process.communicate(timeout=max(1.0, RUN_S - (time.monotonic() - began)))
        return process.returncode, out, step
    except subprocess.TimeoutExpired as late:
        return None, f"longer than {RUN_S:g} s: {late.output!r}", step
    finally:
        process.kill()


def rows(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in (line for metrics in output.glob("runs/*/metrics.jsonl") for line in metrics.read_text().splitlines()):
        try:
            found.append(json.loads(line))
        except ValueError:  # the one that the kill cut
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=Device, default=Device.cuda, help="cuda or cpu")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    steps, every = (200, 20) if options.small else (40, 20)
    words = [*(NANO if options.small else D12), *RUN, f"trainer.device={options.device.value}", f"trainer.steps={steps}"]
    words += [f"trainer.checkpoint_every={every}"]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        clean, killed = Path(folder) / "clean", Path(folder) / "killed"
        codes = [train([*words, f"output_dir={clean}"])[0]]
        code, _, step = train([*words, f"output_dir={killed}"], kill=killed)
        last, out, _ = train([*words, f"output_dir={killed}"])
        codes += [code, last]
        resumed = re.search(r"resuming from step \d+", out)
        losses = [(rows(output) or [{}])[-1].get("val/loss") for output in (clean, killed)]
    found = {
        "kind": "resume",
        "date": date.today().isoformat(),
        "hardware": hardware.describe(options.device, 1),
        "words": words,
        "exit_codes": codes,
        "killed_after": step,
        "resumed": resumed[0] if resumed else None,
        "val_loss": losses,
        "difference": abs(losses[0] - losses[1]) if None not in losses else None,
        "output": out.splitlines()[-20:],
    }
    print(json.dumps(found, indent=1))
    if options.json:
        write_json(options.json, found)
    return 0 if codes == [0, -signal.SIGKILL, 0] and resumed else 1


if __name__ == "__main__":
    raise SystemExit(main())
