"""What a grid of many cells costs its launcher: planning, starting and watching cells whose workers only sleep.

python experiments/scale/launcher.py --cells 10000 --at-once 1000 --trained 2000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from nocap.config.compose import composed
from nocap.config.trainer import Device
from nocap.launch import attempt
from nocap.launch.grid import Grid, check
from nocap.launch.runner import Devices, Runner

WORDS = ("model=nano", "data=synthetic", "tracker=none", "trainer.compile=off", "trainer.threads=1")
MIB = 1 << 20


class Sleeper(subprocess.Popen[bytes]):
    """In a worker's place: a process that sleeps, then a summary as of a finished run."""

    seconds = 1.0

    def __init__(self, command: Sequence[str], **more: Any) -> None:
        self._folder = Path(command[-1])
        super().__init__(["sleep", str(self.seconds)], stdin=subprocess.DEVNULL)

    def poll(self) -> int | None:
        if (code := super().poll()) is not None:
            summary = {"status": "finished", "val_loss": 1.0, "clock_s": {"wall": self.seconds}}
            (self._folder / "summary.json").write_text(json.dumps(summary))
        return code


def memory_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000, help="of the grid, all planned")
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--trained", type=int, default=2000, help="so many of them are started and watched")
    parser.add_argument("--seconds", type=float, default=30.0, help="that a cell sleeps")
    args = parser.parse_args()
    Sleeper.seconds = args.seconds
    attempt.subprocess.Popen = Sleeper  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, float] = {"MiB at the start": memory_mib()}
        began, cpu = time.monotonic(), time.process_time()
        rates = max(1, args.cells // 10)
        words = [[*WORDS, f"output_dir={folder}", f"optimizer.lr={1e-4 * (1 + n)}", f"seed={s}"] for s in range(10) for n in range(rates)]
        grid = check(words[: args.cells], swept=("optimizer.lr", "seed"), compose=composed, log=print)
        grid.write()
        found |= {"plan, s": time.monotonic() - began, "plan, CPU-s": time.process_time() - cpu, "MiB planned": memory_mib()}
        found["grid.json, MiB"] = (grid.folder / "grid.json").stat().st_size / MIB
        part = Grid(name=grid.name, folder=grid.folder, swept=grid.swept, cells=grid.cells[: args.trained])
        runner = Runner(part, Devices(jobs=args.at_once, units={device: [] for device in Device}))
        began, cpu, most = time.monotonic(), time.process_time(), [0]

        def watch() -> None:
            while runner is not None and most[0] >= 0:
                most[0] = max(most[0], threading.active_count())
                time.sleep(0.5)

        threading.Thread(target=watch, daemon=True).start()
        with redirect_stdout(sys.stderr):
            results = runner.run()
        wall = time.monotonic() - began
        found |= {"trained": sum(result.status == "finished" for result in results.values()), "run, s": wall}
        found["parent's CPU a cell, ms"] = 1e3 * (time.process_time() - cpu) / (found["trained"] or 1)
        found |= {"MiB at the end": memory_mib(), "threads": most[0]}
        some = list(Path(folder).glob("runs/*"))[:20]
        sizes = [path.stat().st_size for run in some for path in run.rglob("*") if path.is_file()]
        found |= {"files a cell": len(sizes) / len(some), "KiB a cell, head": sum(sizes) / len(some) / 1024}
    print(json.dumps({name: round(value, 2) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
