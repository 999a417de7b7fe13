"""Documents of a JSONL file: the text in one field of each line. Every `val_every`-th line is for
validation."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from nocap.config.keys import key, require
from nocap.config.paths import expanded
from nocap.data.shard_cache import cached_set, write_shards
from nocap.options.data import Data


@dataclass(kw_only=True)
class Jsonl(Data):
    kind: str = "jsonl"
    path: str = key(identity=False)  # where the file lies; its tokens are in the identity
    field: str
    val_every: int = key(ge=2, le=10**9)

    def documents(self, content):
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                text = json.loads(line)[self.field]
            except (ValueError, TypeError, KeyError) as error:
                where = f"{self.path}, line {number}"
                raise ValueError(
                    f"{where}: must be a JSON object with {self.field!r}, got {line[:80]!r}"
                ) from error
            require(
                isinstance(text, str), f"{self.path}, line {number}: {self.field}", "be text", text
            )
            yield text

    def locate(self, tokenizer, *, cache_dir):
        try:
            content = expanded(self.path).read_bytes()
        except OSError as error:
            raise ValueError(
                f"data.path must be a file to read, got {self.path} ({error.strerror})"
            ) from error

        def make(target):
            encoding = tokenizer.load(cache_dir=cache_dir)
            split = {"train": [], "val": []}
            for i, text in enumerate(self.documents(content), start=1):
                ids = [encoding.eot_token, *encoding.encode_ordinary(text)]
                split["train" if i % self.val_every else "val"].append(
                    np.array(ids, dtype=np.uint16)
                )
            lines = sum(map(len, split.values()))
            require(
                lines >= self.val_every,
                "data.path",
                f"have data.val_every={self.val_every} lines",
                lines,
            )
            shards = {name: write_shards(target, name, rows) for name, rows in split.items()}
            return {"text": True}, shards

        keys = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "field": self.field,
            "val_every": self.val_every,
        }
        return cached_set("jsonl", tokenizer.name, keys, cache_dir=cache_dir, make=make)
