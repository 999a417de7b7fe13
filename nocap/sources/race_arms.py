"""The arms of a race: commands where one stands, or one command in several versions of its
repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.sources.command import Command, run
from nocap.sources.repository import (
    HERE,
    Stamp,
    commit_of,
    digest_of_linked,
    digest_of_locked,
    drop,
    files_of,
    is_dirty,
    link_in,
    repository,
    spare_index,
    stamps_of,
    tracked,
    tree_here,
    tree_of,
    worktree,
)
from nocap.store import lease
from nocap.store.record_files import digest

# The folder in which one stands is no part of a script's path, and a random.py there would be run.
PACKAGES = """import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.metadata as m, platform
packages = [one.metadata for one in m.distributions()]  # which each `one.name` would read again
print(platform.python_version(), *sorted(f"{one['Name']} {one['Version']}" for one in packages))"""
Begin = Callable[..., None]  # runs an arm with a seed in a folder, `how` as for `run`
SCRIPT_BYTES = 2**24  # of a file that a command names, at most: what is longer is data
PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")  # the name of its program
SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
# what stands in quotes, or after a backslash; else what a shell alone understands
SHELL_SYNTAX = re.compile(
    r"""\\.|'[^']*'|"(?P<text>(?:\\.|[^"\\])*)"|(?P<own>&&?|\|\|?|;|<|>|`|\$[\w({?@*#]|(?<!\S)[~#])""",
    re.DOTALL,
)
CONTINUED = re.compile(r"(?P<kept>\\[^\n]|'[^']*')|\\\n")  # a line that goes on in the next one
EXPANDED = re.compile(r"(?<!\\)(?:`|\$[\w({])")  # within double quotes


def of_commands(
    commands: Sequence[tuple[str, Sequence[str]]],
    *,
    locked: Sequence[str] = (),
    apart: Sequence[Path] = (),
) -> tuple[list[Command], Begin]:
    """Arms from (name, words), and what runs one. What they run is their program, in a git
    repository all of the working tree but for what lies `apart`, elsewhere the files that they
    name.

    Errors:
        ValueError: a command that is not there, or a locked pattern that matches nothing.
    """
    here = Path.cwd()
    top = repository(here)
    if locked and top is None:
        raise ValueError(f"--locked works only in a git repository, and {here} is in none")
    tree = ""
    equal = ""
    stamps = dict[str, Stamp]()
    if top is not None:
        stamps = stamps_of(tracked(top, apart), top)
        with spare_index(top) as env:
            tree = tree_here(top, apart, env=env)
            equal = digest_of_locked({"the working tree": files_of(tree, top, env=env)}, locked)
    arms = list[Command]()
    outputs = [path.resolve() for path in apart]
    packages = cache(_packages)  # of a Python that several arms name
    for name, words in commands:
        _check_program(f"arm {name}", words, here)
        # a command raced against itself has runs of its own
        twins = sum(arm.words == tuple(words) for arm in arms)
        program = _program(words, here)
        data = list[str]()
        if top is None:  # else the tree has them, but for what git ignores
            files = [path for path in _files_named(words, here) if path.resolve() not in outputs]
            data = [digest(path.read_bytes().hex()) for path in files]
        content = digest(
            [list(words), tree, data, program, equal, _environment(words, packages), twins]
        )
        arms.append(
            Command(name=name, words=tuple(words), cwd=here, content=content, files=program)
        )
    return arms, partial(_begin_here, top or here, stamps)


def _begin_here(
    top: Path, stamps: Mapping[str, Stamp], arm: Command, seed: int, folder: Path, **how: Any
) -> None:
    """Run one, `how` as for `run`, and refuse an edit of its program or of the repository
    meanwhile. `stamps`: of those that git knows, before the first run.

    Errors:
        FailedError: somebody did.
    """
    run(arm, seed, folder, **how)
    now = stamps_of(stamps, top)
    changed = [path for path, stamp in stamps.items() if now.get(path) != stamp]
    if changed or _program(arm.words, arm.cwd) != arm.files:
        shutil.rmtree(folder)
        what = changed[0] if changed else "its program"
        raise FailedError(f"{what} was edited during the race (--ref races a copy of each version)")


def _parts(words: Sequence[str]) -> list[str]:
    """Yield a command's words, and those of a shell within them."""
    return [part for word in words for part in (word, *re.split(r"[\s=]+", word))]


def _files_named(words: Sequence[str], here: Path) -> list[Path]:
    """Return the files that a command names, in a shell's words or as a module too."""
    files = {
        here / name for part in _parts(words) for name in (part, part.replace(".", "/") + ".py")
    }
    return sorted(
        path for path in files if os.path.isfile(path) and path.stat().st_size < SCRIPT_BYTES
    )


def _program(words: Sequence[str], here: Path) -> str:
    """Return the digest of the scripts that a command names, and of what lies beside those of
    Python, which they may import."""
    scripts = [path for path in _files_named(words, here) if path.suffix in (".py", ".sh")]
    files = {
        *scripts,
        *(
            path
            for script in scripts
            if script.suffix == ".py"
            for path in script.parent.glob("*.py")
        ),
    }
    return digest([[str(path), digest(path.read_bytes().hex())] for path in sorted(files)])


def split(text: str, key: str) -> list[str]:
    """Return the words of a command.

    Errors:
        ValueError: its quotes are not in pairs, or it has what a shell alone understands.
    """
    text = CONTINUED.sub(lambda match: match["kept"] or " ", text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{key} must be a command, with quotes in pairs, got {text!r}") from error
    is_shells = any(Path(word).name in SHELLS for word in words)
    for match in SHELL_SYNTAX.finditer(text):
        own = match["own"]
        if (
            own is None and match["text"] and not is_shells
        ):  # a shell that the command starts reads it
            expanded = EXPANDED.search(match["text"])
            own = expanded and expanded[0]
        rule = f"not have {own}, which only a shell reads (write sh -c '…', or put {own} in quotes)"
        require(own is None, key, rule, text)
    return words


def prepared(arms: Sequence[Command], words: Sequence[str]) -> list[Command]:
    """Return the arms as other ones, before whose runs this command runs.

    Errors:
        ValueError: it begins with no program.
    """
    for arm in arms:
        _check_program("--prepare", words, arm.cwd)
    return [replace(arm, content=digest([arm.content, list(words)])) for arm in arms]


def _check_program(name: str, words: Sequence[str], at: Path) -> None:
    is_program = bool(words) and (
        shutil.which(words[0]) is not None or os.access(at / words[0], os.X_OK)
    )
    rule = "begin with a program that exists"
    if words and re.match(r"\w+=", words[0]):
        rule += f" (env {words[0]} PROGRAM sets a variable)"
    require(is_program, name, rule, shlex.join(words[:1]) or "nothing")


def _environment(words: Sequence[str], packages: Callable[[str], str]) -> list[str]:
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


def _packages(python: str) -> str:
    """Ask a Python for its version and packages. Never of this process: what it has imported may
    have put more on its path, as setuptools does."""
    process = subprocess.run([python, "-c", PACKAGES], capture_output=True, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise FailedError(f"{python} does not list its packages: {last}")
    return process.stdout.strip()


# --- versions -------------------------------------------------------------------------------------


def _begin_version(
    top: Path,
    links: Sequence[str],
    stamps: Mapping[str, Stamp],
    arm: Command,
    seed: int,
    folder: Path,
    **how: Any,
) -> None:
    """Run one, `how` as for `run`, and end the race where it was no run of its own version.
    `stamps`: of what is linked in, before the first run.

    Errors:
        FailedError: it loaded a file of the repository from elsewhere, or wrote into what is linked
            in.
    """
    report = folder.with_suffix(".loaded").absolute()
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parent / "loaded"), os.environ.get("PYTHONPATH", "")])
    )
    own = {
        "PYTHONPATH": path,
        "NOCAP_TOP": str(top),
        "NOCAP_TREE": str(arm.top),
        "NOCAP_LOADED": str(report),
    }
    run(arm, seed, folder, env=own, **how)
    known = files_of("HEAD", top)
    loaded = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    foreign = [file for file in loaded if Path(file).relative_to(top.resolve()).as_posix() in known]
    if foreign or stamps_of(links, top) != stamps:
        shutil.rmtree(folder)
        what = (
            f"loaded {foreign[0]}, which is not of its worktree (an editable install?)"
            if foreign
            else "changed a path of --link"
        )
        raise FailedError(f"it {what}")


def of_refs(
    commands: Sequence[tuple[str, Sequence[str]]],
    *,
    locked: Sequence[str],
    links: Sequence[str],
    folder: Path,
    apart: Sequence[Path] = (),
    undo: ExitStack,
    say: Callable[[str], None],
) -> tuple[list[Command], Begin]:
    """Arms from (ref, words), each in a worktree below `folder` until `undo` ends, and what runs
    one. What is named twice is raced against itself. What lies `apart` is no part of the working
    tree.

    Errors:
        ValueError: no repository, no such ref, arms that are the same, a locked pattern that
            matches nothing or files that differ; HeldError: another race has one of these
                worktrees.
    """
    here, top = Path.cwd(), repository(Path.cwd())
    if top is None:
        raise ValueError(f"--ref works only in a git repository, and {here} is in none")
    commits = {ref: commit_of(ref, top, apart) for ref in dict.fromkeys(ref for ref, _ in commands)}
    trees = {ref: tree_of(commit, top, apart) for ref, commit in commits.items()}
    first, of_first = commands[0]
    same = [
        ref
        for ref, words in commands
        if ref != first and trees[ref] == trees[first] and words == of_first
    ]
    require(not same, "--ref", f"differ from {first} in a file", ", ".join(same))
    if HERE not in commits and is_dirty(top, apart):
        say("note: the working tree has uncommitted changes, which only --ref . would race")
    files = {ref: files_of(tree, top) for ref, tree in trees.items()}
    equal = [digest_of_locked(files, locked), digest_of_linked(links, top)]
    arms = list[Command]()
    packages = cache(_packages)  # of a Python that several arms name
    for i, (ref, words) in enumerate(commands):
        twin = sum(
            (trees[other], other_words) == (trees[ref], words)
            for other, other_words in commands[:i]
        )
        tree_folder = (folder / f"{commits[ref][:12]}{f'-{twin}' if twin else ''}").absolute()
        if tree_folder not in [arm.top for arm in arms]:
            hold = tree_folder.with_name(
                f"{tree_folder.name}.held"
            )  # another race that ends would drop this one's
            hold.mkdir(parents=True, exist_ok=True)
            undo.enter_context(lease.acquire(hold))
            link_in(links, top, worktree(commits[ref], tree_folder, top))
            undo.callback(drop, tree_folder, top)
        cwd = tree_folder / here.relative_to(top)
        name = f"{ref}#{i}" if ref in [other for other, _ in commands[:i]] else ref
        _check_program(f"arm {name}", words, cwd)
        content = digest([list(words), trees[ref], equal, _environment(words, packages), twin])
        arms.append(
            Command(name=name, words=tuple(words), cwd=cwd, content=content, top=tree_folder)
        )
    return arms, partial(_begin_version, top, links, stamps_of(links, top))
