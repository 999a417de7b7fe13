"""What W&B calls things: its names for the curves of a record, and how long a text may be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from nocap.options.tracker import at_the_end
from nocap.row_keys import (
    CLOCK,
    MFU,
    MODEL_MIB,
    STEP_MS,
    TOKENS_PER_S,
    TRAIN_LOSS,
    VAL_BPB,
    VAL_LOSS,
)

# characters
LONGEST_NAME = 128
LONGEST_TAG = 64

# A page of W&B sorts its sections by name: the validation loss comes first, then speed, memory,
# training.
SECTIONS = {"val/": "eval/", "memory/": "resources/"}
AXES = ("step", "tokens", "hours")
BEST = "eval/best"
# The table of runs has these while a run trains; others only have their curve.
SHOWN = (
    *(VAL_LOSS, VAL_BPB, TRAIN_LOSS),
    *(TOKENS_PER_S, STEP_MS, MFU, MODEL_MIB, "status"),
)
OF_COMPARISONS = ("arms", "runs")


def curve_name(name: str) -> str:
    """Return the name that a curve of the record has in W&B."""
    for prefix, section in SECTIONS.items():
        if name.startswith(prefix):
            return section + name.removeprefix(prefix)
    return name


def ends_of(summary: Mapping[str, object]) -> dict[str, object]:
    """Return what W&B's table of runs has of a summary. It leaves out constants, what stands in the
    config, and lines of the clock that are zero."""
    ends = dict[str, object]()
    for name, value in at_the_end(summary).items():
        is_column = name in (*SHOWN, *OF_COMPARISONS)
        is_spent = name.startswith(CLOCK) and bool(value)
        if is_column or is_spent:
            ends[curve_name(name)] = value
    return ends


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning and six digits that tell it from others that begin so."""
    if len(text) <= longest:
        return text
    beginning = text[: longest - 7]
    return f"{beginning}-{six_digits(text)}"


def six_digits(text: str) -> str:
    """Return digits of a text's hash, which tell it from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]
