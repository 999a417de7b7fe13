"""The runs of a race as jobs of Slurm, where only the loss is asked. The nodes share this folder, and start
the same environment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nocap.config.compose import of_a_grid, overrides_of
from nocap.config.errors import FailedError
from nocap.launch.multirun import launcher_option
from nocap.options.launcher.slurm import Slurm
from nocap.sources.command import Command, result


@dataclass(frozen=True)
class RunJob:
    """What runs on a node."""

    run: Callable[[], None]

    def __call__(self) -> int:
        try:
            self.run()
        except FailedError as error:
            print(f"nocap: {error}", file=sys.stderr)
            return 1
        return 0


def on_slurm(begin: Callable[..., None], keys: Sequence[str], folder: Path) -> Callable[..., None]:
    """`begin` as a job, which is waited for. `keys`: those of `hydra/launcher=slurm`, each KEY=VALUE. What
    jobs print lies in `folder`.

    Errors:
        ValueError: a wrong key or value, or no cluster.
    """
    option = launcher_option(
        of_a_grid(
            overrides_of(["hydra/launcher=slurm", *(f"hydra.launcher.{key}" for key in keys)], grid=True)
        )
    )
    assert isinstance(option, Slurm)
    jobs, lock = option.executor(folder.absolute()), threading.Lock()

    def wait(arm: Command, seed: int, place: Path, *, stop: threading.Event, **how: Any) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        number = place.with_suffix(".job")
        with lock:
            run = RunJob(partial(begin, arm, seed, place.absolute(), **how))
            job = jobs.hand_over(run, number, lambda: result(place) is not None)
        while True:
            with lock:
                reason = job.poll()
            if reason is not None or stop.is_set():
                break
            time.sleep(jobs.poll_s)
        if stop.is_set():
            job.cancel()
        elif result(place) is None:
            raise FailedError(reason)
        number.unlink(missing_ok=True)

    return wait
