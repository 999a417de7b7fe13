"""A run of a fraction of a second, trained in this process: its record is written as a worker
writes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from nocap.config.compose import Composed, composed
from nocap.launch.plan import Plan, plan
from nocap.launch.record_head import write_record_head
from nocap.launch.worker import conclude, job_of
from nocap.options.tracker import TrackerSession
from nocap.store.record_files import read_json
from nocap.training.loop import train
from nocap.training.recorder import Outcome
from nocap.training.world import join
from tests.conftest import SMALL

STEPS = 7
TINY = (
    *SMALL,
    "model.n_layer=1",
    "model.n_head=2",
    "model.d_model=16",
    "model.seq_len=16",
    "trainer.batch_tokens=64",
    "trainer.micro_batch=2",
    "trainer.val_tokens=64",
    f"trainer.steps={STEPS}",
    "trainer.val_every=3",
    "trainer.checkpoint_every=2",
    "data.train_tokens=5000",
    "data.val_tokens=2000",
)


@cache
def _composed(words: tuple[str, ...]) -> Composed:
    return composed([*TINY, *words])


def planned(out: Path, *words: str) -> Plan:
    """The plan of a tiny run below `out`, with what is there now."""
    composition = _composed((*words, f"output_dir={out}"))
    return plan(composition.run, choices=composition.choices)


def start(
    this: Plan,
    *,
    stop_after: int | None = None,
    log: Callable[[str], None] = lambda line: None,
    session: TrackerSession | None = None,
    beat: Callable[[int], None] = lambda step: None,
) -> Outcome:
    """An attempt of the run, asked to stop in the step `stop_after`; its record as the parent and
    the worker write it. `session` is its tracker's, which gets no rows; `beat` gets each
    heartbeat."""
    this.run_dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = list[int]()
    write_record_head(this)
    manifest = read_json(this.run_dir / "manifest.json")
    assert manifest is not None

    def heartbeat(step: int) -> None:
        done.append(step)
        beat(step)

    world = join(this.run.trainer.device)
    job = replace(
        job_of(this.run, this.run_dir, manifest, world=world, started=began),
        log=log,
        stop_asked=lambda: bool(done) and done[-1] == stop_after,
        heartbeat=heartbeat,
    )
    outcome = train(job)
    conclude(job, manifest, outcome, session or TrackerSession())
    return outcome
