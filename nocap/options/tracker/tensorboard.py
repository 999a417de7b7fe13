"""The rows as TensorBoard reads them, in the run's folder: for a dashboard on this machine, without
an account."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nocap.options.tracker import RunFacts, Tracker, TrackerSession, at_the_end


@dataclass(kw_only=True, slots=True)
class TensorBoard(Tracker):
    kind: str = "tensorboard"
    imports: ClassVar[tuple[str, ...]] = ("torch.utils.tensorboard",)

    def open(self, facts: RunFacts) -> TrackerSession:
        folder = facts.run_dir / "tensorboard"
        _remove(folder)  # an earlier attempt's: its rows come again from the record
        return _Session(facts, folder)

    def show_command(self, folder: Path, runs: Mapping[str, Path]) -> str | None:
        """TensorBoard names a run by its folder: links, whose names are the labels."""
        root = folder / "tensorboard"
        _remove(root)
        for label, run_dir in runs.items():
            if (run_dir / "tensorboard").is_dir():
                link = root / label.replace(os.sep, "_")[:200]
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(os.path.relpath(run_dir / "tensorboard", root))
        if not root.is_dir():
            return None
        return f"tensorboard --logdir {shlex.quote(os.path.relpath(root))}"


def _remove(folder: Path) -> None:
    """Remove a file of the mirror before, and never the target of a link."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)


class _Session(TrackerSession):
    def __init__(self, facts: RunFacts, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "tensorboard is not installed: pip install 'nocap[tensorboard]'"
            ) from error
        self.url_or_hint = f"tensorboard --logdir {shlex.quote(str(facts.run_dir.parent))}"
        self._writer: Any = SummaryWriter(log_dir=str(folder))
        self._settings = {"arm": facts.arm, "seed": facts.seed, **facts.options, **facts.swept}
        self._writer.add_text("run", "  \n".join([facts.name, *facts.tags]))

    def log(self, row: Mapping[str, object]) -> None:
        step = row["step"]
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, global_step=step)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        """Write the options, and the results at the end, for the tab that compares runs."""
        settings = dict[str, bool | float | str]()
        for key, value in self._settings.items():
            if isinstance(value, bool | int | float):
                settings[key] = value
            else:
                settings[key] = str(value)
        ends = dict[str, float]()
        for name, value in at_the_end(summary).items():
            if isinstance(value, int | float):
                ends[f"summary/{name}"] = value
        if ends:
            self._writer.add_hparams(settings, ends, run_name=".")
        self._writer.close()
