"""The shard format, and the scan that finds whatever is wrong with a file before a run reads it."""

import hashlib
import os
import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from nocap.data import shards
from nocap.data.shards import scan, write_shard
from nocap.data.tokenizer import token_bytes
from nocap.data.tokens import map_tokens
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary

SHARED = Path(__file__).resolve().parents[2] / "shared"


def raw_shard(
    tokens: list[int], *, magic: int = 20240520, version: int = 1, count: int | None = None
) -> bytes:
    """The format, written a second time and without NumPy."""
    count = len(tokens) if count is None else count
    return struct.pack("<256i", magic, version, count, *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens)


def refusal(path: Path, tmp_path: Path, **more) -> str:
    with pytest.raises(ValueError) as caught:
        scan(path, **{"vocab_size": 257, "cache_dir": tmp_path / "cache"} | more)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(raw_shard([256, 72, 105, 0]))
    return path


@pytest.fixture
def scanned(tmp_path, shard):
    return lambda path=shard, size=257: scan(path, vocab_size=size, cache_dir=tmp_path / "cache")


def test_what_is_written_is_the_format(tmp_path):
    path, raw = tmp_path / "new" / "a.bin", raw_shard([50256, 0, 65535, 7])
    sha256, tokens = write_shard(path, np.array([50256, 0, 65535, 7])), map_tokens(str(path))
    assert (path.read_bytes(), os.listdir(path.parent)) == (raw, ["a.bin"])
    assert (sha256, tokens.tolist()) == (hashlib.sha256(raw).hexdigest(), [50256, 0, 65535, 7])
    assert tokens.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize(("tokens", "got"), [([1, 65536], "got 65536"), ([-1, 5], "got -1"), ([], "got 0")])
def test_writing_refuses_what_uint16_cannot_hold(tmp_path, tokens, got):
    with pytest.raises(ValueError, match=got):
        write_shard(tmp_path / "a.bin", np.array(tokens, dtype=np.int64))
    assert not (tmp_path / "a.bin").exists()


def test_a_write_that_fails_leaves_the_old_file(tmp_path, shard, monkeypatch):
    before = shard.read_bytes()
    monkeypatch.setattr(shards.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ValueError, match="No space left"):
        write_shard(shard, np.array([1, 2, 3]))
    assert (shard.read_bytes(), os.listdir(tmp_path)) == (before, ["a.bin"])


def test_a_scan_tells_the_whole_file_however_many_chunks(tmp_path, shard, scanned, monkeypatch):
    small = scanned()
    assert (small.path, small.tokens, small.max_id) == (str(shard), 4, 256)
    assert small.sha256 == hashlib.sha256(shard.read_bytes()).hexdigest()
    write_shard(tmp_path / "b.bin", np.arange(10_000) % 300)
    monkeypatch.setattr(shards, "CHUNK_BYTES", 64)
    big = scanned(tmp_path / "b.bin", 300)
    assert (big.tokens, big.max_id) == (10_000, 299)
    assert "got 299 at token 299" in refusal(tmp_path / "b.bin", tmp_path, vocab_size=299, cache_dir=tmp_path)


GOOD = raw_shard([1, 2, 3])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header of 1024 bytes, got a file of 0 bytes"),
        (GOOD[:1000], "header of 1024 bytes"),
        (raw_shard([1, 2], magic=20240801), "magic number 20240520, got 20240801"),
        (raw_shard([1, 2], version=2), "version must be 1, got 2"),
        (raw_shard([], count=0), "at least 1 token, got 0"),
        (raw_shard([1], count=-1), "at least 1 token, got -1"),
        (GOOD[:-2], "truncated: a shard of 3 tokens must have 1030 bytes, got 1028"),
        (GOOD[:-1], "truncated: a shard of 3 tokens must have 1030 bytes, got 1029"),
        (GOOD + b"\0", "too long: a shard of 3 tokens must have 1030 bytes, got 1031"),
        (GOOD + b"\0\0", "too long"),
        (raw_shard([1, 256, 257, 300]), "below 257, the tokenizer's vocabulary, got 257 at token 2"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "bad.bin"
    path.write_bytes(content)
    assert words in refusal(path, tmp_path)


def test_a_path_that_cannot_be_read_is_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "absent.bin", tmp_path)
    assert "must be a regular file" in refusal(tmp_path, tmp_path)


def test_a_second_scan_reads_nothing_also_through_a_link(tmp_path, shard, scanned, monkeypatch):
    (tmp_path / "link.bin").symlink_to(shard)
    first = scanned()
    monkeypatch.setattr(shards, "_read_whole", None)
    monkeypatch.chdir(tmp_path)
    linked = scanned(Path("link.bin"))
    assert (scanned(), linked.path, linked.sha256) == (first, str(tmp_path / "link.bin"), first.sha256)
    assert "got 256 at token 0" in refusal(shard, tmp_path, vocab_size=256)


def test_a_changed_file_is_read_again(shard, scanned):
    first = scanned()
    shard.write_bytes(raw_shard([1, 2, 3, 4]))
    os.utime(shard, ns=(1, 1))  # whatever the file system's clock can tell apart
    assert scanned().sha256 != first.sha256


def test_only_rereading_finds_bytes_that_rotted_in_place(tmp_path, shard, scanned):
    first, stat = scanned(), shard.stat()
    with shard.open("r+b") as file:
        file.seek(1024)
        file.write(b"\x07")
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert scanned(size=1000) == first
    for _ in range(2):  # the bad bytes must not become the truth
        assert "bytes changed" in refusal(shard, tmp_path, vocab_size=1000, reread=True)


@pytest.mark.parametrize("junk", [b"", b"\xff{", b"[]", b'{"format": 1, "stamp": [1], "found": {}}'])
def test_a_corrupt_record_is_made_again(tmp_path, scanned, junk):
    first = scanned()
    (record,) = (tmp_path / "cache" / "scans").iterdir()
    whole = record.read_bytes()
    record.write_bytes(junk)
    assert (scanned(), record.read_bytes()) == (first, whole)


@pytest.mark.skipif(not (SHARED / "data" / "prose").is_dir(), reason="needs ../shared/data/prose")
def test_the_prose_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken"))
    paths = (sorted((SHARED / "data" / "prose").glob(f"prose_{split}_*.bin")) for split in ("train", "val"))
    train, val = ([scan(path, vocab_size=50257, cache_dir=tmp_path) for path in split] for split in paths)
    assert [sum(shard.tokens for shard in split) for split in (train, val)] == [19_228_304, 1_057_872]
    lengths = token_bytes(BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=tmp_path))
    assert lengths[map_tokens(val[0].path)].sum() == 4_131_993
