"""What being safe costs at d12's size: the calls that save, check and watch, timed, as a share of training at the default cadence.

    python experiments/fault_cost/fault_cost.py

A real d12 with AdamW's state (1.5 GB on disk) is saved, found and pruned as the loop does it; the calls of each step are timed in loops.
One step of 2,048 tokens gives the training time to compare with; for a GPU, the script says how short a step may be before the calls
pass 2%. There the save is in the background and the step waits for a copy in host memory only. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.paths import cache_root
from nocap.config.trainer import Device
from nocap.data.batches import microbatches
from nocap.data.prepare import prepare
from nocap.store.record import Metrics
from nocap.training import checkpoint, state
from nocap.training.heartbeat import Heartbeat
from nocap.training.ledger import Ledger
from nocap.training.spikes import Spikes
from nocap.training.step import Job, build, configure_numerics, take_step
from nocap.training.world import join

WORDS = ("tracker=none", "model=d12", "tokenizer=gpt2", "data=synthetic", "trainer.device=cpu", "trainer.threads=1", "model.seq_len=512")
CADENCE = compose([*WORDS]).trainer.checkpoint_every


def seconds(call: Callable[[], object], *, n: int) -> float:
    """The median of `n` calls."""
    taken = []
    for _ in range(n):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="saves to time")
    args = parser.parse_args()
    run = compose([*WORDS, "trainer.micro_batch=4", "trainer.batch_tokens=2048", "trainer.val_tokens=2048"])
    configure_numerics(run)
    dataset = prepare(run.data, run.tokenizer, cache_dir=cache_root())
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        root = Path(folder)
        job = Job(
            run=run,
            train_shards=dataset.train,
            val_shards=dataset.val,
            vocab_size=dataset.vocab_size,
            run_dir=root,
            world=join(Device.cpu),
            started=time.monotonic(),
        )
        trainee, ledger = build(job), Ledger(started=job.started)
        model, optimizers = trainee.model, trainee.optimizers
        take_step(job, trainee, ledger, step=0)
        step_s = seconds(lambda: take_step(job, trainee, ledger, step=1), n=3)

        steps = iter(range(1, 100))
        writer = checkpoint.Writer(root / "checkpoints", background=False)
        save_s = seconds(
            lambda: writer.save(step=next(steps), model=model, optimizers=optimizers, state={}, keep=2, must=True), n=args.repeats
        )
        snapshot_s = seconds(lambda: state.snapshot(model, optimizers, copy=True), n=args.repeats)
        find_s = seconds(lambda: checkpoint.find(writer.root), n=args.repeats)

        heartbeat, spikes, metrics = Heartbeat.create(root, ranks=1), Spikes(), Metrics(root / "metrics.jsonl")
        row = {"step": 1, "tokens": 1} | {f"train/key{i}": 1 / (i + 3) for i in range(16)}
        each_step_s = {
            "heartbeats": (2 * microbatches(run) + 1) * seconds(lambda: heartbeat.beat(0, 1), n=1000),
            "spikes": seconds(lambda: spikes.add(1.0), n=1000),
            "a row": seconds(lambda: metrics.append(row), n=1000),
        }
    safe_s = save_s / CADENCE + sum(each_step_s.values())
    behind_s = snapshot_s / CADENCE + sum(each_step_s.values())
    report = {
        "date": date.today().isoformat(),
        "hardware": hardware.describe(Device.cpu, 1),
        "checkpoint_every": CADENCE,
        "save_s": save_s,
        "snapshot_s": snapshot_s,
        "find_s": find_s,
        "each_step_ms": {name: s * 1e3 for name, s in each_step_s.items()},
        "step_of_2048_tokens_s": step_s,
        "share_of_training": safe_s / (step_s + safe_s),
        "under_2_percent_from_step_ms": {"saved by the step": 49 * safe_s * 1e3, "saved in the background": 49 * behind_s * 1e3},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
