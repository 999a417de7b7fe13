"""`nocap DOOR …`: the console script; `python -m nocap.DOOR …` is the same."""

from __future__ import annotations

import importlib
import os
import sys

DOORS = {
    "train": "one run, or a grid with --multirun",
    "data": "list, prepare and verify token shards",
    "compare": "what held, among any runs",
    "generate": "text from a checkpoint, and how fast it comes",
    "profile": "where a step's time and memory go",
    "study": "how many seeds a verdict needs, and how often verdicts are wrong",
    "bench": "which training step is faster here, interleaved",
    "new": "an option of your own that works, to begin from",
    "check": "what holds of the options in a folder",
}


def main() -> None:
    """Hand over to a door, which reads the rest of the command line."""
    if "query=bash" in sys.argv:
        _complete()
    door = sys.argv[1] if len(sys.argv) > 1 else None
    if door not in DOORS:
        usage = "\n".join(f"  nocap {name:<8} {what}" for name, what in DOORS.items())
        print(f'usage: nocap DOOR …\n{usage}\ntab completion: eval "$(nocap train -sc install=bash)"', file=sys.stderr)
        raise SystemExit(0 if door in ("-h", "--help") else 2)
    del sys.argv[1]
    importlib.import_module(f"nocap.{door}.__main__" if door in ("data", "study") else f"nocap.{door}").main()


def _complete() -> None:
    """Answer bash: the doors' names, or Hydra's completion with the door's name taken out of the line it looks at."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) <= 2 or words[1] != "train":
        print(" ".join(name for name in DOORS if len(words) < 2 or name.startswith(words[1])))
        raise SystemExit(0)
    line = os.environ["COMP_LINE"]
    shorter = line.replace(" train", "", 1)
    os.environ["COMP_LINE"] = shorter
    os.environ["COMP_POINT"] = str(max(0, int(os.environ.get("COMP_POINT", len(line))) - len(line) + len(shorter)))
    sys.argv.insert(1, "train")


if __name__ == "__main__":
    main()
