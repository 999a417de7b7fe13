"""`python -m nocap.plot`: curves of runs, in the terminal or as a picture. Also of a run that is
still training."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nocap.command_line import add_outputs, command, writing
from nocap.config import entry
from nocap.config.keys import require
from nocap.config.outward import redact, visible
from nocap.display import plural
from nocap.judge.grouping import group
from nocap.report.drawing import MARKS, DrawnCurve, drawn
from nocap.store.files import write_file
from nocap.store.record import Metrics
from nocap.store.runs import LAST, Record, train_s
from nocap.store.runs import load_runs as load

# of a picture's lines, which differ without colours: 28 pairs
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX"
MARKED = 0.1  # of the picture's width from one marker of a line to the next
X = {"step": "steps", "tokens": "tokens", "train_s": "seconds of training"}
Points = dict[str, list[tuple[int, float, float]]]  # identity of a run → step, x, y


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _plot, argv, answer="the curves")


def _plot(options: argparse.Namespace) -> int:
    loaded = load(options.runs, outputs=options.output_dir, rows=False)
    require(
        not loaded.unreadable, "RUN", "have a sound record", "; ".join(loaded.unreadable.values())
    )
    for line in loaded.problems:
        print(f"nocap: {line}", file=sys.stderr)
    runs = loaded.records
    points = {run.identity: rows for run in runs if (rows := _points(run, options))}
    after = (
        options.after if options.after is not None else _parting(points) if len(points) > 1 else 0
    )
    curves = list(_curves(runs, points, after))
    rule = f"be in the rows of these runs as a number{f' after step {after}' if after else ''}"
    require(bool(curves), "--y", rule, options.y)
    least = min(min(curve.low) for curve in curves)
    require(
        "y" not in options.log or least > 0,
        "--log",
        "be left out for y, which is not above 0 everywhere",
        least,
    )
    axes = {
        "x": f"{X[options.x]} from step {after} on" if after else X[options.x],
        "y": options.y,
        "log": options.log,
    }
    if options.png is None:
        require(
            len(curves) <= len(MARKS),
            "RUN",
            f"be at most {len(MARKS)} arms in a terminal (--png takes more)",
            len(curves),
        )
        print(drawn(curves, **axes))
    else:
        with writing("--png", options.png) as path:
            write_file(path, _png(curves, **axes))
    options.answer(
        {
            "x": options.x,
            "y": options.y,
            "after": after,
            "curves": [curve._asdict() for curve in curves],
        }
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    about = (
        "Curves of runs, finished or not. Several are drawn by arm: the mean over its seeds, "
        "in a band from lowest to highest."
    )
    epilog = (
        "--y takes any key of metrics.jsonl: val/loss, train/loss, val/bpb, "
        "perf/tokens_per_s, train/grad_norm, …"
    )
    parser = argparse.ArgumentParser(prog="python -m nocap.plot", description=about, epilog=epilog)
    runs = "a name, its beginning, an identity, last (the default), a folder, a grid, a glob"
    parser.add_argument("runs", nargs="*", default=[LAST], metavar="RUN", help=runs)
    parser.add_argument(
        "--x", choices=list(X), default="step", help="the axis (default: %(default)s)"
    )
    parser.add_argument(
        "--y", metavar="KEY", default="val/loss", help="what is drawn (default: %(default)s)"
    )
    parser.add_argument(
        "--log",
        choices=("x", "y", "xy"),
        default="",
        help="which axes are logarithmic; x begins above 0",
    )
    after = (
        "leave out the steps before this one (default: of several runs the first tenth, "
        "where it squeezes the rest; else 0)"
    )
    parser.add_argument("--after", type=int, metavar="STEP", help=after)
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="write a picture, with matplotlib, and draw nothing",
    )
    add_outputs(parser)
    return parser


def _points(run: Record, options: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Step, x and y of the rows that have them."""
    rows = Metrics(run.folder / "metrics.jsonl").rows()
    points = [
        (
            row["step"],
            train_s(row) if options.x == "train_s" else row.get(options.x),
            row.get(options.y),
        )
        for row in rows
    ]
    return [
        (step, x, y)
        for step, x, y in points
        if x is not None and y is not None and (x > 0 or "x" not in options.log)
    ]


def _parting(points: Points) -> int:
    """Return the step from which the curves part: the first tenth is left out where it takes a
    third of the height or more. 0: it does not."""
    rows = [(step, y) for run in points.values() for step, _, y in run]
    cut = max(step for step, _ in rows) // 10
    late = [y for step, y in rows if step >= cut]
    few = min(sum(step >= cut for step, _, _ in run) for run in points.values()) < 2
    return 0 if few or 3 * float(np.ptp(late)) > 2 * float(np.ptp([y for _, y in rows])) else cut


def _curves(runs: Sequence[Record], points: Points, after: int) -> Iterator[DrawnCurve]:
    """Yield one run by its name; several by arm, as far as all seeds have come."""
    arms = (
        [(arm.label, arm.all) for arm in group(runs, ended=False)]
        if len(runs) > 1
        else [(run.folder.name, runs) for run in runs]
    )
    for label, members in arms:
        lines = [
            np.array(line)
            for run in members
            if (line := [row[1:] for row in points.get(run.identity, ()) if row[0] >= after])
        ]
        x = np.unique(np.concatenate([line[:, 0] for line in lines])) if lines else np.empty(0)
        x = x[[all(line[0, 0] <= at <= line[-1, 0] for line in lines) for at in x]]
        if len(x):
            y = np.array([np.interp(x, *line.T) for line in lines])
            told = f"{label} ({plural(len(lines), 'seed')})" if len(lines) > 1 else label
            yield DrawnCurve(
                told, *(values.tolist() for values in (x, y.mean(0), y.min(0), y.max(0)))
            )


def _png(curves: Sequence[DrawnCurve], *, x: str, y: str, log: str) -> bytes:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ValueError(
            "--png needs matplotlib: pip install 'matplotlib>=3.9'; without --png, the terminal "
            "shows it"
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"text.parse_math": False}):  # a name is text, whatever it holds
        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        for index, curve in enumerate(curves):
            (line,) = axes.plot(
                curve.x,
                curve.y,
                label=redact(visible(curve.label)),
                linewidth=1.2,
                linestyle=DASHES[index % len(DASHES)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=4,
                markevery=(MARKED * index / len(curves), MARKED),
            )
            axes.fill_between(
                curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0
            )
        axes.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log})
        for axis in [getattr(axes, f"{axis}axis") for axis in log]:
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
        axes.legend(fontsize="small")
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150)
        pyplot.close(figure)
    return file.getvalue()


if __name__ == "__main__":
    entry.run(main)
