"""From `data=…` and `tokenizer=…` to shards on this disk, every one of them read and checked."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from nocap import schema
from nocap.data import corpus, fineweb
from nocap.data.shards import Shard, ShardSet, os_errors_refused, scan
from nocap.data.tokenizer import vocab_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Checked shards. Two datasets with the same tokens in the same order have one fingerprint, wherever they lie."""

    train: tuple[Shard, ...]
    val: tuple[Shard, ...]
    vocab_size: int
    source: dict[str, object]  # JSON facts for the record; `text` says whether the tokens stand for text

    @property
    def fingerprint(self) -> str:
        """sha256 over the shards' hashes, in order, and the vocabulary's size."""
        facts = [[shard.sha256 for shard in self.train], [shard.sha256 for shard in self.val], self.vocab_size]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def prepare(data: schema.Data, tokenizer: schema.Tokenizer, *, cache_dir: Path) -> Dataset:
    """Make or fetch what is missing, then scan every shard. `ValueError` in one line for whatever a user can put right."""
    size = vocab_size(tokenizer.vocabulary)
    found = locate(data, tokenizer, cache_dir=cache_dir)
    train, val = (tuple(_check(path, found, size, cache_dir) for path in paths) for paths in (found.train, found.val))
    for shard in val:
        for other in train:
            if shard.sha256 == other.sha256:
                raise ValueError(f"data.val must not hold training data, got {shard.path} with the same bytes as {other.path}")
    return Dataset(train=train, val=val, vocab_size=size, source=found.source)


def verify(data: schema.Data, tokenizer: schema.Tokenizer, *, cache_dir: Path) -> tuple[list[Shard], list[str]]:
    """Read every byte of every shard again. The good shards, and a line for each bad one."""
    size = vocab_size(tokenizer.vocabulary)
    found = locate(data, tokenizer, cache_dir=cache_dir)
    good, bad = [], []
    for path in (*found.train, *found.val):
        try:
            good.append(_check(path, found, size, cache_dir, reread=True))
        except ValueError as error:
            bad.append(str(error))
    return good, bad


def locate(data: schema.Data, tokenizer: schema.Tokenizer, *, cache_dir: Path) -> ShardSet:
    """The shards of a source, made or fetched if they are missing, not yet read."""
    with os_errors_refused(str(cache_dir)):
        match data:
            case schema.Text():  # before Stdlib, which it extends
                return corpus.text(data, tokenizer.vocabulary, cache_dir=cache_dir)
            case schema.Stdlib():
                return corpus.stdlib(data, tokenizer.vocabulary, cache_dir=cache_dir)
            case schema.Synthetic():
                return corpus.synthetic(data, tokenizer.vocabulary, cache_dir=cache_dir)
            case schema.Fineweb():
                gpt2 = tokenizer.vocabulary is schema.Vocabulary.gpt2  # asked before gigabytes are fetched
                schema.require(
                    gpt2, "tokenizer.vocabulary", "be gpt2 for data=fineweb, whose tokens are GPT-2's", tokenizer.vocabulary.name
                )
                return fineweb.fineweb(data, cache_dir=cache_dir)
            case schema.Shards():
                return _shards(data)
    raise AssertionError(f"no source for {type(data).__name__}")


def _shards(data: schema.Shards) -> ShardSet:
    paths = {}
    for key, pattern in (("train", data.train), ("val", data.val)):
        paths[key] = tuple(Path(match) for match in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)))
        if not paths[key]:
            raise ValueError(f"data.{key} must match at least one shard, got {pattern!r}")
    both = {os.path.realpath(path) for path in paths["train"]} & {os.path.realpath(path) for path in paths["val"]}
    if both:
        raise ValueError(f"data.val must not match a shard of data.train, got {min(both)} in both")
    source: dict[str, object] = {"kind": "shards", "text": True, "train": data.train, "val": data.val}
    return ShardSet(train=paths["train"], val=paths["val"], source=source, expected={}, remedy={})


def _check(path: Path, found: ShardSet, vocab_size: int, cache_dir: Path, reread: bool = False) -> Shard:
    try:
        shard = scan(path, vocab_size=vocab_size, cache_dir=cache_dir, reread=reread)
        expected = found.expected.get(path, shard.sha256)
        if shard.sha256 != expected:
            raise ValueError(f"{path}: its sha256 must be {expected}, got {shard.sha256}")
    except ValueError as error:
        raise ValueError("; ".join([str(error), *([found.remedy[path]] if path in found.remedy else [])])) from error
    return shard
