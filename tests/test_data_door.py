"""`python -m nocap.data`, the options behind it, and what `prepare` adds to the sources."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nocap.config.compose import compose
from nocap.data.__main__ import main
from nocap.data.prepare import prepare
from nocap.data.shards import write_shard
from nocap.outside import options

ROOT = Path(__file__).resolve().parents[1]
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


def shards(folder: Path, train: str = "train_*.bin", val: str = "val_*.bin") -> list[str]:
    return ["data=shards", "tokenizer=bytes", f"data.train={folder}/{train}", f"data.val={folder}/{val}"]


def fingerprint(cache: Path, *overrides: str) -> str:
    run = compose(overrides)
    return prepare(run.data, run.tokenizer, cache_dir=cache).fingerprint


def refused(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    out, err = capsys.readouterr()
    assert (out, err[:7], err.count("\n")) == ("", "nocap: ", 1)
    return err


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
@pytest.mark.parametrize("kind", sorted(options("data")))
def test_every_source_composes_with_every_tokenizer(kind, tokenizer):
    run = compose([f"data={kind}", f"tokenizer={tokenizer}", *NEEDS.get(kind, [])])
    assert (type(run.data), run.tokenizer.vocabulary.name) == (options("data")[kind], tokenizer)


# --- prepare ------------------------------------------------------------------------------------------------


def test_shards_are_sorted_and_the_fingerprint_ignores_where_they_lie(folder, cache, tmp_path, monkeypatch):
    first = fingerprint(cache, *shards(folder))
    (tmp_path / "home").mkdir()
    folder.rename(tmp_path / "home" / "moved")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # ~ is Hydra's own
    quoted = ["data.train='~/moved/train_*.bin'", "data.val='~/moved/val_0.bin'"]
    assert fingerprint(cache, "data=shards", "tokenizer=bytes", *quoted) == first


def test_the_fingerprint_follows_order_split_and_vocabulary(folder, cache):
    prints = {
        fingerprint(cache, *shards(folder)),
        fingerprint(cache, *shards(folder, train="train_0.bin")),
        fingerprint(cache, *shards(folder, train="val_*.bin", val="train_*.bin")),
        fingerprint(cache, *shards(folder), "tokenizer=gpt2"),
    }
    (folder / "train_1.bin").rename(folder / "train_.bin")  # sorts before train_0.bin
    assert len(prints | {fingerprint(cache, *shards(folder))}) == 5


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        ("train_*.bin", "none", "data.val must match at least one shard, got '{folder}/none'"),
        (
            "*.bin",
            "val_*.bin",
            "data.val must not match a shard of data.train, got {folder}/val_0.bin in both",
        ),
        (
            "train_*.bin",
            "copy.bin",
            "data.val must not hold training data, got {folder}/copy.bin with the same bytes as "
            "{folder}/train_0.bin",
        ),
        ("train_*.bin", "notes.txt", "{folder}/notes.txt: a shard must have a header"),
    ],
)
def test_shards_that_cannot_be_used_are_refused(folder, capsys, train, val, words):
    (folder / "copy.bin").write_bytes((folder / "train_0.bin").read_bytes())
    (folder / "notes.txt").write_text("hello")
    assert words.format(folder=folder) in refused(["prepare", *shards(folder, train, val)], capsys)


# --- the door -----------------------------------------------------------------------------------------------


def test_reader_that_has_gone_gets_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    command, more = [sys.executable, "-m", "nocap.data", "list"], {"cwd": ROOT, "stderr": subprocess.PIPE}
    done = subprocess.run(command, stdout=write, text=True, timeout=60, check=False, **more)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_prepare_says_what_it_made_and_list_shows_it_or_that_it_is_broken(cache, capsys):
    assert main(["prepare", *TINY]) == 0
    said = capsys.readouterr().out
    assert "synthetic: 3,000 train and 500 val tokens of 257 ids" in said
    assert str(cache / "corpora" / "synthetic-bytes-") in said
    for argv in (["list"], ["list", f"cache_dir={cache}"]):
        assert main(argv) == 0
        listed = capsys.readouterr().out
        assert all(f"  {kind} " in listed for kind in options("data"))
        assert "3,000 train and 500 val tokens" in listed
    next(cache.glob("corpora/*/manifest.json")).write_text("[]")
    assert (main(["list"]), capsys.readouterr().out.count("  broken: ")) == (0, 1)


def test_verify_names_each_bad_file_and_exits_1(folder, cache, capsys):
    assert (main(["verify", *shards(folder)]), capsys.readouterr().out.count("ok ")) == (0, 3)
    for name in ("train_1.bin", "val_0.bin"):
        stat, content = (folder / name).stat(), (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1, content[-1]]))
        os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert main(["prepare", *shards(folder)]) == 0  # the stat did not change
    capsys.readouterr()
    for _ in range(2):
        assert main(["verify", *shards(folder)]) == 1
        good, bad = ([line.split()[1] for line in text.splitlines()] for text in capsys.readouterr())
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
    manifest.write_text(manifest.read_text().replace(f'"{shard.name}"', json.dumps(way_out)))
    assert f"{manifest}: must be the manifest of a made set" in refused(["verify", *TINY], capsys)


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
