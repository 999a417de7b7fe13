"""From `data=…` and `tokenizer=…` to shards on this disk, every one of them read and checked."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nocap.data.overlap import MOST_IN_TRAINING, PASSAGE, share_in_training
from nocap.data.shard_cache import MAKERS
from nocap.data.shards import ShardSet, scan, write_json
from nocap.data.tokens import Shard, os_errors_refused
from nocap.options.data import Data
from nocap.options.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Checked shards. Two datasets with the same tokens in the same order have one fingerprint,
    wherever they lie."""

    train: tuple[Shard, ...]
    val: tuple[Shard, ...]
    vocab_size: int
    source: dict[str, object]  # for the record, as JSON; `text`: whether the tokens are text
    # the share of validation's passages that stand in training, too; None: nobody looked
    in_training: float | None = None

    @property
    def fingerprint(self) -> str:
        """sha256 over the shards' hashes, in order, the vocabulary's size, and of files without a
        header the type of their tokens."""
        parts: list[object] = [
            [shard.sha256 for shard in self.train],
            [shard.sha256 for shard in self.val],
            self.vocab_size,
        ]
        raw = self.train[0].raw
        if raw is not None:
            parts.append(raw)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def prepare(data: Data, tokenizer: Tokenizer, *, cache_dir: Path) -> Dataset:
    """Make or fetch what is missing, then scan every shard. `ValueError` in one line for whatever a
    user can put right."""
    shard_set, size = _locate(data, tokenizer, cache_dir), tokenizer.vocab_size
    train, val = (
        tuple(_check(path, shard_set, size, cache_dir) for path in paths)
        for paths in (shard_set.train, shard_set.val)
    )
    for shard in val:
        for other in train:
            if shard.sha256 == other.sha256:
                raise ValueError(
                    f"data.val must not hold training data, got {shard.path} with the same bytes "
                    f"as "
                    f"{other.path}"
                )
    dataset = Dataset(train=train, val=val, vocab_size=size, source=shard_set.source)
    if shard_set.published or not shard_set.source.get("text"):
        return dataset
    share = _share_in_training(dataset, cache_dir)
    if share is not None and share > MOST_IN_TRAINING:
        raise ValueError(
            f"data={data.kind} must validate on text that is not in training, got {share:.0%} of "
            f"its "
            f"validation passages of {PASSAGE} tokens also in training"
        )
    return replace(dataset, in_training=share)


def _share_in_training(dataset: Dataset, cache_dir: Path) -> float | None:
    """Count the share once: a file of the cache keeps it by the tokens."""
    path = cache_dir / "overlaps" / f"{dataset.fingerprint[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # not there, or damaged: counted again
        return json.loads(path.read_bytes())["in_training"]
    share = share_in_training(dataset.train, dataset.val)
    write_json(path, {"in_training": share})
    return share


def verify(data: Data, tokenizer: Tokenizer, *, cache_dir: Path) -> tuple[list[Shard], list[str]]:
    """Read every byte of every shard again. The good shards, and a line for each bad one."""
    shard_set = _locate(data, tokenizer, cache_dir)
    good, bad = [], []
    for path in (*shard_set.train, *shard_set.val):
        try:
            good.append(_check(path, shard_set, tokenizer.vocab_size, cache_dir, reread=True))
        except ValueError as error:
            bad.append(str(error))
    return good, bad


@os_errors_refused()
def _locate(data: Data, tokenizer: Tokenizer, cache_dir: Path) -> ShardSet:
    MAKERS.set((data, tokenizer))
    return data.locate(tokenizer, cache_dir=cache_dir)


def _check(
    path: Path, shard_set: ShardSet, vocab_size: int, cache_dir: Path, reread: bool = False
) -> Shard:
    try:
        raw = shard_set.raw
        shard = scan(path, vocab_size=vocab_size, cache_dir=cache_dir, reread=reread, raw=raw)
        expected = shard_set.expected.get(path, shard.sha256)
        if shard.sha256 != expected:
            raise ValueError(f"{path}: its sha256 must be {expected}, got {shard.sha256}")
    except ValueError as error:
        remedy = shard_set.remedy.get(path)
        raise ValueError(f"{error}; {remedy}" if remedy else str(error)) from error
    return shard
