"""Load a checkpoint: the newest valid one of a run, into its model and optimizers. Nothing in it is
executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.model.language_model import LanguageModel
from nocap.options.optimizer import Optimizer
from nocap.store.checkpoints import (
    MODEL,
    OPTIMIZER,
    newest_first,
    problem_of,
    state_of,
    step_of,
    tensor_shapes,
)
from nocap.training.build_optimizers import Optimizers, build_optimizers
from nocap.training.state import difference, put_weights, restore


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidCheckpoint:
    """The first valid checkpoint of several, and what is wrong with those before it. Step 0 and no
    path where there is none."""

    path: Path | None
    invalid: list[str]

    @property
    def step(self) -> int:
        """Return the step of the checkpoint."""
        if self.path is None:
            return 0
        return step_of(self.path) or 0


def newest_valid(
    root: Path, *, misfit: Callable[[Path], str | None] = lambda path: None
) -> ValidCheckpoint:
    """Return the newest checkpoint below `root` whose files match their checksums, and which has no
    `misfit`."""
    return first_valid(newest_first(root), misfit=misfit)


def first_valid(paths: Iterable[Path], *, misfit: Callable[[Path], str | None]) -> ValidCheckpoint:
    """Return the first of these checkpoints that is whole. `misfit`: says why a whole one is not of
    the run, or None."""
    invalid: list[str] = []
    for path in paths:
        problem = problem_of(path) or misfit(path)
        if problem is None:
            return ValidCheckpoint(path=path, invalid=invalid)
        invalid.append(f"{path}: {problem}")
    return ValidCheckpoint(path=None, invalid=invalid)


def misfit(path: Path, *, model: nn.Module, identity: str | None = None) -> str | None:
    """Return why a valid checkpoint is not one of this model, and of the run with this identity,
    where that is given. Reads names and shapes, no tensor."""
    saved_by = state_of(path).get("run")
    if saved_by and identity and not saved_by.endswith(f"-{identity}"):
        return f"the checkpoint is from another run, {saved_by}"
    return difference(tensor_shapes(path / MODEL), model)


def load_checkpoint(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers, which it must fit; return its state."""
    state = state_of(path)
    tensors = {name: load_file(path / name) for name in (MODEL, OPTIMIZER)}
    try:
        restore(model, optimizers, tensors=tensors, plain=state.get("optimizer") or {})
    # its checksums are right: somebody made them so
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold this run's optimizer state, got other content "
            f"({type(error).__name__}: {error})"
        ) from error
    return state


def load_validated(path: Path, model: LanguageModel, run: Run) -> None:
    """Put the weights into the model with which a checkpoint's run validates. The model must be of
    that run."""
    optimizers: Optimizers = []
    needs_state = type(run.optimizer).validating is not Optimizer.validating
    if needs_state:
        optimizers = build_optimizers(run, model)
        load_checkpoint(path, model=model, optimizers=optimizers)
    else:
        put_weights(model, load_file(path / MODEL))
    with run.optimizer.validating(optimizers), model.validating():
        validated = [p.detach().clone() for p in model.parameters()]
    for p, tensor in zip(model.parameters(), validated, strict=True):
        p.data.copy_(tensor)
