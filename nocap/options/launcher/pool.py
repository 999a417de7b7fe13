"""Cells side by side on this machine, each on devices of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.launcher import Launcher

if TYPE_CHECKING:
    from nocap.launch.this_machine import ThisMachine


@dataclass(kw_only=True, slots=True)
class Pool(Launcher):
    """`hydra/launcher=pool`: one cell on each `trainer.devices` GPUs, or `trainer.threads` ×
    `trainer.devices` CPU cores"""

    kind: str = "pool"
    # largest number of cells at once; null: as many as the devices hold
    jobs: int | None = key(ge=1, le=4096, default=None)

    def executor(self, folder: Path) -> ThisMachine:
        return self.devices()

    def devices(self) -> ThisMachine:
        from nocap.launch.this_machine import ThisMachine

        return ThisMachine(jobs=self.jobs)
