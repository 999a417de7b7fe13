"""`python -m nocap.check DIR`: try the options of a folder as the suite tries nocap's own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside

if TYPE_CHECKING:
    from nocap.checks.trial import Found

FORMS = """\
DIR is a folder as --config-dir takes it: DIR/GROUP/NAME.py beside DIR/GROUP/NAME.yaml. Words are those of nocap.train and hold for every
run; the runs are small, on made-up tokens, and leave nothing behind. An option takes a minute or two.

  python -m nocap.check softcap
  python -m nocap.check softcap --only causal attention.cap=30"""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(outside.arguments(argv))
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way its processes and folders go
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
    parser.add_argument("words", nargs="*", metavar="key=value", help="overrides for every run")
    parser.add_argument("--only", metavar="WORD", help="only the checks, or the options, whose name has this in it")
    outside.document(parser)
    return parser


def _check(options: argparse.Namespace) -> bool:
    """Whether no check failed."""
    folder = Path(options.folder).expanduser().absolute()
    if not folder.is_dir():
        raise ValueError(f"DIR must be a folder with options, got {options.folder}")
    outside.use([folder])
    from nocap.checks.option import find
    from nocap.config.compose import register

    register()  # what cannot be imported is refused here
    chosen = {word.partition("=")[0] for word in options.words}
    found = find(folder)
    for one in found:
        if (group := one.word.partition("=")[0]) in chosen:
            raise ValueError(f"{group}=… must be left out: {one.word} is what is checked")
    from nocap.checks.table import names  # torch

    only = options.only or ""
    if not any(only in what or only in one.word for one in found for what in names(one.group)):
        checks = ", ".join(dict.fromkeys(what for one in found for what in names(one.group)))
        raise ValueError(f"--only must be in a check's name ({checks}) or an option's ({', '.join(one.word for one in found)}), got {only}")
    failed = sum(_trial(one, tuple(options.words), only) for one in found)
    print(f"{failed} failed" if failed else "all passed", flush=True)
    return not failed


def _trial(one: Found, words: tuple[str, ...], only: str) -> int:
    """Check one option, a line as each check ends; how many failed."""
    from nocap.checks.table import lines
    from nocap.checks.trial import Trial

    failed = 0
    with tempfile.TemporaryDirectory(prefix="nocap-check-", ignore_cleanup_errors=True) as room:
        trial = Trial(found=one, more=words, room=Path(room))
        for line in lines(trial, lambda what: only in what or only in one.word):
            failed += line.word == "FAIL"
            print(f"{line.word:<4} {one.word} {line.what:<8}  {line.detail}  {line.seconds:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
