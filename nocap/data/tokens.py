"""A shard's tokens, in the challenge's `.bin` format: 256 little-endian int32 (magic, version,
count, zeros), then uint16 tokens. Or without that header, as nanoGPT writes them: tokens of one
type and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nocap.options.data.reading import TokenType

MAGIC, VERSION = 20240520, 1
HEADER_BYTES, TOKEN_BYTES = 1024, 2
READ_AT_ONCE = 1 << 22  # tokens

Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What one whole read of a shard found."""

    path: str  # absolute, as given: a link stays a link
    tokens: int
    sha256: str  # of the whole file, header included
    max_id: int
    raw: str | None = None  # the `TokenType` of a file without a header; None: it has one

    def map(self) -> npt.NDArray[np.unsignedinteger]:
        """Return a read-only memory map of its tokens."""
        return (
            map_tokens(self.path) if self.raw is None else map_raw(self.path, TokenType(self.raw))
        )

    def holds(self, token: int) -> bool:
        """Say whether the token stands in it, read up to its first place."""
        tokens = self.map()
        for start in range(0, len(tokens), READ_AT_ONCE):
            if (tokens[start : start + READ_AT_ONCE] == token).any():
                return True
        return False


@contextmanager
def os_errors_refused() -> Iterator[None]:
    """Turn an `OSError` (a path that is missing, unreadable, full, …) into a `ValueError` of one
    line."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{error.filename}: {error.strerror}" if error.filename else str(error)
        ) from error


@os_errors_refused()
def map_tokens(path: str | Path) -> Tokens:
    """Return a read-only memory map of a shard's tokens, of shape (tokens,). Checks the header and
    the size, not the ids: `scan` does that."""
    with open(path, "rb") as file:
        count = read_count(str(path), file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size)
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


@os_errors_refused()
def map_raw(path: str | Path, raw: TokenType) -> npt.NDArray[np.unsignedinteger]:
    """Return a read-only memory map of the tokens of a file without a header."""
    with open(path, "rb") as file:
        count = raw_count(str(path), file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, raw)
    return np.memmap(path, dtype=dtype_of(raw), mode="r", shape=(count,))


def dtype_of(raw: TokenType) -> np.dtype[np.unsignedinteger]:
    """NumPy's name for it, little-endian."""
    return np.dtype(raw.value).newbyteorder("<")


def raw_count(path: str, head: bytes, size: int, raw: TokenType) -> int:
    """Return the number of tokens in a file without a header; `ValueError` where it has one (`head`
    are its first bytes), or where its size does not fit the type."""
    first = np.frombuffer(head[: len(head) // 4 * 4], dtype="<i4", count=min(2, len(head) // 4))
    if first.tolist() == [MAGIC, VERSION]:
        raise ValueError(
            f"data.dtype must be null for a shard with a header, because the header states the "
            f"type, got {raw.value} for {path}"
        )
    width = dtype_of(raw).itemsize
    if size == 0 or size % width != 0:
        raise ValueError(
            f"{path}: a file of {raw.value} without a header must have a multiple of {width} "
            f"bytes, "
            f"got {size}"
        )
    return size // width


def read_count(path: str, header: bytes, size: int) -> int:
    """Return the number of tokens in a header; `ValueError` unless it is a shard's header and
    agrees with the file's size in bytes."""
    if len(header) < HEADER_BYTES:
        raise ValueError(
            f"{path}: a shard must have a header of {HEADER_BYTES} bytes, got a file of {size} "
            f"bytes"
        )
    magic, version, count = (int(value) for value in np.frombuffer(header, dtype="<i4", count=3))
    if magic != MAGIC:
        raise ValueError(
            f"{path}: a shard must start with the magic number {MAGIC}, got {magic} (a file "
            "without a header, as nanoGPT writes it, needs data.dtype=uint16 or uint32)"
        )
    if version != VERSION:
        raise ValueError(f"{path}: a shard's version must be {VERSION}, got {version}")
    if count < 1:
        raise ValueError(f"{path}: a shard must hold at least 1 token, got {count} in its header")
    expected = HEADER_BYTES + TOKEN_BYTES * count
    if size != expected:
        what = "truncated" if size < expected else "too long"
        raise ValueError(
            f"{path}: {what}: a shard of {count} tokens must have {expected} bytes, got {size}"
        )
    return count
