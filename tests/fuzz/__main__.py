"""`python -m tests.fuzz`: so many cases at random, counts by door and outcome, and the smallest case of each fault."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--door", action="append", default=[])
    parser.add_argument("--library", type=Path, help="where it is kept for the next time (default: nowhere)")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        home = str(args.library or root)
        os.environ["NOCAP_CACHE"] = f"{home}/cache"
        from tests.fuzz.judge import lane
        from tests.fuzz.library import make

        began = time.monotonic()
        if not (library := Path(home) / "library").exists():
            make(library)
        print(f"library: {time.monotonic() - began:.1f} s", file=sys.stderr)
        shards = max(args.lanes, args.cases // 1000)
        with ProcessPoolExecutor(args.lanes, max_tasks_per_child=1) as pool:
            jobs = [pool.submit(lane, library, root, args.seed * 10_000 + i, args.cases // shards, args.door) for i in range(shards)]
            found = [job.result() for job in jobs]
        seconds, cpu_s = time.monotonic() - began, sum(one["cpu_s"] for one in found)
    counts = sum((Counter(one["counts"]) for one in found), Counter[str]())
    faults = [fault for one in found for fault in one["faults"]]
    _show(counts, faults, seconds, cpu_s)
    return 1 if faults else 0


def _show(counts: Counter[str], faults: list[list[str]], seconds: float, cpu_s: float) -> None:
    n = counts.total()
    print(f"{n} cases in {seconds / 60:.1f} minutes: {n / seconds:.1f} a second, {n / cpu_s:.1f} a second of CPU; {len(faults)} faults")
    for what, n in sorted(counts.items()):
        print(f"  {n:>6}  {what}")
    causes: dict[tuple[str, str, str], list[str]] = {}
    for outcome, detail, case in faults:
        causes.setdefault((outcome, case.partition(":")[0], detail if outcome != "silent" else detail.partition(":")[0]), []).append(case)
    for (outcome, door, detail), cases in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(cases):>4}  {outcome}  {door}  {detail[:200]}\n        {min(cases, key=len)}")


if __name__ == "__main__":
    sys.exit(main())
