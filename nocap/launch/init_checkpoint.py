"""The checkpoint of another run that a run begins from (`trainer.init_from`): whether this run would have reached it itself. No torch.

So a branch is the run it would have been from its start, and counts as one: a longer base run at a constant rate is trained once, and each
budget is a decay from its checkpoint (Hägele et al., 2024, arXiv:2405.18392).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.bounded import parse_json, read_bytes
from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.config.plain import load
from nocap.config.run import Run
from nocap.store.checkpoints import step_of
from nocap.store.identity import config_that_counts, digest
from nocap.store.record import SHAPES, check_shape, read_json

KEY = "trainer.init_from"
TENSORS = ("model.safetensors", "optimizer.safetensors")
# Keys in which the base run may differ. So may its schedule: that the learning rates are the same up to the branch is checked step by step.
FREE = re.compile(r"trainer\.(steps|val_every)$|schedule\.(?!warmup_steps$)|source nocap\.(options|outside)\.schedule\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class InitCheckpoint:
    path: Path  # the checkpoint's folder
    step: int
    identity: str  # of the run that saved it
    tensors: str  # digest of its tensors' checksums
    clock_s: float  # seconds that it took to get there

    @property
    def part(self) -> dict[str, Any]:
        """Of the identity. Not the state's checksum: a clock is in it, and a base run trained twice is the same."""
        return {"step": self.step, "tensors": self.tensors}

    @property
    def record(self) -> dict[str, Any]:
        return {"path": str(self.path), "step": self.step, "identity": self.identity}


def init_checkpoint(run: Run, parts: Mapping[str, Any]) -> InitCheckpoint | None:
    """What `trainer.init_from` names, for a run with these parts of its identity. The tensors are not read here: the worker does.

    Errors:
        ValueError: it is no checkpoint, of no step of this run, or of a run that got there another way.
    """
    if run.trainer.init_from is None:
        return None
    path = expanded(run.trainer.init_from).absolute()
    step, tensors, clock_s = _read(path)
    require(step < run.trainer.steps, KEY, f"be of a step before trainer.steps={run.trainer.steps}", f"step {step}")
    folder = path.parents[1]
    if (manifest := read_json(folder / "manifest.json")) is None:
        raise ValueError(f"{KEY} must be in the folder of its run, with manifest.json and config.yaml, got {path}")
    if not isinstance(recorded := manifest.get("parts"), dict):
        raise ValueError(f"{KEY} must be in the folder of its run, whose manifest.json says what made it, got {folder}")
    base = load(folder / "config.yaml")
    _check_parts(parts, {**recorded, "config": config_that_counts(base)}, folder)
    _check_rates(run, base, step, folder)
    return InitCheckpoint(path=path, step=step, identity=str(manifest.get("identity")), tensors=tensors, clock_s=clock_s)


def _read(path: Path) -> tuple[int, str, float]:
    """A checkpoint's step, the digest of its tensors' checksums, and its clock in seconds."""
    rule = "be the folder of a checkpoint, as …/runs/RUN/checkpoints/step-00000080, or RUN@80"
    require(path.is_dir() and step_of(path) is not None, KEY, rule, path)
    if (sums := read_json(path / "manifest.json")) is None:
        raise ValueError(f"{KEY} must {rule}, got {path} without manifest.json")
    try:
        tensors = digest({name: sums[name] for name in TENSORS})
        content = read_bytes(path / "state.json")
        state = parse_json(content.decode())
        check_shape(state, SHAPES["state.json"], path / "state.json")
        step, clock_s = state["step"], float(sum(state["clock_s"].values()))
        sound = hashlib.sha256(content).hexdigest() == sums["state.json"] and step == step_of(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{KEY} must be a whole checkpoint, got {path} ({type(error).__name__}: {error})") from error
    require(sound, KEY, "be a whole checkpoint", f"{path}, whose state.json does not match its checksum or the folder's name")
    return step, tensors, clock_s


def _check_parts(own: Mapping[str, Any], base: Mapping[str, Any], folder: Path) -> None:
    """Refuse a base run that differs in more than `FREE`. The first such key is named."""
    left, right = dict(_flat(own)), dict(_flat(base))
    for key in filter(lambda key: not FREE.match(key), dict.fromkeys([*left, *right])):
        value, other = (side.get(key, "nothing") for side in (left, right))
        require(value == other, KEY, f"be of a run with this one's {key} ({value})", f"{other} in {folder}")


def _flat(parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for group, options in parts["config"].items():
        yield from ((f"{group}.{key}", value) for key, value in options.items()) if isinstance(options, dict) else [(group, options)]
    yield "data", parts.get("data")
    yield "teachers", parts.get("teachers")
    for part in ("environment", "source"):
        yield from ((f"{part} {key}", value) for key, value in parts.get(part, {}).items())


def _check_rates(own: Run, base: Run, step: int, folder: Path) -> None:
    """Refuse a checkpoint from inside the base run's own decay, or from any other schedule than this run's up to there."""
    for earlier in range(step):
        rate, other = (run.schedule.multiplier(step=earlier, steps=run.trainer.steps) for run in (own, base))
        rule = f"be of a run with this one's learning rate before the branch at step {step} ({rate:g} of the peak at step {earlier})"
        require(rate == other, KEY, rule, f"{other:g} in {folder}")
