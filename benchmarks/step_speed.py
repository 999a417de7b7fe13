"""What bf16 with regional compilation gains over the plain fp32 step, on the CPU, in process CPU time.

    python benchmarks/step_speed.py --train '…/prose_train_*.bin' --val '…/prose_val_*.bin'

Both arms are the same architecture (4 layers, 128 wide, T=256, GPT-2 vocabulary) through nocap's own training step. They run in one
process on one thread, in A B B A blocks, so that a machine whose speed drifts slows both; an A/A control says how far to trust the
ratio. Both start from the same weights and read the same batches, and their losses are compared step by step. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path

from nocap import hardware
from nocap.data.prepare import prepare
from nocap.loop import Job, Trainee, build, configure_numerics, take_step, warm_up
from nocap.paths import cache_root
from nocap.run.config import compose
from nocap.run.ledger import Ledger
from nocap.run.world import World, join
from nocap.schema import Device

ARMS = {
    "fp32_eager": ("trainer.precision=fp32", "trainer.compile=off"),
    "fp32_eager_again": ("trainer.precision=fp32", "trainer.compile=off"),
    "bf16_regional": ("trainer.precision=bf16", "trainer.compile=regional"),
}


def make(name: str, args: argparse.Namespace, world: World) -> tuple[Job, Trainee]:
    run = compose(
        [
            "tracker=none",
            "model=tiny",
            "data=shards",
            f"data.train='{args.train}'",
            f"data.val='{args.val}'",
            "trainer.device=cpu",
            "trainer.threads=1",
            f"trainer.micro_batch={args.micro_batch}",
            f"trainer.batch_tokens={args.micro_batch * 256}",
            f"trainer.val_tokens={args.micro_batch * 256}",
            *ARMS[name],
        ]
    )
    configure_numerics(run)
    dataset = prepare(run.data, run.tokenizer, cache_dir=cache_root())
    job = Job(
        run=run,
        train_shards=dataset.train,
        val_shards=dataset.val,
        vocab_size=dataset.vocab_size,
        run_dir=Path(),
        world=world,
        started=time.monotonic(),
    )
    trainee = build(job)
    warm_up(job, trainee, Ledger(started=job.started))
    return job, trainee


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps a block")
    args = parser.parse_args()

    world = join(Device.cpu)
    arms = {name: make(name, args, world) for name in ARMS}
    ledger = Ledger(started=time.monotonic())
    cpu_s: dict[str, list[float]] = {name: [] for name in ARMS}
    losses: dict[str, list[float]] = {name: [] for name in ARMS}
    for i in range(args.rounds):
        order = list(ARMS) if i % 2 == 0 else list(ARMS)[::-1]
        for name in order:
            job, trainee = arms[name]
            began = time.process_time()
            for _ in range(args.steps):
                losses[name].append(take_step(job, trainee, ledger, step=len(losses[name])).loss)
            cpu_s[name].append((time.process_time() - began) / args.steps)

    def ratio(a: str, b: str) -> dict[str, float]:
        ratios = [x / y for x, y in zip(cpu_s[a], cpu_s[b], strict=True)]
        return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}

    apart = max(abs(a - b) for a, b in zip(losses["fp32_eager"], losses["bf16_regional"], strict=True))
    report = {
        "date": date.today().isoformat(),
        "hardware": hardware.describe(Device.cpu, 1),
        "native_bf16": hardware.default_precision(Device.cpu).value == "bf16",
        "cpu_ms_a_step": {name: statistics.median(s) * 1e3 for name, s in cpu_s.items()},
        "speedup_bf16_regional": ratio("fp32_eager", "bf16_regional"),
        "control_same_arm": ratio("fp32_eager", "fp32_eager_again"),
        "losses": {"fp32_eager": losses["fp32_eager"][-1], "bf16_regional": losses["bf16_regional"][-1], "largest_difference": apart},
        "steps": len(losses["fp32_eager"]),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
