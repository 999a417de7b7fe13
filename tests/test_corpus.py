"""Sources that are made into shards: the same files give the same shards, whole, and validation text is never
training text."""

import hashlib
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nocap.data import corpus, made, synthetic
from nocap.data.prepare import prepare
from nocap.data.tokens import map_tokens
from nocap.options.data import Order
from nocap.options.data.synthetic import Synthetic
from nocap.options.data.text import Stdlib, Text
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary

SHARED = Path(__file__).resolve().parents[2] / "shared"
BYTES = BuiltIn(vocabulary=Vocabulary.bytes)
EOT = 256
COMMON = {"order": Order.shuffled, "read_sequences": 16}


def chain(**more: int) -> Synthetic:
    return Synthetic(**COMMON, **{"train_tokens": 5000, "val_tokens": 700, "source_seed": 0} | more)


def documents(paths) -> list[bytes]:
    """A split's documents: what lies between end-of-text tokens."""
    tokens = np.concatenate([map_tokens(path) for path in paths])
    assert tokens[0] == EOT
    starts = [*np.flatnonzero(tokens == EOT), tokens.size]
    return [tokens[a + 1 : b].astype(np.uint8).tobytes() for a, b in pairwise(starts)]


def both(dataset) -> list[bytes]:
    return [
        piece for part in (dataset.train, dataset.val) for piece in documents([shard.path for shard in part])
    ]


def lines(count: int, mark: str) -> str:
    return "".join(f"{mark} {index} é\n" for index in range(count))


@pytest.fixture
def text(tmp_path):
    """Prepares a text of these files, from these paths, with this share of validation."""

    def call(files: dict[str, str], paths="", fraction: float = 0.3, cache: str = "cache"):
        for name, content in files.items():
            (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "t" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        paths = [str(tmp_path / "t" / path) for path in (paths if isinstance(paths, list) else [paths])]
        data = Text(**COMMON, val_fraction=fraction, path=paths if len(paths) > 1 else paths[0])
        return prepare(data, BYTES, cache_dir=tmp_path / cache)

    return call


NO_DOCUMENTS = ("site-packages/a.py", "test/b.py", "pkg0/tests/c.py", "pkg0/data.txt", ".hidden/d.py")


@pytest.fixture
def python_folder(tmp_path):
    folder = tmp_path / "lib"
    files = {f"pkg{i % 3}/mod{i}.py": f"# module {i}\n".encode() * (i + 1) for i in range(40)}
    files |= {"pkg0/empty.py": b"", "pkg1/latin.py": b"# caf\xe9\n"} | dict.fromkeys(NO_DOCUMENTS, b"none\n")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def stdlib(python_folder, tmp_path):
    return lambda: corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder)


def test_stdlib_documents_are_the_files(python_folder, stdlib):
    split = {"train": [], "val": []}
    for name, path in sorted(
        (path.relative_to(python_folder).as_posix(), path) for path in python_folder.rglob("mod*.py")
    ):
        share = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) / 2**64
        split["val" if share < 0.3 else "train"].append(path.read_bytes())
    shard_set = stdlib()
    assert 5 < len(split["val"]) < 20
    assert {name: documents(getattr(shard_set, name)) for name in split} == split
    assert shard_set.source["skipped"] == ["pkg1/latin.py"]
    assert shard_set.source["documents"] == {name: len(part) for name, part in split.items()}


@pytest.mark.slow
def test_the_real_library(tmp_path):
    dataset = prepare(Stdlib(**COMMON, val_fraction=0.05), BYTES, cache_dir=tmp_path)
    train, val = (sum(shard.tokens for shard in part) for part in (dataset.train, dataset.val))
    assert (train > 3_000_000, val > 100_000) == (True, True)


def test_a_made_set_is_made_once_and_follows_its_files(python_folder, stdlib, tmp_path, monkeypatch):
    first = stdlib()
    folder = first.train[0].parent
    hashes = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    with monkeypatch.context() as patch:
        patch.setattr(made, "_make", None)
        assert stdlib() == first
    folder.rename(folder.parent / f".{folder.name}.tmp")  # where a killed process left it
    (folder.parent / f".{folder.name}.tmp" / "train_000000.bin").write_bytes(b"half")
    assert stdlib() == first
    os.utime(python_folder / "pkg0" / "mod0.py", ns=(1, 1))  # looks new, reads the same
    again = stdlib().train[0].parent
    assert again != folder
    assert [{path.name: path.read_bytes() for path in made.glob("*.bin")} for made in (folder, again)] == [
        hashes
    ] * 2


def test_racing_processes_all_succeed(stdlib, tmp_path):
    # a lock on an open file holds between threads as between processes
    barrier = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        shard_sets = list(pool.map(lambda _: (barrier.wait(), stdlib())[1], range(6)))
    assert all(shard_set == shard_sets[0] for shard_set in shard_sets)
    assert not list((tmp_path / "cache" / "corpora").glob(".*.tmp"))


@pytest.mark.parametrize("name", ["manifest.json", "train_000000.bin"])
def test_a_damaged_set_is_refused_with_the_remedy(tmp_path, name):
    folder = Path(prepare(chain(), BYTES, cache_dir=tmp_path).train[0].path).parent
    (folder / name).write_bytes((folder / name).read_bytes()[:-2] + b"\x01\x00")
    os.utime(folder / name, ns=(1, 1))
    with pytest.raises(ValueError, match=f"remove {folder} to have it made again"):
        prepare(chain(), BYTES, cache_dir=tmp_path)


def test_one_big_file_gives_both_splits_and_every_byte_once(text):
    whole = lines(40_000, "line").encode()
    dataset = text({"book.txt": whole}, "book.txt")
    # Put back in the file's order, the documents are the file: nothing lost, nothing twice, and cut at line
    # ends only.
    pieces, val = sorted(both(dataset), key=whole.index), documents([shard.path for shard in dataset.val])
    assert b"".join(pieces) == whole
    assert all(piece.endswith(b"\n") for piece in pieces)
    # Neighbours in one split are one document: training and validation take turns.
    assert all((first in val) != (second in val) for first, second in pairwise(pieces))
    assert 0.1 < sum(map(len, val)) / len(whole) < 0.5


def test_text_without_line_ends_is_cut_between_characters(text, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_BYTES", 64)
    pieces = both(text({"a.txt": "🙂é∑" * 100}, fraction=0.5))
    assert sorted("".join(piece.decode() for piece in pieces)) == sorted("🙂é∑" * 100)


def test_moving_the_text_does_not_change_the_shards(text):
    prints = set()
    for place in ("here", "there/below"):
        files = {f"{place}/{name}": lines(3000, name) for name in ("b.txt", "a.md", "sub/c.txt")}
        prints |= {text(files, path).fingerprint for path in (place, f"{place}/**")}
    assert len(prints) == 1


def test_a_file_named_twice_counts_once_and_hidden_ones_do_not(text, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link.txt").symlink_to("a.txt")
    dataset = text({"a.txt": lines(5000, "a"), ".secret": b"\xff"}, ["a.txt", "", "*.txt"])
    assert dataset.source["files"] == 1


def test_files_of_one_name_are_different_documents(text):
    dataset = text({"1/notes.txt": "one", "2/notes.txt": "two"}, ["1/notes.txt", "2/notes.txt"])
    assert sorted(both(dataset)) == [b"one", b"two"]


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_both_splits_get_a_piece_at_any_fraction(text, fraction):
    assert 1 in text({"a.txt": lines(5000, "a")}, fraction=fraction).source["documents"].values()


NONE = "data.path must match at least one file"
TWO_PIECES = b"ok\n" * 20_000


@pytest.mark.parametrize(
    ("files", "path", "words"),
    [
        ({}, "absent.txt", NONE),
        ({}, "*.txt", NONE),
        ({".hidden": b"x"}, "", NONE),
        ({"a.txt": b""}, "a.txt", "data.path must hold more than 32 KiB of text, .* got 0 bytes"),
        ({"a.txt": b"short\n"}, "a.txt", "got 6 bytes"),
        (
            {"a.txt": TWO_PIECES + b"caf\xe9 ole\n"},
            "a.txt",
            r"a\.txt: data.path must hold UTF-8 text, got byte 0xe9 at offset 60003",
        ),
        ({"a.txt": TWO_PIECES + b"caf\xc3"}, "", r"a\.txt: .*got byte 0xc3 at offset 60003"),
        ({"a.txt": b"\x80" * 70_000}, "", r"got byte 0x80 at offset 0"),
    ],
)
def test_text_that_cannot_be_used_is_refused_and_leaves_no_half_made_set(tmp_path, text, files, path, words):
    (tmp_path / "t").mkdir()
    with pytest.raises(ValueError, match=rf"\A.*{words}.*\Z"):
        text(files, path)
    assert not [path for path in (tmp_path / "cache").glob("corpora/*") if path.is_dir()]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_gpt2_text_decodes_to_the_same_text_as_bytes(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken"))
    book = (SHARED / "data" / "text" / "books_0.txt").read_text()[:150_000]
    gpt2 = BuiltIn(vocabulary=Vocabulary.gpt2)
    as_bytes = text({"a.txt": book})
    as_gpt2 = prepare(Text(**COMMON, val_fraction=0.3, path=str(tmp_path / "t")), gpt2, cache_dir=tmp_path)
    decoded = gpt2.load(cache_dir=tmp_path).decode_bytes(map_tokens(as_gpt2.val[0].path).tolist())
    assert decoded.split(b"<|endoftext|>")[1:] == documents([as_bytes.val[0].path])


def test_long_text_fills_several_shards(text, monkeypatch):
    (single,) = text({"a.txt": lines(20_000, "a")}, cache="one").train
    monkeypatch.setattr(made, "SHARD_TOKENS", 50_000)
    many = [map_tokens(shard.path) for shard in text({}, "a.txt", cache="many").train]
    assert len(many) > 1
    np.testing.assert_array_equal(np.concatenate(many), map_tokens(single.path))


# --- synthetic ----------------------------------------------------------------------------------------------


def test_the_chain_has_four_equal_successors(tmp_path):
    dataset = prepare(chain(train_tokens=400_000), BYTES, cache_dir=tmp_path)
    tokens = map_tokens(dataset.train[0].path).astype(np.int64)
    counts = np.zeros((257, 257))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    visited = counts.sum(axis=1) > 0  # a few tokens follow no other
    assert visited.mean() > 0.95
    assert set((counts[visited] > 0).sum(axis=1)) == {4}
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    entropy = -(counts / counts.sum() * np.log(shares, where=shares > 0, out=np.zeros_like(shares))).sum()
    assert entropy == pytest.approx(math.log(4), abs=2e-3)


@pytest.mark.parametrize(("size", "seed"), [(4, 0), (257, 2**70), (50257, 3)])
def test_successors_differ_and_are_ids(size, seed):
    table = np.sort(synthetic.successors(vocab_size=size, seed=seed))
    assert (np.diff(table.astype(int)) > 0).all()
    assert (table.shape[1], table.min() >= 0, table.max() < size) == (4, True, True)


def test_synthetic_tokens_never_change(tmp_path):
    dataset = prepare(chain(train_tokens=1_000_000, val_tokens=100_000), BYTES, cache_dir=tmp_path)
    assert [shard.tokens for shard in (*dataset.train, *dataset.val)] == [1_000_000, 100_000]
    assert dataset.source["text"] is False
    assert dataset.train[0].sha256.startswith("0f5c9be4d48b60a0")
    assert dataset.val[0].sha256.startswith("17fae311dacbd439")


def test_streams_seeds_and_chunks(tmp_path, monkeypatch):
    def walk(**more):
        return np.concatenate(
            list(synthetic.tokens(**{"count": 1000, "vocab_size": 257, "seed": 0, "stream": 0} | more))
        )

    whole = walk()
    assert (walk(stream=1) != whole).mean() > 0.9
    assert (walk(seed=1) != whole).mean() > 0.9
    np.testing.assert_array_equal(walk(count=300), whole[:300])
    monkeypatch.setattr(synthetic, "CHUNK_TOKENS", 7)
    np.testing.assert_array_equal(walk(), whole)
