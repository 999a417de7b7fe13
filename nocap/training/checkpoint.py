"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, checksums last.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json` and `manifest.json`, the files' SHA-256. It is
written beside its place under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nocap.training.optimizer import Kind, Optimizers, kinds_of

Tensors = dict[str, dict[str, Tensor]]
Kept = dict[Kind, dict[str, "Leaf"]]  # "INDEX/FIELD" that is kept of such a parameter, and what it is
Plain = dict[str, Any]  # what is no tensor, as JSON types
PLAIN = (bool, int, float, str, type(None))


class Leaf(Enum):
    """What an optimizer keeps under one name, as far as it can be told from a small parameter."""

    whole = "whole"  # as large as the parameter
    scalar = "scalar"
    other = "other"  # a tensor of another shape
    nest = "nest"  # lists or dicts of tensors


class UnsavableError(TypeError):
    """A part of a state is neither a tensor nor plain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a checkpoint folder has: its newest valid checkpoint, and what is wrong with those that are not."""

    step: int
    path: Path | None
    invalid: list[str]


class Writer:
    """Saves checkpoints below `root`, and keeps the newest ones and those of the steps in `always`.

    In the background the caller waits for a copy of the tensors, not for the disk: for a device with memory of its own. On a CPU the copy
    would enter the run's memory, and the writing would take a core from the training.
    """

    def __init__(self, root: Path, *, background: bool, always: Collection[int] = ()) -> None:
        self.root, self._always = root, frozenset(always)
        self._pool = ThreadPoolExecutor(1) if background else None
        self._pending: Future[list[str]] | None = None

    def save(self, *, step: int, model: nn.Module, optimizers: Optimizers, state: dict[str, Any], keep: int, must: bool) -> list[str]:
        """Save, then delete all but the newest `keep` valid ones; what a person should know of it and of the save before, line by line.

        A disk that does not take it gets room (of the older ones only the newest valid one stays, and those that always do) and a second
        try. If that fails, too, the older ones stand.

        Errors:
            OSError: that, where the checkpoint `must` be saved.
        """
        said = self.settle()
        tensors, plain = snapshot(model, optimizers, copy=self._pool is not None)
        state = {"step": step, **state, "optimizer": plain}
        if self._pool is not None and not must:
            self._pending = self._pool.submit(self._save, tensors, state, keep, must)
            return said
        return said + self._save(tensors, state, keep, must)

    def settle(self) -> list[str]:
        """Wait for what is being written in the background; its lines."""
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else []

    def _save(self, tensors: Tensors, state: dict[str, Any], keep: int, must: bool) -> list[str]:
        for last_try in (False, True):
            try:
                write(self.root, tensors=tensors, state=state)
                return prune(self.root, keep=keep, always=self._always)
            except (OSError, SafetensorError) as error:  # safetensors wraps its own
                shutil.rmtree(_temporary(self.root, state["step"]), ignore_errors=True)
                line = f"checkpoint of step {state['step']} not saved: {error}; those before it stand"
                if last_try and must:
                    raise OSError(line) from error
                prune(self.root, keep=1, always=self._always)
        return [line]


def snapshot(model: nn.Module, optimizers: Optimizers, *, copy: bool) -> tuple[Tensors, Plain]:
    """File → name → tensor on the CPU, and what the optimizers keep besides tensors; with `copy`, as it is now whatever the next step does.

    Errors:
        UnsavableError: an optimizer keeps what is neither a tensor nor plain.
    """
    # A tied matrix has two names and one place in named_parameters: safetensors must see it once.
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    leaves = {
        key: leaf
        for index, optimizer in enumerate(optimizers)
        for p, fields in optimizer.state.items()
        for key, leaf in _leaves(f"{index}/{names[p]}", fields)
    }
    moments = {key: leaf for key, leaf in leaves.items() if isinstance(leaf, Tensor)}
    plain = {"state": {key: leaf for key, leaf in leaves.items() if key not in moments}, "groups": _groups(optimizers)}
    files = {"model.safetensors": _held(model), "optimizer.safetensors": moments}
    return {file: {name: t.to("cpu", copy=copy).contiguous() for name, t in tensors.items()} for file, tensors in files.items()}, plain


def restore(model: nn.Module, optimizers: Optimizers, *, tensors: Tensors, plain: Plain) -> None:
    """The opposite of `snapshot`."""
    put_weights(model, tensors["model.safetensors"])
    names, by_parameter = dict(model.named_parameters()), dict[tuple[int, str], dict[str, Any]]()
    for key, leaf in {**tensors["optimizer.safetensors"], **plain.get("state", {})}.items():
        index, name, path = key.split("/", 2)
        value = leaf.to(names[name].device) if isinstance(leaf, Tensor) else leaf
        by_parameter.setdefault((int(index), name), {})[path] = value
    for (number, name), fields in by_parameter.items():
        optimizers[number].state[names[name]] = _tree(fields)
    for optimizer, groups in zip(optimizers, plain.get("groups", ()), strict=False):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update({key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in values.items()})


def put_weights(model: nn.Module, saved: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _held(model).items():
            tensor.copy_(saved[name])


def _held(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: its parameters, and the buffers that a module declares persistent."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: t for name, t in model.state_dict().items() if name in {name for name, _ in model.named_buffers()}}
    return weights | buffers


def _leaves(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values of a nest of dicts and lists, by their paths; a list's places are [0], [1], …"""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(f"{path}/{key}", one)
    elif isinstance(value, list | tuple) and value:
        for i, one in enumerate(value):
            yield from _leaves(f"{path}/[{i}]", one)
    elif isinstance(value, (Tensor, *PLAIN)) or value in ([], ()):
        yield path, value
    else:
        raise UnsavableError(f"got {type(value).__name__} in {path}")


def _tree(leaves: Mapping[str, Any]) -> Any:
    """The nest that has these leaves."""
    if "" in leaves:
        return leaves[""]
    branches: dict[str, dict[str, Any]] = {}
    for path, leaf in leaves.items():
        head, _, rest = path.partition("/")
        branches.setdefault(head, {})[rest] = leaf
    grown = {head: _tree(inner) for head, inner in branches.items()}
    return list(grown.values()) if all(head.startswith("[") for head in grown) else grown


def _groups(optimizers: Optimizers) -> list[list[Plain]]:
    """What the optimizers keep in their groups: rates, and whatever else they count there."""
    return [
        [{key: value for key, value in group.items() if key != "params" and _is_plain(value)} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def _is_plain(value: object) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


def write(root: Path, *, tensors: Tensors, state: dict[str, Any]) -> Path:
    """Write the checkpoint of `state["step"]` and return its folder. `state` holds JSON types only."""
    path, temporary = root / name_of(state["step"]), _temporary(root, state["step"])
    root.mkdir(exist_ok=True)
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    temporary.mkdir()
    for name, content in tensors.items():
        save_file(content, temporary / name)
    (temporary / "state.json").write_text(as_json(state))
    sums = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
    for name in sums:
        _sync(temporary / name)
    (temporary / "manifest.json").write_text(json.dumps(sums))
    _sync(temporary / "manifest.json")
    _sync(temporary)
    if path.exists():  # an invalid one: a valid one would have been resumed from
        shutil.rmtree(path)
    temporary.rename(path)
    _sync(root)
    return path


def as_json(state: Plain) -> str:
    """The state as text.

    Errors:
        UnsavableError: it holds a number that JSON has not.
    """
    try:
        return json.dumps(state, allow_nan=False)
    except ValueError as error:
        raise UnsavableError(f"got a number that is none ({error})") from error


def name_of(step: int) -> str:
    """A checkpoint folder's name."""
    return f"step-{step:08d}"


def _temporary(root: Path, step: int) -> Path:
    return root / f".{name_of(step)}.tmp"


def find(root: Path, *, fits: Callable[[Path], str | None] = lambda path: None) -> Found:
    """The newest checkpoint whose files all match their checksums, and which `fits`. Step 0 and no path where there is none."""
    invalid: list[str] = []
    for path in sorted(root.glob("step-*"), reverse=True):
        found = given(path, fits=fits)
        if found.path is not None:
            return Found(step=found.step, path=path, invalid=invalid)
        invalid += found.invalid
    return Found(step=0, path=None, invalid=invalid)


def given(path: Path, *, fits: Callable[[Path], str | None]) -> Found:
    """The checkpoint in this folder, as `find` finds one: valid, or with what is wrong with it."""
    if problem := _problem(path) or fits(path):
        return Found(step=0, path=None, invalid=[f"{path}: {problem}"])
    return Found(step=int(path.name.removeprefix("step-")), path=path, invalid=[])


def misfit(path: Path, *, model: nn.Module, kept: Kept) -> str | None:
    """Why a checkpoint that is whole is not one of this model and of optimizers that keep so much, or `None`. Reads names and shapes, no
    tensor."""
    kinds, shapes = kinds_of(model), _weights(model)
    expected: dict[str, list[int] | None] = {}  # None: of a shape that is not known
    nests: set[str] = set()
    for name, kind in kinds.items():
        for field, leaf in kept[kind].items():
            index, _, word = field.partition("/")
            expected[f"{index}/{name}/{word}"] = {Leaf.whole: shapes[name], Leaf.scalar: []}.get(leaf)
            nests |= {f"{index}/{name}/{word}"} if leaf is Leaf.nest else set()
    found: dict[str, list[int] | None] = {}
    for key, shape in _shapes(path / "optimizer.safetensors").items():
        top = "/".join(key.split("/")[:3])
        found[top if top in nests else key] = None if expected.get(key) is None else shape
    return _differ("model.safetensors", _shapes(path / "model.safetensors"), shapes) or _differ("optimizer.safetensors", found, expected)


def _weights(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(t.shape) for name, t in _held(model).items()}


def _differ(file: str, found: Mapping[str, object], expected: Mapping[str, object]) -> str | None:
    """Where a file's names and shapes are not the expected ones."""
    differing = sorted(
        name for name in found.keys() | expected.keys() if (name in found, found.get(name)) != (name in expected, expected.get(name))
    )
    return f"{file} must hold what this run's model has, and differs in {differing[0]}" if differing else None


def load(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers, which it must fit; return its state."""
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    files = ("model.safetensors", "optimizer.safetensors")
    restore(model, optimizers, tensors={name: load_file(path / name) for name in files}, plain=state.get("optimizer", {}))
    return state


def load_model(path: Path, model: nn.Module) -> None:
    """Put a checkpoint's weights into the model.

    Errors:
        ValueError: they are another model's.
    """
    if problem := _differ("model.safetensors", _shapes(path / "model.safetensors"), _weights(model)):
        raise ValueError(f"{path}: {problem}")
    put_weights(model, load_file(path / "model.safetensors"))


def prune(root: Path, *, keep: int, always: Collection[int] = ()) -> list[str]:
    """Delete all but the newest `keep` valid checkpoints, every checksum read again, and those of the steps in `always`.

    Invalid ones do not count, and go when they are older than a kept one. Returns a line for each that stays.
    """
    kept, said, spared = 0, [], {name_of(step) for step in always}
    for path in sorted(root.glob("step-*"), reverse=True):
        if kept >= keep:
            if path.name not in spared:
                shutil.rmtree(path)
        elif problem := _problem(path):
            said.append(f"checkpoint not counted: {path}: {problem}")
        else:
            kept += 1
    return said


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, framework="pt") as file:
        return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  # it is no dict


def _problem(path: Path) -> str | None:
    """Why the checkpoint cannot be used, or `None`. Nothing in it is executed: tensors are read as safetensors, the rest as JSON."""
    try:
        sums = json.loads((path / "manifest.json").read_text())
        expected = {"model.safetensors", "optimizer.safetensors", "state.json"}
        if set(sums) != expected:
            return f"manifest.json names {sorted(sums)}, not {sorted(expected)}"
    except (OSError, ValueError, TypeError, RecursionError) as error:
        return f"manifest.json cannot be read ({error})"
    for name in sorted(sums):
        try:
            if not (path / name).is_file():
                return f"{name} is missing"
            if _sha256(path / name) != sums[name]:
                return f"{name} does not match its checksum"
            if name == "state.json":
                state = json.loads((path / name).read_text())
                if not isinstance(state, dict) or path.name != name_of(state.get("step", -1)):
                    return f"{name} must be of the step in the folder's name"
            else:
                _shapes(path / name)
        except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            return f"{name} cannot be read ({error})"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Force a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
