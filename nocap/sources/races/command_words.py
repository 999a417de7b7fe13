"""The words of a command that is typed as one text, without a shell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from nocap.config.keys import require

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
# what stands in quotes, or after a backslash; else what a shell alone understands
SHELL_SYNTAX = re.compile(
    r"""\\.|'[^']*'|"(?P<text>(?:\\.|[^"\\])*)"|(?P<own>&&?|\|\|?|;|<|>|`|\$[\w({?@*#]|(?<!\S)[~#])""",
    re.DOTALL,
)
CONTINUED = re.compile(r"(?P<kept>\\[^\n]|'[^']*')|\\\n")  # a line that goes on in the next one
EXPANDED = re.compile(r"(?<!\\)(?:`|\$[\w({])")  # within double quotes


def split_words(text: str, key: str) -> list[str]:
    """Return the words of a command. `key`: the option that has it.

    Errors:
        ValueError: its quotes are not in pairs, or it has what a shell alone understands.
    """
    text = CONTINUED.sub(lambda match: match["kept"] or " ", text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(
            f"{key} must be a command in which each quote is closed, got {text!r}"
        ) from error
    is_shells = any(Path(word).name in SHELLS for word in words)
    for match in SHELL_SYNTAX.finditer(text):
        own = match["own"]
        # within quotes a shell that the command starts may read it
        if own is None and match["text"] and not is_shells:
            expanded = EXPANDED.search(match["text"])
            own = expanded and expanded[0]
        rule = f"not have {own}, which only a shell reads (write sh -c '…', or put {own} in quotes)"
        require(own is None, key, rule, text)
    return words
