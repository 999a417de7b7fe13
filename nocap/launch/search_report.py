"""What a search leaves beside its trials: a table, `grid.json` with all of them, and `report.html` with its plots. No verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nocap.launch.grid import FILE, REPORT, named
from nocap.launch.search import describe
from nocap.launch.searching import Searching, Trial
from nocap.report import page
from nocap.store.files import write_file
from nocap.store.formats import loss, plural
from nocap.store.record import write_json

MOST = 10  # trials of the table on a terminal


def head(searching: Searching) -> list[str]:
    """What is searched, and how."""
    search, one = searching.search, plural(searching.search.trials, "trial")
    screen = f"; all at {search.screen:g} of their steps, then the best {search.screen:g} of them at all steps" if search.screen else ""
    keys = [f"  {key}: {describe(distribution)}" for key, distribution in searching.space.items()]
    return [f"{searching.grid.name}: {search.sampler.name}, {one} on seed {search.seed}{screen}", *keys]


def rows(searching: Searching, trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of these trials."""
    screens = searching.search.screen is not None
    names = ["trial", "val loss", *([f"at {searching.search.screen:g} of the steps"] if screens else []), *searching.space, ""]
    found = []
    for trial in trials:
        values = [word.partition("=")[2] for word in trial.words]
        said = {"finished": "", "open": "not finished", "refused": f"cannot be trained: {trial.reason}"}.get(trial.status, trial.status)
        losses = [loss(trial.val_loss), *([loss(trial.screened)] if screens else [])]
        found.append([str(trial.number), *losses, *values, said])
    return names, found


def note(searching: Searching) -> str:
    """What the table is not."""
    return f"chosen on seed {searching.search.seed}: what the settings are worth, other seeds tell"


def as_json(searching: Searching, trials: Sequence[Trial]) -> dict[str, Any]:
    """As a grid's `grid.json`: its cells are the runs of whole schedules."""
    search, grid = searching.search, searching.grid
    cells = {cell.plan.identity: named(cell) for trial in trials if (cell := trial.whole) is not None}
    listed = [_listed(trial) for trial in trials]
    settings = {"sampler": search.sampler.name, "trials": search.trials, "screen": search.screen, "seed": search.seed}
    settings["seeds"] = [search.seed]  # of the runs
    space = {key: describe(distribution) for key, distribution in searching.space.items()}
    return {"name": grid.name, "swept": grid.swept, "search": settings, "space": space, "trials": listed, "cells": list(cells.values())}


def _listed(trial: Trial) -> dict[str, Any]:
    losses = {"val_loss": trial.val_loss, "screened": trial.screened}
    return {"trial": trial.number, "overrides": trial.words, "status": trial.status, **losses, "reason": trial.reason}


def write(searching: Searching, trials: Sequence[Trial], *, with_page: bool = True) -> None:
    folder = searching.grid.folder
    write_json(folder / FILE, as_json(searching, trials))
    if with_page:
        write_file(folder / REPORT, render(searching, trials).encode())


def render(searching: Searching, trials: Sequence[Trial]) -> str:
    names, lines = rows(searching, trials)
    ended = [trial for trial in trials if trial.val_loss is not None]
    lowest = f"; the lowest loss is {loss(ended[0].val_loss)}, with {' '.join(ended[0].words)}" if ended else ""
    return page.render(
        "search",
        kind="nocap search",
        title=f"{plural(len(trials), 'trial')}{lowest}",
        data=page.finite({"screen": searching.search.screen, "keys": _axes(searching), "trials": [_plotted(trial) for trial in trials]}),
        lines=head(searching),
        note=note(searching),
        names=names,
        rows=lines,
        keys=list(searching.space),
    )


def _axes(searching: Searching) -> list[dict[str, Any]]:
    space: dict[str, Any] = dict(searching.space)
    return [{"name": name, "log": getattr(one, "log", False), "words": hasattr(one, "choices")} for name, one in space.items()]


def _plotted(trial: Trial) -> dict[str, Any]:
    values = [word.partition("=")[2] for word in trial.words]
    losses = {"val_loss": trial.val_loss, "screened": trial.screened}
    return {"number": trial.number, **losses, "values": values, "words": " ".join(trial.words)}
