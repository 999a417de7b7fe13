"""Numbers that say of each training window how hard it is: for a curriculum, or to leave out the worst."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from nocap.config.paths import cache_root, expanded
from nocap.data.batches import Windows
from nocap.model.language_model import LanguageModel
from nocap.store.files import write_file
from nocap.store.record import read_json
from nocap.training.heartbeat import START_UP
from nocap.training.trained import teacher_of

if TYPE_CHECKING:
    from nocap.training.step import Job

AT_ONCE = 8  # windows


def document_lengths(windows: Windows, start: int | None) -> NDArray[np.float64]:
    """Tokens of each window a document in it; a document begins with the token `start`."""
    begun = [int((windows.at([window])[:, :-1] == start).sum()) for window in range(windows.n)]
    return windows.seq_len / np.maximum(1.0, np.array(begun, np.float64))


def window_losses(path: str, key: str, windows: Windows, job: Job) -> tuple[NDArray[np.float64], float, float]:
    """The mean loss of the finished run in this folder on each window, in nats per token; the seconds that finding them took, and how many
    of those just now. They are kept in the cache.

    Errors:
        InputError: the run's tokens are others, or its context is shorter.
    """
    began, world, folder = time.monotonic(), job.world, expanded(path)
    model = teacher_of(path, key, run=job.run, device=world.device)
    file = cache_root(job.run.cache_dir) / "scores" / f"{_key(folder, model, job)}.npz"
    losses = torch.zeros(windows.n + 1, dtype=torch.float64, device=world.device)  # the last: seconds
    known = world.from_main(file.is_file())
    if known and world.is_main:
        with np.load(file) as kept:
            losses += torch.from_numpy(kept["losses"]).to(world.device)
    for i in range(world.rank, 0 if known else math.ceil(windows.n / AT_ONCE), world.size):  # which rank it is, changes no loss
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


@torch.no_grad()
def _losses(model: LanguageModel, windows: Windows, rows: range, device: torch.device) -> torch.Tensor:
    tokens = torch.from_numpy(windows.at(rows)).to(device).long()
    logits_BTV = model.logits(tokens[:, :-1]).float()
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(len(rows), -1).mean(1)


def _key(folder: Path, model: LanguageModel, job: Job) -> str:
    """Of what the losses depend on: the run and its weights, the tokens, the length of a window."""
    found = hashlib.sha256(str((read_json(folder / "manifest.json") or {}).get("identity")).encode())
    for t in model.state_dict().values():
        found.update(t.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    found.update(json.dumps([[shard.sha256 for shard in job.train_shards], job.run.model.seq_len]).encode())
    return found.hexdigest()[:16]
