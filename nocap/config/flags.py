"""The command line that Hydra reads."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields

from hydra._internal.utils import get_args_parser

from nocap.config.keys import require
from nocap.config.run import Run


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments with Hydra's flags, and what belongs to them, before the overrides. Hydra reads them in that order only."""
    actions = {flag: action for action in get_args_parser()._actions for flag in action.option_strings}
    flags, overrides, waiting = [], [], list(arguments)
    while waiting:
        argument = waiting.pop(0)
        action = actions.get(argument)
        if not argument.startswith("-"):
            overrides.append(argument)
        elif action is not None and action.nargs == "?" and (not waiting or "=" in waiting[0] or waiting[0].startswith("-")):
            flags.append(f"{action.option_strings[0]}={action.const}")  # without it, the first override would be taken for the value
        else:
            takes = action is not None and action.nargs != 0 and bool(waiting)
            flags += [argument, waiting.pop(0)] if takes else [argument]
    return [*flags, *overrides]


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


QUESTIONS = ("cfg", "info", "help", "hydra_help", "shell_completion")  # Hydra answers them, and nothing is run


def asked(arguments: Sequence[str]) -> argparse.Namespace:
    """What Hydra's flags ask for, and the overrides; `question` and `grid` say which it is.

    Errors:
        ValueError: a flag that would run code from a file, or read another config than nocap's.
    """
    flags = get_args_parser().parse_args(list(arguments))
    rules = {
        "experimental_rerun": "be left out: it would run what a pickle holds",
        "config_path": "be left out: options from outside come by --config-dir",
        "config_name": "be left out: choose with experiment=NAME",
        "config_dir": "be spelt out",  # argparse takes --config-di for it
    }
    for name, rule in rules.items():
        require(getattr(flags, name) is None, f"--{name.replace('_', '-')}", rule, getattr(flags, name))
    require(not (flags.run and flags.multirun), "--run", "be left out with --multirun", "both")
    flags.question = any(getattr(flags, name) for name in QUESTIONS)
    flags.grid = not flags.run and (flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides)
    searched = [word for word in flags.overrides if re.match(r"search[.=]", word)]
    require(flags.grid or not searched, "search", "be given with --multirun", " ".join(searched))
    return flags
