"""The challenge's own loop against nocap's on the same synthetic shards, in turns: B A A B, nocap
first.

    python experiments/gpu_day/challenge.py FOLDER [OVERRIDES …] [--device cuda] [--small] [--json
        FILE]

FOLDER is a copy of the challenge's repository, whose `train_gpt2.py` runs as it is; OVERRIDES are
nocap's. Both train the baseline on steps of 65,536 tokens with the same learning rates. The JSON
has tokens/s after the first ten steps, MiB at the peak, both loss curves and how far they are
apart, and is written after each run. The challenge's first run compiles for minutes, its second for
about one, from the compiler's cache.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from script import parser, report

from nocap.data.shards import write_shard
from nocap.data.synthetic import tokens
from nocap.store.record_files import write_json

# each turn with the seconds that it may take
ORDER = (("nocap", 105.0), ("challenge", 220.0), ("challenge", 130.0), ("nocap", 60.0))
# at the challenge's 0.0018 after so short a warm-up, two runs of one loop ended 0.9 nats apart
# (H200)
LR = 0.0003
VOCAB, VAL_TOKENS = 50257, 1_048_576  # the challenge's own: it takes no others
FULL = {
    "steps": 60,
    "warm": 10,
    "micro_batch": 16,
    "accumulation": 4,
    "seq_len": 1024,
    "val_tokens": VAL_TOKENS,
    "changes": (),
}
SMALL = {
    "steps": 10,
    "warm": 4,
    "micro_batch": 1,
    "accumulation": 1,
    "seq_len": 64,
    "val_tokens": 256,
    "changes": ("model.n_layer=1",),
}
STEP_LINE = re.compile(
    r"^step:(\d+)/\d+ \| loss ([\d.naif]+) \| train_time:([\d.]+)s", re.MULTILINE
)
VAL_LINE = re.compile(r"^step:(\d+)/\d+ \| val loss ([\d.naif]+)", re.MULTILINE)
PEAK_LINE = re.compile(r"^peak memory consumption: (\d+) MiB", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Race:
    """What both train."""

    steps: int
    warm: int  # steps that do not count for speed
    micro_batch: int
    accumulation: int
    seq_len: int
    val_tokens: int  # nocap's; the challenge takes VAL_TOKENS
    changes: tuple[str, ...]  # nocap's overrides beside the baseline's
    device: str
    folder: Path  # of the challenge
    scratch: Path

    @property
    def batch_tokens(self) -> int:
        return self.micro_batch * self.accumulation * self.seq_len

    @property
    def ends(self) -> tuple[int, int]:
        """Steps of warm-up and of decay."""
        return self.steps // 5, self.steps // 5


def write_data(race: Race) -> None:
    """A learnable chain in the challenge's format."""
    for stream, (name, n) in enumerate(
        {"train": (race.steps + 2) * race.batch_tokens, "val": VAL_TOKENS + 65_536}.items()
    ):
        write_shard(
            race.scratch / f"{name}.bin",
            np.concatenate(list(tokens(n, vocab_size=VOCAB, seed=0, stream=stream))),
        )


def challenge_words(race: Race) -> list[str]:
    warm, down = race.ends
    given = {
        "input_bin": race.scratch / "train.bin",
        "input_val_bin": race.scratch / "val.bin",
        "model": "d12",
        "batch_size": race.micro_batch,
        "grad_accumulation_steps": race.accumulation,
        "sequence_length": race.seq_len,
        "val_loss_every": race.steps,
        "val_batch_size": race.micro_batch,
        "num_iterations": race.steps,
        "weight_decay": 0.1,
        "learning_rate": LR,
        "warmup_iters": warm,
        "warmdown_iters": down,
    }
    return [
        str(race.folder / "train_gpt2.py"),
        *(word for key, value in given.items() for word in (f"--{key}", str(value))),
    ]


def as_one_rank() -> dict[str, str]:
    """What torchrun would set, without its agent: a process that a time limit can end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def nocap_words(race: Race, out: Path) -> list[str]:
    warm, down = race.ends
    return [
        *(
            "-m",
            "nocap.train",
            "experiment=nocap_baseline",
            "data=shards",
            "tracker=none",
            f"trainer.device={race.device}",
        ),
        *(
            f"data.train={race.scratch / 'train.bin'}",
            f"data.val={race.scratch / 'val.bin'}",
            f"model.seq_len={race.seq_len}",
        ),
        *(
            f"trainer.steps={race.steps}",
            f"trainer.batch_tokens={race.batch_tokens}",
            f"trainer.micro_batch={race.micro_batch}",
        ),
        *(
            f"data.read_sequences={race.micro_batch}",
            f"optimizer.lr={LR}",
            "schedule=wsd",
            f"schedule.warmup_steps={warm}",
            f"schedule.decay_steps={down}",
        ),
        *(
            f"trainer.val_tokens={race.val_tokens}",
            "trainer.val_every=0",
            "trainer.checkpoint_every=0",
            f"output_dir={out}",
        ),
        *race.changes,
    ]


def read_challenge(race: Race, text: str) -> dict[str, Any]:
    """Loss by step, and the speed between two of its lines, whose times are of training alone."""
    rows = [(int(step), float(loss), float(s)) for step, loss, s in STEP_LINE.findall(text)]
    seconds = rows[-1][2] - rows[race.warm - 1][2]
    peak = PEAK_LINE.search(text)
    return {
        "tokens_per_s": (len(rows) - race.warm) * race.batch_tokens / seconds
        if seconds > 0
        else None,
        "peak_mib": int(peak[1]) if peak else None,
        "train_loss": [loss for _, loss, _ in rows],
        "val_loss": {int(step): float(loss) for step, loss in VAL_LINE.findall(text)},
    }


def read_nocap(race: Race, out: Path) -> dict[str, Any]:
    (run,) = (out / "runs").iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ms = [row["perf/step_ms"] for row in rows if "perf/step_ms" in row][race.warm :]
    return {
        "tokens_per_s": len(ms) * race.batch_tokens / sum(ms) * 1e3,
        "peak_mib": json.loads((run / "summary.json").read_text())["memory_mib"]["peak"],
        "train_loss": [row["train/loss"] for row in rows if "train/loss" in row],
        "val_loss": {row["step"]: row["val/loss"] for row in rows if "val/loss" in row},
    }


def take_turn(race: Race, who: str, turn: int, limit_s: float) -> dict[str, Any]:
    """One run; `error` where it failed."""
    folder = race.scratch / f"{turn}-{who}"
    folder.mkdir()
    words = challenge_words(race) if who == "challenge" else nocap_words(race, folder)
    read: Callable[[str], dict[str, Any]] = (
        (lambda text: read_challenge(race, text))
        if who == "challenge"
        else lambda text: read_nocap(race, folder)
    )
    row: dict[str, Any] = {
        "who": who,
        "rc": None,
        "error": None,
        "tokens_per_s": None,
        "peak_mib": None,
        "train_loss": [],
        "val_loss": {},
    }
    try:
        env = {**os.environ, **(as_one_rank() if who == "challenge" else {})}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return {**row, "error": f"longer than {limit_s:g} s"}
    row["rc"] = done.returncode
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        named = [line.strip() for line in lines if re.search(r"\b\w*Error\b: ", line)]
        return {**row, "error": (named or lines or ["no output"])[0], "tail": lines[-15:]}
    try:
        return {**row, **read(done.stdout)}
    except (OSError, ValueError, KeyError, IndexError) as error:
        return {**row, "error": f"its output has another form: {error!r}"}


def verdict(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """nocap's tokens/s over the challenge's, by geometric means; beside it each one's second run
    over its first."""
    speeds = {
        who: [run["tokens_per_s"] for run in runs if run["who"] == who and run["tokens_per_s"]]
        for who in ("nocap", "challenge")
    }
    means = {who: math.exp(sum(map(math.log, s)) / len(s)) for who, s in speeds.items() if s}
    control = {who: s[1] / s[0] for who, s in speeds.items() if len(s) == 2}
    return {
        "ratio": means["nocap"] / means["challenge"] if len(means) == 2 else None,
        "tokens_per_s": means,
        "control": control,
        "curves": curves(runs),
    }


def curves(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The largest difference in nats between loss curves: of each loop's two runs, and of the two
    loops' means. Their weights begin otherwise, so that the loops' may differ by some more than
    runs do."""
    each = {
        who: [run["train_loss"] for run in runs if run["who"] == who and run["train_loss"]]
        for who in ("nocap", "challenge")
    }

    def apart(a: Sequence[float], b: Sequence[float]) -> float:
        return max(abs(x - y) for x, y in zip(a, b, strict=True))

    said = {who: apart(*both) for who, both in each.items() if len(both) == 2}
    if all(each.values()):
        means = (
            [sum(losses) / len(losses) for losses in zip(*some, strict=True)]
            for some in each.values()
        )
        said["loops"] = apart(*means)
    return said


def main() -> int:
    flags = parser(__doc__)
    flags.add_argument("folder", type=Path, metavar="FOLDER")
    flags.add_argument("overrides", nargs="*", metavar="OVERRIDES")
    options = flags.parse_intermixed_args()
    size = SMALL if options.small else FULL
    size = {**size, "changes": (*size["changes"], *options.overrides)}
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        where = {"folder": options.folder.absolute(), "scratch": Path(scratch)}
        race = Race(**size, device=options.device.value, **where)
        write_data(race)
        for turn, (who, limit_s) in enumerate(ORDER):
            runs.append(take_turn(race, who, turn, limit_s))
            found = report("challenge", options.device, shape=size, runs=runs, **verdict(runs))
            print(
                json.dumps(
                    {
                        key: runs[-1][key]
                        for key in ("who", "rc", "error", "tokens_per_s", "peak_mib", "val_loss")
                    }
                ),
                flush=True,
            )
            if options.json:
                write_json(options.json, found)
    return 1 if any(run["error"] for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
