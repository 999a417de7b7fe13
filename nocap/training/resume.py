"""Go on from the newest valid checkpoint of a run, or from the one that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nocap.config.keys import InputError
from nocap.config.paths import expanded
from nocap.store.checkpoints import FOLDER, name_of, newest_first
from nocap.training.build import Trainee
from nocap.training.job import Job
from nocap.training.loading import ValidCheckpoint, first_valid, load_checkpoint, misfit


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Say at which step an attempt begins, and what the attempts before have left."""

    step: int
    checkpoint: Path | None  # the run's own, from which it goes on
    clock_s: Mapping[str, float]  # by line
    losses: Sequence[float]  # of the last steps


def resume(job: Job, trainee: Trainee) -> Start:
    """Load the newest valid checkpoint on every rank, and return where the attempt begins.

    Before a run has a checkpoint of its own, that is `trainer.init_from`.

    Errors:
        InputError: there are checkpoints and none is valid (starting over would hide the loss), or
            it is of another optimizer.
    """
    own = newest_first(job.run_dir / FOLDER)
    newest = _newest_valid(job, trainee, own)
    first = newest.step
    state = dict[str, Any]()
    if newest.path is not None:
        state = load_checkpoint(newest.path, model=trainee.model, optimizers=trainee.optimizers)
        line = f"beginning from step {first} of {newest.path}"
        if own:
            line = f"resuming from step {first}"
        job.log(line)
    _log_missing(job, first)
    return Start(
        step=first,
        checkpoint=newest.path if own else None,
        clock_s=state.get("clock_s", {}),
        losses=state.get("losses", []),
    )


def _newest_valid(job: Job, trainee: Trainee, own: Sequence[Path]) -> ValidCheckpoint:
    """Return the newest valid one of the run's `own` checkpoints, or where it has none the one that
    it begins with. Write what is wrong with others to the log.

    Errors:
        InputError: there are checkpoints and none is valid.
    """
    init_from = job.run.trainer.init_from
    identity: str | None = None
    paths: Sequence[Path] = []
    if own:
        identity = job.run_dir.name.rpartition("-")[2]
        paths = own
    elif init_from:
        paths = [expanded(init_from).absolute()]
    newest = _first_valid_on_all_ranks(job, trainee, paths, identity)
    is_damaged = newest.path is None and bool(newest.invalid)
    if is_damaged and not own:
        raise InputError(f"trainer.init_from must be a valid checkpoint, got {newest.invalid[0]}")
    for problem in newest.invalid:
        job.log(f"checkpoint not used: {problem}")
    if is_damaged:
        raise InputError(
            f"{job.run_dir / FOLDER} must hold a valid checkpoint to resume from, got none; delete "
            "the folder to start over"
        )
    return newest


def _log_missing(job: Job, first: int) -> None:
    """Write to the log which checkpoints of `trainer.keep_steps` this attempt does not make: it
    begins later."""
    passed = [step for step in job.run.trainer.keep_steps if step <= first]
    root = job.run_dir / FOLDER
    missing = [step for step in passed if not (root / name_of(step)).exists()]
    if missing:
        job.log(
            f"trainer.keep_steps: no checkpoint of {missing}: this attempt begins at step {first}"
        )


def _first_valid_on_all_ranks(
    job: Job, trainee: Trainee, paths: Sequence[Path], identity: str | None
) -> ValidCheckpoint:
    """Return the first valid one of these checkpoints, as rank 0 finds it, on every rank."""
    newest = ValidCheckpoint(path=None, invalid=[])
    if job.world.is_main:
        of_run = partial(misfit, model=trainee.model, identity=identity)
        newest = first_valid(paths, misfit=of_run)
    name, invalid = job.world.from_main([newest.path and str(newest.path), newest.invalid])
    path: Path | None = None
    if name is not None:
        path = Path(name)
    return ValidCheckpoint(path=path, invalid=invalid)
