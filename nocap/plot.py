"""`python -m nocap.plot`: curves of runs, in the terminal or as a picture. Also of a run that is still training."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from nocap import outside
from nocap.config.keys import require
from nocap.config.outward import redact, visible
from nocap.report.drawing import MARKS, Curve, drawn
from nocap.store.files import write_file
from nocap.store.record import Metrics, writing
from nocap.store.runs import OUTPUTS, find, read, train_s

X = {"step": "steps", "tokens": "tokens", "train_s": "seconds of training"}


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(outside.arguments(argv))
    from nocap.config.errors import refusals  # Hydra comes with it: --help does without

    with refusals():
        runs = {run.resolve(): run for word in options.runs for run in find(word, outputs=options.output_dir)}
        curves = list(_curves(runs.values(), options))
        rule = f"be in the rows of these runs as a number{f' after step {options.after}' if options.after else ''}"
        require(bool(curves), "--y", rule, options.y)
        if options.png is None:
            require(len(curves) <= len(MARKS), "RUN", f"be at most {len(MARKS)} runs in a terminal (--png takes more)", len(curves))
            print(drawn(curves, x=X[options.x], y=options.y))
        else:
            with writing("--png", options.png) as path:
                write_file(path, _png(curves, x=X[options.x], y=options.y))
    return 0


def _parser() -> argparse.ArgumentParser:
    epilog = "--y takes any key of metrics.jsonl: val/loss, train/loss, val/bpb, perf/tokens_per_s, train/grad_norm, …"
    parser = argparse.ArgumentParser(prog="python -m nocap.plot", description="Curves of runs, finished or not.", epilog=epilog)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a name, its beginning, an identity, last, a folder, a grid, a glob")
    parser.add_argument("--x", choices=list(X), default="step", help="the axis (default: %(default)s)")
    parser.add_argument("--y", metavar="KEY", default="val/loss", help="what is drawn (default: %(default)s)")
    parser.add_argument("--after", type=int, default=0, metavar="STEP", help="leave out the steps before this one")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a picture, with matplotlib, and draw nothing")
    parser.add_argument("--output-dir", type=Path, default=OUTPUTS, metavar="DIR", help=f"where the runs are (default: {OUTPUTS})")
    outside.document(parser)
    return parser


def _curves(runs: Iterable[Path], options: argparse.Namespace) -> Iterator[Curve]:
    """Of the runs that have these numbers.

    Errors:
        ValueError: a record is not what nocap wrote.
    """
    for run in runs:
        read(run, rows=False)
        rows = [row for row in Metrics(run / "metrics.jsonl").rows() if row["step"] >= options.after]
        points = [(train_s(row) if options.x == "train_s" else row.get(options.x), row.get(options.y)) for row in rows]
        whole = [(float(x), float(y)) for x, y in points if x is not None and y is not None]
        if whole:
            yield run.name, [x for x, _ in whole], [y for _, y in whole]


def _png(curves: list[Curve], *, x: str, y: str) -> bytes:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ValueError("--png needs matplotlib: pip install 'matplotlib>=3.9'; without --png, the terminal shows it") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"text.parse_math": False}):  # a name is text, whatever it holds
        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        for label, xs, ys in curves:
            axes.plot(xs, ys, label=redact(visible(label)), linewidth=1.2)
        axes.set(xlabel=x, ylabel=y)
        axes.legend(fontsize="small")
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150)
        pyplot.close(figure)
    return file.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
