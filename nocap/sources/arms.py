"""The arms of a race: commands where one stands, or one command in several versions of its repository."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.sources import refs
from nocap.sources.command import Command, run
from nocap.store.record import digest

PACKAGES = """import importlib.metadata as m, platform
print(platform.python_version(), *sorted(f"{one.name} {one.version}" for one in m.distributions()))"""
SCRIPT_BYTES = 2**24  # of a file that a command names, at most: what is longer is data


def of_commands(commands: Sequence[tuple[str, Sequence[str]]], *, locked: Sequence[str] = (), apart: Sequence[Path] = ()) -> list[Command]:
    """Arms from (name, words). What they run is their program, in a git repository all of the working tree but for what lies `apart`,
    elsewhere the files that they name.

    Errors:
        ValueError: a command that is not there, or a locked pattern that matches nothing.
    """
    here = Path.cwd()
    top = refs.repository(here)
    tree = refs.tree_here(top, apart) if top else ""
    require(top is not None or not locked, "--locked", "be given in a git repository", list(locked))
    equal = refs.locked({"the working tree": tree}, locked, top) if top else ""
    made = list[Command]()
    for name, words in commands:
        _check_program(name, words, here)
        twins = sum(arm.words == tuple(words) for arm in made)  # a command raced against itself has runs of its own
        files, program = [path.resolve() for path in apart], _program(words, here)
        data = [] if tree else [digest(path.read_bytes().hex()) for path in _named(words, here) if path.resolve() not in files]
        content = digest([list(words), tree, data, program, equal, _environment(words[0]), twins])
        made.append(Command(name=name, words=tuple(words), cwd=here, content=content, files=program))
    return made


def begin(arm: Command, seed: int, place: Path, **how: Any) -> None:
    """Run one, `how` as for `run`, where anybody may edit its program meanwhile.

    Errors:
        FailedError: somebody did.
    """
    run(arm, seed, place, **how)
    if _program(arm.words, arm.cwd) != arm.files:
        shutil.rmtree(place)
        raise FailedError(f"{arm.name}, seed {seed}: its program was edited while it was raced (--ref keeps each version apart)")


def _named(words: Sequence[str], here: Path) -> list[Path]:
    """The files that a command names, in a shell's words or as a module too."""
    parts = [part for word in words for part in (word, *re.split(r"[\s=]+", word))]
    files = {here / name for part in parts for name in (part, part.replace(".", "/") + ".py")}
    return sorted(path for path in files if os.path.isfile(path) and path.stat().st_size < SCRIPT_BYTES)


def _program(words: Sequence[str], here: Path) -> str:
    """The digest of the scripts that a command names, and of what lies beside those of Python, which they may import."""
    named = [path for path in _named(words, here) if path.suffix in (".py", ".sh")]
    files = {*named, *(path for script in named if script.suffix == ".py" for path in script.parent.glob("*.py"))}
    return digest([[str(path), digest(path.read_bytes().hex())] for path in sorted(files)])


def split(text: str, key: str) -> list[str]:
    """The words of a command.

    Errors:
        ValueError: its quotes are not in pairs.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{key} must be a command, with quotes in pairs, got {text!r}") from error


def _check_program(name: str, words: Sequence[str], at: Path) -> None:
    there = bool(words) and (shutil.which(words[0]) is not None or os.access(at / words[0], os.X_OK))
    require(there, f"arm {name}", "begin with a program that is there", shlex.join(words[:1]) or "nothing")


def _environment(program: str) -> str:
    """What of the machine's software a run depends on: a Python's packages, or which file the program is."""
    found = shutil.which(program) or program
    if "python" not in Path(found).name:
        return found
    if os.path.realpath(found) == os.path.realpath(sys.executable):
        versions = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
        return " ".join([platform.python_version(), *versions])
    return subprocess.run([found, "-c", PACKAGES], capture_output=True, text=True, check=False).stdout


# --- versions ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The same command in worktrees of its repository."""

    arms: list[Command]
    top: Path
    links: Sequence[str]
    stamps: Mapping[str, tuple[int, int]]  # of what is linked in, before the first run

    def begin(self, arm: Command, seed: int, place: Path, **how: Any) -> None:
        """Run one, `how` as for `run`, and end the race where it was no run of its own version.

        Errors:
            FailedError: it loaded a file of the repository from elsewhere, or wrote into what is linked in.
        """
        told = place.with_suffix(".loaded").absolute()
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "loaded"), os.environ.get("PYTHONPATH", "")]))
        own = {"PYTHONPATH": path, "NOCAP_TOP": str(self.top), "NOCAP_TREE": str(arm.top), "NOCAP_LOADED": str(told)}
        run(arm, seed, place, env=own, **how)
        known = refs.files_of("HEAD", self.top)
        loaded = told.read_text().splitlines() if told.exists() else []
        told.unlink(missing_ok=True)
        foreign = [file for file in loaded if Path(file).relative_to(self.top.resolve()).as_posix() in known]
        changed = refs.stamps(self.links, self.top) != self.stamps
        if foreign or changed:
            shutil.rmtree(place)
            what = f"loaded {foreign[0]}, which is not of its worktree (an editable install?)" if foreign else "changed what --link names"
            raise FailedError(f"{arm.name}, seed {seed}: it {what}")


def of_refs(
    commands: Sequence[tuple[str, Sequence[str]]],
    *,
    locked: Sequence[str],
    links: Sequence[str],
    folder: Path,
    apart: Sequence[Path] = (),
    undo: ExitStack,
    say: Callable[[str], None],
) -> Versions:
    """Arms from (ref, words), each in a worktree below `folder` until `undo` ends. What is named twice is raced against itself. What lies
    `apart` is no part of the working tree.

    Errors:
        ValueError: no repository, no such ref, arms that are the same, a locked pattern that matches nothing or files that differ.
    """
    here, top = Path.cwd(), refs.repository(Path.cwd())
    require(top is not None, "--ref", "be given in a git repository", here)
    assert top is not None
    commits = {ref: refs.commit_of(ref, top, apart) for ref in dict.fromkeys(ref for ref, _ in commands)}
    trees = {ref: refs.tree_of(commit, top, apart) for ref, commit in commits.items()}
    first, of_first = commands[0]
    same = [ref for ref, words in commands if ref != first and trees[ref] == trees[first] and words == of_first]
    require(not same, "--ref", f"differ from {first} in a file", ", ".join(same))
    if refs.HERE not in commits and refs.is_dirty(top, apart):
        say("note: the working tree has changes that no --ref . names: they are not raced")
    equal = [refs.locked(trees, locked, top), refs.linked(links, top)]
    made = list[Command]()
    for i, (ref, words) in enumerate(commands):
        twin = sum((trees[other], given) == (trees[ref], words) for other, given in commands[:i])
        place = (folder / f"{commits[ref][:12]}{f'-{twin}' if twin else ''}").absolute()
        if place not in [arm.top for arm in made]:
            refs.link(links, top, refs.worktree(commits[ref], place, top))
            undo.callback(refs.drop, place, top)
        cwd = place / here.relative_to(top)
        name = f"{ref}#{i}" if ref in [other for other, _ in commands[:i]] else ref
        _check_program(name, words, cwd)
        content = digest([list(words), trees[ref], equal, _environment(words[0]), twin])
        made.append(Command(name=name, words=tuple(words), cwd=cwd, content=content, top=place))
    return Versions(arms=made, top=top, links=links, stamps=refs.stamps(links, top))
