"""The words of a command line that Hydra reads."""

from __future__ import annotations

from hydra._internal.utils import get_args_parser


def flags_first(words: list[str]) -> list[str]:
    """The same words with Hydra's flags, and what belongs to them, before the overrides: Hydra reads them in that order only."""
    actions = {flag: action for action in get_args_parser()._actions for flag in action.option_strings}
    flags, overrides, waiting = [], [], list(words)
    while waiting:
        word = waiting.pop(0)
        action = actions.get(word)
        if not word.startswith("-"):
            overrides.append(word)
        elif action is not None and action.nargs == "?" and (not waiting or "=" in waiting[0] or waiting[0].startswith("-")):
            flags.append(f"{action.option_strings[0]}={action.const}")  # without it, the first override would be taken for the value
        else:
            takes = action is not None and action.nargs != 0 and bool(waiting)
            flags += [word, waiting.pop(0)] if takes else [word]
    return [*flags, *overrides]
