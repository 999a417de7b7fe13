"""`python -m nocap.runs`: list runs, show one, say why two differ, send what W&B lacks, remove
runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from nocap import outside
from nocap.command_line import add_outputs, command
from nocap.config import entry
from nocap.store.runs import LAST

COLUMNS = "run,status,steps,val_loss,tokens_per_s,train_s,age,size"
VERBS = {
    "list": "the runs of these names and filters; the same without a verb",
    "show": "one run (default: last): its result, code, machine, disk, and what refers to it",
    "why": "say where two runs differ",
    "diff": "the same as why",
    "sync": "send W&B what it lacks of these runs, and of their grids' comparisons",
    "rm": "remove whole runs",
}
FORMS = """\
A WORD is a run (a name, its beginning, an identity, last, a folder, a glob), or a filter:

  status=failed  run=nano-*  attention=gqa  optimizer.lr=0.003  'val_loss<3.2'  'age>30d'  'size>1G'

A run is taken if it has one of the names and meets all filters. rm prints what would go, and
removes it with --yes."""


def main(argv: list[str] | None = None) -> int:
    """Run the command. Return the exit code."""
    words = outside.arguments(argv)
    verb = "list"
    if words and words[0] in VERBS:
        verb = words[0]
        words = words[1:]
    answer = "" if verb in ("sync", "rm") else "the same"
    return command(_parser(verb), _call, words, answer=answer)


def _call(options: argparse.Namespace) -> int:
    from nocap.runs import verbs

    doors = {
        "show": verbs.show,
        "why": verbs.explain,
        "diff": verbs.explain,
        "sync": verbs.sync,
        "rm": verbs.remove,
    }
    return doors.get(options.verb, verbs.list_runs)(options)


def _parser(verb: str) -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {name:<5} {what}" for name, what in VERBS.items())
    about = (
        "Runs on the disk. A verb goes first, and each has its own "
        f"--help:\n\n{verbs}\n\nThe flags here are those of list."
    )
    parser = argparse.ArgumentParser(
        prog="python -m nocap.runs [VERB]", description=about, epilog=FORMS
    )
    if verb != "list":
        parser.prog = f"python -m nocap.runs {verb}"
        parser.description = VERBS[verb][:1].upper() + VERBS[verb][1:]
    parser.set_defaults(verb=verb)
    help_ = "names and filters: see below"
    if verb == "show":
        parser.add_argument(
            "words", nargs="?", default=LAST, metavar="RUN", help="a run: see below"
        )
    elif verb in ("why", "diff"):
        parser.add_argument("words", nargs=2, metavar="RUN", help="a run: see below")
    else:
        parser.add_argument("words", nargs="*", metavar="WORD", help=help_)
    add_outputs(parser)
    if verb == "list":
        parser.add_argument(
            "--columns",
            metavar="A,B",
            default=COLUMNS,
            help="columns or config keys (default: %(default)s)",
        )
        parser.add_argument(
            "--sort",
            metavar="COLUMN",
            default="started",
            help="the column to sort by (default: %(default)s)",
        )
    if verb in ("show", "rm"):
        parser.add_argument(
            "--studies",
            type=Path,
            default=Path("experiments"),
            metavar="DIR",
            help="whose logs may refer to a run (default: %(default)s)",
        )
    if verb == "rm":
        parser.add_argument(
            "--yes", action="store_true", help="do it; without this, nothing is removed"
        )
    return parser


if __name__ == "__main__":
    entry.run(main)
