"""The command line of `nocap.train`: flags, which may stand anywhere, and overrides."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields

from nocap.config.keys import require
from nocap.config.run import Run

GRIDS = (("--zip",), ("--fail-fast",), ("--detach",))  # of grids alone
QUESTIONS = ("cfg", "info", "help", "hydra_help", "shell_completion")  # they are answered, and nothing is run


def without_dashes(arguments: Sequence[str]) -> list[str]:
    """`--attention=gqa` as `attention=gqa`: the words that an agent of `wandb sweep` types for one run.

    Errors:
        ValueError: they are typed for a grid, or a key is typed both ways.
    """
    keys = {f.name for f in fields(Run)} | {"experiment"}
    dashed = [word for word in arguments if word.startswith("--") and "=" in word and re.split(r"[.=]", word[2:])[0] in keys]
    grid = [word for word in arguments if word in ("--multirun", "-m", "hydra.mode=MULTIRUN")]
    plain = {word.partition("=")[0] for word in arguments}
    for word in dashed:
        key = word[2:].partition("=")[0]
        require(not grid, key, f"be typed without dashes beside {' '.join(grid)}", word)
        require(key not in plain, key, "be typed once, with or without dashes", word)
    return [word[2:] if word in dashed else word for word in arguments]


def asked(arguments: Sequence[str]) -> argparse.Namespace:
    """What the flags ask for, and the overrides; `question` and `grid` say which it is.

    Errors:
        ValueError: a flag that there is not.
    """
    parser = argparse.ArgumentParser(prog="python -m nocap.train", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("--help", "-h"), ("--hydra-help",), ("--multirun", "-m"), ("--run", "-r"), ("--resolve",), ("--plan",), *GRIDS):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--package", "-p")
    parser.add_argument(
        "--info", "-i", nargs="?", const="all", choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    )
    parser.add_argument("--shell-completion", "-sc", action="store_true")  # `install=bash` and the like stand among the overrides
    words, waiting = list[str](), list(arguments)
    while waiting:  # without it, the first override would be taken for the value
        word = waiting.pop(0)
        bare = word in ("--info", "-i") and (not waiting or re.search(r"=|^[-~]", waiting[0]))
        words.append("--info=all" if bare else word)
    flags, unknown = parser.parse_known_intermixed_args(words)
    require(not unknown, "flags", "be those that --help lists", " ".join(unknown))
    require(not (flags.run and flags.multirun), "--run", "be left out with --multirun", "both")
    mode = "hydra.mode=MULTIRUN"
    flags.grid = not flags.run and (flags.multirun or mode in flags.overrides)
    flags.overrides = [word for word in flags.overrides if word != mode]
    flags.question = any(getattr(flags, name) for name in QUESTIONS)
    of_grids = [names[0] for names in GRIDS if getattr(flags, names[0][2:].replace("-", "_"))]
    require(flags.grid or not of_grids, ", ".join(of_grids), "be given with --multirun", "one run")
    searched = [word for word in flags.overrides if re.match(r"search[.=]", word)]
    require(flags.grid or not searched, "search", "be given with --multirun", " ".join(searched))
    return flags
