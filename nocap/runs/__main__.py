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
    "list": "list the runs of these names and filters; this is the default",
    "show": "show one run (default: last): its result, code, machine, disk space and grids",
    "why": "show the keys in which two runs differ",
    "diff": "do the same as why",
    "sync": "send the missing rows of these runs, and the comparisons of their grids, to W&B",
    "rm": "remove the folders of runs",
}
FORMS = """\
A WORD is a run (a name, its beginning, an identity, last, a folder, a glob), or a filter:

  status=failed  run=nano-*  attention=gqa  optimizer.lr=0.003  'val_loss<3.2'  'age>30d'  'size>1G'

The command takes the runs that have one of the names and fit all filters. rm prints the runs that
it would remove. With --yes it removes them."""


def main(argv: list[str] | None = None) -> int:
    """Run the command. Return the exit code."""
    words = outside.arguments(argv)
    verb = "list"
    if words and words[0] in VERBS:
        verb = words[0]
        words = words[1:]
    answer = "" if verb in ("sync", "rm") else "the output"
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
        "List, show, upload and remove runs. A verb goes first, and each verb has its own "
        f"--help:\n\n{verbs}\n\nThe flags below are those of list."
    )
    parser = argparse.ArgumentParser(
        prog="python -m nocap.runs [VERB]", description=about, epilog=FORMS
    )
    if verb != "list":
        parser.prog = f"python -m nocap.runs {verb}"
        parser.description = VERBS[verb][:1].upper() + VERBS[verb][1:]
    parser.set_defaults(verb=verb)
    help_ = "a name or a filter, as explained below"
    if verb == "show":
        parser.add_argument(
            "words", nargs="?", default=LAST, metavar="RUN", help="a run, as explained below"
        )
    elif verb in ("why", "diff"):
        parser.add_argument("words", nargs=2, metavar="RUN", help="a run, as explained below")
    else:
        parser.add_argument("words", nargs="*", metavar="WORD", help=help_)
    add_outputs(parser)
    if verb == "list":
        parser.add_argument(
            "--columns",
            metavar="A,B",
            default=COLUMNS,
            help="show these columns or config keys (default: %(default)s)",
        )
        parser.add_argument(
            "--sort",
            metavar="COLUMN",
            default="started",
            help="sort by this column (default: %(default)s)",
        )
    if verb in ("show", "rm"):
        parser.add_argument(
            "--studies",
            type=Path,
            default=Path("experiments"),
            metavar="DIR",
            help="folder of the studies that may refer to a run (default: %(default)s)",
        )
    if verb == "rm":
        parser.add_argument(
            "--yes", action="store_true", help="remove the runs; without this flag, only print them"
        )
    return parser


if __name__ == "__main__":
    entry.run(main)
