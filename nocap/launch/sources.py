"""The runs that a run names, as folders: what it begins from, and what it learns from. No torch here."""

from __future__ import annotations

import copy
import re
from pathlib import Path

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.launch import init_checkpoint
from nocap.store.checkpoints import FOLDER, name_of
from nocap.store.find import LAST, find_one


def located(run: Run) -> Run:
    """A copy with a folder for each run that it names, so that its record stays true when there are more runs.

    Errors:
        ValueError: a name stands for no run, or for several.
    """
    run, outputs = copy.deepcopy(run), expanded(run.output_dir)
    if (word := run.trainer.init_from) is not None and (found := re.fullmatch(r"(.+)@(\d{1,18})", word)) and not expanded(word).exists():
        run.trainer.init_from = str(_folder(init_checkpoint.KEY, found[1], outputs) / FOLDER / name_of(int(found[2])))
    for name, option in run.options():
        if (path := option.learns_from()) is not None:
            option.run = str(_folder(f"{name}.run", path, outputs))  # type: ignore[attr-defined]  # the key of `learns_from`
    return run


def _folder(key: str, named: str, outputs: Path) -> Path:
    if (path := expanded(named)).exists():
        return path
    require(named != LAST, key, "name its run: with last, the same command would mean another run when it is given again", named)
    try:
        return find_one(named, outputs=outputs)
    except ValueError as error:
        raise ValueError(f"{key} must name a run: {error}") from error
