"""The state that Hugging Face's Trainer saves, `trainer_state.json`. A run has one in its folder,
and one in each `checkpoint-STEP`, of which each is a beginning of the next: the furthest counts. It
names no seed. `train_loss` of its last row is the mean over the run, and `train_runtime` counts
validations too. A validation after training stands at the step of the last one before it, and
replaces that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.sources.log_reading import Row, Sample, opened

PATTERN = "*.json"
NAME = "trainer_state.json"


def recognises(sample: Sample) -> bool:
    text = sample.text
    return text.lstrip().startswith("{") and '"log_history"' in text and '"best_metric"' in text


def run_of(path: Path) -> str:
    folder = path.parent
    if re.fullmatch(r"checkpoint-\d+", folder.name):
        return str(folder.parent)
    return str(folder if path.name == NAME else path)


def read(*paths: Path) -> Iterator[Row]:
    states = [_state(path) for path in paths]
    state = max(states, key=lambda each: each["global_step"])
    yield {"total_steps": state["max_steps"]}
    history = state["log_history"]
    validations = {
        row.get("step"): row for row in history if "eval_loss" in row
    }  # the last of a step
    for row in history:
        if "eval_loss" in row and row is not validations[row.get("step")]:
            continue
        yield {
            key: value for key, value in row.items() if key not in ("train_loss", "train_runtime")
        }
    yield {"step": state["global_step"]}


def _state(path: Path) -> dict[str, Any]:
    with opened(path) as file:
        try:
            state: dict[str, Any] = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the file must be complete JSON ({error})") from None
    keys = {"global_step": int, "max_steps": int, "log_history": list}
    for key, kind in keys.items():
        require(
            isinstance(state.get(key), kind), key, f"have the type {kind.__name__}", state.get(key)
        )
    require(
        all(isinstance(row, dict) for row in state["log_history"]),
        "log_history",
        "hold only JSON objects",
        "other types",
    )
    return state
