"""Sources that are made into shards: the same files give the same shards, whole, and validation text is never
training text."""

import hashlib
import math
import os
import threading
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


def library(fraction: float = 0.3) -> Stdlib:
    return Stdlib(**COMMON, val_fraction=fraction)


def prose(path: object, fraction: float = 0.3) -> Text:
    return Text(**COMMON, val_fraction=fraction, path=path)


def chain(**more: int) -> Synthetic:
    return Synthetic(**COMMON, **{"train_tokens": 5000, "val_tokens": 700, "source_seed": 0} | more)


def documents(paths) -> list[bytes]:
    """A split's documents: what lies between end-of-text tokens."""
    tokens = np.concatenate([map_tokens(path) for path in paths])
    assert tokens[0] == EOT
    starts = [*np.flatnonzero(tokens == EOT), tokens.size]
    return [tokens[a + 1 : b].astype(np.uint8).tobytes() for a, b in pairwise(starts)]


def lines(count: int, mark: str) -> str:
    return "".join(f"{mark} {index} é\n" for index in range(count))


@pytest.fixture
def python_folder(tmp_path):
    folder = tmp_path / "lib"
    for index in range(40):
        path = folder / f"pkg{index % 3}" / f"mod{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# module {index}\n" * (index + 1))
    for name in (
        "site-packages/a.py",
        "test/b.py",
        "pkg0/tests/c.py",
        "pkg0/data.txt",
        ".hidden/d.py",
        "pkg0/empty.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("" if "empty" in name else "not a document\n")
    (folder / "pkg1" / "latin.py").write_bytes(b"# caf\xe9\n")
    return folder


def test_stdlib_documents_are_the_files(python_folder, tmp_path):
    shard_set = corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder)
    files = sorted(
        python_folder.rglob("mod*.py"), key=lambda path: path.relative_to(python_folder).as_posix()
    )
    val = [
        path.read_bytes()
        for path in files
        if int(hashlib.sha256(key(path, python_folder)).hexdigest()[:16], 16) < 0.3 * 2**64
    ]
    train = [path.read_bytes() for path in files if path.read_bytes() not in val]
    assert 5 < len(val) < 20
    assert documents(shard_set.val) == val
    assert documents(shard_set.train) == train
    assert shard_set.source["skipped"] == ["pkg1/latin.py"]
    assert shard_set.source["documents"] == {"train": len(train), "val": len(val)}


def key(path: Path, folder: Path) -> bytes:
    return path.relative_to(folder).as_posix().encode()


def test_the_real_library(tmp_path):
    dataset = prepare(library(0.05), BYTES, cache_dir=tmp_path)
    assert sum(shard.tokens for shard in dataset.train) > 3_000_000
    assert sum(shard.tokens for shard in dataset.val) > 100_000
    assert prepare(library(0.05), BYTES, cache_dir=tmp_path).fingerprint == dataset.fingerprint


def test_a_made_set_is_made_once_and_follows_its_files(python_folder, tmp_path, monkeypatch):
    def sets() -> list[Path]:
        corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder)
        return sorted(path for path in (tmp_path / "cache" / "corpora").iterdir() if path.is_dir())

    (first,) = sets()
    hashes = {path.name: path.read_bytes() for path in first.glob("*.bin")}
    with monkeypatch.context() as patch:
        patch.setattr(made, "_make", None)
        assert sets() == [first]
    os.utime(python_folder / "pkg0" / "mod0.py", ns=(1, 1))  # looks new, reads the same
    (second,) = set(sets()) - {first}
    assert {path.name: path.read_bytes() for path in second.glob("*.bin")} == hashes


def test_racing_processes_all_succeed(python_folder, tmp_path):
    shard_sets, barrier = [], threading.Barrier(6)

    def race():
        barrier.wait()
        shard_sets.append(
            corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder)
        )

    # a lock on an open file holds between threads as between processes
    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shard_sets) == 6
    assert all(shard_set == shard_sets[0] for shard_set in shard_sets)
    assert not list((tmp_path / "cache" / "corpora").glob(".*.tmp"))


def test_a_killed_make_is_made_again(python_folder, tmp_path):
    first = corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder)
    folder = first.train[0].parent
    folder.rename(folder.parent / f".{folder.name}.tmp")  # where a killed process left it
    (folder.parent / f".{folder.name}.tmp" / "train_000000.bin").write_bytes(b"half")
    assert corpus.stdlib(BYTES, val_fraction=0.3, cache_dir=tmp_path / "cache", folder=python_folder) == first
    assert hashlib.sha256(first.train[0].read_bytes()).hexdigest() == first.expected[first.train[0]]


@pytest.mark.parametrize("harm", ["manifest", "shard"])
def test_a_damaged_set_is_refused_with_the_remedy(tmp_path, harm):
    dataset = prepare(chain(), BYTES, cache_dir=tmp_path)
    path = Path(dataset.train[0].path)
    if harm == "manifest":
        (path.parent / "manifest.json").write_text("{")
    else:
        path.write_bytes(path.read_bytes()[:-2] + b"\x01\x00")
        os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match=f"remove {path.parent} to have it made again"):
        prepare(chain(), BYTES, cache_dir=tmp_path)


def test_one_big_file_gives_both_splits_and_every_byte_once(tmp_path):
    text = lines(40_000, "line")
    (tmp_path / "book.txt").write_text(text)
    dataset = prepare(prose(str(tmp_path / "book.txt")), BYTES, cache_dir=tmp_path / "cache")
    train, val = (documents([shard.path for shard in shards]) for shards in (dataset.train, dataset.val))
    # Put back in the file's order, the documents are the file: nothing lost, nothing twice, and cut at line
    # ends only.
    pieces = sorted(train + val, key=lambda piece: text.encode().index(piece))
    assert b"".join(pieces) == text.encode()
    assert all(piece.endswith(b"\n") for piece in pieces)
    # Neighbours in one split are one document: training and validation take turns.
    assert all((first in val) != (two in val) for first, two in pairwise(pieces))
    assert 0.1 < sum(map(len, val)) / len(text.encode()) < 0.5


def test_text_without_line_ends_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_BYTES", 64)
    (tmp_path / "a.txt").write_text("🙂é∑" * 100)
    dataset = prepare(prose(str(tmp_path / "a.txt"), 0.5), BYTES, cache_dir=tmp_path / "cache")
    both = documents([shard.path for shard in dataset.train]) + documents(
        [shard.path for shard in dataset.val]
    )
    assert sorted("".join(piece.decode() for piece in both)) == sorted("🙂é∑" * 100)


def test_moving_the_text_does_not_change_the_shards(tmp_path):
    prints = set()
    for place in ("here", "there/below"):
        folder = tmp_path / place
        (folder / "sub").mkdir(parents=True)
        for name in ("b.txt", "a.md", "sub/c.txt"):
            (folder / name).write_text(lines(3000, name))
        for path in (str(folder), [str(folder)], str(folder / "**")):
            prints.add(prepare(prose(path), BYTES, cache_dir=tmp_path / "cache").fingerprint)
    assert len(prints) == 1


def test_a_file_named_twice_counts_once_and_hidden_ones_do_not(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.txt").write_text(lines(5000, "a"))
    (tmp_path / "t" / ".secret").write_bytes(b"\xff")
    (tmp_path / "t" / "link.txt").symlink_to("a.txt")
    dataset = prepare(
        prose([str(tmp_path / "t" / "a.txt"), str(tmp_path / "t"), str(tmp_path / "t" / "*.txt")]),
        BYTES,
        cache_dir=tmp_path,
    )
    assert dataset.source["files"] == 1


def test_files_of_one_name_are_different_documents(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text(name)
    dataset = prepare(
        prose([str(tmp_path / "one" / "notes.txt"), str(tmp_path / "two" / "notes.txt")]),
        BYTES,
        cache_dir=tmp_path / "cache",
    )
    both = documents([dataset.train[0].path]) + documents([dataset.val[0].path])
    assert sorted(both) == [b"one", b"two"]


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_both_splits_get_a_piece_at_any_fraction(tmp_path, fraction):
    (tmp_path / "a.txt").write_text(lines(5000, "a"))
    dataset = prepare(prose(str(tmp_path / "a.txt"), fraction), BYTES, cache_dir=tmp_path / "cache")
    assert 1 in dataset.source["documents"].values()


@pytest.mark.parametrize(
    ("files", "path", "words"),
    [
        ({}, "absent.txt", "data.path must match at least one file"),
        ({}, "*.txt", "data.path must match at least one file"),
        ({".hidden": b"x"}, ".", "data.path must match at least one file"),
        ({"a.txt": b""}, "a.txt", "data.path must hold more than 32 KiB of text, .* got 0 bytes"),
        ({"a.txt": b"short\n"}, "a.txt", "got 6 bytes"),
        (
            {"a.txt": b"ok\n" * 20_000 + b"caf\xe9 ole\n"},
            "a.txt",
            r"a\.txt: data.path must hold UTF-8 text, got byte 0xe9 at offset 60003",
        ),
        ({"a.txt": b"ok\n" * 20_000 + b"caf\xc3"}, ".", r"a\.txt: .*got byte 0xc3 at offset 60003"),
        ({"a.txt": b"\x80" * 70_000}, ".", r"got byte 0x80 at offset 0"),
    ],
)
def test_text_that_cannot_be_used_is_refused(tmp_path, files, path, words):
    folder = tmp_path / "text"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        prepare(prose(str(folder / path)), BYTES, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_refused_text_leaves_no_half_made_set(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError):
        prepare(prose(str(tmp_path / "a.txt")), BYTES, cache_dir=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "corpora").iterdir() if path.is_dir()]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_gpt2_text_decodes_to_the_same_text_as_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken"))
    data = prose(str(SHARED / "data" / "text" / "books_0.txt"))
    as_bytes = prepare(data, BYTES, cache_dir=tmp_path)
    as_gpt2 = prepare(data, BuiltIn(vocabulary=Vocabulary.gpt2), cache_dir=tmp_path)
    decoded = (
        BuiltIn(vocabulary=Vocabulary.gpt2)
        .load(cache_dir=tmp_path)
        .decode_bytes(map_tokens(as_gpt2.val[0].path).tolist())
    )
    assert decoded.split(b"<|endoftext|>")[1:] == documents([as_bytes.val[0].path])


def test_long_text_fills_several_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "SHARD_TOKENS", 50_000)
    (tmp_path / "a.txt").write_text(lines(20_000, "a"))
    many = prepare(prose(str(tmp_path / "a.txt")), BYTES, cache_dir=tmp_path / "many")
    monkeypatch.undo()
    single = prepare(prose(str(tmp_path / "a.txt")), BYTES, cache_dir=tmp_path / "one")
    assert len(many.train) > 1
    assert len(single.train) == 1
    np.testing.assert_array_equal(
        np.concatenate([map_tokens(shard.path) for shard in many.train]), map_tokens(single.train[0].path)
    )


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


@pytest.mark.parametrize(("size", "seed"), [(4, 0), (5, 1), (257, 2**70), (50257, 3)])
def test_successors_differ_and_are_ids(size, seed):
    table = synthetic.successors(vocab_size=size, seed=seed)
    assert all(len(set(row)) == 4 for row in table.tolist())
    assert 0 <= table.min() <= table.max() < size


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
