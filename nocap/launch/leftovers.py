"""Find what may be deleted of a run: what a killed attempt left, and checkpoints that nobody asked
for. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.config.trainer import Trainer
from nocap.launch.plan import Plan
from nocap.store.attempt_entry import attempts_in
from nocap.store.checkpoints import FOLDER, is_folder, newest_first, step_of
from nocap.store.file_writing import unfinished
from nocap.store.record_files import MANIFEST, read_json

RANKS = ".ranks"  # where a run's ranks find each other: a folder that nobody else can enter


def leftovers(plan: Plan) -> list[Path]:
    """List what killed processes left of this run: half-written files and checkpoints, and the
    folder of its ranks."""
    paths = [*unfinished(plan.run_dir), *unfinished(plan.run_dir / FOLDER)]
    ranks = plan.run_dir / RANKS
    if is_folder(ranks):
        paths.append(ranks)
    return paths


def surplus_checkpoints(plan: Plan) -> list[Path]:
    """List the checkpoints of an ended run that nobody asked for."""
    manifest = read_json(plan.run_dir / MANIFEST)
    trainer = plan.run.trainer
    if manifest is None or keeps_last(manifest, trainer):
        return []
    saved = newest_first(plan.run_dir / FOLDER)
    return [path for path in saved if is_folder(path) and step_of(path) not in trainer.keep_steps]


def keeps_last(manifest: Mapping[str, Any], trainer: Trainer) -> bool:
    """Say whether the weights of a run's last step stay. Those of a grid's cell stay only where
    `trainer.keep_steps` has that step: a large grid would fill a disk."""
    is_cell = attempts_in(manifest)[-1].is_cell
    return not is_cell or trainer.steps in trainer.keep_steps
