"""The parts of a run that interfaces read: all that an interface knows of the tree above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nocap.config.option import Option
from nocap.config.trainer import Trainer
from nocap.options.model import Model
from nocap.options.position import Position


class RunParts(Protocol):
    """A run, as `nocap.config.run.Run` has these parts."""

    @property
    def trainer(self) -> Trainer: ...

    @property
    def model(self) -> Model: ...

    @property
    def position(self) -> Position: ...

    @property
    def ideas(self) -> Mapping[str, Option]: ...

    @property
    def seed(self) -> int: ...
