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
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary
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


def load(overrides: list[str], cache: Path):
    run = compose(overrides)
    return prepare(run.data, run.tokenizer, cache_dir=cache)


def refused(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nocap: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
@pytest.mark.parametrize("kind", sorted(options("data")))
def test_every_source_composes_with_every_tokenizer(kind, tokenizer):
    run = compose([f"data={kind}", f"tokenizer={tokenizer}", *NEEDS.get(kind, [])])
    assert type(run.data) is options("data")[kind]
    assert run.tokenizer.vocabulary.name == tokenizer


def test_every_yaml_is_a_source_and_every_source_a_yaml():
    assert {path.stem for path in (ROOT / "conf" / "data").iterdir()} == set(options("data"))
    assert {path.stem for path in (ROOT / "conf" / "tokenizer").iterdir()} == {
        item.name for item in Vocabulary
    }


# --- prepare ------------------------------------------------------------------------------------------------


def test_shards_are_sorted_and_the_fingerprint_ignores_where_they_lie(folder, cache, tmp_path, monkeypatch):
    dataset = load(shards(folder), cache)
    assert [shard.tokens for shard in dataset.train] == [20, 30]
    (tmp_path / "home").mkdir()
    folder.rename(tmp_path / "home" / "moved")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # ~ is Hydra's own
    quoted = [
        "data=shards",
        "tokenizer=bytes",
        "data.train='~/moved/train_*.bin'",
        "data.val='~/moved/val_0.bin'",
    ]
    assert load(quoted, cache).fingerprint == dataset.fingerprint


def test_the_fingerprint_follows_order_split_and_vocabulary(folder, cache):
    run = compose(shards(folder))
    prints = {
        load(shards(folder), cache).fingerprint,
        load(shards(folder, train="train_0.bin"), cache).fingerprint,
        load(shards(folder, train="val_*.bin", val="train_*.bin"), cache).fingerprint,
        prepare(run.data, BuiltIn(vocabulary=Vocabulary.gpt2), cache_dir=cache).fingerprint,
    }
    (folder / "train_1.bin").rename(folder / "train_.bin")  # sorts before train_0.bin
    prints.add(load(shards(folder), cache).fingerprint)
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        ("none_*.bin", "val_*.bin", "data.train must match at least one shard, got '{folder}/none_*.bin'"),
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
        (
            "big.bin",
            "val_*.bin",
            "{folder}/big.bin: token ids must be below 257, the tokenizer's vocabulary, got 300 at token 1",
        ),
    ],
)
def test_shards_that_cannot_be_used_are_refused(folder, capsys, train, val, words):
    (folder / "copy.bin").write_bytes((folder / "train_0.bin").read_bytes())
    (folder / "notes.txt").write_text("hello")
    if train == "big.bin":
        write_shard(folder / "big.bin", np.array([256, 300]))
    assert words.format(folder=folder) in refused(["prepare", *shards(folder, train, val)], capsys)


# --- the door -----------------------------------------------------------------------------------------------


def test_help_and_list_answer_without_what_takes_long(tmp_path):
    code = (
        "import sys; from nocap.data.__main__ import main; main([]); import "
        "nocap.data.prepare, nocap.options.data.fineweb;"
        "assert not {'torch', 'hydra', 'tiktoken', 'huggingface_hub'} & set(sys.modules);"
        "main(['list']); assert not {'torch', 'tiktoken', 'huggingface_hub'} & set(sys.modules)"
    )
    environment = os.environ | {"NOCAP_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "prepare" in done.stdout
    assert "nothing yet" in done.stdout


def test_reader_that_has_gone_gets_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    environment = os.environ | {"NOCAP_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "nocap.data", "list"]
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_prepare_says_what_it_made_and_list_shows_it(cache, capsys):
    assert main(["prepare", *TINY]) == 0
    said = capsys.readouterr().out
    assert "synthetic: 3,000 train and 500 val tokens of 257 ids" in said
    assert str(cache / "corpora" / "synthetic-bytes-") in said
    assert "fingerprint" in said
    for argv in (["list"], ["list", f"cache_dir={cache}"]):
        assert main(argv) == 0
        listed = capsys.readouterr().out
        assert all(f"  {kind} " in listed for kind in options("data"))
        assert "3,000 train and 500 val tokens" in listed


def test_list_names_what_is_broken(cache, capsys):
    main(["prepare", *TINY])
    (manifest,) = cache.glob("corpora/*/manifest.json")
    manifest.write_text("[]")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("  broken: ") == 1


def test_verify_names_each_bad_file_and_exits_1(folder, capsys):
    assert main(["verify", *shards(folder)]) == 0
    assert capsys.readouterr().out.count("ok ") == 3
    for name in ("train_1.bin", "val_0.bin"):
        stat = (folder / name).stat()
        content = bytearray((folder / name).read_bytes())
        content[-2] ^= 1
        (folder / name).write_bytes(content)
        os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert main(["prepare", *shards(folder)]) == 0  # the stat did not change
    capsys.readouterr()
    for _ in range(2):
        assert main(["verify", *shards(folder)]) == 1
        out, err = capsys.readouterr()
        assert [line.split()[1] for line in out.splitlines()] == [f"{folder}/train_0.bin"]
        assert [line.split()[1] for line in err.splitlines()] == [
            f"{folder}/train_1.bin:",
            f"{folder}/val_0.bin:",
        ]


def test_verify_finds_a_made_shard_that_changed(cache, capsys):
    main(["prepare", *TINY])
    (shard,) = cache.glob("corpora/*/val_*.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    assert main(["verify", *TINY]) == 1
    assert f"{shard}: truncated" in capsys.readouterr().err


@pytest.mark.parametrize("way_out", ["../../../secret.bin", "/secret.bin", "link.bin"])
def test_a_made_set_leads_nowhere_else(cache, capsys, tmp_path, way_out):
    main(["prepare", *TINY])
    (manifest,) = cache.glob("corpora/*/manifest.json")
    (shard,) = manifest.parent.glob("val_*.bin")
    (tmp_path / "secret.bin").write_bytes(shard.read_bytes())
    (manifest.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    manifest.write_text(manifest.read_text().replace(f'"{shard.name}"', json.dumps(way_out)))
    with pytest.raises(SystemExit) as left:
        main(["verify", *TINY])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{manifest}: must be the manifest of a made set" in line


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=nothing"],
        ["data.val_fractoin=0.1"],
        ["+data.extra=1"],
        ["data.val_fraction=2"],
        ["data=text", "data.path=/no/such/file"],
        ["data=text"],
    ],
)
@pytest.mark.parametrize("verb", ["prepare", "verify"])
def test_bad_input_is_one_line(verb, overrides, capsys):
    refused([verb, *overrides], capsys)


def test_a_cache_that_cannot_be_written_is_one_line(cache, capsys):
    cache.write_text("a file where the folder should be")
    assert str(cache) in refused(["prepare", *TINY], capsys)


def test_an_unknown_verb_exits_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fetch"])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
