"""Text as token shards: what the documents are, which split each goes to, and how they are
encoded."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.data.shard_cache import NewSet, cached_set, write_shards
from nocap.data.shards import ShardSet
from nocap.data.tokens import Tokens
from nocap.options.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tiktoken

PIECE_BYTES = 32 * 1024  # of text, the unit that goes to training or to validation
BATCH_PIECES = 64  # encoded at once
NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Bytes `start` to `stop` of a file. Their SHA-256 chooses the split, so that a text goes to
    one side whatever its file's name, and however often it is there."""

    path: Path
    sha256: str
    start: int
    stop: int


def stdlib(
    tokenizer: Tokenizer, *, val_fraction: float, cache_dir: Path, folder: Path | None = None
) -> ShardSet:
    """Return the standard library's own source: a file is a document. Tests and files that are not
    UTF-8 are left out; the latter are named."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = [row for row in _walk(folder, without=NOT_LIBRARY) if row[0].endswith(".py")]
    if len(files) < 2:
        raise ValueError(
            f"data=stdlib: Python's library must have .py files in {folder}, got {len(files)}; "
            "use data=text"
        )
    python = f"{platform.python_implementation()} {platform.python_version()}"
    paths = [path for _, path in files]
    key = _text_key(paths, tokenizer, val_fraction) | {"python": python, "folder": str(folder)}

    def make(target: Path) -> NewSet:
        pieces = []
        skipped = []
        for name, path in files:
            raw = path.read_bytes()
            try:
                raw.decode()
            except UnicodeDecodeError:
                skipped.append(name)
                continue
            if raw:
                sha256 = hashlib.sha256(raw).hexdigest()
                pieces.append(Piece(path=path, sha256=sha256, start=0, stop=len(raw)))
        source, shards = _write_text(target, pieces, val_fraction, tokenizer, cache_dir)
        return source | {"python": python, "skipped": skipped}, shards

    return cached_set("stdlib", tokenizer.name, key, cache_dir=cache_dir, make=make)


def text(
    paths: list[str], tokenizer: Tokenizer, *, val_fraction: float, cache_dir: Path
) -> ShardSet:
    """Return the user's UTF-8 files, in pieces of up to 32 KiB cut at a line's end, so that one big
    file still gives both splits."""
    files = _text_files(paths)
    key = _text_key(files, tokenizer, val_fraction)

    def make(target: Path) -> NewSet:
        pieces = [piece for path in files for piece in _cut(path)]
        different = {piece.sha256: piece.stop - piece.start for piece in pieces}
        rule = (
            f"hold more than {PIECE_BYTES // 1024} KiB of different text, so that training and "
            "validation each get a piece"
        )
        size = sum(different.values())
        require(len(different) >= 2, "data.path", rule, f"{size} bytes")
        source, shards = _write_text(target, pieces, val_fraction, tokenizer, cache_dir)
        return source | {"files": len(files)}, shards

    return cached_set("text", tokenizer.name, key, cache_dir=cache_dir, make=make)


# --- files and pieces -----------------------------------------------------------------------------


def _walk(
    folder: Path, *, without: frozenset[str] = frozenset(), refuse_links: bool = False
) -> list[tuple[str, Path]]:
    """List every file below a folder as (relative name, path), sorted by name, without hidden ones
    and folders named in `without`. Links to folders are not followed.

    Errors:
        OSError: a folder that may not be read.
        ValueError: there is a link to a folder, where `refuse_links`.
    """
    top = str(folder)
    paths = list[str]()

    def refuse(error: OSError) -> None:
        raise error  # os.walk would skip a folder that it may not read

    for root, folders, names in os.walk(top, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        if refuse_links:
            _refuse_links(os.path.join(root, name) for name in folders)
        paths += [os.path.join(root, name) for name in names if not name.startswith(".")]
    return sorted((os.path.relpath(path, top).replace(os.sep, "/"), Path(path)) for path in paths)


def _refuse_links(folders: Iterable[str]) -> None:
    rule = "hold no link to a folder; add that folder to data.path"
    for folder in folders:
        require(not os.path.islink(folder), "data.path", rule, folder)


def _text_files(items: list[str]) -> list[Path]:
    """List the files of `data.path`, each once, in the order given; those of a folder or a glob by
    name."""
    files = dict[str, Path]()  # by real path
    for item in items:
        path = expanded(item)
        matches = [path]
        if not path.exists():
            matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        matched_files = list[Path]()
        for match in matches:
            if match.is_dir():
                matched_files += [file for _, file in _walk(match, refuse_links=True)]
            else:
                matched_files.append(match)
        rule = "match at least one file that is not hidden"
        require(bool(matched_files), "data.path", rule, repr(item))
        for file in sorted(matched_files):
            files.setdefault(os.path.realpath(file), file)
    return list(files.values())


def _text_key(files: list[Path], tokenizer: Tokenizer, val_fraction: float) -> dict[str, Any]:
    """List everything that the tokens of these files depend on but the code.

    A file that was replaced has another inode or time of change, also where its size and the time
    that `cp -p` keeps are the same.
    """
    listing = []
    for path in files:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: data.path must hold regular files")
        times = [status.st_mtime_ns, status.st_ctime_ns]
        listing.append([os.path.realpath(path), status.st_size, status.st_ino, *times])
    keys = {name: str(value) for name, value in asdict(tokenizer).items()}
    return {"files": listing, "tokenizer": keys, "val_fraction": val_fraction}


def _cut(path: Path) -> Iterator[Piece]:
    """Yield a file's pieces: up to the last line end within PIECE_BYTES, or, in a longer line, to
    its last whole character."""
    start = 0
    left = b""
    with path.open("rb") as file:
        while left := left + file.read(PIECE_BYTES - len(left)):
            at_end = len(left) < PIECE_BYTES
            size = len(left)
            if not at_end:
                size = left.rfind(b"\n") + 1 or len(left)
            try:
                left[:size].decode()
            except UnicodeDecodeError as error:
                if at_end or error.reason != "unexpected end of data":
                    what = f"byte 0x{left[error.start]:02x} at offset {start + error.start}"
                    raise ValueError(
                        f"{path}: data.path must hold UTF-8 text, got {what}"
                    ) from None
                size = error.start
            sha256 = hashlib.sha256(left[:size]).hexdigest()
            yield Piece(path=path, sha256=sha256, start=start, stop=start + size)
            start += size
            left = left[size:]


def _validation(pieces: list[Piece], fraction: float) -> set[str]:
    """Return the SHA-256 of the pieces for validation: as a number from 0 to 1 it is below
    `fraction`. At least one, and never all."""
    ranked = sorted({piece.sha256 for piece in pieces})
    assert len(ranked) >= 2
    chosen = sum(int(sha256, 16) < fraction * 2**256 for sha256 in ranked)
    most = len(ranked) - 1
    return set(ranked[: min(max(chosen, 1), most)])


# --- shards ---------------------------------------------------------------------------------------


def _write_text(
    target: Path, pieces: list[Piece], fraction: float, tokenizer: Tokenizer, cache_dir: Path
) -> NewSet:
    encoding = tokenizer.load(cache_dir=cache_dir)
    validation = _validation(pieces, fraction)
    sides = {
        "train": [p for p in pieces if p.sha256 not in validation],
        "val": [p for p in pieces if p.sha256 in validation],
    }
    shards = {}
    documents = {}
    sizes = {}
    for split, side in sides.items():
        shards[split] = write_shards(target, split, _encoded(side, encoding))
        documents[split] = len(side)
        sizes[split] = sum(piece.stop - piece.start for piece in side)
    return {"text": True, "documents": documents, "bytes": sizes}, shards


def _encoded(pieces: list[Piece], encoding: tiktoken.Encoding) -> Iterator[Tokens]:
    """Tokens of one split's pieces. End-of-text stands wherever the text before is not the text
    before: at the start of a file, and where the piece between went to the other split, so that no
    window joins two sentences that were never neighbours."""
    before: tuple[Path, int] | None = None
    end_of_text = np.array([encoding.eot_token], dtype=np.uint16)
    for first in range(0, len(pieces), BATCH_PIECES):
        batch = pieces[first : first + BATCH_PIECES]
        encoded = _encode([_read(piece) for piece in batch], encoding)
        for piece, ids in zip(batch, encoded, strict=True):
            if before != (piece.path, piece.start):
                yield end_of_text
            yield ids
            before = (piece.path, piece.stop)


def _read(piece: Piece) -> bytes:
    with piece.path.open("rb") as file:
        file.seek(piece.start)
        return file.read(piece.stop - piece.start)


def _encode(texts: list[bytes], encoding: tiktoken.Encoding) -> list[Tokens]:
    if encoding.name == "bytes":  # a byte is its own id: twenty times faster than asking
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint16) for text in texts]
    encoded = encoding.encode_ordinary_batch([text.decode() for text in texts])
    return [np.array(ids, dtype=np.uint16) for ids in encoded]
