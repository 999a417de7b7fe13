"""Facts about the attention of a run: its first window and its kernel."""

from __future__ import annotations

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.config.trainer import Precision


def first_window(run: Run) -> int | None:
    """Return the window in tokens of the first layer that has one."""
    for layer in range(run.model.n_layer):
        window = run.attention.window_of(layer)
        if window is not None:
            return window
    return None


def kernel_name(run: Run, precision: Precision) -> str:
    """Return the attention kernel that runs, for the record."""
    name_of = declared(run.attention, "kernel_name", of=("build", "mixer"))
    if name_of is None:
        return run.attention.kind
    return str(name_of(run, precision))
