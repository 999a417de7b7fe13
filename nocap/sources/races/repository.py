"""A git repository of a raced command: what a version is made of, each in a worktree of its own.
What git ignores is linked in, what is locked is compared."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from glob import has_magic
from pathlib import Path

from nocap.config.keys import require
from nocap.store.record_files import digest

Stamp = tuple[int, int]  # bytes of a file, and when it was written
HERE = "."  # the working tree with its uncommitted changes


def git(*words: str, at: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what git prints.

    Errors:
        ValueError: git says no.
    """
    process = subprocess.run(
        ["git", *words],
        cwd=at,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["git failed"])[-1]
        raise ValueError(f"git {words[0]} {words[-1]}: {last}")
    return process.stdout.strip()


def repository(folder: Path) -> Path | None:
    """Return the top folder of the repository; None without a repository or without git.

    Errors:
        ValueError: git says something else, as of another user's repository.
    """
    try:
        return Path(git("rev-parse", "--show-toplevel", at=folder, env={"LC_ALL": "C"}))
    except FileNotFoundError:
        return None
    except ValueError as error:
        if "not a git repository" in str(error):
            return None
        raise


def commit_of(ref: str, top: Path, apart: Sequence[Path] = ()) -> str:
    """Return the commit of a ref; of the working tree one without the files that lie `apart`.

    Errors:
        ValueError: no such ref.
    """
    if ref == HERE:
        return git(
            "commit-tree",
            tree_here(top, apart),
            "-p",
            "HEAD",
            "-m",
            "the working tree",
            at=top,
            env=AUTHOR,
        )
    try:
        return git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", at=top)
    except ValueError as error:
        raise ValueError(
            f"--ref must be a commit, branch or tag of {top}, or . for the working tree, got "
            f"{ref!r}"
        ) from error


AUTHOR = {
    f"GIT_{who}_{what}": "nocap" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}
# the same tree is the same commit
AUTHOR |= {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}


def tree_here(
    top: Path, apart: Sequence[Path] = (), *, env: Mapping[str, str] | None = None
) -> str:
    """Return the tree of all files that git does not ignore and that do not lie `apart`, as they
    are now. The index stays as it is."""
    return _tree(top, apart, "add", "--all", env=env)


@contextmanager
def spare_index(top: Path) -> Iterator[dict[str, str]]:
    """Keep what git writes out of the repository: it would hold a copy of each file that it does
    not track yet, for good. The environment for git inside the block."""
    objects = top / git("rev-parse", "--git-path", "objects", at=top)
    with tempfile.TemporaryDirectory() as folder:
        yield {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}


def tracked(top: Path, apart: Sequence[Path]) -> list[str]:
    """List the files that git knows and that do not lie `apart`."""
    return [
        path for path in git("ls-files", "-z", *_excluding(apart, top), at=top).split("\0") if path
    ]


def tree_of(commit: str, top: Path, apart: Sequence[Path] = ()) -> str:
    """Return the tree of a commit without what lies `apart`."""
    return _tree(top, apart, "read-tree", commit)


def _tree(
    top: Path, apart: Sequence[Path], *fill: str, env: Mapping[str, str] | None = None
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        env = {**(env or {}), "GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(*fill, at=top, env=env)
        git(
            "rm",
            "-r",
            "-f",
            "--quiet",
            "--cached",
            "--ignore-unmatch",
            "--",
            *_inside(apart, top),
            at=top,
            env=env,
        )
        return git("write-tree", at=top, env=env)


def _inside(apart: Sequence[Path], top: Path) -> list[str]:
    """Return paths as git names them. A file that Python compiled is no part of anything."""
    inside = [
        path.resolve().relative_to(top.resolve())
        for path in apart
        if path.resolve().is_relative_to(top.resolve())
    ]
    patterns = [
        f":({'glob' if has_magic(str(path)) else 'literal'}){path.as_posix()}" for path in inside
    ]
    return [":(glob)**/__pycache__/**", *patterns]


def _excluding(apart: Sequence[Path], top: Path) -> list[str]:
    """Return git's pathspec for all files but these."""
    return ["--", ".", *(path.replace(":(", ":(exclude,") for path in _inside(apart, top))]


def files_of(tree: str, top: Path, *, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the files of a tree: path → the hash of what is in it."""
    files: dict[str, str] = {}
    for row in filter(None, git("ls-tree", "-r", "-z", tree, at=top, env=env).split("\0")):
        head, _, path = row.partition("\t")
        files[path] = head.split()[2]
    return files


def is_dirty(top: Path, apart: Sequence[Path] = ()) -> bool:
    return bool(git("status", "--porcelain", *_excluding(apart, top), at=top))


def worktree(commit: str, folder: Path, top: Path) -> Path:
    """Return a worktree of this commit as it was committed, made anew where a race that was killed
    left another one."""
    if folder.exists():
        clean = (
            repository(folder) == folder.resolve()
            and not is_dirty(folder)
            and git("rev-parse", "HEAD", at=folder) == commit
        )
        if clean:
            return folder
        git("worktree", "remove", "--force", str(folder), at=top)
    git("worktree", "prune", at=top)
    folder.parent.mkdir(parents=True, exist_ok=True)
    git("worktree", "add", "--quiet", "--detach", str(folder), commit, at=top)
    return folder


def drop(folder: Path, top: Path) -> None:
    git("worktree", "remove", "--force", str(folder), at=top)


def digest_of_locked(
    files_of_arms: Mapping[str, Mapping[str, str]], patterns: Sequence[str]
) -> str:
    """Digest the files that match the patterns, which must be equal in all arms. `files_of_arms`:
    name of an arm → its `files_of`.

    Errors:
        ValueError: a pattern that matches nothing, or a file that is not the same in two arms.
    """
    files_by_arm: dict[str, dict[str, str]] = {}
    for name, every in files_of_arms.items():
        for pattern in patterns:
            files = {path: blob for path, blob in every.items() if fnmatch(path, pattern)}
            require(bool(files), "--locked", f"match at least one file of {name}", pattern)
            files_by_arm.setdefault(name, {}).update(files)
    first, *others = files_by_arm.items() if files_by_arm else [("", {})]
    for name, files in others:
        differing = sorted(
            path for path in {*first[1], *files} if first[1].get(path) != files.get(path)
        )
        require(
            not differing,
            "--locked",
            f"match only files that are equal in {first[0]} and {name}",
            ", ".join(differing[:3]),
        )
    return digest(first[1])


def digest_of_linked(paths: Sequence[str], top: Path) -> str:
    """Return the digest of everything that is linked in.

    Errors:
        ValueError: nothing is there.
    """
    hashes = {}
    for path in paths:
        source = top / path
        require(source.exists(), "--link", f"be a file or folder that exists in {top}", path)
        for file in _files_at(source):
            with file.open("rb") as opened:
                sha256 = hashlib.file_digest(opened, "sha256")
            hashes[str(file.relative_to(top))] = sha256.hexdigest()
    return digest(hashes)


def stamps_of(paths: Iterable[str], top: Path) -> dict[str, Stamp]:
    """Stamp each file that is there: a file that is written between two runs changes what the next
    one reads."""
    stamps: dict[str, Stamp] = {}
    for path in paths:
        for file in _files_at(top / path):
            stat = file.stat()
            stamps[str(file.relative_to(top))] = (stat.st_size, stat.st_mtime_ns)
    return stamps


def _files_at(path: Path) -> list[Path]:
    """List a file, or all files below a folder."""
    if path.is_dir():
        return sorted(filter(Path.is_file, path.rglob("*")))
    return [path] if path.is_file() else []


def link_in(paths: Sequence[str], top: Path, tree: Path) -> None:
    for path in paths:
        link = tree / path
        require(
            link.is_symlink() or not link.exists(), "--link", "be a path that git ignores", path
        )
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((top / path).resolve())
