"""`python -m nocap.bench`: which arm's training step is faster on this machine, by how much, with
an interval."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.command_line import command
from nocap.config import entry
from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.config.outgoing_text import trusted, visible
from nocap.config.paths import STDOUT
from nocap.store.record_files import write_json

if TYPE_CHECKING:
    from nocap.measure.bench_result import Bench

SECONDS = 120.0
FORMS = """\
OVERRIDES are those of nocap.train. They apply to every arm; --arm adds overrides for one arm. The
first arm is the baseline, and runs twice. The tokens are random. An arm uses one thread, unless you
set trainer.threads. On a CPU nocap compiles nothing, unless you set trainer.compile, or a
trainer.steps so large that nocap would compile the run.

  python -m nocap.bench model=small --arm attention=mha --arm attention=flash --arm "mlp=gelu3x"

To compare training commands of your own, use nocap.race."""


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _bench, argv, answer="the result")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.bench",
        description="Time the training steps of several arms in turns.",
        epilog=FORMS,
    )
    add = parser.add_argument
    add("overrides", nargs="*", metavar="OVERRIDES", help="overrides for all arms")
    add(
        "--arm",
        action="append",
        default=[],
        metavar="OVERRIDES",
        help="overrides of one arm, in quotes; a bench needs two or more arms",
    )
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="number of rounds (default: until the intervals are narrow enough)",
    )
    add(
        "--seconds",
        type=float,
        metavar="S",
        help=f"stop after this many seconds, with the warm-up (default: {SECONDS:g})",
    )
    return parser


def _bench(options: argparse.Namespace) -> int:
    """Time the arms. One that does not fit has the status of that; one that fails for another
    reason than memory has failed. A file gets the result after each round."""
    from nocap.judge.interval import LEAST_PAIRS
    from nocap.measure.bench_arms import compose_arms
    from nocap.measure.bench_table import render_bench

    seconds = options.seconds
    if seconds is None:
        seconds = SECONDS
    require(0 < seconds < math.inf, "--seconds", "be a finite number above 0", seconds)
    if options.seconds is not None and options.rounds is not None:
        raise ValueError("--seconds does not work with --rounds: give only one of the two")
    rounds = options.rounds
    rule = f"be at least {LEAST_PAIRS}"
    require(rounds is None or rounds >= LEAST_PAIRS, "--rounds", rule, rounds)
    base = options.overrides
    overrides = options.arm
    rule = "be typed at least twice (the first --arm is the baseline)"
    require(len(overrides) >= 2, "--arm", rule, len(overrides))
    runs = compose_arms(base, overrides)
    from nocap.measure.bench import carry_out  # torch, once the arms are known to be right
    from nocap.measure.bench_json import written
    from nocap.measure.bench_result import ArmStatus
    from nocap.measure.timed_arm import TimedArm

    try:
        with redirect_stdout(sys.stderr):  # what an option prints is not the result
            arms = [TimedArm(label, run) for label, run in runs.items()]
            keep = partial(_keep, options.json, words=base)
            result = carry_out(arms, seconds=seconds, rounds=rounds, log=_progress, keep=keep)
    finally:
        _progress("")
    print(render_bench(result))
    options.answer({"words": base, **written(result)})
    lost = result.arms[0].status is not ArmStatus.measured
    failed = lost or any(arm.status is ArmStatus.failed for arm in result.arms)
    return EXIT_CODES["failed" if failed else "finished"]


def _keep(path: Path | None, result: Bench, *, words: Sequence[str]) -> None:
    """Write the result so far; stdout gets it at the end alone."""
    from nocap.measure.bench_json import written

    if path is not None and path != STDOUT:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"words": words, **written(result)})


def _progress(line: str) -> None:
    """Show progress to a person at a terminal: one line, written over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{visible(line)}", end="", file=trusted(sys.stderr), flush=True)


if __name__ == "__main__":
    entry.run(main)
