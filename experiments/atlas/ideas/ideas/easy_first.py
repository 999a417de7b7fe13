"""Data in the order in which a finished run finds it easy (Bengio et al., 2009), without its worst
part (arXiv:2309.04564).

As `ideas=[curriculum]`, with the mean loss of the finished run on a window as the window's score.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nocap.config.keys import key, require
from nocap.config.paths import cache_root, expanded
from nocap.options.data import Order
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from nocap.config.run import Run
    from nocap.data.batches import Windows
    from nocap.model.language_model import LanguageModel
    from nocap.training.job import Job

AT_ONCE = 8  # windows


@dataclass(kw_only=True, slots=True)
class EasyFirst(Idea):
    kind: str = "easy_first"
    # whose loss the score is: the folder of a finished run, as outputs/runs/RUN
    run: str = key(identity=False)
    keep: float = key(gt=0, le=1)  # share of the windows that is not left out
    noise: float = key(ge=0, le=1)  # 0: easy first; 1: shuffled

    def check(self, run: Run) -> None:
        rule = "be shuffled beside ideas.easy_first"
        require(run.data.order is Order.shuffled, "data.order", rule, run.data.order.value)

    def learns_from(self) -> str | None:
        return self.run

    def arrange(self, windows: Windows, job: Job) -> tuple[float, float]:
        scores, seconds, now = _window_losses(self.run, "ideas.easy_first.run", windows, job)
        sequences = job.run.tokens_before(job.run.trainer.steps) // job.run.model.seq_len
        windows.arrange(scores, keep=self.keep, noise=self.noise, sequences=sequences)
        return seconds, now

    def in_the_end(self) -> Idea | None:
        return None


def _window_losses(
    path: str, key: str, windows: Windows, job: Job
) -> tuple[NDArray[np.float64], float, float]:
    """The mean loss of the finished run in this folder on each window, in nats per token; the
    seconds that finding them took, and how many of those just now. They are kept in the cache.

    Errors:
        InputError: the run's tokens are others, or its context is shorter.
    """
    import torch

    from nocap.launch.heartbeat import START_UP
    from nocap.store.file_writing import write_file
    from nocap.training.trained import teacher_of

    began, world, folder = time.monotonic(), job.world, expanded(path)
    model = teacher_of(path, key, run=job.run, device=world.device)
    file = cache_root(job.run.cache_dir) / "scores" / f"{_key(folder, model, job)}.npz"
    losses = torch.zeros(
        windows.n + 1, dtype=torch.float64, device=world.device
    )  # the last: seconds
    known = world.from_main(file.is_file())
    if known and world.is_main:
        with np.load(file) as kept:
            losses += torch.from_numpy(kept["losses"]).to(world.device)
    # which rank it is, changes no loss
    for i in range(world.rank, 0 if known else math.ceil(windows.n / AT_ONCE), world.size):
        rows = range(i * AT_ONCE, min((i + 1) * AT_ONCE, windows.n))
        losses[rows.start : rows.stop] = _losses(model, windows, rows, world.device)
        job.heartbeat(START_UP)
    losses = world.sum(losses)
    now = time.monotonic() - began
    if not known and world.is_main:
        losses[-1] = now
        content = io.BytesIO()
        np.savez(content, losses=losses.cpu().numpy())
        write_file(file, content.getvalue())
    *scores, seconds = world.from_main(losses.tolist())
    return np.array(scores), seconds, now


def _losses(
    model: LanguageModel, windows: Windows, rows: range, device: torch.device
) -> torch.Tensor:
    import torch
    import torch.nn.functional as F

    tokens = torch.from_numpy(windows.at(rows)).to(device).long()
    with torch.no_grad():
        logits_BTV = model.logits(tokens[:, :-1]).float()
    return (
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        .view(len(rows), -1)
        .mean(1)
    )


def _key(folder: Path, model: LanguageModel, job: Job) -> str:
    """Of what the losses depend on: the run and its weights, the tokens, the length of a window."""
    import torch

    from nocap.store.record_files import read_json

    hasher = hashlib.sha256(
        str((read_json(folder / "manifest.json") or {}).get("identity")).encode()
    )
    for t in model.state_dict().values():
        hasher.update(t.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    hasher.update(
        json.dumps([[shard.sha256 for shard in job.train_shards], job.run.model.seq_len]).encode()
    )
    return hasher.hexdigest()[:16]
