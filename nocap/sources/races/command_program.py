"""What a command runs: its program, the scripts that it names, and the packages of its Pythons."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.store.record_files import digest

# The folder in which one stands is no part of a script's path, and a random.py there would be run.
PACKAGES = """import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.metadata as m, platform
packages = [one.metadata for one in m.distributions()]  # which each `one.name` would read again
print(platform.python_version(), *sorted(f"{one['Name']} {one['Version']}" for one in packages))"""
SCRIPT_BYTES = 2**24  # of a file that a command names, at most: what is longer is data
PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")  # the name of its program


def check_program(name: str, words: Sequence[str], at: Path) -> None:
    """Refuse a command that begins with no program. `at`: the folder where it runs."""
    first = words[0] if words else ""
    is_program = bool(words) and (shutil.which(first) is not None or os.access(at / first, os.X_OK))
    rule = "be a command that begins with a program that exists"
    if re.match(r"\w+=", first):
        rule += f" (to set a variable: env {first} PROGRAM)"
    require(is_program, name, rule, shlex.join(words[:1]) or "nothing")


def program_of(words: Sequence[str], here: Path) -> str:
    """Return the digest of the scripts that a command names, and of what lies beside those of
    Python, which they may import."""
    files = set[Path]()
    for path in files_named(words, here):
        if path.suffix in (".py", ".sh"):
            files.add(path)
        if path.suffix == ".py":
            files.update(path.parent.glob("*.py"))
    return digest([[str(path), digest(path.read_bytes().hex())] for path in sorted(files)])


def files_named(words: Sequence[str], here: Path) -> list[Path]:
    """Return the files that a command names, in a shell's words or as a module too."""
    paths = set[Path]()
    for part in _parts(words):
        module = part.replace(".", "/") + ".py"
        paths |= {here / part, here / module}
    return sorted(filter(_may_be_script, paths))


def _may_be_script(path: Path) -> bool:
    """Say whether a path is a file that is no data."""
    return os.path.isfile(path) and path.stat().st_size < SCRIPT_BYTES


def _parts(words: Sequence[str]) -> list[str]:
    """List a command's words, and those of a shell within them."""
    parts = list[str]()
    for word in words:
        parts += [word, *re.split(r"[\s=]+", word)]
    return parts


def environment_of(words: Sequence[str], packages: Callable[[str], str]) -> list[str]:
    """Describe the software that a run depends on: which file its program is, and the `packages` of
    each Python that its words name.

    Errors:
        FailedError: a Python that does not list its packages, such as one that was killed.
    """
    programs = [shutil.which(part) for part in dict.fromkeys(_parts(words))]
    pythons = [path for path in programs if path is not None and PYTHON.fullmatch(Path(path).name)]
    software = [packages(python) for python in pythons]
    if programs[0] not in pythons:
        software.append(programs[0] or words[0])
    return software


def packages_of(python: str) -> str:
    """Ask a Python for its version and packages. Never of this process: what it has imported may
    have put more on its path, as setuptools does."""
    process = subprocess.run([python, "-c", PACKAGES], capture_output=True, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise FailedError(f"{python} does not list its packages: {last}")
    return process.stdout.strip()
