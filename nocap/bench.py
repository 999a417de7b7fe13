"""`python -m nocap.bench`: which arm's training step is faster on this machine, by how much, give or take what."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nocap import outside
from nocap.config.keys import require

SECONDS = 120.0
FORMS = """\
WORDS are overrides as nocap.train takes them. Every arm gets them, and its own on top; the first arm is the baseline, and runs twice.
Tokens are made up; on a CPU an arm has one thread unless trainer.threads says otherwise.

  python -m nocap.bench model=small --arm attention=mha --arm attention=flash --arm "attention=gqa mlp=gelu3x"
  python -m nocap.bench --suite cpu --json cpu.json"""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(outside.arguments(argv))
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without

    with refusals():
        return EXIT_CODES["finished" if _bench(options) else "failed"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.bench",
        description="Time training steps of several arms, interleaved.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORDS", help="overrides that all arms share")
    parser.add_argument("--arm", action="append", default=[], metavar="WORDS", help="an arm: its overrides, in quotes; at least two")
    parser.add_argument(
        "--suite", choices=("cpu", "gpu"), help="the standard arms instead: each attention, each MLP, precision, compilation"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="this many rounds (default: until the intervals are narrow enough)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"stop after so long, warm-up included (default: {SECONDS:g}; a suite has its own)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    outside.document(parser)
    return parser


def _bench(options: argparse.Namespace) -> bool:
    """Whether every arm that could be timed was: one that failed for another reason than memory is a failure."""
    from nocap.judge.stats import signed_rank_needs
    from nocap.speed.arms import compose_arms, refuse_ranks
    from nocap.speed.suite import suite
    from nocap.speed.verdict import confidence_for
    from nocap.store.record import check_writable, write_json, writing

    refuse_ranks()
    require(options.seconds is None or 0 < options.seconds < math.inf, "--seconds", "be above 0", options.seconds)
    require(not (options.suite and options.arm), "--arm", "be left out with --suite, which has its own", f"{len(options.arm)} of them")
    if options.json:
        check_writable("--json", options.json)
    chosen = suite(options.suite, options.words) if options.suite else None
    arms = compose_arms(*(chosen.base, chosen.arms) if chosen else (options.words, options.arm))
    least = signed_rank_needs(confidence_for(len(arms) - 1))
    require(options.rounds is None or options.rounds >= least, "--rounds", f"be at least {least} for an interval", options.rounds)
    from nocap.speed.measure import BaselineError, bench  # torch, once the arms are known to be right

    teller = _teller()
    seconds = options.seconds or (chosen.seconds if chosen else SECONDS)
    try:
        result = bench(arms, seconds=seconds, rounds=options.rounds, say=teller)
    except BaselineError as error:
        print(f"nocap: {error}", file=sys.stderr)
        return False
    finally:
        teller("")
    result = {"suite": options.suite, "words": chosen.base if chosen else options.words, **result}
    from nocap.speed.text import render

    print(render(result))
    if options.json:
        with writing("--json", options.json):
            write_json(options.json, result)
    return all(arm["status"] != "failed" for arm in result["arms"])


def _teller() -> Callable[[str], Any]:
    """Progress for a person at a terminal: one line, written over."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"\r\033[K{line}" if line else "\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
