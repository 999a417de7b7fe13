"""The earlier runs that a run begins from (`trainer.init_from`) or learns from (a teacher), read
from their folders. No torch here: the worker reads weights.

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
from typing import Any, Protocol, cast

from nocap.config.keys import flat, require
from nocap.config.paths import expanded
from nocap.config.plain import load
from nocap.config.run import Run
from nocap.config.untrusted_files import parse_json, read_bytes
from nocap.store.checkpoints import (
    CHECKSUMS,
    FOLDER,
    MODEL,
    OPTIMIZER,
    STATE,
    STATE_SHAPE,
    name_of,
    newest_first,
    step_of,
)
from nocap.store.identity import config_that_counts
from nocap.store.json_shapes import check_shape
from nocap.store.record import read_record
from nocap.store.record_files import CONFIG, MANIFEST, RunStatus, digest, read_json
from nocap.store.runs import LAST, find_one

INIT = "trainer.init_from"
# Keys in which the base run may differ. So may its schedule: that the learning rates are the same
# up to the branch is checked step by step.
FREE = re.compile(
    r"config\.trainer\.(steps|val_every)$|config\.schedule\.(?!warmup_steps$)|source\.nocap\.(options|outside)\.schedule\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """An earlier run, as a run uses it."""

    identity_part: dict[str, Any]
    record: dict[str, Any]  # in the manifest
    seconds: float  # that its training took


class Learner(Protocol):
    """An option that learns from another run: it has the key of `learns_from`."""

    run: str


def located(run: Run) -> Run:
    """Return a copy with a folder for each run that it names, so that its record stays true when
    there are more runs.

    Errors:
        ValueError: a name stands for no run, or for several.
    """
    run = copy.deepcopy(run)
    outputs = expanded(run.output_dir)
    if run.trainer.init_from is not None:
        run.trainer.init_from = _checkpoint_folder(run.trainer.init_from, outputs)
    for name, option in run.options():
        teacher = option.learns_from()
        if teacher is not None:
            learner = cast(Learner, option)
            learner.run = str(_run_folder(f"{name}.run", teacher, outputs))
    return run


def _checkpoint_folder(text: str, outputs: Path) -> str:
    """Return the folder of a checkpoint that is given as RUN@STEP; any other text as it is.

    Errors:
        ValueError: the name stands for no run, or for several.
    """
    named = re.fullmatch(r"(.+)@(\d{1,18})", text)
    if named is None or expanded(text).exists():
        return text
    run_dir = _run_folder(INIT, named[1], outputs)
    return str(run_dir / FOLDER / name_of(int(named[2])))


def _run_folder(key: str, name: str, outputs: Path) -> Path:
    """Return the folder of a run that is given by its folder or its name.

    Errors:
        ValueError: the name stands for no run, or for several.
    """
    path = expanded(name)
    if path.exists():
        return path
    rule = "name one run, and not last, because last may be another run later"
    require(name != LAST, key, rule, name)
    try:
        return find_one(name, outputs=outputs)
    except ValueError as error:
        raise ValueError(f"{key} must name a run: {error}") from error


# --- teachers -------------------------------------------------------------------------------------


def teachers(run: Run) -> dict[str, EarlierRun]:
    """Return the finished runs that a run learns from, by the option that does.

    Errors:
        ValueError: an option names no finished run with a checkpoint.
    """
    found = dict[str, EarlierRun]()
    for name, option in run.options():
        path = option.learns_from()
        if path is not None:
            found[name] = _teacher(f"{name}.run", path)
    return found


def _teacher(key: str, path: str) -> EarlierRun:
    """Read the finished run in a folder, with the weights of its last step.

    Errors:
        ValueError: there is none.
    """
    folder = expanded(path).absolute()
    require(folder.is_dir(), key, "be the folder of a finished run (as outputs/runs/RUN)", path)
    sums: dict[str, Any] = {}
    try:
        record = read_record(folder)
        saved = newest_first(folder / FOLDER)
        if saved:
            sums = read_json(saved[0] / CHECKSUMS) or {}
    except ValueError as error:
        reason = f"{key} must be the folder of a finished run, got {path} ({error})"
        raise ValueError(reason) from error
    is_finished = record.status == RunStatus.finished
    value = f"{path}, which is {record.status}"
    require(is_finished, key, "be the folder of a finished run", value)
    steps = record.steps
    weights = sums.get(MODEL)
    has_weights = isinstance(weights, str) and step_of(saved[0]) == steps
    require(has_weights, key, f"be a run that kept the checkpoint of its last step ({steps})", path)
    seconds = record.train_s or 0.0
    return EarlierRun(
        identity_part={"identity": record.identity, "weights": weights},
        record={"path": str(folder), "identity": record.identity, "train_s": seconds},
        seconds=seconds,
    )


# --- the init checkpoint --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that a run begins from."""

    path: Path
    step: int
    identity_part: dict[str, Any]
    seconds: float  # of the training up to it


def init_checkpoint(run: Run, parts: Mapping[str, Any]) -> EarlierRun | None:
    """Find what `trainer.init_from` names, for a run with these parts of its identity.

    Errors:
        ValueError: as for `checkpoint_of`, or it is of a run that got there another way.
    """
    checkpoint = checkpoint_of(run)
    if checkpoint is None:
        return None
    record = _same_way(run, parts, checkpoint)
    return EarlierRun(
        identity_part=checkpoint.identity_part, record=record, seconds=checkpoint.seconds
    )


def checkpoint_of(run: Run) -> Checkpoint | None:
    """Read the checkpoint that a run begins from, if it does.

    Errors:
        ValueError: it is no checkpoint, or of no step of this run.
    """
    if run.trainer.init_from is None:
        return None
    path = expanded(run.trainer.init_from).absolute()
    step = step_of(path)
    sums = read_json(path / CHECKSUMS) if step is not None and path.is_dir() else None
    if step is None or sums is None:
        rule = "be a checkpoint (as RUN@80, or its folder …/runs/RUN/checkpoints/step-00000080)"
        raise ValueError(f"{INIT} must {rule}, got {path}")
    try:
        state = _state(path, sums)
        # Not the state's checksum: a clock is in it, and a base run trained twice is the same.
        tensors = digest({name: sums[name] for name in (MODEL, OPTIMIZER)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{INIT} must be a complete checkpoint, got {path} ({reason})") from error
    rule = f"be the checkpoint of a step before trainer.steps={run.trainer.steps}"
    require(step < run.trainer.steps, INIT, rule, f"step {step}")
    seconds = float(sum(state["clock_s"].values()))
    identity_part = {"step": step, "tensors": tensors}
    return Checkpoint(path=path, step=step, identity_part=identity_part, seconds=seconds)


def _state(path: Path, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state of a checkpoint in this folder. `sums`: file → its SHA-256.

    Errors:
        OSError, ValueError, KeyError, TypeError: it is not there, or was changed.
    """
    content = read_bytes(path / STATE)
    is_same = hashlib.sha256(content).hexdigest() == sums[STATE]
    require(is_same, STATE, "have the checksum that was recorded for it", "another")
    state: dict[str, Any] = parse_json(content.decode())
    check_shape(state, STATE_SHAPE, path / STATE)
    return state


def _same_way(run: Run, parts: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a record says of this checkpoint, to which the run would have got the same way.

    Errors:
        ValueError: it would not, or its run is not there.
    """
    folder = checkpoint.path.parents[1]
    manifest = read_json(folder / MANIFEST) or {}
    recorded = manifest.get("parts")
    if not isinstance(recorded, dict):
        rule = "be inside the folder of a run that has manifest.json and config.yaml"
        raise ValueError(f"{INIT} must {rule}, got {checkpoint.path}")
    base = load(folder / CONFIG)
    _check_parts(parts, {**recorded, "config": config_that_counts(base)}, folder)
    _check_rates(run, base, checkpoint.step, folder)
    identity = str(manifest.get("identity"))
    return {"path": str(checkpoint.path), "step": checkpoint.step, "identity": identity}


def _check_parts(parts: Mapping[str, Any], base_parts: Mapping[str, Any], folder: Path) -> None:
    """Refuse a base run whose identity differs from this run's in a key that is not free.

    Errors:
        ValueError: there is such a key.
    """
    own = dict(flat(parts))
    base = dict(flat(base_parts))
    for key in dict.fromkeys([*own, *base]):
        if FREE.match(key) or key.startswith("init."):
            continue
        value = own.get(key, "nothing")
        base_value = base.get(key, "nothing")
        rule = f"be from a run with the same {key.removeprefix('config.')} ({value})"
        require(value == base_value, INIT, rule, f"{base_value} in {folder}")


def _check_rates(run: Run, base: Run, step: int, folder: Path) -> None:
    """Refuse a base run with another learning rate at a step before the branch.

    Errors:
        ValueError: there is such a step.
    """
    for earlier in range(step):
        rate = run.schedule.multiplier(step=earlier, steps=run.trainer.steps)
        base_rate = base.schedule.multiplier(step=earlier, steps=base.trainer.steps)
        rule = (
            f"be from a run with the same learning rates up to step {step}, where this run begins "
            f"(this run: {rate:g} of the peak at step {earlier})"
        )
        require(rate == base_rate, INIT, rule, f"{base_rate:g} in {folder}")
