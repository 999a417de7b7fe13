"""The arms of a race: commands where one stands, or one command in several versions of its
repository."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.sources.races.command import Command, RunSettings, run
from nocap.sources.races.command_program import (
    check_program,
    environment_of,
    files_named,
    packages_of,
    program_of,
)
from nocap.sources.races.repository import (
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

Begin = Callable[[Command, int, Path], None]  # runs an arm with a seed in a folder


# --- commands -------------------------------------------------------------------------------------


def of_commands(
    commands: Sequence[tuple[str, Sequence[str]]],
    settings: RunSettings,
    *,
    locked: Sequence[str] = (),
    apart: Sequence[Path] = (),
) -> tuple[list[Command], Begin]:
    """Return arms from (name, words), and what runs one. What they run is their program, in a git
    repository all of the working tree but for what lies `apart`, elsewhere the files that they
    name.

    Errors:
        ValueError: a command that is not there, or a locked pattern that matches nothing.
    """
    here = Path.cwd()
    top = repository(here)
    if locked and top is None:
        raise ValueError(f"--locked works only in a git repository, and {here} is not in one")
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
    packages = cache(packages_of)  # of a Python that several arms name
    for name, words in commands:
        check_program(f"arm {name}", words, here)
        # a command raced against itself has runs of its own
        twins = sum(arm.words == tuple(words) for arm in arms)
        program = program_of(words, here)
        data = list[str]()
        if top is None:  # else the tree has them, but for what git ignores
            files = [path for path in files_named(words, here) if path.resolve() not in outputs]
            data = [digest(path.read_bytes().hex()) for path in files]
        software = environment_of(words, packages)
        arms.append(
            Command(
                name=name,
                words=tuple(words),
                cwd=here,
                digest=digest([list(words), tree, data, program, equal, software, twins]),
                files=program,
            )
        )
    return arms, partial(_begin_here, settings, top or here, stamps)


def _begin_here(
    settings: RunSettings,
    top: Path,
    stamps: Mapping[str, Stamp],
    arm: Command,
    seed: int,
    folder: Path,
) -> None:
    """Run one, and refuse an edit of its program or of the repository
    meanwhile. `stamps`: of those that git knows, before the first run.

    Errors:
        FailedError: somebody did.
    """
    run(arm, seed, folder, settings)
    now = stamps_of(stamps, top)
    changed = [path for path, stamp in stamps.items() if now.get(path) != stamp]
    if changed or program_of(arm.words, arm.cwd) != arm.files:
        shutil.rmtree(folder)
        what = changed[0] if changed else "the program of the command"
        raise FailedError(
            f"{what} changed during the race; --ref avoids this, because it runs a copy of each "
            "version"
        )


def prepared(arms: Sequence[Command], words: Sequence[str]) -> list[Command]:
    """Return the arms as other ones, before whose runs this command runs.

    Errors:
        ValueError: it begins with no program.
    """
    for arm in arms:
        check_program("--prepare", words, arm.cwd)
    return [replace(arm, digest=digest([arm.digest, list(words)])) for arm in arms]


# --- versions of a repository ---------------------------------------------------------------------


def of_refs(
    commands: Sequence[tuple[str, Sequence[str]]],
    settings: RunSettings,
    *,
    locked: Sequence[str],
    links: Sequence[str],
    folder: Path,
    apart: Sequence[Path] = (),
    undo: ExitStack,
    say: Callable[[str], None],
) -> tuple[list[Command], Begin]:
    """Return arms from (ref, words), and what runs one. Each arm has a worktree below `folder`
    until `undo` ends. What is named twice is raced against itself. What lies `apart` is no part of
    the working tree.

    Errors:
        ValueError: no repository, no such ref, arms that are the same, a locked pattern that
            matches nothing or files that differ.
        HeldError: another race has one of these worktrees.
    """
    here = Path.cwd()
    top = repository(here)
    if top is None:
        raise ValueError(f"--ref works only in a git repository, and {here} is not in one")
    refs = dict.fromkeys(ref for ref, _ in commands)
    commits = {ref: commit_of(ref, top, apart) for ref in refs}
    trees = {ref: tree_of(commit, top, apart) for ref, commit in commits.items()}
    _check_differ(commands, trees)
    if HERE not in commits and is_dirty(top, apart):
        say(
            "note: the race leaves out the uncommitted changes of the working tree; add --ref . "
            "to race them"
        )
    files = {ref: files_of(tree, top) for ref, tree in trees.items()}
    equal = [digest_of_locked(files, locked), digest_of_linked(links, top)]
    arms = list[Command]()
    packages = cache(packages_of)  # of a Python that several arms name
    for i, (ref, words) in enumerate(commands):
        earlier = commands[:i]
        twin = sum((trees[other], own) == (trees[ref], words) for other, own in earlier)
        suffix = f"-{twin}" if twin else ""
        tree_folder = (folder / f"{commits[ref][:12]}{suffix}").absolute()
        if tree_folder not in [arm.top for arm in arms]:
            # another race that ends would drop this one's
            hold = tree_folder.with_name(f"{tree_folder.name}.held")
            hold.mkdir(parents=True, exist_ok=True)
            undo.enter_context(lease.acquire(hold))
            link_in(links, top, worktree(commits[ref], tree_folder, top))
            undo.callback(drop, tree_folder, top)
        cwd = tree_folder / here.relative_to(top)
        is_named = ref in [other for other, _ in earlier]
        name = f"{ref}#{i}" if is_named else ref
        check_program(f"arm {name}", words, cwd)
        software = environment_of(words, packages)
        arms.append(
            Command(
                name=name,
                words=tuple(words),
                cwd=cwd,
                digest=digest([list(words), trees[ref], equal, software, twin]),
                top=tree_folder,
            )
        )
    return arms, partial(_begin_version, settings, top, links, stamps_of(links, top))


def _check_differ(commands: Sequence[tuple[str, Sequence[str]]], trees: Mapping[str, str]) -> None:
    """Refuse another ref whose files and words are those of the first."""
    first, of_first = commands[0]
    same = list[str]()
    for ref, words in commands:
        if ref != first and trees[ref] == trees[first] and words == of_first:
            same.append(ref)
    require(not same, "--ref", f"differ from {first} in at least one file", ", ".join(same))


def _begin_version(
    settings: RunSettings,
    top: Path,
    links: Sequence[str],
    stamps: Mapping[str, Stamp],
    arm: Command,
    seed: int,
    folder: Path,
) -> None:
    """Run one, and end the race where it was no run of its own version.
    `stamps`: of what is linked in, before the first run.

    Errors:
        FailedError: it loaded a file of the repository from elsewhere, or wrote into what is linked
            in.
    """
    report = folder.with_suffix(".loaded").absolute()
    paths = [str(Path(__file__).parent / "loaded_files_report"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NOCAP_TOP": str(top),
        "NOCAP_TREE": str(arm.top),
        "NOCAP_LOADED": str(report),
    }
    run(arm, seed, folder, settings, env=own)
    known = files_of("HEAD", top)
    loaded = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    foreign = [file for file in loaded if Path(file).relative_to(top.resolve()).as_posix() in known]
    if foreign or stamps_of(links, top) != stamps:
        shutil.rmtree(folder)
        if foreign:
            what = (
                f"{foreign[0]}, which is outside the arm's worktree (is the package installed "
                "with pip install -e?)"
            )
            raise FailedError(f"the command loaded {what}")
        raise FailedError("the command changed a file of a --link path, which all arms share")
