"""Versions of a repository side by side: each ref in a worktree of its own, with what git ignores linked in and what is locked compared."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from nocap.config.keys import require
from nocap.store.record import digest

HERE = "."  # the working tree with its uncommitted changes


def git(*words: str, at: Path, env: Mapping[str, str] | None = None) -> str:
    """
    Errors:
        ValueError: git says no.
    """
    done = subprocess.run(["git", *words], cwd=at, env={**os.environ, **(env or {})}, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ValueError(f"git {words[0]} {words[-1]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout.strip()


def repository(folder: Path) -> Path | None:
    """Its top, or None where there is none."""
    try:
        return Path(git("rev-parse", "--show-toplevel", at=folder))
    except (ValueError, OSError):
        return None


def commit_of(ref: str, top: Path, apart: Sequence[Path] = ()) -> str:
    """What lies `apart` is left out of the working tree's.

    Errors:
        ValueError: no such ref.
    """
    if ref == HERE:
        return git("commit-tree", tree_here(top, apart), "-p", "HEAD", "-m", "the working tree", at=top, env=AUTHOR)
    try:
        return git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", at=top)
    except ValueError as error:
        raise ValueError(f"--ref must be a commit, branch or tag of {top}, or . for its working tree, got {ref!r}") from error


AUTHOR = {f"GIT_{who}_{what}": "nocap" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
AUTHOR |= {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}  # the same tree is the same commit


def tree_here(top: Path, apart: Sequence[Path] = ()) -> str:
    """The tree of all files that git does not ignore and that do not lie `apart`, as they are now. The index stays as it is."""
    return _tree(top, apart, "add", "--all")


def tree_of(commit: str, top: Path, apart: Sequence[Path] = ()) -> str:
    """The tree of a commit without what lies `apart`."""
    return _tree(top, apart, "read-tree", commit)


def _tree(top: Path, apart: Sequence[Path], *fill: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(*fill, at=top, env=env)
        git("rm", "-r", "-f", "--quiet", "--cached", "--ignore-unmatch", "--", *_inside(apart, top), at=top, env=env)
        return git("write-tree", at=top, env=env)


def _inside(apart: Sequence[Path], top: Path) -> list[str]:
    """As git names them. What Python compiles is a part of nothing."""
    inside = [path.resolve().relative_to(top.resolve()) for path in apart if path.resolve().is_relative_to(top.resolve())]
    return [":(glob)**/__pycache__/**", *(f":(literal){path.as_posix()}" for path in inside)]


def files_of(tree: str, top: Path) -> dict[str, str]:
    """Path → the hash of its content."""
    rows = git("ls-tree", "-r", "-z", tree, at=top).split("\0")
    return {path: head.split()[2] for row in rows if row for head, _, path in [row.partition("\t")]}


def is_dirty(top: Path, apart: Sequence[Path] = ()) -> bool:
    but = [path.replace(":(", ":(exclude,") for path in _inside(apart, top)]
    return bool(git("status", "--porcelain", "--", ".", *but, at=top))


def worktree(commit: str, folder: Path, top: Path) -> Path:
    """A worktree of this commit as it was committed, made anew where a race that was killed left another one."""
    if folder.exists():
        clean = repository(folder) == folder.resolve() and not is_dirty(folder) and git("rev-parse", "HEAD", at=folder) == commit
        if clean:
            return folder
        git("worktree", "remove", "--force", str(folder), at=top)
    git("worktree", "prune", at=top)
    folder.parent.mkdir(parents=True, exist_ok=True)
    git("worktree", "add", "--quiet", "--detach", str(folder), commit, at=top)
    return folder


def drop(folder: Path, top: Path) -> None:
    git("worktree", "remove", "--force", str(folder), at=top)


def locked(trees: Mapping[str, str], patterns: Sequence[str], top: Path) -> str:
    """The digest of the files that match the patterns, which must be equal in all trees. `trees`: name of an arm → its tree.

    Errors:
        ValueError: a pattern that matches nothing, or a file that is not the same in two arms.
    """
    of: dict[str, dict[str, str]] = {}
    for name, tree in trees.items():
        every = files_of(tree, top)
        for pattern in patterns:
            files = {path: blob for path, blob in every.items() if fnmatch(path, pattern)}
            require(bool(files), "--locked", f"match a file of {name}", pattern)
            of.setdefault(name, {}).update(files)
    first, *others = of.items() if of else [("", {})]
    for name, files in others:
        differing = sorted(path for path in {*first[1], *files} if first[1].get(path) != files.get(path))
        require(not differing, "--locked", f"be equal in {first[0]} and {name}", ", ".join(differing[:3]))
    return digest(first[1])


def linked(paths: Sequence[str], top: Path) -> str:
    """The digest of everything that is linked in.

    Errors:
        ValueError: nothing is there.
    """
    hashes = {}
    for path in paths:
        place = top / path
        require(place.exists(), "--link", f"be a file or folder of {top}", path)
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                with file.open("rb") as content:
                    hashes[str(file.relative_to(top))] = hashlib.file_digest(content, "sha256").hexdigest()
    return digest(hashes)


def stamps(paths: Sequence[str], top: Path) -> dict[str, tuple[int, int]]:
    """Size and time of what is linked in: a run that writes there changes what the next one reads."""
    files = [file for path in paths for file in ((top / path).rglob("*") if (top / path).is_dir() else [top / path]) if file.is_file()]
    return {str(file.relative_to(top)): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def link(paths: Sequence[str], top: Path, tree: Path) -> None:
    for path in paths:
        place = tree / path
        require(place.is_symlink() or not place.exists(), "--link", "be a path that git ignores", path)
        if not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to((top / path).resolve())
