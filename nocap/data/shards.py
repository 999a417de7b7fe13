"""Token shards in the challenge's `.bin` format: 256 little-endian int32 (magic, version, count, zeros), then uint16 tokens."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nocap.data.tokens import HEADER_BYTES, MAGIC, VERSION, Shard, Tokens, counted, map_tokens, os_errors_refused
from nocap.store.files import write_file

CHUNK_BYTES = 1 << 22  # read at once in a scan; even, so that no token is split
SCAN_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSet:
    """Shards that a source says exist, not yet read."""

    train: tuple[Path, ...]
    val: tuple[Path, ...]
    source: dict[str, object]  # JSON facts for the record
    expected: dict[Path, str]  # the sha256 that a shard must have, where the source knows
    remedy: dict[Path, str]  # what the user can do about a bad shard, where there is something


def matching(*, train: str, val: str) -> ShardSet:
    """The shards that two globs match.

    Errors:
        ValueError: one matches nothing, or both the same file.
    """
    paths = {}
    for key, pattern in (("train", train), ("val", val)):
        paths[key] = tuple(Path(match) for match in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)))
        if not paths[key]:
            raise ValueError(f"data.{key} must match at least one shard, got {pattern!r}")
    both = {os.path.realpath(path) for path in paths["train"]} & {os.path.realpath(path) for path in paths["val"]}
    if both:
        raise ValueError(f"data.val must not match a shard of data.train, got {min(both)} in both")
    source: dict[str, object] = {"kind": "shards", "text": True, "train": train, "val": val}
    return ShardSet(train=paths["train"], val=paths["val"], source=source, expected={}, remedy={})


def write_json(path: Path, facts: object) -> None:
    write_file(path, json.dumps(facts, indent=1, sort_keys=True).encode())


def write_shard(path: Path, tokens: npt.NDArray[Any]) -> None:
    """Write token ids as one shard. `ValueError` for no tokens, ids outside uint16, and paths that cannot be written."""
    parts = _contents(path, tokens)
    with os_errors_refused(str(path)):
        write_file(path, *parts)


def shard_sha256(tokens: Tokens) -> str:
    """The hash of the file that `write_shard` makes of these tokens."""
    digest = hashlib.sha256()
    for part in _contents(Path("shard"), tokens):
        digest.update(part)
    return digest.hexdigest()


def _contents(path: Path, tokens: npt.NDArray[Any]) -> tuple[bytes, memoryview]:
    assert tokens.ndim == 1
    assert tokens.dtype.kind in "iu", tokens.dtype
    if not 1 <= tokens.size < 2**31:
        raise ValueError(f"{path}: a shard must hold between 1 and 2^31 - 1 tokens, got {tokens.size}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high > 0xFFFF:
        raise ValueError(f"{path}: token ids must fit uint16 (0 to 65535), got {low if low < 0 else high}")
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:3] = MAGIC, VERSION, tokens.size
    return header.tobytes(), np.ascontiguousarray(tokens, dtype="<u2").data.cast("B")


def scan(path: Path, *, vocab_size: int, cache_dir: Path, reread: bool = False) -> Shard:
    """Check a shard whole, once: header, size, every id below `vocab_size`, and its hash.

    What was found is kept in `cache_dir/scans` under the file's real path, with its size, modification time and inode; while those hold,
    a second scan costs a stat. `reread` reads every byte again and refuses a file whose bytes changed although those did not.
    `ValueError` names the file, and for a bad id its offset in tokens.
    """
    absolute = os.path.abspath(path.expanduser())
    with os_errors_refused(absolute):
        real = os.path.realpath(absolute)
        stamp = _stamp(os.stat(real))
    record = cache_dir / "scans" / f"{hashlib.sha256(real.encode()).hexdigest()[:32]}.json"
    known = _recall(record, stamp)
    found = known
    if known is None or reread:
        with os_errors_refused(absolute):
            found = _read_whole(absolute, real, stamp)
        if known is not None and known != found:
            then, now = known["sha256"], found["sha256"]
            raise ValueError(f"{absolute}: its bytes changed under the same size and time: sha256 must be {then}, got {now}")
        with os_errors_refused(str(record)):
            write_json(record, {"format": SCAN_FORMAT, "path": real, "stamp": stamp, "found": found})
    assert found is not None
    shard = Shard(path=absolute, **found)
    if shard.max_id >= vocab_size:
        _refuse_id(shard, vocab_size)
    return shard


def _stamp(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _recall(record: Path, stamp: list[int]) -> dict[str, Any] | None:
    """What an earlier scan of this very file found. A record that cannot be read is no record: the scan makes it again."""
    try:
        facts = json.loads(record.read_bytes())
        if facts["format"] != SCAN_FORMAT or facts["stamp"] != stamp:
            return None
        found = facts["found"]
        return {"tokens": int(found["tokens"]), "sha256": str(found["sha256"]), "max_id": int(found["max_id"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_whole(name: str, real: str, stamp: list[int]) -> dict[str, Any]:
    digest, max_id = hashlib.sha256(), 0
    with open(real, "rb") as file:
        header = file.read(HEADER_BYTES)
        count = counted(name, header, stamp[0])
        digest.update(header)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            max_id = max(max_id, int(np.frombuffer(chunk, dtype="<u2").max()))
        if _stamp(os.fstat(file.fileno())) != stamp:
            raise ValueError(f"{name}: a shard must not change while it is read")
    return {"tokens": count, "sha256": digest.hexdigest(), "max_id": max_id}


def _refuse_id(shard: Shard, vocab_size: int) -> None:
    tokens, step = map_tokens(shard.path), CHUNK_BYTES
    for start in range(0, shard.tokens, step):
        bad = np.flatnonzero(tokens[start : start + step] >= vocab_size)
        if bad.size:
            offset = start + int(bad[0])
            raise ValueError(
                f"{shard.path}: token ids must be below {vocab_size}, the tokenizer's vocabulary, got {tokens[offset]} at token {offset}"
            )
    raise AssertionError(f"{shard.path}: no id of {vocab_size} or more, but the scan saw {shard.max_id}")
