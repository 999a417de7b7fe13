"""`python -m nocap.compare`: compare any runs, arm by arm, with intervals and verdicts."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.command_line import command, writing
from nocap.config import entry
from nocap.config.errors import EXIT_CODES
from nocap.store.file_writing import write_text

if TYPE_CHECKING:
    from nocap.judge.comparison import Comparison

FORMS = """\
A PATH is a run's folder, a folder of runs, a grid's folder, a glob, or a name in outputs/runs: the
name or identity of a run, the name of an arm, the beginning of one of these, or last. You can name
several paths; nocap counts each run once. Losses are comparable if runs have the same validation
data, vocabulary and validation settings. If the runs form several such groups, nocap compares the
largest group, and says how to compare each other group.

A PATH can also be a log of another trainer, or a folder of such logs: Hugging Face, Lightning,
TensorBoard, W&B, MLflow, Keras, nanoGPT, nanochat, modded-nanogpt, parameter-golf, llm.c,
torchtitan, litgpt, JSON lines, CSV, or a --format of your own. A line says how nocap found arms and
seeds (docs/your-trainer.md).

A PATH can also be a FILE.json that --json wrote. nocap then judges the records in this file again,
and says whether the verdicts in the file follow from them. If not, the exit code is 1. nocap joins
several such files (docs/statistics.md)."""


def main(argv: list[str] | None = None) -> int:
    words = outside.arguments(argv)
    return command(
        _parser(), partial(_compare, words), words, answer="the whole comparison with its records"
    )


def _compare(words: list[str], options: argparse.Namespace) -> int:
    from nocap.judge.question import Question
    from nocap.report.comparison_tables import render
    from nocap.sources.compare_paths import LogOptions, compare_paths

    typed = Question(
        baseline=options.baseline,
        target=options.target,
        allow=options.allow,
        against=options.against,
        cautious=options.cautious,
    )
    logged = LogOptions(
        format=options.format,
        columns=options.columns,
        names=options.names,
        hardware=options.hardware,
    )
    answer = compare_paths(options.paths, typed, group=options.group, logged=logged)
    print(render(answer.comparison))
    if answer.lines:
        print("", *answer.lines, sep="\n")
    _write(answer.comparison, options, typed=f"python -m nocap.compare {shlex.join(words)}")
    return EXIT_CODES["failed" if answer.edited else "finished"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.compare",
        description="Compare runs with a baseline, arm by arm, with intervals and verdicts.",
        epilog=FORMS,
    )
    _add_question(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each run")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report: one file that opens offline"
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write the tables for a pull request or a README",
    )
    return parser


def _add_question(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is compared, and how."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        default=["outputs"],
        help="runs or logs to compare (default: outputs)",
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="an arm's label or id, one of its runs, or key=value (default: the arm that started "
        "first)",
    )
    parser.add_argument(
        "--against",
        choices=("baseline", "previous"),
        help="compare each arm with the baseline (the default), or with the arm before it in time, "
        "as on a board of records",
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="LOSS",
        help="also compare the time and steps to this validation loss",
    )
    allow = (
        "compare in spite of this difference: kernel, data, source, torch, steps, or a key of the "
        "validation; it can be repeated"
    )
    parser.add_argument("--allow", action="append", metavar="KEY", help=allow)
    parser.add_argument(
        "--group",
        metavar="ID",
        help="compare this group of runs; nocap names the IDs of the groups that it leaves out",
    )
    parser.add_argument(
        "--cautious",
        action=argparse.BooleanOptionalAction,
        help="judge losses with the wide interval, which also holds for skewed noise and outliers",
    )
    logs = parser.add_argument_group("logs of another trainer")
    logs.add_argument(
        "--format",
        metavar="NAME",
        help="the format of the logs, or a Python file with a format of your own (default: nocap "
        "recognises it by the content)",
    )
    logs.add_argument(
        "--columns",
        default="",
        metavar="KEY=NAME,…",
        help="names of columns in the log, as in step=iter,train_s=time_ms/1000",
    )
    logs.add_argument(
        "--names",
        default="",
        metavar="TEMPLATE",
        help="where arm and seed stand in a path, as in '{arm}/{seed}' or '{arm}_{seed}/*'",
    )
    logs.add_argument(
        "--hardware",
        metavar="NAME",
        help="hardware of all runs, if the logs do not name it; nocap then compares times",
    )


def _write(comparison: Comparison, options: argparse.Namespace, *, typed: str) -> None:
    from nocap.report import comparison_markdown, result_file
    from nocap.report import comparison_page as report
    from nocap.report.flat_rows import rows, to_csv

    if options.csv:
        with writing("--csv", options.csv) as path:
            write_text(path, to_csv(rows(comparison.records)))
    if options.html:
        with writing("--html", options.html) as path:
            report.write(comparison, path, command=typed)
    if options.markdown or options.json:
        bare = result_file.bare(comparison)
        if options.markdown:
            with writing("--markdown", options.markdown) as path:
                write_text(
                    path, comparison_markdown.page(bare, judge=result_file.judge(), command=typed)
                )
        options.answer(result_file.content(bare, command=typed))


if __name__ == "__main__":
    entry.run(main)
