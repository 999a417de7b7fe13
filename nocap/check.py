"""`python -m nocap.check DIR`: run on the options of a folder what the test suite runs on nocap's
own."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nocap import outside
from nocap.command_line import command
from nocap.config import entry
from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.config.paths import expanded

FORMS = """\
DIR is a folder for --config-dir, with DIR/GROUP/NAME.py and DIR/GROUP/NAME.yaml. Overrides are
those of nocap.train, and apply to every run; ideas=[…] adds ideas. The runs are small, on synthetic
tokens. If a check fails, nocap keeps its files in the folder that the line names. The checks of an
option take one or two minutes.

  python -m nocap.check softcap
  python -m nocap.check softcap --only causal attention.cap=30 'ideas=[smear]'"""


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _check, argv, answer="the result of each check")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.check",
        description="Test each option of a folder as nocap's own options are tested.",
        epilog=FORMS,
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with options")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides for every run")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="run only the check of this name, or all checks of this option",
    )
    return parser


def _check(options: argparse.Namespace) -> int:
    """Run the checks; the answer says how each ended, and how many failed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    folder = expanded(options.folder).absolute()
    only = options.only
    words = tuple(options.overrides)
    require(folder.is_dir(), "DIR", "be an existing folder that holds options", options.folder)
    outside.use([folder])
    from nocap.checks.contract import CHECKS, results  # torch
    from nocap.checks.trial import OptionTrial

    candidates = _candidates(folder)
    places = ", ".join(map(outside.place, outside.groups()))
    rule = f"hold the yaml of an option as GROUP/NAME.yaml (GROUP is one of {places})"
    require(bool(candidates), str(folder), rule, "none")
    for group, name in candidates.values():
        # what cannot be used is refused, also what is not chosen
        outside.yaml_of(group, name)
        outside.all_options(group)
    checks: dict[str, None] = {}
    for group, _ in candidates.values():
        checks |= dict.fromkeys(check.__name__ for check in CHECKS[group])
    chosen = []
    for choice, (_, name) in candidates.items():
        if only in ("", *checks, choice, name):
            chosen.append(choice)
    rule = f"be the name of a check ({', '.join(checks)}) or an option ({', '.join(candidates)})"
    require(bool(chosen), "--only", rule, only)
    _check_words(words, chosen)
    ended = Counter[str]()
    rows = list[dict[str, str]]()
    for choice in chosen:
        group, name = candidates[choice]
        left = Path(tempfile.mkdtemp(prefix="nocap-check-"))
        trial = OptionTrial(group=group, name=name, more=words, folder=left)
        failed = ended["FAIL"]
        try:
            for status, check, detail in results(trial, only if only in checks else ""):
                ended[status] += 1
                rows.append({"option": choice, "check": check, "status": status, "detail": detail})
                print(f"{status:<4} {choice} {check:<8}  {detail}", flush=True)
        finally:
            if ended["FAIL"] == failed:
                shutil.rmtree(left, ignore_errors=True)
    failed = ended["FAIL"]
    skipped = ended["skip"]
    line = f"{failed} failed" if failed else "all passed"
    if skipped:
        line += f", {skipped} skipped"
    print(line, flush=True)
    options.answer({"failed": failed, "skipped": skipped, "checks": rows})
    return EXIT_CODES["failed" if failed else "finished"]


def _candidates(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the folder's options: how each is chosen → its group and name."""
    candidates = {}
    for group in outside.groups():
        for path in sorted((folder / outside.place(group)).glob("*.yaml")):
            candidates[outside.choice(group, path.stem)] = (group, path.stem)
    return candidates


def _check_words(words: Sequence[str], chosen: Sequence[str]) -> None:
    """Refuse overrides that choose in place of what is checked."""
    checked = {}
    for choice in chosen:
        if not choice.startswith("ideas="):
            checked[choice.partition("=")[0]] = choice
    for word in words:
        key = word.partition("=")[0]
        if key in checked:
            raise ValueError(
                f"{word} does not work here, because nocap.check itself sets {checked[key]}"
            )


if __name__ == "__main__":
    entry.run(main)
