"""The training step of another checkout of nocap as an external arm (dir=DIR): what has a change cost where it is off?

    git worktree add ../before COMMIT
    python -m nocap.bench SHAPE --arm "" --arm-external "experiments/when_off/checkout.py dir=../before"
    python -m nocap.bench SHAPE --arm "" --arm-external "experiments/when_off/checkout.py dir=."     # what this arm itself costs

    python experiments/when_off/checkout.py BENCH.json               # of a bench with both: the speed of now over before

Both nocaps are in one process: each call puts its own modules where imports look for them. The checkout needs `fetch`, `take_step` and
`random_tokens` as they were from 2026-11-22 on.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from nocap.judge.interval import Estimate, of_pairs
from nocap.measure.external import Request

COMPOSE = "import pickle, sys; from nocap.config.compose import compose; pickle.dump(compose(sys.argv[1:]), sys.stdout.buffer)"


def build(request: Request, *, dir: str) -> Checkout:
    return Checkout(Path(dir).resolve(), request)


def words(request: Request) -> list[str]:
    """The overrides of this shape."""
    r = request
    own = {"n_layer": r.n_layer, "n_head": r.n_head, "d_model": r.d_model, "seq_len": r.seq_len}
    how = {"micro_batch": r.micro_batch, "batch_tokens": r.batch_tokens, "device": r.device, "precision": r.precision}
    how |= {"compile": f"'{r.compile}'", "threads": r.threads}
    of = [f"model.{key}={value}" for key, value in own.items()] + [f"trainer.{key}={value}" for key, value in how.items()]
    return ["model=tiny", f"tokenizer={'bytes' if r.vocab_size < 1000 else 'gpt2'}", "tracker=none", f"seed={r.seed}", *of]


class Checkout:
    def __init__(self, folder: Path, request: Request) -> None:
        done = subprocess.run(
            [sys.executable, "-c", COMPOSE, *words(request)],
            env={**os.environ, "PYTHONPATH": str(folder)},
            cwd=folder,
            stdout=subprocess.PIPE,
            check=True,
        )
        self.folder, self.modules, self.at = folder, dict[str, ModuleType](), 0
        with self.inside():
            step, ledger = map(import_module, ("nocap.training.step", "nocap.training.ledger"))
            timed = import_module(
                "nocap.measure.timed" if find_spec("nocap.measure.timed") else "nocap.measure.contestant"
            )  # its older name
            assert Path(str(step.__file__)).is_relative_to(folder)
            self.run, self.take_step = pickle.loads(done.stdout), step.take_step
            with timed.random_tokens(self.run) as self.job:
                self.trainee, self.ledger = step.build(self.job), ledger.Ledger(started=time.monotonic())
        self.parameters, self.optimizers = self.trainee.parameters, list(self.trainee.optimizers)
        self.settings: dict[str, Any] = {"compiled": request.compile}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Imports find the checkout's nocap."""
        ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nocap"}
        _replace(ours, self.modules)
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))
            self.modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nocap"}
            _replace(self.modules, ours)

    def __call__(self, tokens: Tensor) -> float:
        with self.inside():
            step = self.at % self.run.trainer.steps
            self.trainee.ahead, self.at = (step, tokens), self.at + 1
            return float(self.take_step(self.job, self.trainee, self.ledger, step=step).loss)


def _replace(old: dict[str, ModuleType], new: dict[str, ModuleType]) -> None:
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)


def speed_over(arm: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Of two arms of a bench: tokens/s of one over the other's, round by round."""
    mine, theirs = (np.log(np.mean(one["seconds_per_token"], axis=1)) for one in (arm, other))
    return of_pairs(theirs - mine).exp()


def main(path: str) -> None:
    arms = {arm["label"].rpartition("dir=")[2]: arm for arm in json.loads(Path(path).read_text())["arms"] if "external" in arm["config"]}
    now, before = (arms[name] for name in sorted(arms, key=lambda name: name != "."))
    found = speed_over(now, before)
    print(f"now over before: {found.mid:.4f}x [{found.low:.4f}, {found.high:.4f}], 95%, {len(now['seconds_per_token'])} rounds")


if __name__ == "__main__":
    main(*sys.argv[1:])
