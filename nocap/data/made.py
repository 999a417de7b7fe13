"""Sets of shards made in the cache, once.

A set is a folder `cache_dir/corpora/<kind>-<vocabulary>-<key>`, its key a hash of everything that the shards depend on. The folder appears
by a rename, whole, so neither a killed process nor a racing one leaves a half-made set behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nocap.data.shards import ShardSet, shard_sha256, write_json, write_shard
from nocap.data.tokens import Tokens, os_errors_refused

SHARD_TOKENS = 100_000_000  # a shard is closed once it has as many
FORMAT = 1  # of the shards' content; a change makes every set anew

Made = tuple[dict[str, object], dict[str, list[dict[str, object]]]]  # facts for the record; shards by split


def made(kind: str, vocabulary: str, key: dict[str, Any], *, cache_dir: Path, make: Callable[[Path], Made]) -> ShardSet:
    """The set of this key, made first if it is not in the cache."""
    digest = hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()
    folder = cache_dir / "corpora" / f"{kind}-{vocabulary}-{digest[:16]}"
    if not folder.is_dir():
        with os_errors_refused(str(folder)):
            _make(folder, kind, vocabulary, make)
    return _open(folder)


def _make(folder: Path, kind: str, vocabulary: str, make: Callable[[Path], Made]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed with its process, however that ends
        if folder.is_dir():
            return  # made by the one who held the lock
        temporary = folder.parent / f".{folder.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            facts, shards = make(temporary)
            source = {"kind": kind, "vocabulary": vocabulary} | facts
            write_json(temporary / "manifest.json", {"format": FORMAT, "source": source, "shards": shards})
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _open(folder: Path) -> ShardSet:
    manifest = read_manifest(folder)
    paths = {split: [folder / str(row["name"]) for row in rows] for split, rows in manifest["shards"].items()}
    rows = [row for rows in manifest["shards"].values() for row in rows]
    return ShardSet(
        train=tuple(paths["train"]),
        val=tuple(paths["val"]),
        source=manifest["source"],
        expected={folder / row["name"]: row["sha256"] for row in rows},
        remedy={folder / row["name"]: f"remove {folder} to have it made again" for row in rows},
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a made set holds; `ValueError` when its manifest is missing or no manifest."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        splits = [manifest["shards"][split] for split in ("train", "val")]
        ok = manifest["format"] == FORMAT and all(splits) and bool(manifest["source"])
        # A name is a file of this folder: a set that somebody sent leads nowhere else.
        ok = ok and all(
            Path(row["name"]).name == row["name"] and row["sha256"] and not (folder / row["name"]).is_symlink()
            for rows in splits
            for row in rows
        )
    except (OSError, ValueError, KeyError, TypeError):
        ok = False
    if not ok:
        raise ValueError(f"{folder / 'manifest.json'}: must be the manifest of a made set; remove {folder} to have it made again")
    return manifest


def write_shards(target: Path, split: str, runs: Iterable[Tokens]) -> list[dict[str, object]]:
    """Write runs of tokens as shards of about SHARD_TOKENS, none of them empty."""
    shards: list[dict[str, object]] = []
    held: list[Tokens] = []

    def close() -> None:
        tokens, name = np.concatenate(held), f"{split}_{len(shards):06d}.bin"
        write_shard(target / name, tokens)
        shards.append({"name": name, "tokens": tokens.size, "sha256": shard_sha256(tokens)})
        held.clear()

    waiting = 0
    for run in runs:
        held.append(run)
        waiting += run.size
        if waiting >= SHARD_TOKENS:
            close()
            waiting = 0
    if held:
        close()
    return shards
