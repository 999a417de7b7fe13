"""Sessions of one bench, which may come from several days, judged together: the same judge as of a
bench, with a session where that has a round. Three sessions make a verdict.

    python experiments/gpu_day/sessions.py OPTIONS.json …

All must be of one chip and torch, and have the same baseline. An arm counts where all of them have
measured it, in the same configuration. Whether the code of the step is the same, these files do not
say.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.judge import speeds
from nocap.judge.losses import Difference
from nocap.report.table import Column, Table
from nocap.report.words import measured, values
from nocap.store.metrics import METRICS, Scale
from nocap.store.record import read_json


def read(path: Path) -> dict[str, Any]:
    """Return a bench's JSON.

    Errors:
        ValueError: it is none, or its baseline was not measured.
    """
    content = read_json(path)
    is_bench = content is not None and content.get("kind") == "bench"
    require(is_bench, str(path), "be the JSON of nocap.bench", "another file, or none")
    assert content is not None
    has_times = content["arms"][0]["tokens_per_s"] and content["control"]["tokens_per_s"]
    require(bool(has_times), str(path), "have a baseline and a control that were measured", "none")
    return content


def same(name: str, found: list[Any]) -> None:
    """Refuse sessions that differ in what must be the same."""
    require(all(one == found[0] for one in found), name, "be the same in all sessions", found)


def arms_of(sessions: list[dict[str, Any]]) -> list[str]:
    """List the labels that all sessions measured in one configuration, the baseline first."""
    first, *others = [{arm["label"]: arm for arm in session["arms"]} for session in sessions]
    labels = list[str]()
    for label, arm in first.items():
        alike = [other[label] for other in others if label in other]
        alike = [
            other for other in alike if other["config"] == arm["config"] and other["tokens_per_s"]
        ]
        if arm["tokens_per_s"] and len(alike) == len(others):
            labels.append(label)
    return labels


def judged(sessions: list[dict[str, Any]]) -> Table:
    """Return the arms with their speed over the baseline's, and the word for it.

    Errors:
        ValueError: the sessions cannot be judged together.
    """
    same("the chip", [session["hardware"]["name"] for session in sessions])
    same("torch", [session["hardware"]["torch"] for session in sessions])
    starts = [session["started"] for session in sessions]
    require(len({*starts}) == len(starts), "sessions", "be given once each", ", ".join(starts))
    labels = arms_of(sessions)
    first = sessions[0]["arms"][0]["label"]
    require(first in labels, "the baseline", "be the same in all sessions", first)
    speed = {label: [_speed(session, label) for session in sessions] for label in labels}
    control = [session["control"]["tokens_per_s"] for session in sessions]
    seconds_RI = 1 / np.array([control, *speed.values()]).T
    found = speeds.judge(seconds_RI)
    rows = [_row(first, speed[first], None), _row("  again (control)", control, found.control)]
    for label, difference in zip(labels[1:], found.arms, strict=True):
        rows.append(_row(label, speed[label], difference))
    columns = [
        Column(title="arm"),
        values("tokens_per_s", "tokens/s"),
        Column(
            title="speed", show=lambda ratio: measured(ratio, METRICS["tokens_per_s"], Scale.ratio)
        ),
        Column(title="verdict"),
    ]
    hardware = sessions[0]["hardware"]
    title = f"{hardware['name']}, torch {hardware['torch']}; sessions of {', '.join(starts)}"
    return Table(title=title, columns=columns, rows=rows, notes=["three sessions make a verdict"])


def _speed(session: dict[str, Any], label: str) -> float:
    (arm,) = [arm for arm in session["arms"] if arm["label"] == label]
    return float(arm["tokens_per_s"])


def _row(label: str, tokens_per_s: list[float], difference: Difference | None) -> list[object]:
    mean = math.exp(sum(map(math.log, tokens_per_s)) / len(tokens_per_s))
    if difference is None:
        return [label, mean, None, "baseline"]
    return [label, mean, difference.estimate.exp(), difference.verdict]


def main() -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("files", nargs="+", type=Path, metavar="OPTIONS.json")
    with refusals():
        print(judged([read(path) for path in flags.parse_args().files]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
