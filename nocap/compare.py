"""`python -m nocap.compare`: compare any runs, arm by arm, with intervals and verdicts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config import entry
from nocap.config.keys import EXIT_CODES, require
from nocap.store.command import command, writing
from nocap.store.files import write_text

if TYPE_CHECKING:
    from nocap.judge.compare import Comparison
    from nocap.store.runs import Found

FORMS = """\
A PATH is a run's folder, a folder of runs, a grid's folder, a glob, or a name: of a run, of an arm, an
identity, the beginning of one run's name or identity, or last, looked for in outputs/runs. Several can be
given; a run counts once. Runs are compared where their losses measure the same: same validation data,
vocabulary and settings. Of several such groups the largest is compared, and a line for each other says how to
compare that.

A PATH can also be a log of another trainer, or a folder of such: JSON lines, CSV, W&B, modded-nanogpt, or a
--format of your own. Each folder that holds logs is an arm (docs/logs.md)."""


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _compare, argv, answer="the whole comparison")


def _compare(options: argparse.Namespace) -> int:
    from nocap.report.arms import render

    comparison, changed = _verify(options) if options.verify else (judge(options), [])
    if not options.verify:
        print(render(comparison))
    _write(comparison, options)
    return EXIT_CODES["failed" if changed else "finished"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.compare", description="Compare runs, arm by arm, with intervals.", epilog=FORMS
    )
    add_question(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row per run")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report: one file that opens offline"
    )
    verify = (
        "judge the rows of an entry that nocap.export wrote, and say whether they say the "
        "same (exit code 1: they do not)"
    )
    parser.add_argument("--verify", type=Path, metavar="FOLDER", help=verify)
    return parser


def add_question(parser: argparse.ArgumentParser) -> None:
    """What is compared, and how: `nocap.export entry` asks the same."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", default=["outputs"], help="runs to compare (default: outputs)"
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="an arm's label or id, one of its runs, or key=value (default: the first started)",
    )
    parser.add_argument(
        "--against",
        choices=("baseline", "previous"),
        default="baseline",
        help="compare each arm with the baseline, or with the one before it in time, as on a board",
    )
    parser.add_argument(
        "--target", type=float, metavar="LOSS", help="also compare the time and steps to this validation loss"
    )
    allow = (
        "declare a difference, so that it is compared across: kernel, data, source, torch, "
        "steps or a validation key; can be repeated"
    )
    parser.add_argument("--allow", action="append", default=[], metavar="KEY", help=allow)
    parser.add_argument(
        "--group", metavar="ID", help="compare this group of runs, as the line that left it out names it"
    )
    parser.add_argument(
        "--cautious",
        action="store_true",
        help="the wide interval for losses too, which holds under skewed noise and outliers",
    )
    logs = parser.add_argument_group("logs of another trainer")
    logs.add_argument(
        "--format",
        metavar="NAME",
        help="which format, or a Python file with one of your own (default: by the files' names)",
    )
    logs.add_argument(
        "--columns",
        default="",
        metavar="KEY=NAME,…",
        help="names in the log, as in step=iter,train_s=time_ms/1000",
    )
    logs.add_argument(
        "--hardware",
        metavar="NAME",
        help="what all ran on, where the logs do not say: times are then compared",
    )


def judge(options: argparse.Namespace, *, change: Callable[[Found], Found] = lambda runs: runs) -> Comparison:
    """Compare the runs of the paths as the options say. `change` is made to these first."""
    from nocap.judge.compare import compare
    from nocap.sources import logs
    from nocap.sources.rows import columns_of

    target, columns = options.target, columns_of(options.columns)
    runs = change(logs.load(options.paths, format=options.format, columns=columns, hardware=options.hardware))
    require(target is None or 0 < target < math.inf, "--target", "be a loss above 0", target)
    return compare(
        runs,
        baseline=options.baseline,
        target_loss=target,
        allow=options.allow,
        group=options.group,
        against=options.against,
        cautious=options.cautious,
    )


def _verify(options: argparse.Namespace) -> tuple[Comparison, list[str]]:
    from nocap.report import entry
    from nocap.report.arms import headline

    add_question(asked := argparse.ArgumentParser())
    given = [
        name for name, default in vars(asked.parse_args([])).items() if getattr(options, name) != default
    ]
    require(not given, "--verify", "stand without runs and a question: the entry has them", ", ".join(given))
    comparison, lines = entry.verify(options.verify)
    print("\n".join(lines) or f"{options.verify}: says the same ({headline(comparison)})")
    return comparison, lines


def _write(comparison: Comparison, options: argparse.Namespace) -> None:
    from nocap.report import comparison as report
    from nocap.report.rows import rows, to_csv

    if options.csv:
        with writing("--csv", options.csv) as path:
            write_text(path, to_csv(rows(comparison.records)))
    if options.html:
        with writing("--html", options.html) as path:
            report.write(comparison, path)
    options.answer(comparison.json())


if __name__ == "__main__":
    entry.run(main)
