"""`python -m nocap.check DIR`: run on the options of a folder what the test suite runs on nocap's
own."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from nocap import outside
from nocap.command_line import command
from nocap.config import entry
from nocap.config.keys import EXIT_CODES, require
from nocap.config.paths import expanded

FORMS = """\
DIR is a folder as --config-dir takes it: DIR/GROUP/NAME.py beside DIR/GROUP/NAME.yaml. Overrides
are those of nocap.train and hold for every run; ideas=[…] are companions, nocap's own or those of a
--config-dir. The runs are small, on made-up tokens. What a failed check leaves stays, where its
line says; the rest is deleted. An option takes a minute or two.

  python -m nocap.check softcap
  python -m nocap.check softcap --only causal attention.cap=30 'ideas=[smear]'"""


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _check, argv, answer="each check's end")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.check",
        description="Run on each option of a folder what the suite runs on nocap's own.",
        epilog=FORMS,
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with options")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides for every run")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="only the check of this name, or all checks of this option",
    )
    return parser


def _check(options: argparse.Namespace) -> int:
    """Run the checks; the answer says how each ended, and how many failed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    folder, only, words = (
        expanded(options.folder).absolute(),
        options.only,
        tuple(options.overrides),
    )
    require(folder.is_dir(), "DIR", "be a folder with options", options.folder)
    outside.use([folder])
    from nocap.checks.contract import CHECKS, results  # torch
    from nocap.checks.trial import OptionTrial

    yamls = {
        group: sorted((folder / outside.place(group)).glob("*.yaml")) for group in outside.groups()
    }
    candidates = {
        outside.choice(group, path.stem): (group, path.stem)
        for group, paths in yamls.items()
        for path in paths
    }
    places = ", ".join(map(outside.place, yamls))
    require(
        bool(candidates),
        str(folder),
        f"hold an option: GROUP/NAME.yaml, with GROUP one of {places}",
        "none",
    )
    for (
        group,
        name,
    ) in candidates.values():  # what cannot be used is refused, also what is not chosen
        outside.yaml_of(group, name)
        outside.all_options(group)
    checks = dict.fromkeys(
        check.__name__ for group, _ in candidates.values() for check in CHECKS[group]
    )
    chosen = [
        choice for choice, (_, name) in candidates.items() if only in ("", *checks, choice, name)
    ]
    require(
        bool(chosen),
        "--only",
        f"be a check's name ({', '.join(checks)}) or an option's ({', '.join(candidates)})",
        only,
    )
    taken = {
        choice.partition("=")[0]: choice for choice in chosen if not choice.startswith("ideas=")
    }
    for word in words:
        key = word.partition("=")[0]
        require(
            key not in taken, key, f"be left out, where {taken.get(key)} is what is checked", word
        )
    ended, rows = Counter[str](), list[dict[str, str]]()
    for choice in chosen:
        group, name = candidates[choice]
        trial = OptionTrial(
            group=group, name=name, more=words, folder=Path(tempfile.mkdtemp(prefix="nocap-check-"))
        )
        failed = ended["FAIL"]
        try:
            for status, check, detail in results(trial, only if only in checks else ""):
                ended[status] += 1
                rows.append({"option": choice, "check": check, "status": status, "detail": detail})
                print(f"{status:<4} {choice} {check:<8}  {detail}", flush=True)
        finally:
            if ended["FAIL"] == failed:
                shutil.rmtree(trial.folder, ignore_errors=True)
    skipped = f", {ended['skip']} skipped" if ended["skip"] else ""
    print(
        f"{ended['FAIL']} failed{skipped}" if ended["FAIL"] else f"all passed{skipped}", flush=True
    )
    options.answer({"failed": ended["FAIL"], "skipped": ended["skip"], "checks": rows})
    return EXIT_CODES["failed" if ended["FAIL"] else "finished"]


if __name__ == "__main__":
    entry.run(main)
