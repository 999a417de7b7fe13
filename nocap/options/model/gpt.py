"""GPT: blocks of attention and MLP, pre-norm unless the keys say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.model import Model


@dataclass(kw_only=True, slots=True)
class Gpt(Model):
    kind: str = "gpt"
