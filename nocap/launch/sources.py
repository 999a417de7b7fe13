"""The runs that a run begins from (`trainer.init_from`) or learns from, read from their folders. No
torch here: the worker reads weights.

Whether a run would have reached the checkpoint that it begins from itself is checked, so a branch
is the run it would have been from its start, and counts as one: a longer base run at a constant
rate is trained once, and each budget is a decay from its checkpoint (Hägele et al., 2024,
arXiv:2405.18392).
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.bounded import parse_json, read_bytes
from nocap.config.keys import flat, require
from nocap.config.paths import expanded
from nocap.config.plain import load
from nocap.config.run import Run
from nocap.store.checkpoints import FOLDER, MANIFEST, name_of, newest_first, step_of
from nocap.store.identity import config_that_counts, digest
from nocap.store.record import SHAPES, check_shape, read_json
from nocap.store.runs import LAST, find_one
from nocap.store.runs import read_record as read

KEY = "trainer.init_from"
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
# Keys in which the base run may differ. So may its schedule: that the learning rates are the same
# up to the branch is checked step by step.
FREE = re.compile(
    r"config\.trainer\.(steps|val_every)$|config\.schedule\.(?!warmup_steps$)|source\.nocap\.(options|outside)\.schedule\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Another run, as a run uses it."""

    part: dict[str, Any]  # of the identity
    record: dict[str, Any]  # in the manifest
    seconds: float  # of what it did


def located(run: Run) -> Run:
    """Return a copy with a folder for each run that it names, so that its record stays true when
    there are more runs.

    Errors:
        ValueError: a name stands for no run, or for several.
    """
    run, outputs = copy.deepcopy(run), expanded(run.output_dir)
    if (
        (word := run.trainer.init_from) is not None
        and (named := re.fullmatch(r"(.+)@(\d{1,18})", word))
        and not expanded(word).exists()
    ):
        run.trainer.init_from = str(
            _folder(KEY, named[1], outputs) / FOLDER / name_of(int(named[2]))
        )
    for name, option in run.options():
        if (path := option.learns_from()) is not None:
            # the key of `learns_from`
            option.run = str(_folder(f"{name}.run", path, outputs))  # type: ignore[attr-defined]
    return run


def _folder(key: str, named: str, outputs: Path) -> Path:
    if (path := expanded(named)).exists():
        return path
    require(
        named != LAST,
        key,
        "name its run: with last, the same command would mean another run when it is given again",
        named,
    )
    try:
        return find_one(named, outputs=outputs)
    except ValueError as error:
        raise ValueError(f"{key} must name a run: {error}") from error


def teachers(run: Run) -> dict[str, Source]:
    """Return the finished runs that a run learns from, by the option that does.

    Errors:
        ValueError: an option names no finished run with a checkpoint.
    """
    return {
        name: _teacher(f"{name}.run", path)
        for name, option in run.options()
        if (path := option.learns_from()) is not None
    }


def _teacher(key: str, path: str) -> Source:
    folder = expanded(path).absolute()
    require(folder.is_dir(), key, "be the folder of a finished run, as outputs/runs/RUN", path)
    try:
        record = read(folder)
        saved = newest_first(folder / FOLDER)
        sums = (read_json(saved[0] / MANIFEST) if saved else None) or {}
    except ValueError as error:
        raise ValueError(
            f"{key} must be the folder of a finished run, got {path} ({error})"
        ) from error
    require(
        record.status == "finished",
        key,
        "be the folder of a finished run",
        f"{path}, which is {record.status}",
    )
    steps, weights, seconds = record.summary.get("steps"), sums.get(MODEL), record.train_s or 0.0
    require(
        isinstance(weights, str) and step_of(saved[0]) == steps,
        key,
        f"hold the checkpoint of its last step, {steps}",
        path,
    )
    names = {"path": str(folder), "identity": record.identity, "train_s": seconds}
    return Source(
        part={"identity": record.identity, "weights": weights}, record=names, seconds=seconds
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that a run begins from."""

    path: Path
    step: int
    part: dict[str, Any]  # of the identity
    seconds: float  # of what led to it


def init_checkpoint(run: Run, parts: Mapping[str, Any]) -> Source | None:
    """Find what `trainer.init_from` names, for a run with these parts of its identity.

    Errors:
        ValueError: as for `checkpoint_of`, or it is of a run that got there another way.
    """
    if (found := checkpoint_of(run)) is None:
        return None
    names = _same_way(run, parts, found.path, found.step)
    return Source(part=found.part, record=names, seconds=found.seconds)


def checkpoint_of(run: Run) -> Checkpoint | None:
    """Read the checkpoint that a run begins from, if it does.

    Errors:
        ValueError: it is no checkpoint, or of no step of this run.
    """
    if run.trainer.init_from is None:
        return None
    path = expanded(run.trainer.init_from).absolute()
    rule = "be the folder of a checkpoint, as …/runs/RUN/checkpoints/step-00000080, or RUN@80"
    step = step_of(path)
    if step is None or not path.is_dir() or (sums := read_json(path / MANIFEST)) is None:
        raise ValueError(f"{KEY} must {rule}, got {path}")
    try:
        content = read_bytes(path / "state.json")
        require(
            hashlib.sha256(content).hexdigest() == sums["state.json"],
            "state.json",
            "match its checksum",
            "another",
        )
        check_shape(
            state := parse_json(content.decode()), SHAPES["state.json"], path / "state.json"
        )
        # Not the state's checksum: a clock is in it, and a base run trained twice is the same.
        part = {"step": step, "tensors": digest({name: sums[name] for name in (MODEL, OPTIMIZER)})}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{KEY} must be a whole checkpoint, got {path} ({type(error).__name__}: {error})"
        ) from error
    require(
        step < run.trainer.steps,
        KEY,
        f"be of a step before trainer.steps={run.trainer.steps}",
        f"step {step}",
    )
    return Checkpoint(
        path=path, step=step, part=part, seconds=float(sum(state["clock_s"].values()))
    )


def _same_way(run: Run, parts: Mapping[str, Any], path: Path, step: int) -> dict[str, Any]:
    """Return what a record says of this checkpoint, to which the run would have got the same way.

    Errors:
        ValueError: it would not, or its run is not there.
    """
    folder = path.parents[1]
    manifest = read_json(folder / "manifest.json") or {}
    if not isinstance(recorded := manifest.get("parts"), dict):
        raise ValueError(
            f"{KEY} must be in the folder of its run, with manifest.json and config.yaml, got "
            f"{path}"
        )
    base = load(folder / "config.yaml")
    own, other = (
        dict(flat(side)) for side in (parts, {**recorded, "config": config_that_counts(base)})
    )
    for key in dict.fromkeys([*own, *other]):
        value, base_value = (side.get(key, "nothing") for side in (own, other))
        same = value == base_value or FREE.match(key) or key.startswith("init.")
        require(
            bool(same),
            KEY,
            f"be of a run with this one's {key.removeprefix('config.')} ({value})",
            f"{base_value} in {folder}",
        )
    for earlier in range(step):
        rate, base_rate = (
            side.schedule.multiplier(step=earlier, steps=side.trainer.steps) for side in (run, base)
        )
        rule = (
            f"be of a run with this one's learning rate before the branch at step {step} "
            f"({rate:g} of the peak at step {earlier})"
        )
        require(rate == base_rate, KEY, rule, f"{base_rate:g} in {folder}")
    return {"path": str(path), "step": step, "identity": str(manifest.get("identity"))}
