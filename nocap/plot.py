"""`python -m nocap.plot`: curves of runs, in the terminal or as a picture. Also of a run that is
still training."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nocap.command_line import add_outputs, command, writing
from nocap.config import entry
from nocap.config.keys import require
from nocap.config.outgoing_text import redact, visible
from nocap.display import plural
from nocap.judge.grouping import group
from nocap.report.terminal_curves import MARKS, DrawnCurve, drawn
from nocap.row_keys import VAL_LOSS
from nocap.store.file_writing import write_file
from nocap.store.record import Record, train_s
from nocap.store.rows_file import RowsFile
from nocap.store.runs import LAST, load_runs

# of a picture's lines, which differ without colours: 28 pairs
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX"
MARKED = 0.1  # of the picture's width from one marker of a line to the next
X = {"step": "steps", "tokens": "tokens", "train_s": "seconds of training"}
Points = dict[str, list[tuple[int, float, float]]]  # identity of a run → step, x, y


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _plot, argv, answer="the curves")


def _plot(options: argparse.Namespace) -> int:
    loaded = load_runs(options.runs, outputs=options.output_dir, rows=False)
    unreadable = "; ".join(f"{name}: {why}" for name, why in loaded.unreadable.items())
    require(not loaded.unreadable, "RUN", "be a run that nocap can read", unreadable)
    for line in loaded.problems:
        print(f"nocap: {line}", file=sys.stderr)
    runs = loaded.records
    points: Points = {}
    for run in runs:
        rows = _points(run, options)
        if rows:
            points[run.identity] = rows
    after = options.after
    if after is None:
        after = _parting(points) if len(points) > 1 else 0
    curves = list(_curves(runs, points, after))
    rule = "be the name of a number that these runs logged"
    if after:
        rule += f" after step {after}"
    require(bool(curves), "--y", rule, options.y)
    if "y" in options.log:
        least = min(min(curve.low) for curve in curves)
        require(least > 0, "--log y", "be used only with values above 0", least)
    _draw(curves, options, after)
    answer = {
        "x": options.x,
        "y": options.y,
        "after": after,
        "curves": [curve._asdict() for curve in curves],
    }
    options.answer(answer)
    return 0


def _draw(curves: Sequence[DrawnCurve], options: argparse.Namespace, after: int) -> None:
    """Draw the curves in the terminal, or into the picture's file."""
    x = X[options.x]
    if after:
        x += f" from step {after} on"
    if options.png is not None:
        with writing("--png", options.png) as path:
            write_file(path, _png(curves, x=x, y=options.y, log=options.log))
        return
    rule = f"name runs of at most {len(MARKS)} arms for curves in the terminal (--png draws more)"
    require(len(curves) <= len(MARKS), "RUN", rule, len(curves))
    print(drawn(curves, x=x, y=options.y, log=options.log))


def _parser() -> argparse.ArgumentParser:
    about = (
        "Draw curves of finished or unfinished runs. For several runs, draw a curve for each arm: "
        "the mean over its seeds, with a band from the lowest to the highest seed."
    )
    epilog = (
        "--y takes any key of metrics.jsonl: val/loss, train/loss, val/bpb, "
        "perf/tokens_per_s, train/grad_norm, …"
    )
    parser = argparse.ArgumentParser(prog="python -m nocap.plot", description=about, epilog=epilog)
    runs = (
        "a name, the beginning of a name, an identity, a folder, a grid, a glob, or last (default)"
    )
    parser.add_argument("runs", nargs="*", default=[LAST], metavar="RUN", help=runs)
    parser.add_argument(
        "--x", choices=list(X), default="step", help="the x axis (default: %(default)s)"
    )
    parser.add_argument(
        "--y", metavar="KEY", default=VAL_LOSS, help="the curve to draw (default: %(default)s)"
    )
    parser.add_argument(
        "--log",
        choices=("x", "y", "xy"),
        default="",
        help="use logarithmic axes; the x axis then begins above 0",
    )
    after = (
        "leave out the steps before this step (default: 0; for several runs nocap leaves out the "
        "first tenth if it would flatten the rest)"
    )
    parser.add_argument("--after", type=int, metavar="STEP", help=after)
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="write a picture with matplotlib, and draw nothing in the terminal",
    )
    add_outputs(parser)
    return parser


def _points(run: Record, options: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Step, x and y of the rows that have them."""
    points = []
    for row in RowsFile(run.folder / "metrics.jsonl").rows():
        x = train_s(row) if options.x == "train_s" else row.get(options.x)
        y = row.get(options.y)
        if x is None or y is None:
            continue
        if x > 0 or "x" not in options.log:
            points.append((row["step"], x, y))
    return points


def _parting(points: Points) -> int:
    """Return the step from which the curves part: the first tenth is left out where it takes a
    third of the height or more. 0: it does not."""
    rows = [row for run in points.values() for row in run]
    cut = max(step for step, _, _ in rows) // 10
    for run in points.values():
        late = [step for step, _, _ in run if step >= cut]
        if len(late) < 2:
            return 0
    height = float(np.ptp([y for _, _, y in rows]))
    late_height = float(np.ptp([y for step, _, y in rows if step >= cut]))
    if 3 * late_height > 2 * height:
        return 0
    return cut


def _curves(runs: Sequence[Record], points: Points, after: int) -> Iterator[DrawnCurve]:
    """Yield one run by its name; several by arm, as far as all seeds have come."""
    arms: list[tuple[str, Sequence[Record]]]
    if len(runs) > 1:
        arms = [(arm.label, arm.all) for arm in group(runs, ended=False)]
    else:
        arms = [(run.folder.name, runs) for run in runs]
    for label, members in arms:
        lines = []
        for run in members:
            line = [row[1:] for row in points.get(run.identity, ()) if row[0] >= after]
            if line:
                lines.append(np.array(line))
        if not lines:
            continue
        x = _common_x(lines)
        if len(x) == 0:
            continue
        y = np.array([np.interp(x, *line.T) for line in lines])
        title = label
        if len(lines) > 1:
            title = f"{label} ({plural(len(lines), 'seed')})"
        mean = y.mean(0).tolist()
        low = y.min(0).tolist()
        high = y.max(0).tolist()
        yield DrawnCurve(title, x.tolist(), mean, low, high)


def _common_x(lines: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Return every x of these lines that lies within all of them."""
    x = np.unique(np.concatenate([line[:, 0] for line in lines]))
    first = max(line[0, 0] for line in lines)
    last = min(line[-1, 0] for line in lines)
    return x[(first <= x) & (x <= last)]


def _png(curves: Sequence[DrawnCurve], *, x: str, y: str, log: str) -> bytes:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ValueError(
            "--png needs matplotlib: pip install 'matplotlib>=3.9'; without --png, nocap draws "
            "in the terminal"
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
