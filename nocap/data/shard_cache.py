"""Sets of shards that are made once and kept in the cache.

A set is a folder `cache_dir/corpora/<kind>-<vocabulary>-<key>`, its key a hash of everything that
the shards depend on, the code that makes them included. The folder appears by a rename, so neither
a killed process nor a racing one leaves half a set behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config.keys import is_fault
from nocap.data.shards import ShardSet, write_json, write_shard
from nocap.data.tokens import Tokens

# `nocap.store.source_hashes` defines it. The code of this file is in the key of each set: an import
# from there would make every set that people have cached anew.
from nocap.store.identity import hashes

SHARD_TOKENS = 100_000_000  # a shard is closed once it has as many
FORMAT = 1  # of the shards' content; a change makes every set anew

# of the source, for the record; shards by split
NewSet = tuple[dict[str, object], dict[str, list[dict[str, object]]]]

# The options that make the tokens at hand, set where they are asked for them. Their code, with what
# it imports, is in the key of what is made.
MAKERS: ContextVar[tuple[object, ...]] = ContextVar("MAKERS", default=())


def cached_set(
    kind: str,
    vocabulary: str,
    key: dict[str, Any],
    *,
    cache_dir: Path,
    make: Callable[[Path], NewSet],
) -> ShardSet:
    """Return the set with this key, made first if it is not in the cache."""
    modules = [make.__module__]
    for option in MAKERS.get():
        modules += [cls.__module__ for cls in type(option).__mro__]
    text = json.dumps([FORMAT, key, hashes(modules)], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = cache_dir / "corpora" / f"{kind}-{vocabulary}-{digest[:16]}"
    if not folder.is_dir():
        _make(folder, kind, vocabulary, make)
    manifest = read_manifest(folder)
    train = _sums(folder, manifest["shards"]["train"])
    val = _sums(folder, manifest["shards"]["val"])
    expected = train | val
    remedy = dict.fromkeys(expected, _remedy(folder))
    return ShardSet(
        train=tuple(train),
        val=tuple(val),
        source=manifest["source"],
        expected=expected,
        remedy=remedy,
    )


def _sums(folder: Path, rows: list[dict[str, Any]]) -> dict[Path, str]:
    return {folder / row["name"]: row["sha256"] for row in rows}


def _make(folder: Path, kind: str, vocabulary: str, make: Callable[[Path], NewSet]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed with its process, however that ends
        if folder.is_dir():
            return  # made by the process that held the lock
        temporary = folder.parent / f".{folder.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            source, shards = make(temporary)
            manifest = {
                "format": FORMAT,
                "source": {"kind": kind, "vocabulary": vocabulary} | source,
                "shards": shards,
            }
            write_json(temporary / "manifest.json", manifest)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a made set's manifest: `format`, `source`, `shards`; `ValueError` when it is missing
    or is none."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        splits = [manifest["shards"][split] for split in ("train", "val")]
        paths = [folder / row["name"] for rows in splits for row in rows if row["sha256"]]
        # A name is a file of this folder: a set that somebody sent leads nowhere else.
        are_inside = all(_is_inside(path, folder) for path in paths)
        has_all = all(splits) and len(paths) == sum(map(len, splits))
        has_source = bool(manifest["source"])
        ok = manifest["format"] == FORMAT and has_all and has_source and are_inside
    except (OSError, ValueError, KeyError, TypeError) as error:
        if is_fault(error):
            raise
        ok = False
    if not ok:
        raise ValueError(
            f"{folder / 'manifest.json'}: must be a manifest of prepared data; {_remedy(folder)}"
        )
    return manifest


def _is_inside(path: Path, folder: Path) -> bool:
    return path.parent == folder and path.name != "" and not path.is_symlink()


def _remedy(folder: Path) -> str:
    return f"remove {folder} to have it made again"


def write_shards(target: Path, split: str, runs: Iterable[Tokens]) -> list[dict[str, object]]:
    """Write runs of tokens as shards of about SHARD_TOKENS, none of them empty; their rows of the
    manifest."""
    shards: list[dict[str, object]] = []
    buffered: list[Tokens] = []

    def close() -> None:
        tokens = np.concatenate(buffered)
        name = f"{split}_{len(shards):06d}.bin"
        sha256 = write_shard(target / name, tokens)
        shards.append({"name": name, "tokens": tokens.size, "sha256": sha256})
        buffered.clear()

    waiting = 0
    for run in runs:
        buffered.append(run)
        waiting += run.size
        if waiting >= SHARD_TOKENS:
            close()
            waiting = 0
    if buffered:
        close()
    return shards
