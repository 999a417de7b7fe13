"""Draws what `nocap.dashboard` lays out: its panels of loss and speed, from the JSON that it writes
and the same runs' own rows.

    python -m nocap.dashboard GRID --json dashboard.json
    python docs/dashboard_picture.py dashboard.json GRID dashboard.png

It asks no server. A line is the mean over seeds at a step, its band their standard deviation; a bar
is the value at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

from nocap import api
from nocap.options.tracker import at_the_end
from nocap.options.tracker.wandb.names import curve_name
from nocap.store.rows_file import RowsFile

matplotlib.use("agg")
from matplotlib import pyplot  # after the choice of a backend that needs no screen

# the name of a curve in W&B → in the record
CURVES = ("val/loss", "train/loss", "perf/tokens_per_s", "perf/step_ms", "memory/model_mib")
RECORDED = {curve_name(name): name for name in CURVES}


def line(axes: Any, seeds: list[list[dict[str, Any]]], x: str, y: str, label: str) -> None:
    points: dict[int, list[tuple[float, float]]] = {}
    for row in (row for rows in seeds for row in rows if row.get(y) is not None):
        points.setdefault(row["step"], []).append((row[x], row[y]))
    whole = [list(zip(*at, strict=True)) for at in points.values() if len(at) == len(seeds)]
    xs, ys = ([fmean(values[i]) for values in whole] for i in (0, 1))
    spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in whole]
    axes.plot(xs, ys, label=label)
    axes.fill_between(
        xs,
        *([y + side * sd for y, sd in zip(ys, spread, strict=True)] for side in (-1, 1)),
        alpha=0.25,
    )
    axes.set(xlabel=x, ylabel=y)


def main(dashboard: str, grid: str, picture: str) -> None:
    sections = json.loads(Path(dashboard).read_text())["workspace"]["spec"]["section"][
        "panelBankConfig"
    ]["sections"]
    drawn = [section for section in sections if section["name"] in ("Loss", "Speed and memory")]
    panels = [panel["config"] for section in drawn for panel in section["panels"]]
    records = {record.identity: record for record in api.load(grid)}
    arms = [
        (arm["label"], [records[identity] for identity in arm["runs"]])
        for arm in api.compare(grid)["arms"]
    ]
    figure, grid_axes = pyplot.subplots(
        -(-len(panels) // 3), 3, figsize=(13, 9), layout="constrained"
    )
    for axes, panel in zip(grid_axes.flat, panels, strict=True):
        (shown,) = panel["metrics"]
        metric = RECORDED[shown]
        axes.set_title(panel["chartTitle"], fontsize="medium")
        for i, (label, runs) in enumerate(arms):
            if "xAxis" in panel:
                rows = [list(RowsFile(run.folder / "metrics.jsonl").rows()) for run in runs]
                line(axes, rows, panel["xAxis"], metric, label)
            else:
                ends = [at_the_end(run.summary)[metric] for run in runs]
                axes.barh(
                    label, fmean(ends), xerr=stdev(ends) if len(ends) > 1 else 0, color=f"C{i}"
                )
        axes.set_xlim(panel.get("xAxisMin"), panel.get("xAxisMax"))
        axes.set_ylim(panel.get("yAxisMin"), panel.get("yAxisMax"))
    grid_axes.flat[0].figure.legend(
        *grid_axes.flat[1].get_legend_handles_labels(), loc="outside lower right"
    )
    figure.savefig(picture, dpi=70)


main(*sys.argv[1:])
