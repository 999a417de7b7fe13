"""Run pytest, and run what fails once more, alone, after the rest.

    python -m tests.tools.retry [WORDS OF PYTEST …]

A test that passes the second time is unsteady: the last lines name it, with the ends of both logs,
and the exit code is 0. A test that fails twice is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TESTS_FAILED = 1  # pytest's exit code; every other one but 0 says that the tests did not run
SHOWN = 40  # lines of a log's end


def run(words: Sequence[str], *, log: Path, cache: Path) -> int:
    """Run pytest with these words, copy its output to `log`, and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *words]
    if sys.stdout.isatty():
        command.append("--color=yes")
    with (
        log.open("w") as copy,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            copy.write(line)
    return process.returncode


def failed_tests(cache: Path) -> set[str]:
    """Return the tests that failed last, as pytest's cache has them for `--last-failed`."""
    path = cache / "v" / "cache" / "lastfailed"
    if path.exists():
        return set(json.loads(path.read_text()))
    return set()


def end_of(log: Path) -> str:
    """Return the last lines of a log."""
    lines = log.read_text().splitlines()
    return "\n".join(lines[-SHOWN:])


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        first = folder / "first.log"
        second = folder / "second.log"
        code = run(words, log=first, cache=cache)
        failed = failed_tests(cache)
        if code != TESTS_FAILED or not failed:
            return code
        print(f"\n{len(failed)} failed; once more, alone:", flush=True)
        code = run([*words, "-n", "0", "--last-failed"], log=second, cache=cache)
        if code in (0, TESTS_FAILED):
            unsteady = failed - failed_tests(cache)
        else:
            unsteady = set()
        if unsteady:
            print(f"\n--- the end of the first log ---\n{end_of(first)}")
            print(f"\n--- the end of the second log ---\n{end_of(second)}\n")
        for test in sorted(unsteady):
            print(f"unsteady: {test} failed, and passed alone", flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
