"""Cells per minute of a pool of two on two cores, against two lanes started by hand, each training its half
of the same runs one after the other.

    python experiments/pool_throughput/pool_throughput.py

Pool and hand take turns, A B B A, each in output folders of its own. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date

from nocap.config import hardware
from nocap.config.trainer import Device

CELL = (
    *("model=nano", "data=synthetic", "tracker=none", "trainer.device=cpu", "trainer.threads=1", "trainer.precision=fp32"),
    *("trainer.steps=100", "trainer.val_every=0", "trainer.val_tokens=4096"),
)


def train(*words: str, out: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "nocap.train", *CELL, f"output_dir={out}", *words], stdout=subprocess.DEVNULL)


def pool(cells: int, out: str) -> None:
    seeds = ",".join(map(str, range(cells)))
    assert train("--multirun", "hydra/launcher=pool", "hydra.launcher.jobs=2", f"seed={seeds}", out=out).wait() == 0


def by_hand(cells: int, out: str) -> None:
    def lane(first: int) -> list[int]:
        return [train(f"seed={seed}", out=out).wait() for seed in range(first, cells, 2)]

    with ThreadPoolExecutor(2) as lanes:
        assert not any(code for codes in lanes.map(lane, range(2)) for code in codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8, help="an even number")
    parser.add_argument("--rounds", type=int, default=1, help="of A B B A")
    args = parser.parse_args()
    ways = {"pool": pool, "by_hand": by_hand}
    per_minute: dict[str, list[float]] = {name: [] for name in ways}
    for name in ("pool", "by_hand", "by_hand", "pool") * args.rounds:
        with tempfile.TemporaryDirectory() as out:
            began = time.monotonic()
            ways[name](args.cells, out)
            per_minute[name].append(args.cells / (time.monotonic() - began) * 60)
    medians = {name: statistics.median(values) for name, values in per_minute.items()}
    report = {
        "date": date.today().isoformat(),
        "hardware": hardware.describe(Device.cpu, 1),
        "cells_per_minute": per_minute,
        "ratio": medians["pool"] / medians["by_hand"],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
