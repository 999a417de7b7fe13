"""What makes two runs the same run: config with its seed, source of what training imports, data, environment."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nocap import hardware
from nocap.run.config import to_plain
from nocap.schema import Device, Run

STORY = "nocap.loop"  # the import closure of this module is the source that counts

# Keys that change how a run is shown, kept or spread, but no number in it.
_PRESENTATION = {
    "": ("tracker", "output_dir", "cache_dir"),
    "trainer": (
        "devices",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_steps",
        "init_from",  # where the checkpoint lies; which it is is a part of its own
        "log_every",
        "max_restarts",
        "hang_timeout_s",
    ),
    "data": ("path", "train", "val"),  # where the tokens lie; which they are is the data's fingerprint
}


def identity_parts(run: Run, *, data_fingerprint: str) -> dict[str, Any]:
    """The parts, each comparable by itself: `nocap.compare --why` shows where two runs part ways.

    A run with `trainer.init_from` has one more, `init`: see `nocap.launch.trunk`.
    """
    on_cpu = run.trainer.device is Device.cpu
    return {
        "config": config_that_counts(run),
        "source": source_hashes(),
        "data": data_fingerprint,
        "environment": {
            "torch": hardware.torch_build()["version"],
            "device": hardware.device_name(run.trainer.device),
            "threads": run.trainer.threads if on_cpu else None,
        },
    }


def config_that_counts(run: Run) -> dict[str, Any]:
    """The resolved config without presentation keys."""
    config = copy.deepcopy(to_plain(run))
    for group, keys in _PRESENTATION.items():
        branch = config[group] if group else config
        for key in keys:
            branch.pop(key, None)
    if run.trainer.device is Device.cuda:
        config["trainer"].pop("threads")
    return config


def digest(parts: Mapping[str, Any]) -> str:
    """Twelve hex digits of the parts' canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@cache
def source_hashes() -> dict[str, str]:
    """Module → hash of its code, for `STORY` and every nocap module it imports, directly or not. Comments and docstrings do not count."""
    hashes: dict[str, str] = {}
    waiting = [STORY]
    while waiting:
        module = waiting.pop()
        path = _module_path(module)
        if module in hashes or path is None:
            continue
        tree = ast.parse(path.read_text())
        waiting += _imports(tree)
        hashes[module] = hashlib.sha256(ast.unparse(_without_docstrings(tree)).encode()).hexdigest()[:12]
    return hashes


def _module_path(module: str) -> Path | None:
    if module.partition(".")[0] != "nocap":
        return None
    base = Path(__file__).resolve().parents[1].joinpath(*module.split(".")[1:])
    found = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    return found[0] if found else None


def _imports(tree: ast.Module) -> list[str]:
    """Names that an import anywhere in the module may mean; names that are no module are dropped later."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
