"""`python -m nocap.compare`: compare any runs, arm by arm, with intervals and verdicts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config.keys import require
from nocap.store.files import write_text
from nocap.store.record import answering, writing

if TYPE_CHECKING:
    import pandas as pd

FORMS = """\
A PATH is a run's folder, a folder of runs, a grid's folder, a glob, or a name: of a run, of an arm, an identity, the beginning of one
run's name or identity, or last, looked for in outputs/runs. Several can be given; a run counts once. Runs are compared where their
losses measure the same: same validation data, vocabulary and settings. Of several such groups the largest is compared, and a line for
each other says how to compare that."""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(outside.arguments(argv))
    from nocap.config.errors import refusals  # Hydra comes with it: --help does without

    with refusals(), answering(options.json) as answer:
        answer(_compare(options))
    return 0


def frame(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """One row per run, swept config keys as columns, for a notebook.

    Errors:
        ValueError: a path holds no run.
        ModuleNotFoundError: there is no pandas.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a data frame needs pandas: pip install 'pandas>=2'") from error
    from nocap.report.rows import rows
    from nocap.store.runs import records

    return pd.DataFrame(rows(records([paths] if isinstance(paths, str | Path) else paths)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nocap.compare", description="Compare runs, arm by arm, with intervals.", epilog=FORMS)
    parser.add_argument("paths", nargs="*", metavar="PATH", default=["outputs"], help="runs to compare (default: outputs)")
    parser.add_argument(
        "--baseline", metavar="ARM", help="an arm's label or id, one of its runs, or key=value (default: the first started)"
    )
    parser.add_argument("--target", type=float, metavar="LOSS", help="also compare the time and steps to this validation loss")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row per run")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report: one file that opens offline")
    allow = "declare a difference, so that it is compared across: kernel, data, source, torch or a validation key; can be repeated"
    parser.add_argument("--allow", action="append", default=[], metavar="KEY", help=allow)
    parser.add_argument("--group", metavar="ID", help="compare this group of runs, as the line that left it out names it")
    outside.document(parser, answer="the whole comparison")
    return parser


def _compare(options: argparse.Namespace) -> Mapping[str, Any]:
    from nocap.judge.compare import compare
    from nocap.report import comparison as report
    from nocap.report.arms import render
    from nocap.report.rows import rows, to_csv
    from nocap.store.runs import load

    target = options.target
    require(target is None or 0 < target < math.inf, "--target", "be a loss above 0", target)
    comparison = compare(load(options.paths), baseline=options.baseline, target_loss=target, allow=options.allow, group=options.group)
    print(render(comparison))
    if options.csv:
        with writing("--csv", options.csv) as path:
            write_text(path, to_csv(rows(comparison.records)))
    if options.html:
        with writing("--html", options.html) as path:
            report.write(comparison, path)
    return comparison.json()


if __name__ == "__main__":
    raise SystemExit(main())
