"""A source that counts: 0, 1, 2, … in words of digits, which a model can learn without any file."""

from dataclasses import dataclass

import numpy as np

from nocap.config.keys import require
from nocap.data.made import made, write_shards
from nocap.options.data import Data


@dataclass(kw_only=True)
class Counting(Data):
    kind: str = "counting"
    numbers: int

    def __post_init__(self):
        super().__post_init__()
        require(self.numbers >= 100, "data.numbers", "be at least 100", self.numbers)

    def locate(self, tokenizer, *, cache_dir):
        def make(target):
            encoding, shards = tokenizer.load(cache_dir=cache_dir), {}
            for split, first, count in (("train", 0, self.numbers), ("val", self.numbers, self.numbers // 5)):
                text = " ".join(map(str, range(first, first + count)))
                shards[split] = write_shards(target, split, [np.array(encoding.encode_ordinary(text), dtype=np.uint16)])
            return {"text": True}, shards

        return made("counting", tokenizer.name, {"numbers": self.numbers}, cache_dir=cache_dir, make=make)
