"""Draws what W&B's own page of a project has of a grid, before anybody arranges it: a panel for
each metric that is not hidden, in sections that are sorted by name, as the runs send them.

    python docs/workspace_picture.py GRID workspace.png

It asks no server.
"""

from __future__ import annotations

import sys

import matplotlib

from nocap import api
from nocap.options.tracker.wandb.names import AXES, curve_name
from nocap.store.rows_file import Row, RowsFile

matplotlib.use("agg")
from matplotlib import pyplot  # after the choice of a backend that needs no screen


def drawn(row: Row) -> dict[str, float]:
    """The metrics of a row that have a panel, by their names in W&B."""
    shown = {curve_name(name): value for name, value in row.items() if value is not None}
    return {
        name: value for name, value in shown.items() if name not in AXES and name[:6] != "clock/"
    }


def main(grid: str, picture: str) -> None:
    curves = dict[str, dict[str, list[tuple[int, float]]]]()  # metric → run → points
    for record in api.load(grid):
        for row in RowsFile(record.folder / "metrics.jsonl").rows():
            for name, value in drawn(row).items():
                points = curves.setdefault(name, {}).setdefault(record.identity, [])
                points.append((row["step"], value))
    figure, places = pyplot.subplots(-(-len(curves) // 3), 3, figsize=(13, 8), layout="constrained")
    for axes, name in zip(places.flat, sorted(curves), strict=False):
        axes.set_title(name, fontsize="medium")
        for points in curves[name].values():
            axes.plot(*zip(*points, strict=True), linewidth=1)
    for axes in places.flat[len(curves) :]:
        axes.set_axis_off()
    figure.savefig(picture, dpi=70)


main(*sys.argv[1:])
