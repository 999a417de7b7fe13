"""Data: sources that are made into shards, the same files into the same shards, whole, and
validation text never training text; shards and their scan; both vocabularies; and `python -m
nocap.data`."""

import hashlib
import http.server
import json
import math
import os
import re
import shutil
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tiktoken.load
import tiktoken.registry

from nocap.config.compose import compose
from nocap.data import corpus, overlap, shard_cache, shards, synthetic, tokenizer
from nocap.data.__main__ import main
from nocap.data.prepare import Dataset, prepare
from nocap.data.shards import scan, write_shard
from nocap.data.tokens import map_tokens
from nocap.data.windows import Windows
from nocap.options.data.reading import Order, TokenType
from nocap.options.data.synthetic import Synthetic
from nocap.options.data.text import Text
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary
from nocap.outside import options
from tests.conftest import REPO, Finished, called

SHARED = REPO.parent / "shared"
BYTES = BuiltIn(vocabulary=Vocabulary.bytes)
EOT = 256
COMMON = {"order": Order.shuffled, "read_sequences": 16}


def chain(**more: int) -> Synthetic:
    keys = {"train_tokens": 5000, "val_tokens": 700, "source_seed": 0}
    return Synthetic(**COMMON, **keys | more)


def documents(paths) -> list[bytes]:
    """A split's documents: what lies between end-of-text tokens."""
    tokens = np.concatenate([map_tokens(path) for path in paths])
    assert tokens[0] == EOT
    starts = [*np.flatnonzero(tokens == EOT), tokens.size]
    return [tokens[a + 1 : b].astype(np.uint8).tobytes() for a, b in pairwise(starts)]


def both(dataset) -> list[bytes]:
    pieces: list[bytes] = []
    for part in (dataset.train, dataset.val):
        paths = [shard.path for shard in part]
        pieces.extend(documents(paths))
    return pieces


def lines(count: int, mark: str) -> str:
    return "".join(f"{mark} {index} é\n" for index in range(count))


@pytest.fixture
def text(tmp_path):
    """Prepares a text of these files, from these paths, with this share of validation."""

    def call(files: dict[str, str], paths="", fraction: float = 0.3, cache: str = "cache"):
        for name, content in files.items():
            parent = (tmp_path / "t" / name).parent
            parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                raw = content
            else:
                raw = content.encode()
            (tmp_path / "t" / name).write_bytes(raw)
        if isinstance(paths, list):
            patterns = paths
        else:
            patterns = [paths]
        paths = [str(tmp_path / "t" / pattern) for pattern in patterns]
        data = Text(**COMMON, val_fraction=fraction, path=paths if len(paths) > 1 else paths[0])
        return prepare(data, BYTES, cache_dir=tmp_path / cache)

    return call


NO_DOCUMENTS = (
    "site-packages/a.py",
    "test/b.py",
    "pkg0/tests/c.py",
    "pkg0/data.txt",
    ".hidden/d.py",
)


@pytest.fixture
def python_folder(tmp_path):
    folder = tmp_path / "lib"
    files = {f"pkg{i % 3}/mod{i}.py": f"# module {i}\n".encode() * (i + 1) for i in range(40)}
    files |= {"pkg0/empty.py": b"", "pkg1/latin.py": b"# caf\xe9\n"} | dict.fromkeys(
        NO_DOCUMENTS, b"none\n"
    )
    for name, content in files.items():
        parent = (folder / name).parent
        parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def stdlib(python_folder, tmp_path):
    return lambda: corpus.stdlib(
        BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder
    )


def test_stdlib_documents_are_the_files(python_folder, stdlib):
    split = {"train": [], "val": []}
    for path in sorted(python_folder.rglob("mod*.py")):
        content = path.read_bytes()
        share = int(hashlib.sha256(content).hexdigest(), 16) / 2**256
        split["val" if share < 0.3 else "train"].append(content)
    shard_set = stdlib()
    assert 5 < len(split["val"]) < 20
    assert {name: documents(getattr(shard_set, name)) for name in split} == split
    assert shard_set.source["skipped"] == ["pkg1/latin.py"]
    expected = {name: len(part) for name, part in split.items()}
    assert shard_set.source["documents"] == expected


def test_a_made_set_is_made_once_and_follows_its_files(
    python_folder, stdlib, tmp_path, monkeypatch
):
    first = stdlib()
    folder = first.train[0].parent
    paths = folder.glob("*.bin")
    hashes = {path.name: path.read_bytes() for path in paths}
    with monkeypatch.context() as patch:
        patch.setattr(shard_cache, "_make", None)
        assert stdlib() == first
    folder.rename(folder.parent / f".{folder.name}.tmp")  # where a killed process left it
    (folder.parent / f".{folder.name}.tmp" / "train_000000.bin").write_bytes(b"half")
    assert stdlib() == first
    os.utime(python_folder / "pkg0" / "mod0.py", ns=(1, 1))  # looks new, reads the same
    again = stdlib().train[0].parent
    assert again != folder
    contents = {path.name: path.read_bytes() for path in again.glob("*.bin")}
    assert contents == hashes


def test_racing_processes_all_succeed(stdlib, tmp_path):
    # a lock on an open file holds between threads as between processes
    barrier = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        shard_sets = list(pool.map(lambda _: (barrier.wait(), stdlib())[1], range(6)))
    for shard_set in shard_sets:
        assert shard_set == shard_sets[0]
    paths = (tmp_path / "cache" / "corpora").glob(".*.tmp")
    assert not list(paths)


@pytest.mark.parametrize("name", ["manifest.json", "train_000000.bin"])
def test_a_damaged_set_is_refused_with_the_remedy(tmp_path, name):
    train = prepare(chain(), BYTES, cache_dir=tmp_path).train
    folder = Path(train[0].path).parent
    content = (folder / name).read_bytes()[:-2]
    (folder / name).write_bytes(content + b"\x01\x00")
    os.utime(folder / name, ns=(1, 1))
    with pytest.raises(ValueError, match=f"remove {folder} to have it made again"):
        prepare(chain(), BYTES, cache_dir=tmp_path)


def test_one_big_file_gives_both_splits_and_every_byte_once(text):
    whole = lines(100_000, "line").encode()
    dataset = text({"book.txt": whole}, "book.txt")
    # Put back in the file's order, the documents are the file: nothing lost, nothing twice, and cut
    # at line ends only.
    pieces = sorted(both(dataset), key=whole.index)
    val = documents([shard.path for shard in dataset.val])

    assert b"".join(pieces) == whole
    for piece in pieces:
        assert piece.endswith(b"\n")
    # Neighbours in one split are one document: training and validation take turns.
    for first, second in pairwise(pieces):
        assert (first in val) != (second in val)
    assert 0.1 < sum(map(len, val)) / len(whole) < 0.5


def test_a_text_again_behind_another_beginning_is_refused(text):
    whole = lines(100_000, "line").encode()
    for more in (b"A title\n" + whole, b"\xef\xbb\xbf" + whole):
        with pytest.raises(
            ValueError, match="data=text must validate on text that is not in training, got"
        ):
            text({"one.txt": whole, "two.txt": more})


@pytest.mark.parametrize("line", ["the same line, a few words long\n", "some of it again, "])
def test_a_text_that_repeats_itself_is_refused(text, line):
    with pytest.raises(
        ValueError, match=r"not in training, got 100% of its validation passages of 64 tokens"
    ):
        text({"log.txt": line * (100_000 // len(line))})


def test_the_share_of_validation_in_training_is_that_of_all_passages(tmp_path, monkeypatch):
    """Counted here one by one; in chunks of which a passage spans two, and with a sixteenth of
    them."""
    chance = np.random.default_rng(0)
    train = chance.integers(0, 300, 20_000)
    own = chance.integers(0, 300, 6_000)
    three_parts = [own[:3000], train[7000:10_000], own[3000:]]
    val = np.concatenate(three_parts)
    windows = []
    for side in (train, val):
        windows_of_side = np.lib.stride_tricks.sliding_window_view(side, overlap.PASSAGE)
        windows.append({row.tobytes() for row in windows_of_side})
    common = windows[0] & windows[1]
    expected = len(common) / len(windows[1])
    scanned = {}
    for name, tokens in (("train", train), ("val", val)):
        write_shard(tmp_path / name, tokens)
        scanned[name] = [scan(tmp_path / name, vocab_size=300, cache_dir=tmp_path / "cache")]
    sampled = overlap.share_in_training(scanned["train"], scanned["val"])
    monkeypatch.setattr(overlap, "CHUNK", 100)
    monkeypatch.setattr(overlap, "SAMPLED_BITS", 0)
    assert overlap.share_in_training(scanned["train"], scanned["val"]) == expected
    assert sampled == pytest.approx(expected, abs=0.05)


def test_shards_that_validate_on_a_part_of_training_are_refused(folder, cache):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, 5000)
    write_shard(folder / "train_2.bin", tokens)
    write_shard(folder / "val_1.bin", tokens[1000:3000])
    with pytest.raises(
        ValueError, match="data=shards must validate on text that is not in training"
    ):
        fingerprint(cache, *of_shards(folder))


def test_text_without_line_ends_is_cut_between_characters(text, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_BYTES", 64)
    whole = "".join(f"🙂é{number}∑" for number in range(100))
    pieces = both(text({"a.txt": whole}, fraction=0.5))
    text_again = "".join(piece.decode() for piece in pieces)
    assert sorted(text_again) == sorted(whole)


def test_moving_the_text_does_not_change_the_shards(text):
    prints = set()
    for place in ("here", "there/below"):
        files = {f"{place}/{name}": lines(3000, name) for name in ("b.txt", "a.md", "sub/c.txt")}
        prints |= {text(files, path).fingerprint for path in (place, f"{place}/**")}
    assert len(prints) == 1


def test_a_file_named_twice_counts_once_hidden_ones_do_not_and_of_one_name_both(text, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link.txt").symlink_to("a.txt")
    files = {"a.txt": lines(5000, "a"), ".secret": b"\xff"}
    dataset = text(files, ["a.txt", "", "*.txt"])
    assert dataset.source["files"] == 1
    dataset = text({"1/notes.txt": "one", "2/notes.txt": "two"}, ["1/notes.txt", "2/notes.txt"])
    assert sorted(both(dataset)) == [b"one", b"two"]


def test_a_text_is_on_one_side_whatever_it_is_called_and_however_often_it_is_there(text):
    """A copy of a text in validation would be a text that was trained on."""
    once = text({"one.txt": lines(40_000, "line")}, "one.txt")
    twice = text({"two.txt": lines(40_000, "line")}, ["one.txt", "two.txt"])
    val = documents([shard.path for shard in twice.val])
    train = documents([shard.path for shard in twice.train])
    assert not {*val} & {*train}
    paths = [shard.path for shard in once.val]
    assert {*val} == {*documents(paths)}


def test_a_text_has_one_split_under_twelve_names(text):
    names = []
    for stem in ("1", "12", "123", "chapters/1", "chapters/12", "chapters/123"):
        names += [f"{stem}.txt", f"{stem}.md"]
    prints = [text({name: lines(40_000, "line")}, name, cache=name).fingerprint for name in names]
    assert len(names) == 12
    assert len({*prints}) == 1


def test_a_file_that_was_replaced_is_read_again(text, tmp_path):
    """Its size and its time may be the same, as `cp -p` leaves them."""
    first = text({"a.txt": lines(5000, "a")}, "a.txt")
    path = tmp_path / "t" / "a.txt"
    status = path.stat()
    path.write_text(lines(5000, "b"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert text({}, "a.txt").fingerprint != first.fingerprint


def test_a_link_to_a_folder_among_texts_is_refused(text, tmp_path):
    text({"a.txt": lines(5000, "a"), "elsewhere/b.txt": "b"}, "a.txt")
    (tmp_path / "t" / "link").symlink_to("elsewhere")
    with pytest.raises(ValueError, match=r"data\.path must hold no link to a folder.*t/link"):
        text({})


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_both_splits_get_a_piece_at_any_fraction(text, fraction):
    source = text({"a.txt": lines(5000, "a")}, fraction=fraction).source
    assert 1 in source["documents"].values()


NONE = "data.path must match at least one file"
TWO_PIECES = b"ok\n" * 20_000


USELESS_TEXTS = [
    ({}, "absent.txt", NONE),
    ({}, "*.txt", NONE),
    ({".hidden": b"x"}, "", NONE),
    (
        {"a.txt": b""},
        "a.txt",
        "data.path must hold more than 32 KiB of different text, .* got 0 bytes",
    ),
    ({"a.txt": b"same", "b.txt": b"same"}, "", "different text, .* got 4 bytes"),
    ({"a.txt": b"short\n"}, "a.txt", "got 6 bytes"),
    (
        {"a.txt": TWO_PIECES + b"caf\xe9 ole\n"},
        "a.txt",
        r"a\.txt: data.path must hold UTF-8 text, got byte 0xe9 at offset 60003",
    ),
    ({"a.txt": TWO_PIECES + b"caf\xc3"}, "", r"a\.txt: .*got byte 0xc3 at offset 60003"),
    ({"a.txt": b"\x80" * 70_000}, "", r"got byte 0x80 at offset 0"),
]


@pytest.mark.parametrize(("files", "path", "words"), USELESS_TEXTS)
def test_text_that_cannot_be_used_is_refused_and_leaves_no_half_made_set(
    tmp_path, text, files, path, words
):
    (tmp_path / "t").mkdir()
    with pytest.raises(ValueError, match=rf"\A.*{words}.*\Z"):
        text(files, path)
    paths = (tmp_path / "cache").glob("corpora/*")
    assert not [path for path in paths if path.is_dir()]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_gpt2_text_decodes_to_the_same_text_as_bytes(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken"))
    book = (SHARED / "data" / "text" / "books_0.txt").read_text()[:150_000]
    gpt2 = BuiltIn(vocabulary=Vocabulary.gpt2)
    as_bytes = text({"a.txt": book})
    path = str(tmp_path / "t")
    as_gpt2 = prepare(Text(**COMMON, val_fraction=0.3, path=path), gpt2, cache_dir=tmp_path)
    content = gpt2.load(cache_dir=tmp_path)
    gpt2_tokens = map_tokens(as_gpt2.val[0].path)
    decoded = content.decode_bytes(gpt2_tokens.tolist())
    words = decoded.split(b"<|endoftext|>")[1:]
    assert words == documents([as_bytes.val[0].path])


def test_long_text_fills_several_shards(text, monkeypatch):
    (single,) = text({"a.txt": lines(20_000, "a")}, cache="one").train
    monkeypatch.setattr(shard_cache, "SHARD_TOKENS", 50_000)
    train = text({}, "a.txt", cache="many").train
    many = [map_tokens(shard.path) for shard in train]
    assert len(many) > 1
    joined = np.concatenate(many)
    np.testing.assert_array_equal(joined, map_tokens(single.path))


# --- synthetic ------------------------------------------------------------------------------------


def test_the_chain_has_four_equal_successors_and_never_changes(tmp_path):
    dataset = prepare(chain(train_tokens=1_000_000, val_tokens=100_000), BYTES, cache_dir=tmp_path)
    assert [shard.tokens for shard in (*dataset.train, *dataset.val)] == [1_000_000, 100_000]
    hashes = [shard.sha256[:16] for shard in (*dataset.train, *dataset.val)]
    assert dataset.source["text"] is False
    assert hashes == ["0f5c9be4d48b60a0", "17fae311dacbd439"]
    tokens = map_tokens(dataset.train[0].path).astype(np.int64)
    counts = np.zeros((257, 257))
    follower = tokens[1:]
    np.add.at(counts, (tokens[:-1], follower), 1)
    visited = counts.sum(axis=1) > 0  # a few tokens follow no other
    assert visited.mean() > 0.95
    visits = counts[visited] > 0
    assert set((visits).sum(axis=1)) == {4}
    sums = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(sums, 1)
    shares_of_all = counts / counts.sum()
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    entropy = -(shares_of_all * logs).sum()
    assert entropy == pytest.approx(math.log(4), abs=2e-3)


def test_streams_seeds_and_chunks(monkeypatch):
    def walk(**more):
        keys = {"count": 1000, "vocab_size": 257, "seed": 0, "stream": 0} | more
        return np.concatenate([*synthetic.tokens(**keys)])

    whole = walk()
    assert min((other != whole).mean() for other in (walk(stream=1), walk(seed=1))) > 0.9
    monkeypatch.setattr(synthetic, "CHUNK_TOKENS", 7)
    assert walk().tolist() == whole.tolist()
    expected = whole[:300].tolist()
    assert walk(count=300).tolist() == expected


# --- shards and their scan ------------------------------------------------------------------------


def raw_shard(
    tokens: list[int], *, magic: int = 20240520, version: int = 1, count: int | None = None
) -> bytes:
    """The format, written a second time and without NumPy."""
    if count is None:
        count = len(tokens)
    header = struct.pack("<256i", magic, version, count, *[0] * 253)
    return header + struct.pack(f"<{len(tokens)}H", *tokens)


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
    content = raw_shard([256, 72, 105, 0])
    path.write_bytes(content)
    return path


@pytest.fixture
def scanned(tmp_path, shard):
    return lambda path=shard, size=257: scan(path, vocab_size=size, cache_dir=tmp_path / "cache")


def test_what_is_written_is_the_format(tmp_path):
    path = tmp_path / "new" / "a.bin"
    raw = raw_shard([50256, 0, 65535, 7])
    sha256 = write_shard(path, np.array([50256, 0, 65535, 7]))
    tokens = map_tokens(str(path))
    assert path.read_bytes() == raw
    assert os.listdir(path.parent) == ["a.bin"]
    assert sha256 == hashlib.sha256(raw).hexdigest()
    assert tokens.tolist() == [50256, 0, 65535, 7]
    assert tokens.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize(
    ("tokens", "got"), [([1, 65536], "got 65536"), ([-1, 5], "got -1"), ([], "got 0")]
)
def test_writing_refuses_what_uint16_cannot_hold(tmp_path, tokens, got):
    with pytest.raises(ValueError, match=got):
        write_shard(tmp_path / "a.bin", np.array(tokens, dtype=np.int64))
    assert not (tmp_path / "a.bin").exists()


def test_a_write_that_fails_leaves_the_old_file(tmp_path, shard, monkeypatch):
    before = shard.read_bytes()
    full_disk = OSError(28, "No space left on device")
    monkeypatch.setattr(shards.os, "fsync", Mock(side_effect=full_disk))
    with pytest.raises(ValueError, match="No space left"):
        write_shard(shard, np.array([1, 2, 3]))
    assert shard.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_scan_tells_the_whole_file_however_many_chunks(tmp_path, shard, scanned, monkeypatch):
    small = scanned()
    assert small.path == str(shard)
    assert small.tokens == 4
    assert small.max_id == 256
    expected = hashlib.sha256(shard.read_bytes()).hexdigest()
    assert small.sha256 == expected
    write_shard(tmp_path / "b.bin", np.arange(10_000) % 300)
    monkeypatch.setattr(shards, "CHUNK_BYTES", 64)
    big = scanned(tmp_path / "b.bin", 300)
    assert big.tokens == 10_000
    assert big.max_id == 299
    assert "got 299 at token 299" in refusal(
        tmp_path / "b.bin", tmp_path, vocab_size=299, cache_dir=tmp_path
    )


GOOD = raw_shard([1, 2, 3])


BAD_FILES = [
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
    (
        raw_shard([1, 256, 257, 300]),
        "below 257, the size of the tokenizer's vocabulary, got 257 at token 2",
    ),
]


@pytest.mark.parametrize(("content", "words"), BAD_FILES)
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

    assert scanned() == first
    assert linked.path == str(tmp_path / "link.bin")
    assert linked.sha256 == first.sha256
    assert "got 256 at token 0" in refusal(shard, tmp_path, vocab_size=256)


def test_a_changed_file_is_read_again_and_only_rereading_finds_bytes_that_rotted_in_place(
    tmp_path, shard, scanned
):
    first = scanned()
    stat = shard.stat()
    with shard.open("r+b") as file:
        file.seek(1024)
        file.write(b"\x07")
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert scanned(size=1000) == first
    for _ in range(2):  # the bad bytes must not become the truth
        assert "bytes changed" in refusal(shard, tmp_path, vocab_size=1000, reread=True)
    content = raw_shard([1, 2, 3, 4])
    shard.write_bytes(content)
    os.utime(shard, ns=(1, 1))  # whatever the file system's clock can tell apart
    assert scanned().sha256 != first.sha256


@pytest.mark.parametrize(
    "junk", [b"", b"\xff{", b"[]", b'{"format": 1, "stamp": [1], "found": {}}']
)
def test_a_corrupt_record_is_made_again(tmp_path, scanned, junk):
    first = scanned()
    (record,) = (tmp_path / "cache" / "scans").iterdir()
    whole = record.read_bytes()
    record.write_bytes(junk)
    assert scanned() == first
    assert record.read_bytes() == whole


# --- vocabularies ---------------------------------------------------------------------------------

VOCABULARY = SHARED / "tiktoken"
needs_gpt2 = pytest.mark.skipif(
    not VOCABULARY.is_dir(), reason="needs GPT-2's vocabulary in ../shared/tiktoken"
)
TEXTS = ["", "Hello world", "naïve café — ∑ 🙂\r\n\ttab", "x" * 1000, "\n" * 130]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """No vocabulary on disk, none in tiktoken's memory, and no server."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)

    def unreachable(_):
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken.load, "read_file", unreachable)
    return tmp_path


def test_bytes_are_their_own_ids(tmp_path):
    encoding = BuiltIn(vocabulary=Vocabulary.bytes).load(cache_dir=tmp_path)
    assert encoding.n_vocab == 257
    assert encoding.eot_token == 256
    assert [*tmp_path.iterdir()] == []
    for text in TEXTS:
        assert encoding.encode_ordinary(text) == list(text.encode())
        assert encoding.decode(encoding.encode_ordinary(text)) == text


@pytest.mark.parametrize(
    "vocabulary", [Vocabulary.bytes, pytest.param(Vocabulary.gpt2, marks=needs_gpt2)]
)
def test_token_bytes_add_up_to_the_text(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(VOCABULARY))
    encoding = BuiltIn(vocabulary=vocabulary).load(cache_dir=tmp_path)
    lengths = tokenizer.token_bytes(encoding)
    assert lengths.dtype == "int32"
    assert lengths.shape == (encoding.n_vocab,)
    ids = {257: [*b"Hello world"], 50257: [15496, 995]}
    assert encoding.encode_ordinary("Hello world") == ids[encoding.n_vocab]
    assert [*(lengths == 0).nonzero()[0]] == [encoding.eot_token]
    for text in TEXTS:
        ids = [encoding.eot_token, *encoding.encode_ordinary(text)]
        expected = len(text.encode())
        assert lengths[ids].sum() == expected


@pytest.mark.parametrize(
    ("variable", "folder"), [("TIKTOKEN_CACHE_DIR", "none"), (None, "tiktoken")]
)
def test_no_network_is_one_line_that_says_how_and_where(empty_cache, monkeypatch, variable, folder):
    if variable is None:  # the files go below the cache
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    with pytest.raises(ValueError) as caught:
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    message = str(caught.value)
    folder = str(empty_cache / folder)
    says = (
        "TIKTOKEN_CACHE_DIR",
        folder,
        "6d1cbeee",
        "6c7ea1a7",
        "tokenizer=bytes",
        "ConnectionError",
    )

    assert [word for word in says if word not in message] == []
    assert "\n" not in message
    assert tokenizer.os.environ.pop("TIKTOKEN_CACHE_DIR") == folder


def test_a_silent_server_is_not_waited_for(empty_cache, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(tiktoken.load, "read_file", lambda _: release.wait())
    monkeypatch.setattr(tokenizer, "FETCH_TIMEOUT_S", 0.2)
    with pytest.raises(ValueError, match=r"no answer in 0\.2 s"):
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "fetch-gpt2-vocabulary":
            thread.join()


# --- the door -------------------------------------------------------------------------------------

TINY = ["data=synthetic", "data.train_tokens=3000", "data.val_tokens=500"]
NEEDS = {"text": ["data.path=x"], "shards": ["data.train=x", "data.val=y"]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NOCAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    for name, size in (("train_1", 30), ("train_0", 20), ("val_0", 10)):
        write_shard(tmp_path / "shards" / f"{name}.bin", np.arange(size))
    return tmp_path / "shards"


def of_shards(folder: Path, train: str = "train_*.bin", val: str = "val_*.bin") -> list[str]:
    return [
        "data=shards",
        "tokenizer=bytes",
        f"data.train={folder}/{train}",
        f"data.val={folder}/{val}",
    ]


def fingerprint(cache: Path, *overrides: str) -> str:
    run = compose(overrides)
    return prepare(run.data, run.tokenizer, cache_dir=cache).fingerprint


def refused(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    out, err = capsys.readouterr()
    assert out == ""
    assert err[:7] == "nocap: "
    assert err.count("\n") == 1
    return err


# --- prepare --------------------------------------------------------------------------------------


def test_shards_are_sorted_and_the_fingerprint_ignores_where_they_lie(
    folder, cache, tmp_path, monkeypatch
):
    first = fingerprint(cache, *of_shards(folder))
    (tmp_path / "home").mkdir()
    folder.rename(tmp_path / "home" / "moved")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # ~ is Hydra's own
    quoted = ["data.train='~/moved/train_*.bin'", "data.val='~/moved/val_0.bin'"]
    assert fingerprint(cache, "data=shards", "tokenizer=bytes", *quoted) == first


def test_a_shard_may_have_a_globs_characters_in_its_name(folder, cache):
    named = folder / "train[1].bin"
    shutil.copy(folder / "train_1.bin", named)
    plain = fingerprint(cache, *of_shards(folder, train="train_1.bin"))
    words = [
        "data=shards",
        "tokenizer=bytes",
        f"data.train='{named}'",
        f"data.val={folder}/val_0.bin",
    ]
    assert fingerprint(cache, *words) == plain


def test_the_fingerprint_follows_order_split_and_vocabulary(folder, cache):
    changed = fingerprint(cache, *of_shards(folder), "tokenizer=gpt2")
    prints = {
        fingerprint(cache, *of_shards(folder)),
        fingerprint(cache, *of_shards(folder, train="train_0.bin")),
        fingerprint(cache, *of_shards(folder, train="val_*.bin", val="train_*.bin")),
        changed,
    }
    (folder / "train_1.bin").rename(folder / "train_.bin")  # sorts before train_0.bin
    assert len(prints | {fingerprint(cache, *of_shards(folder))}) == 5


USELESS_SHARDS = [
    ("train_*.bin", "none", "data.val must match at least one file, got '{folder}/none'"),
    (
        "*.bin",
        "val_*.bin",
        "data.val must match no file of data.train, got {folder}/val_0.bin in both",
    ),
    (
        "train_*.bin",
        "copy.bin",
        "data.val must not hold training data, got {folder}/copy.bin with the same bytes as "
        "{folder}/train_0.bin",
    ),
    ("train_*.bin", "notes.txt", "{folder}/notes.txt: a shard must have a header"),
]


@pytest.mark.parametrize(("train", "val", "words"), USELESS_SHARDS)
def test_shards_that_cannot_be_used_are_refused(folder, capsys, train, val, words):
    content = (folder / "train_0.bin").read_bytes()
    (folder / "copy.bin").write_bytes(content)
    (folder / "notes.txt").write_text("hello")
    command = ["prepare", *of_shards(folder, train, val)]
    assert words.format(folder=folder) in refused(command, capsys)


# --- files without a header, as nanoGPT writes them -----------------------------------------------


def of_raw(folder: Path, dtype: str) -> list[str]:
    """The folder's shards without their headers, written as nanoGPT does, by NumPy's own
    `tofile`."""
    for path in sorted(folder.glob("*.bin")):
        tokens = np.fromfile(path, dtype="<u2", offset=1024)
        tokens.astype(dtype).tofile(folder / f"{path.stem}.{dtype}")
    return [*of_shards(folder, f"train_*.{dtype}", f"val_*.{dtype}"), f"data.dtype={dtype}"]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_file_without_a_header_has_the_tokens_of_the_shard_with_one(folder, cache, dtype):
    written = []
    for words in (of_shards(folder), of_raw(folder, dtype)):
        run = compose(words)
        dataset = prepare(run.data, run.tokenizer, cache_dir=cache)
        all_shards = (*dataset.train, *dataset.val)
        windows = [Windows([each], **ONE_BY_ONE) for each in all_shards]
        scales = [read.at(range(read.n)).tolist() for read in windows]
        written.append(scales)
    assert written[0] == written[1]
    assert dataset.source["dtype"] == dtype


ONE_BY_ONE = {"seq_len": 3, "order": Order.sequential, "read_sequences": 1, "seed": 0}


def test_the_type_of_tokens_is_in_the_fingerprint(folder: Path, cache: Path):
    np.arange(1, 41, dtype=np.uint16).tofile(folder / "raw")
    shard = scan(folder / "raw", vocab_size=257, cache_dir=cache, raw=TokenType.uint16)
    as_16 = Dataset(train=(shard,), val=(), vocab_size=257, source={})
    as_32 = replace(as_16, train=(replace(shard, raw="uint32"),))  # the same bytes are other tokens
    assert as_16.fingerprint != as_32.fingerprint


BAD_HEADERLESS_FILES = [
    (
        b"\1\2\3",
        "uint16",
        "a file of uint16 without a header must have a multiple of 2 bytes, got 3",
    ),
    (
        b"\1\0" * 3,
        "uint32",
        "a file of uint32 without a header must have a multiple of 4 bytes, got 6",
    ),
    (b"", "uint16", "must have a multiple of 2 bytes, got 0"),
    (raw_shard([1, 2, 3]), "uint16", "data.dtype must be null for a shard with a header"),
    (
        b"\1\0\0\0" * 9,
        "uint16",
        "data.dtype must be uint32, because with uint16 every second token is 0, got uint16",
    ),
    (
        b"\1\0" * 8,
        "uint32",
        "below 257, the size of the tokenizer's vocabulary, got 65537 at token 0",
    ),
    (b"\1\0" * 600, "null", "needs data.dtype=uint16 or uint32"),
]


@pytest.mark.parametrize(("content", "dtype", "words"), BAD_HEADERLESS_FILES)
def test_a_bad_file_without_a_header_is_refused(folder, capsys, content, dtype, words):
    (folder / "train.raw").write_bytes(content)
    (folder / "val.raw").write_bytes(content)
    argv = ["prepare", *of_shards(folder, "train.raw", "val.raw"), f"data.dtype={dtype}"]
    assert words in refused(argv, capsys)


# --- the door -------------------------------------------------------------------------------------


def test_prepare_says_what_it_made_and_list_shows_it_or_that_it_is_broken(cache, capsys):
    assert main(["prepare", *TINY]) == 0
    said = capsys.readouterr().out
    assert "synthetic: 3,000 train and 500 val tokens of 257 ids" in said
    assert str(cache / "corpora" / "synthetic-bytes-") in said
    for argv in (["list"], ["list", f"cache_dir={cache}"]):
        assert main(argv) == 0
        listed = capsys.readouterr().out
        for kind in options("data"):
            assert f"  {kind} " in listed
        assert "3,000 train and 500 val tokens" in listed
    next(cache.glob("corpora/*/manifest.json")).write_text("[]")
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert out.count("  broken: ") == 1


def test_verify_names_each_bad_file_and_exits_1(folder, cache, capsys):
    assert main(["verify", *of_shards(folder)]) == 0
    out = capsys.readouterr().out
    assert out.count("ok ") == 3
    for name in ("train_1.bin", "val_0.bin"):
        stat = (folder / name).stat()
        content = (folder / name).read_bytes()
        last = bytes([content[-2] ^ 1, content[-1]])
        (folder / name).write_bytes(content[:-2] + last)
        os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert main(["prepare", *of_shards(folder)]) == 0  # the stat did not change
    capsys.readouterr()
    for _ in range(2):
        assert main(["verify", *of_shards(folder)]) == 1
        printed = capsys.readouterr()
        good = [line.split()[1] for line in printed.out.splitlines()]
        bad = [line.split()[1] for line in printed.err.splitlines()]
        assert good == [f"{folder}/train_0.bin"]
        assert bad == [f"{folder}/train_1.bin:", f"{folder}/val_0.bin:"]
    main(["prepare", *TINY])
    (shard,) = cache.glob("corpora/*/val_*.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    assert main(["verify", *TINY]) == 1
    assert f"{shard}: truncated" in capsys.readouterr().err


@pytest.mark.parametrize("way_out", ["../../../secret.bin", "/secret.bin", "link.bin"])
def test_a_made_set_leads_nowhere_else(cache, capsys, tmp_path, way_out):
    main(["prepare", *TINY])
    capsys.readouterr()
    (manifest,) = cache.glob("corpora/*/manifest.json")
    (shard,) = manifest.parent.glob("val_*.bin")
    (tmp_path / "secret.bin").write_bytes(shard.read_bytes())
    (manifest.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    link = json.dumps(way_out)
    manifest.write_text(manifest.read_text().replace(f'"{shard.name}"', link))
    assert f"{manifest}: must be a manifest of prepared data" in refused(["verify", *TINY], capsys)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("data=nothing", "data/nothing is no option"),
        ("data.val_fractoin=0.1", "data.val_fractoin is no key"),
        ("data=text data.path=/no/such/file", "data.path must match at least one file"),
    ],
)
@pytest.mark.parametrize("verb", ["prepare", "verify"])
def test_bad_input_is_one_line(verb, words, says, capsys):
    assert says in refused([verb, *words.split()], capsys)


def test_a_cache_that_cannot_be_written_is_one_line_and_an_unknown_verb_exits_2(cache, capsys):
    cache.write_text("a file where the folder should be")
    assert str(cache) in refused(["prepare", *TINY], capsys)
    with pytest.raises(SystemExit, match="2"):
        main(["fetch"])


# --- FineWeb, from a hub on this machine: downloaded, verified, kept ------------------------------

HUB_REPO = "someone/fineweb"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """The hub's resolve URLs. `harm` maps a file's name to what goes wrong with it."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Resolve)
        self.files = files
        self.harm = {}
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Resolve(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        match = re.fullmatch(r"/datasets/(.+)/resolve/([^/]+)/([^/]+)", self.path)
        repo, revision, name = match.groups() if match else ("", "", "")
        if match:  # the client asks for other things too
            self.server.asked.append(f"{self.command} {name}")
        missing = {
            "RepoNotFound": repo != HUB_REPO,
            "RevisionNotFound": revision not in ("main", COMMIT),
            "EntryNotFound": name not in self.server.files,
            "NotAllowed": self.server.harm.get(name) == "kept back",
        }
        for code in (code for code, no in missing.items() if no):
            # the client tries others than 409 again
            return self.send({"X-Error-Code": code}, 409 if code == "NotAllowed" else 404)
        return self.send_file(name)

    def do_HEAD(self):
        self.do_GET()

    def send(self, headers: dict[str, str], status: int, body: bytes = b"", size: int = 0):
        self.send_response(status)
        for name, value in (
            {"X-Repo-Commit": COMMIT, "Content-Length": str(size)} | headers
        ).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, name: str):
        whole = self.server.files[name]
        harm = self.server.harm.get(name)
        etag = f'"{"b" * 40 if harm == "no sha256" else hashlib.sha256(whole).hexdigest()}"'
        last = bytes([whole[-1] ^ (harm == "corrupt")])
        body = whole[:-1] + last
        headers = {"ETag": etag, "X-Linked-Etag": etag, "X-Linked-Size": str(len(whole))}
        self.send(headers, 200, body, len(whole))


@pytest.fixture
def hub():
    names = ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin")
    files = {}
    for seed, name in enumerate(names):
        files[name] = shard_of((np.arange(3000) * (seed + 7)) % 50257)
    with Hub(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def shard_of(tokens: np.ndarray) -> bytes:
    first_bytes = np.array([20240520, 1, len(tokens), *[0] * 253], "<i4")
    return first_bytes.tobytes() + tokens.astype("<u2").tobytes()


@pytest.fixture
def door(tmp_path, hub, monkeypatch):
    """A command about a few shards of this hub. The hub's client reads its environment when it is
    imported: each call imports it anew."""
    for name in [name for name in os.environ if "proxy" in name.lower() or name.startswith("HF_")]:
        monkeypatch.delenv(name)
    ours = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    ours["HF_HOME"] = str(tmp_path / "hf")
    ours["NOCAP_CACHE"] = str(tmp_path / "cache")

    def run(verb: str = "prepare", *overrides: str, shards: int = 2, **more: str) -> Finished:
        forget()
        words = (
            "data=fineweb",
            "tokenizer=gpt2",
            f"data.repo={HUB_REPO}",
            f"data.train_shards={shards}",
        )
        return called(
            verb, *words, *overrides, cwd=tmp_path, module="nocap.data.__main__", env=ours | more
        )

    yield run
    forget()  # of this hub


def forget() -> None:
    for module in list(sys.modules):
        if module.partition(".")[0] != "huggingface_hub":
            continue
        del sys.modules[module]


def line_of(done: Finished) -> str:
    """The refusal: the last line, alone but for what the hub's own client warns of."""
    (line,) = [line for line in done.err.splitlines() if line.startswith("nocap: ")]
    assert done.code == 2, done.err
    assert done.err.rstrip().endswith(line), done.err
    assert "Traceback" not in done.err, done.err
    return line


def test_downloaded_then_read_without_a_network(hub, door):
    first = door()
    assert first.code == 0, first.err
    assert COMMIT in first.out, first.err
    assert "6,000 train and 3,000 val tokens" in first.out
    expected = [f"GET {name}" for name in hub.files]
    gets = [line for line in hub.asked if line.startswith("GET")]
    assert gets == expected
    count = len(hub.asked)
    again = door(HF_ENDPOINT="http://127.0.0.1:9")
    assert again.code == 0, again.err
    assert again.out == first.out, again.err
    assert door("verify").code == 0
    assert len(hub.asked) == count


def test_what_came_before_a_failure_is_kept(hub, door):
    third = hub.files.pop("fineweb_train_000002.bin")
    assert "fineweb_train_000002.bin" in line_of(door())
    hub.files["fineweb_train_000002.bin"] = third
    assert door().code == 0
    assert hub.asked.count("GET fineweb_train_000001.bin") == 1


def test_bytes_that_are_not_the_hub_s_are_refused_until_removed(tmp_path, hub, door):
    hub.harm["fineweb_train_000002.bin"] = "corrupt"
    line = line_of(door())
    assert (
        f"its sha256 must be {hashlib.sha256(hub.files['fineweb_train_000002.bin']).hexdigest()}"
        in line
    )
    del hub.harm["fineweb_train_000002.bin"]
    assert line_of(door()) == line
    Path(re.search(r"remove (\S+) and run again", line)[1]).unlink()
    assert door().code == 0
    (path,) = (tmp_path / "hf").rglob("fineweb_train_000001.bin")
    os.truncate(path.resolve(), 2000)
    assert (
        "fineweb_train_000001.bin: truncated: a shard of 3000 tokens must have 7024 bytes, got 2000"
        in line_of(door())
    )


VAL = "fineweb_val_000000.bin"


HUB_REFUSALS = [
    (
        ["data.train_shards=3"],
        *({}, ""),
        "data.train_shards must be smaller, because .* has no fineweb_train_000003.bin, got 3",
    ),
    (
        ["data.repo=no/body"],
        {},
        "",
        "data.repo must be a dataset that the hub shows you, got 'no/body'",
    ),
    (["data.repo=a/b/c"], {}, "", "data.repo must be a name on the hub, got 'a/b/c'"),
    (
        ["data.revision=old"],
        *({}, ""),
        "data.revision must be a branch, a tag or a commit of someone/fineweb, got 'old'",
    ),
    (["tokenizer=bytes"], {}, "", "tokenizer.vocabulary must be gpt2 for data=fineweb"),
    (
        [],
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        "",
        rf"{VAL} of someone/fineweb at main cannot be fetched from the hub: \[Errno 111\]",
    ),
    ([], {}, "kept back", f"{VAL} of someone/fineweb at main cannot be fetched"),
    ([], {}, "no sha256", "data.repo must be on a hub that gives each file's sha256"),
]


@pytest.mark.parametrize(("overrides", "more", "harm", "words"), HUB_REFUSALS)
def test_what_the_hub_has_not_is_refused(hub, door, overrides, more, harm, words):
    hub.harm[VAL] = harm
    done = door("prepare", *overrides, **more)
    assert re.search(words, line_of(done))
    # no retries, of which the hub's client tells
    assert len(done.err.splitlines()) == 1 or not more
    assert not harm or {line.split()[1] for line in hub.asked} == {VAL}  # at the first file
