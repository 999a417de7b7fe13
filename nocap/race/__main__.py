"""`python -m nocap.race`: a program proposes arms one after another, and two hundred tries do not wear the answers out."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside

if TYPE_CHECKING:
    from nocap.race.campaign import Line

ANSWER = ("number", "word", "evidence", "needs", "pairs", "gain", "diverged")
FORMS = """\
A FOLDER holds a race.yaml: what every run has, the baseline, the error level of the whole race. Each PROPOSAL is overrides in quotes.
Its pairs are trained until the evidence decides. What was answered stays answered: it is in ledger.jsonl beside race.yaml.

  python -m nocap.race ideas "attention=gqa" "mlp=swiglu optimizer=muon"    two proposals, one after the other
  python -m nocap.race ideas "attention=gqa" --json                         each answer is a line of JSON
  python -m nocap.race ideas                                                the answers so far, and what the next proposal needs"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.race",
        description="Answer proposals against one baseline, with one error level for all of them.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with a race.yaml")
    parser.add_argument("proposals", nargs="*", metavar="PROPOSAL", help="overrides in quotes, on top of the baseline's")
    parser.add_argument("--output-dir", default="outputs", metavar="DIR", help="of its runs (default: outputs)")
    parser.add_argument("--json", action="store_true", help="print each answer as a line of JSON")
    outside.document(parser)
    options = parser.parse_args(outside.arguments(argv))
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without
    from nocap.study.cells import FailedError, StoppedError
    from nocap.training.terminal import outlive_readers

    outlive_readers()
    with refusals():
        try:
            _answer(options)
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            return EXIT_CODES["preempted"]
        except FailedError as failed:
            print(f"nocap: {failed}", file=sys.stderr)
            return EXIT_CODES["failed"]
        return EXIT_CODES["finished"]


def _answer(options: argparse.Namespace) -> None:
    """All proposals are checked before the first one is trained."""
    from nocap.race.opened import opened

    show = json.dumps if options.json else _in_words
    with opened(options.folder, output_dir=options.output_dir) as race:
        given = [_words(text) for text in options.proposals]
        for overrides, sides in [(words, race.compose(words)) for words in given]:
            print(show(_shown(race.propose(sides, overrides), overrides)), flush=True)
        if not given:
            words = {line["arm"]: line["overrides"] for line in race.campaign.proposals}
            for answer in race.campaign.answers:
                print(show(_shown(answer, words[answer["arm"]])))
            print(
                json.dumps({"needs": race.campaign.needs()}) if options.json else f"the next needs evidence of {race.campaign.needs():,.0f}"
            )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"PROPOSAL must be overrides, with quotes in pairs, got {text!r}") from error


def _shown(answer: Line, overrides: Sequence[str]) -> Line:
    """Without what only the ledger needs."""
    return {"overrides": list(overrides), **{name: answer[name] for name in ANSWER}}


def _in_words(answer: Line) -> str:
    gain = "" if answer["gain"] is None else f"{'lower' if answer['gain'] >= 0 else 'higher'} loss by {abs(answer['gain']):.4f}, "
    evidence = "a run diverged" if answer["diverged"] else f"evidence {answer['evidence']:,.3g} of {answer['needs']:,.0f}"
    return f"{answer['word']}: {shlex.join(answer['overrides'])}: {gain}{evidence}, {answer['pairs']} pairs (proposal {answer['number']})"


if __name__ == "__main__":
    raise SystemExit(main())
