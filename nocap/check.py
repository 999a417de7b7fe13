"""`python -m nocap.check DIR`: run on the options of a folder what the test suite runs on nocap's own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.config.paths import expanded

if TYPE_CHECKING:
    from nocap.checks.trial import Candidate

FORMS = """\
DIR is a folder as --config-dir takes it: DIR/GROUP/NAME.py beside DIR/GROUP/NAME.yaml. Overrides are those of nocap.train and hold for
every run. The runs are small, on made-up tokens, and are deleted afterwards. An option takes a minute or two.

  python -m nocap.check softcap
  python -m nocap.check softcap --only causal attention.cap=30"""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(outside.arguments(argv))
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends like Ctrl-C: processes and folders are cleaned up
    try:
        with refusals():
            return EXIT_CODES["finished" if _check(options) else "failed"]
    except KeyboardInterrupt:
        print("nocap: stopped", file=sys.stderr)
        return EXIT_CODES["preempted"]
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.check",
        description="Run on each option of a folder what the suite runs on nocap's own.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with options")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides for every run")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the checks, or the options, whose name has this in it")
    outside.document(parser)
    return parser


def _check(options: argparse.Namespace) -> bool:
    """Whether no check failed."""
    folder = expanded(options.folder).absolute()
    if not folder.is_dir():
        raise ValueError(f"DIR must be a folder with options, got {options.folder}")
    outside.use([folder])
    from nocap.checks.option import find

    chosen, candidates = {override.partition("=")[0] for override in options.overrides}, find(folder)
    for one in candidates:
        if (group := one.override.partition("=")[0]) in chosen:
            raise ValueError(f"{group}=… must be left out: {one.override} is what is checked")
    from nocap.checks.table import CHECKS  # torch

    names, overrides = [check.__name__ for one in candidates for check in CHECKS[one.group]], [one.override for one in candidates]
    if not any(options.only in text for text in (*names, *overrides)):
        known = f"a check's name ({', '.join(dict.fromkeys(names))}) or an option's ({', '.join(overrides)})"
        raise ValueError(f"--only must be in {known}, got {options.only}")
    failed = sum(_failures(one, tuple(options.overrides), options.only) for one in candidates)
    print(f"{failed} failed" if failed else "all passed", flush=True)
    return not failed


def _failures(one: Candidate, more: tuple[str, ...], only: str) -> int:
    """Check one option, print a line as each check ends; how many failed."""
    from nocap.checks.table import lines
    from nocap.checks.trial import Trial

    failed = 0
    with tempfile.TemporaryDirectory(prefix="nocap-check-", ignore_cleanup_errors=True) as folder:
        trial = Trial(candidate=one, more=more, folder=Path(folder))
        for line in lines(trial, lambda name: only in name or only in one.override):
            failed += line.status == "FAIL"
            print(f"{line.status:<4} {one.override} {line.name:<8}  {line.detail}  {line.seconds:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
