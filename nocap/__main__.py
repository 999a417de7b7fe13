"""`nocap COMMAND …`: the console script. `python -m nocap.COMMAND …` is the same."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import NoReturn

from nocap import __version__
from nocap.config import entry

COMMANDS = {
    "train": "train one run; with --multirun train a grid",
    "data": "list, prepare and verify token shards",
    "compare": "compare runs with a baseline: intervals and verdicts",
    "dashboard": "make a workspace and a report in Weights & Biases for a grid or a study",
    "runs": "list, show, upload and remove runs",
    "plot": "draw curves of runs, in the terminal or as a picture",
    "generate": "write text from a checkpoint",
    "profile": "measure the time and memory of each part of a step or a text; compare two profiles",
    "study": "run a study: train and time what is missing, judge its claims, write the report",
    "race": "run training commands or versions of a repository in turns, and judge them",
    "bench": "time the training steps of several arms on this machine, in turns",
    "export": "write a run's model for torch (safetensors) or transformers",
    "new": "write a working option that you can change",
    "check": "test the options in a folder",
}

USAGE = """\
usage: nocap COMMAND …    (python -m nocap.COMMAND … is the same)

{commands}

  nocap COMMAND --help    print the flags of a command; for train also the options and keys
  nocap --version         print the version
tab completion: eval "$(nocap train -sc install=bash)\""""


def console() -> None:
    """Run the console script."""
    entry.run(main)


def main() -> None:
    """Hand over to a command, which reads the rest of the command line."""
    if "query=bash" in sys.argv:
        _complete()
    command = sys.argv[1] if len(sys.argv) > 1 else None
    if command in ("--version", "-V"):
        print(f"nocap {__version__}")
        raise SystemExit(0)
    if command not in COMMANDS:
        _refuse(command)
    del sys.argv[1]
    name = f"nocap.{command}"
    if command in ("data", "runs", "study"):
        name += ".__main__"
    module = importlib.import_module(name)
    raise SystemExit(module.main())


def _refuse(command: str | None) -> NoReturn:
    """Print the usage, where it was asked for, or in place of a command that is none."""
    commands = "\n".join(f"  nocap {name:<9} {what}" for name, what in COMMANDS.items())
    usage = USAGE.format(commands=commands)
    if command in ("-h", "--help"):
        print(usage)
        raise SystemExit(0)
    if command is not None:
        line = f"nocap: {command[:80]!a} is no command"
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        if close:
            line += f" (did you mean {close[0]}?)"
        print(line, file=sys.stderr)
    print(usage, file=sys.stderr)
    raise SystemExit(2)


def _complete() -> None:
    """Answer bash: the commands' names, or Hydra's completion with the command's name taken out of
    the line."""
    typed = os.environ.get("COMP_LINE", "").split(" ")
    if len(typed) <= 2 or typed[1] != "train":
        begin = typed[1] if len(typed) > 1 else ""
        print(" ".join(name for name in COMMANDS if name.startswith(begin)))
        raise SystemExit(0)
    line = os.environ["COMP_LINE"]
    shorter = line.replace(" train", "", 1)
    os.environ["COMP_LINE"] = shorter
    point = int(os.environ.get("COMP_POINT", len(line)))
    point += len(shorter) - len(line)
    os.environ["COMP_POINT"] = str(max(0, point))
    sys.argv.insert(1, "train")


if __name__ == "__main__":
    console()
