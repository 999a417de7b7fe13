"""Names of arms that fit: without keys that their values tell and without what all of them have in
common, then cut in the middle, where two names differ least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile


def fitted(names: Sequence[str], most: int) -> list[str]:
    """Return the names with at most `most` letters each. All are as they were where all fit."""
    if all(len(name) <= most for name in names):
        return list(names)
    return [_cut(name, most) for name in distinct(names)]


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names without keys that their values tell, and without what all of them begin
    with."""
    bare = _without_keys(names)
    common = _common(bare)
    return [f"…{name[common:]}" if common else name for name in bare]


def _without_keys(names: Sequence[str]) -> list[str]:
    """Return `gelu3x none` of `gelu3x position=none`, where no other key has the value. A number,
    true and false tell nothing without their key."""
    keys = dict[str, set[str]]()
    for name in names:
        for word in name.split(" "):
            key, _, value = word.rpartition("=")
            keys.setdefault(value, set()).add(key)
    return [" ".join(_value(word, keys) for word in name.split(" ")) for name in names]


def _value(word: str, keys: Mapping[str, set[str]]) -> str:
    _, _, value = word.rpartition("=")
    tells = value[:1].isalpha() and value not in ("true", "false")
    return value if tells and len(keys[value]) == 1 else word


def _common(names: Sequence[str]) -> int:
    """Return how many letters all names begin with, up to the end of a word."""
    if len(set(names)) < 2:
        return 0
    columns = zip(*names, strict=False)
    same = len(list(takewhile(lambda letters: len(set(letters)) == 1, columns)))
    return max(names[0].rfind(end, 0, same) + 1 for end in " .,/-_")


def _cut(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    head = most - 1 - tail
    return f"{name[:head]}…{name[len(name) - tail :]}"
