"""`python -m nocap.profile`: where a step's time and memory go, and what each option could win at most."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config import entry
from nocap.config.keys import require
from nocap.store.command import check_writable, command, writing

if TYPE_CHECKING:
    from nocap.config.run import Run

USAGE = "python -m nocap.profile [flags] [key=value …]"
ABOUT = """Take a training step of this configuration apart, on random tokens: no data and no run folder are
needed. OVERRIDES are those of nocap.train, whose --help lists them. On a CPU one thread is used unless
trainer.threads is given."""


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _profile, argv, answer="the profile")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.profile", usage=USAGE, description=ABOUT, allow_abbrev=False
    )
    add = parser.add_argument
    add("overrides", nargs="*", metavar="OVERRIDES", help="the configuration")
    add("--trace", type=Path, metavar="FILE", help="write the profiled step for Perfetto or chrome://tracing")
    add("--ceilings", action="store_true", help="also: what each option could win at most")
    add(
        "--repeats",
        type=int,
        default=3,
        metavar="N",
        help="steps timed with and without profiler (default: 3)",
    )
    return parser


def _profile(options: argparse.Namespace) -> int:
    require(options.repeats >= 1, "--repeats", "be at least 1", options.repeats)
    check_writable("--trace", options.trace)
    run, compose = _composer(options.overrides)
    rule = "be 1 for nocap.profile, which takes the step of one rank apart"
    require(run.trainer.devices == 1, "trainer.devices", rule, run.trainer.devices)
    # before torch: the profiler's library would write on stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from nocap.measure.profile import profile
    from nocap.measure.text import render_profile

    with writing("--trace", options.trace) if options.trace else nullcontext() as trace:
        profiled = profile(
            run, options.overrides, compose, repeats=options.repeats, trace=trace, ceilings=options.ceilings
        )
    print(render_profile(profiled))
    options.answer(profiled)
    return 0


def _composer(overrides: Sequence[str]) -> tuple[Run, Callable[[Sequence[str]], Run]]:
    """The run of these overrides, and the run that they make with more of them."""
    from nocap.config.compose import compose_measured

    def composed(more: Sequence[str]) -> Run:
        # Without those that `more` replaces: the same key, or an option's own keys where the option changes.
        keys = tuple(
            start
            for override in more
            for start in (override.partition("=")[0] + "=", override.partition("=")[0] + ".")
        )
        own = [o for o in overrides if not o.lstrip("+").startswith(keys)]
        return compose_measured([*own, *more]).run

    return composed([]), composed


if __name__ == "__main__":
    entry.run(main)
