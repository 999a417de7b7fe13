"""First weights that depend on the seed and on their own place alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def keyed(seed: int, name: str) -> Iterator[None]:
    """Make torch's CPU generator a function of seed and name inside the block. After the block the
    generator goes on as if nothing had been drawn."""
    before = torch.default_generator.get_state()
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:7], "big"))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
