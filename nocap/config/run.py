"""The whole configuration tree: one key a group of options, without torch, Hydra or OmegaConf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from nocap.config import registry
from nocap.config.keys import counting, key, require
from nocap.config.option import Option
from nocap.config.trainer import Trainer
from nocap.options.attention import Attention
from nocap.options.data import Data
from nocap.options.ideas import Idea
from nocap.options.mlp import Mlp
from nocap.options.model import Model
from nocap.options.norm import Norm
from nocap.options.objective import Objective
from nocap.options.optimizer import Optimizer
from nocap.options.position import Position
from nocap.options.schedule import Schedule
from nocap.options.tokenizer import Tokenizer
from nocap.options.tracker import Tracker


@dataclass(kw_only=True, slots=True)
class Run:
    """One training of one resolved config with one seed."""

    trainer: Trainer  # first, and the model next: other groups' defaults follow from theirs, and a wrong value is named at its source
    model: Model
    attention: Attention
    mlp: Mlp
    norm: Norm
    position: Position
    optimizer: Optimizer
    schedule: Schedule = key(step=False)
    objective: Objective
    ideas: dict[str, Idea]  # any number of them, by the names of their yamls; see `nocap.options.ideas`
    data: Data = key(step=False)
    tokenizer: Tokenizer = key(losses=True)
    tracker: Tracker = key(identity=False, step=False)
    seed: int = key(step=False)
    output_dir: str = key(identity=False, step=False)
    cache_dir: str | None = key(identity=False, step=False)  # null: $NOCAP_CACHE, else nocap under the user's cache folder

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", "be in [0, 2^63)", self.seed)
        require(bool(self.output_dir), "output_dir", "be a path", repr(self.output_dir))
        self.ideas = dict(sorted(self.ideas.items()))  # one order, whatever the command line's: the same ideas are the same run
        for name, option in self.options():
            group = name.partition(".")[0]
            rule = f"stay what the option set (choose another option with {group}=…)"
            require(registry.options(group).get(option.kind) is type(option), f"{name}.kind", rule, repr(option.kind))
            _check_finite(name, option)
        _check_finite("trainer", self.trainer)
        for _, option in self.options():
            option.check(self)
        self._check_batch()

    def options(self) -> Iterator[tuple[str, Option]]:
        """Each option of the run, by its place in the config."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Option):
                yield f.name, value
        yield from ((f"ideas.{name}", idea) for name, idea in self.ideas.items())

    def _check_batch(self) -> None:
        t, seq_len = self.trainer, self.model.seq_len
        unit = t.micro_batch * seq_len * t.devices
        require(
            t.batch_tokens % unit == 0,
            "trainer.batch_tokens",
            f"be divisible by trainer.micro_batch × model.seq_len × trainer.devices = {t.micro_batch} × {seq_len} × {t.devices} = {unit}",
            t.batch_tokens,
        )
        unit = t.micro_batch * seq_len
        require(
            t.val_tokens % unit == 0,
            "trainer.val_tokens",
            f"be divisible by trainer.micro_batch × model.seq_len = {t.micro_batch} × {seq_len} = {unit}",
            t.val_tokens,
        )

    def that_count(self, what: str, plain: dict[str, Any]) -> dict[str, Any]:
        """Of the run's plain form, the keys that count for `what`: see `nocap.config.keys.COUNTS`."""
        return counting(self, what, plain)


def _check_finite(name: str, option: Any) -> None:
    for f in fields(option):
        value = getattr(option, f.name)
        require(not isinstance(value, float) or math.isfinite(value), f"{name}.{f.name}", "be a finite number", value)
