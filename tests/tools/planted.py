"""Plant a fault in a copy of the project, and see whether a test finds it.

    python -m tests.tools.planted [--mark EXPRESSION] [ROOM …]

`tests/planted/ROOM.patch` changes what a room does by one line. Its head says what goes wrong and
names the test files that must notice. Prints the first test that fails on each fault. Exits with 1
if a fault is not found.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests" / "planted"
GATE = "not slow and not fuzz"  # what .ci/run runs: the default suite and the tests marked gate
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "outputs", "build")


def rooms() -> list[str]:
    """List the rooms that have a fault."""
    return sorted(path.stem for path in PLANTED.glob("*.patch"))


def test_files(room: str) -> list[str]:
    """Return the test files that must notice the room's fault."""
    text = (PLANTED / f"{room}.patch").read_text()
    (line,) = re.findall(r"^Tests: (.+)$", text, re.MULTILINE)
    return str(line).split()


def plant(room: str, copy: Path) -> None:
    """Apply the room's fault to a copy of the project.

    Errors:
        CalledProcessError: the line that it changes is not there any more.
    """
    patch = PLANTED / f"{room}.patch"
    command = ["git", "apply", str(patch)]
    subprocess.run(command, cwd=copy, check=True)


def found_by(room: str, *, mark: str = GATE) -> str | None:
    """Return the first test that fails on the room's fault, or `None` where all pass.

    Errors:
        RuntimeError: the tests did not run to their end.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        if (shared := ROOT.parent / "shared").is_dir():
            (copy.parent / "shared").symlink_to(shared)
        plant(room, copy)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", mark]
        ran = subprocess.run(
            [*command, *test_files(room)], cwd=copy, capture_output=True, text=True, check=False
        )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
    if failed:
        return failed[1]
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.planted")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", default=rooms())
    parser.add_argument("--mark", default=GATE, metavar="EXPRESSION", help=f"default: {GATE!r}")
    options = parser.parse_args(argv)
    missed = 0
    for room in options.rooms:
        test = found_by(room, mark=options.mark)
        missed += test is None
        print(f"{room:9} {test or 'NOT FOUND'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
