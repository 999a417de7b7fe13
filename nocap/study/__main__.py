"""`python -m nocap.study`: a study from its file to its verdicts, and the leaderboard."""

from __future__ import annotations

import argparse
from pathlib import Path

from nocap.command_line import command
from nocap.config import entry

FORMS = """\
A FOLDER holds a study.yaml with a question, arms, scales and claims. The command trains and times
what is missing. If you type it again, nothing runs. A NAME such as gqa means experiments/gqa. If
you have no such folder, nocap reads the study from its package, and writes it when the study runs.
Examples, after python -m nocap.study:

  experiments/gqa scale=cpu                     run it: verdicts, README and results
  experiments/gqa scale=gpu steps=4000 --plan   print what it would run and cost; run nothing
  experiments/gqa sessions=5                    time it in five sessions instead of three
  experiments/options scale=gpu --sessions-from DAY/options.json  take timings of other days
  experiments/gqa --judge                       judge the runs so far; train and write nothing
  --board experiments                           write the leaderboard of all studies
  ideas --propose                               print the answers to proposals so far
  ideas --propose "attention=gqa" "mlp=swiglu"  judge a program's proposals
  ideas --propose 'python train.py {seed}'      judge training commands (docs/your-trainer.md)"""


def main(argv: list[str] | None = None) -> int:
    entry.outlive_readers()  # now: a stream that `refusals` guards it leaves as it is
    return command(_parser(), _study, argv, answer="a line for each study or proposal", lines=True)


def _study(options: argparse.Namespace) -> int:
    if bool(options.board) == bool(options.overrides):
        raise ValueError("nocap.study needs FOLDER, or --board, and not both")
    has_verdicts = bool(options.overrides) and not options.plan
    if options.json and not has_verdicts:
        raise ValueError("--json does not work with --plan or --board, which judge no study")
    if options.allow_code and not options.overrides:
        raise ValueError("--allow-code does not work with --board")
    is_carried_out = has_verdicts and not options.judge and options.propose is None
    if options.sessions_from and not is_carried_out:
        line = "--sessions-from does not work with --plan, --judge, --board or --propose"
        raise ValueError(line)
    from nocap.study import study_command

    if options.board:
        return study_command.board(options.board)
    if options.propose is not None:
        from nocap.study.proposals.propose_command import propose

        return propose(options)
    return study_command.studies(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.study",
        description="Run a study and judge its claims.",
        epilog=FORMS,
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="FOLDER, key=value",
        help="studies to run; scale=, steps=, sessions= and output_dir= apply to all of them",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print what a study would run, and stop")
    what.add_argument(
        "--judge", action="store_true", help="judge the runs so far; train, time and write nothing"
    )
    what.add_argument(
        "--board", type=Path, metavar="FOLDER", help="write the leaderboard of a folder of studies"
    )
    what.add_argument(
        "--propose",
        nargs="*",
        metavar="PROPOSAL",
        help=(
            "train proposals (overrides or commands) and the baseline; print for each proposal: "
            "accepted or not shown"
        ),
    )
    parser.add_argument(
        "--sessions-from",
        nargs="+",
        type=Path,
        metavar="BENCH.json",
        help="use files that nocap.bench wrote on other days; each file is a session",
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="import the options in a study's config_dir, which runs their code",
    )
    return parser


if __name__ == "__main__":
    entry.run(main)
