"""What the adapters share: a peer's file from the folder that the user names, and the plain loop
around a model."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


def folder(variable: str, *files: str) -> Path:
    """Return the folder that the environment variable names.

    Errors:
        ValueError: it is not set, or the folder has not the files that are read.
    """
    named = os.environ.get(variable, "")
    path = Path(named).expanduser()
    missing = [file for file in files if not (path / file).is_file()]
    if not named or missing:
        raise ValueError(
            f"the environment variable {variable} must name a folder with {', '.join(files)}, got "
            f"{named!r}"
        )
    return path.absolute()


def load(path: Path) -> ModuleType:
    """A file as a module of its own. One of the peers reads sys.argv[0]: it is to find itself
    there."""
    name, argv = f"peer_{path.parent.name.replace('-', '_')}_{path.stem}", sys.argv
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.argv = [str(path)]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv = argv
    return module


def flops_per_token(request: SimpleNamespace, matmul_params: int) -> float:
    """As nocap counts: six for each weight that multiplies, and causal attention once."""
    return 6.0 * matmul_params + 6.0 * request.n_layer * request.d_model * request.seq_len


def autocast(request: SimpleNamespace) -> Any:
    return (
        torch.autocast(request.device, dtype=torch.bfloat16)
        if request.precision == "bf16"
        else nullcontext()
    )


class Loop:
    """Accumulate the micro-batches, clip where the peer clips, update."""

    def __init__(
        self,
        request: SimpleNamespace,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        context: Any,
        clip: float | None = None,
        flops: float,
        settings: dict[str, Any],
    ) -> None:
        self.request, self.loss, self.context, self.clip = request, loss, context, clip
        self.parameters, self.optimizers = list(model.parameters()), [optimizer]
        self.flops_per_token = flops
        self.settings = {
            **settings,
            "compiled": request.compile != "off",
            "torch": torch.__version__,
        }

    def __call__(self, tokens: Tensor) -> Tensor:
        n, total = self.request.microbatches, torch.zeros((), device=tokens.device)
        for rows in tokens.split(self.request.micro_batch):
            with self.context:
                loss = self.loss(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) / n
            total += loss.detach()
            loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total
