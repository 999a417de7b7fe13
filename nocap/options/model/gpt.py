"""GPT: blocks of attention and MLP, pre-norm by default."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.model import Model


@dataclass(kw_only=True, slots=True)
class Gpt(Model):
    kind: str = "gpt"
