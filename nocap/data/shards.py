"""Token shards on disk: written whole, and checked once before a run reads them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nocap.config.paths import expanded
from nocap.data.tokens import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Shard,
    dtype_of,
    os_errors_refused,
    raw_count,
    read_count,
)
from nocap.options.data.reading import TokenType
from nocap.store.file_writing import write_file

CHUNK_BYTES = 1 << 22  # read at once in a scan; even, so that no token is split
SCAN_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSet:
    """The shards of a source, not yet read."""

    train: tuple[Path, ...]
    val: tuple[Path, ...]
    source: dict[str, object]  # for the record, as JSON
    # the sha256 that a shard must have, where the source knows it
    expected: dict[Path, str] = field(default_factory=dict)
    remedy: dict[Path, str] = field(default_factory=dict)  # what the user can do about a bad shard
    published: bool = False  # the split is others', which is not looked into
    raw: TokenType | None = None  # of files without a header; None: they have one


def write_json(path: Path, content: object) -> None:
    write_file(path, json.dumps(content, indent=1, sort_keys=True).encode())


@os_errors_refused()
def write_shard(path: Path, tokens: npt.NDArray[Any]) -> str:
    """Write token ids of shape (tokens,) as one shard; returns the file's sha256.

    Errors:
        ValueError: no tokens, ids outside uint16, or a path that cannot be written.
    """
    assert tokens.ndim == 1
    assert tokens.dtype.kind in "iu", tokens.dtype
    if not 1 <= tokens.size < 2**31:
        raise ValueError(
            f"{path}: a shard must hold between 1 and 2^31 - 1 tokens, got {tokens.size}"
        )
    low = int(tokens.min())
    high = int(tokens.max())
    if low < 0 or high > 0xFFFF:
        wrong = low if low < 0 else high
        raise ValueError(f"{path}: token ids must fit uint16 (0 to 65535), got {wrong}")
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:3] = (MAGIC, VERSION, tokens.size)
    head = header.tobytes()
    body = np.ascontiguousarray(tokens, dtype="<u2").data.cast("B")
    write_file(path, head, body)
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.hexdigest()


@os_errors_refused()
def scan(
    path: Path,
    *,
    vocab_size: int,
    cache_dir: Path,
    reread: bool = False,
    raw: TokenType | None = None,
) -> Shard:
    """Check a whole shard: header, size, every id below `vocab_size`, and its sha256. `raw`: of a
    file without a header.

    The result is cached in `cache_dir/scans` under the file's real path, size, modification time
    and inode: while those are the same, a second scan costs a stat. `reread` reads every byte
    again, and refuses a file whose bytes changed although those did not.

    Errors:
        ValueError: names the file, and for a bad id its offset in tokens.
    """
    absolute = os.path.abspath(expanded(path))
    real = os.path.realpath(absolute)
    found_stat = os.stat(absolute)
    if not stat.S_ISREG(found_stat.st_mode):
        raise ValueError(f"{absolute}: a shard must be a regular file")
    stamp = _stamp(found_stat)
    name = real if raw is None else f"{real} {raw.value}"
    record = cache_dir / "scans" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
    known = _cached_scan(record, stamp)
    scanned = known
    if scanned is None or reread:
        scanned = _read_whole(absolute, stamp, raw)
        if known is not None and known != scanned:
            raise ValueError(
                f"{absolute}: the file's bytes changed, but its size and time did not; its sha256 "
                f"must be {known['sha256']}, got {scanned['sha256']}"
            )
        write_json(record, {"format": SCAN_FORMAT, "path": real, "stamp": stamp, "found": scanned})
    shard = Shard(path=absolute, **scanned, raw=None if raw is None else raw.value)
    if shard.max_id >= vocab_size:
        tokens = shard.map()
        offset = int(np.argmax(tokens >= vocab_size))  # of the first
        rule = f"token ids must be below {vocab_size}, the size of the tokenizer's vocabulary"
        raise ValueError(f"{absolute}: {rule}, got {tokens[offset]} at token {offset}")
    return shard


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _cached_scan(record: Path, stamp: list[int]) -> dict[str, Any] | None:
    """Return the result of an earlier scan of the same file. A record that cannot be read does not
    count: the scan writes it again."""
    try:
        content = json.loads(record.read_bytes())
        if content["format"] != SCAN_FORMAT or content["stamp"] != stamp:
            return None
        scanned = content["found"]
        return {
            "tokens": int(scanned["tokens"]),
            "sha256": str(scanned["sha256"]),
            "max_id": int(scanned["max_id"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_whole(name: str, stamp: list[int], raw: TokenType | None) -> dict[str, Any]:
    digest = hashlib.sha256()
    max_id = 0
    dtype = dtype_of(raw or TokenType.uint16)
    zeros = raw is TokenType.uint16  # so far, in every second place
    with open(name, "rb") as file:
        head = file.read(HEADER_BYTES)
        if raw is None:
            count = read_count(name, head, stamp[0])
            digest.update(head)
        else:
            count = raw_count(name, head, stamp[0], raw)
            file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            tokens = np.frombuffer(chunk, dtype=dtype)
            max_id = max(max_id, int(tokens.max()))
            zeros = zeros and not tokens[1::2].any()
        if _stamp(os.fstat(file.fileno())) != stamp:
            raise ValueError(f"{name}: a shard must not change while it is read")
    if zeros and count > 1:
        raise ValueError(
            f"{name}: data.dtype must be uint32, because with uint16 every second token is 0, "
            f"got uint16"
        )
    return {"tokens": count, "sha256": digest.hexdigest(), "max_id": max_id}
