"""The command line that Hydra reads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hydra._internal.utils import get_args_parser


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


def for_grid(arguments: Sequence[str]) -> argparse.Namespace | None:
    """What is to be trained as a grid: `overrides`, `config_name`, `config_path`. None for a single run, and for Hydra's own questions."""
    flags = get_args_parser().parse_args(list(arguments))
    other = (flags.run, flags.cfg, flags.info, flags.help, flags.hydra_help, flags.shell_completion)
    return flags if (flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides) and not any(other) else None
