"""What one rank trains: a run, its tokens, its place among the ranks, and callbacks to the process
around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nocap.config.run import Run
from nocap.data.tokens import Shard
from nocap.store.rows_file import Row
from nocap.training.world import World


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, its tokens, its place among the ranks, and callbacks to the process around it."""

    run: Run
    train_shards: tuple[Shard, ...]
    val_shards: tuple[Shard, ...]
    vocab_size: int
    val_bytes: int | None = None  # of text behind the validation targets; None where unknown
    run_dir: Path
    keeps_last: bool = True  # whether the weights of the last step stay
    # where files are prepared, in the lease of the run's folder; None: nobody else writes there
    stage: Path | None = None
    world: World
    started: float  # time.monotonic() of this attempt's first moment
    spent_s: float = 0.0  # wall-clock of the attempts before
    teacher_s: float = 0.0  # training of the runs that it learns from
    # with the earlier attempts' rows, before the first step
    on_start: Callable[[list[Row]], None] = lambda rows: None
    on_row: Callable[[Row], None] = lambda row: None
    log: Callable[[str], None] = print
    stop_asked: Callable[[], bool] = lambda: False
    # in this block a request to stop is not waited with
    stop_at_once: Callable[[], AbstractContextManager[None]] = nullcontext
    # with the step, at least once a micro-batch
    heartbeat: Callable[[int], None] = lambda step: None
