"""The heads of `gqa`, a yaml of `softmax.py`: how many it has where nobody chooses them."""

from __future__ import annotations


def kv_heads(n_head: int) -> int:
    """Return the key/value heads for groups of 3, 2 or 5 query heads: the first that divides."""
    for group in (3, 2, 5):
        if n_head % group == 0:
            return n_head // group
    raise ValueError(
        "attention=gqa needs model.n_head divisible by 3, 2 or 5, or an explicit "
        f"attention.n_kv_heads, got {n_head}"
    )
