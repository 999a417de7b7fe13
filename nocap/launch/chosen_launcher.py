"""The launcher that a grid's command chooses: which flags it can carry out, and the machine that it
composes the cells for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config import hardware
from nocap.config.compose import Composed, composed, defaults_in
from nocap.config.explain import one_line_errors
from nocap.config.flags import TIME, GridFlags
from nocap.config.keys import check_keys, require
from nocap.config.plain import dataclass_from
from nocap.config.trainer import Trainer
from nocap.launch.grid import Cell, Grid, plan_grid
from nocap.options.launcher import Launcher, Target

MACHINE = ("device", "precision", "compile", "threads")  # of the trainer: follow from the machine


@one_line_errors()
def launcher_option(config: DictConfig) -> Launcher | None:
    """Return the launcher that `config.hydra.launcher` is. None: none was chosen.

    Errors:
        ValueError: an unknown kind or key, or a wrong value.
    """
    keys: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    if chosen == "basic":
        # what Hydra has where none is chosen
        is_bare = keys.keys() == {"_target_"} and keys["_target_"].endswith(".BasicLauncher")
        rule = "have no keys unless a launcher is chosen (as in hydra/launcher=pool)"
        require(is_bare, "hydra.launcher", rule, keys)
        return None
    rule = "be basic, pool, slurm, ray or an option of your own, and no other launcher of Hydra"
    require("_target_" not in keys, "hydra/launcher", rule, chosen)
    schema = outside.option("launcher", "hydra.launcher", keys)
    option: Launcher = dataclass_from(schema, keys, "hydra.launcher.")
    check_keys("hydra.launcher", option)
    return option


def check_flags(launcher: Launcher | None, flags: GridFlags) -> None:
    """Refuse flags that this launcher cannot carry out.

    Errors:
        ValueError: there is such a flag.
    """
    in_queue = launcher is not None and launcher.has_queue
    if flags.detach and not in_queue:
        line = "--detach works only with a launcher that has a queue, such as hydra/launcher=slurm"
        raise ValueError(line)
    if flags.fail_fast and launcher is not None and launcher.has_queue:
        chosen = f"hydra/launcher={launcher.kind}"
        raise ValueError(
            f"--fail-fast does not work with {chosen}, because a queue starts the cells"
        )
    if flags.time is not None and _machines(launcher) is not None:
        raise ValueError(
            f"{TIME} does not work on a cluster: {TIME} times the arms on this machine"
        )


def _machines(launcher: Launcher | None) -> Target | None:
    """Return the machines of a cluster that the cells run on; None: they run on this one."""
    if launcher is None:
        return None
    return launcher.machines()


def plan_grid_for(
    cells: Sequence[Sequence[str]],
    swept: Sequence[str],
    launcher: Launcher | None,
    *,
    lengths: Sequence[Sequence[str]] = (),
    skip_refused: bool = False,
) -> Grid:
    """Return the grid of these cells, on the machine of the launcher. `lengths`, `skip_refused`:
    see `grid.plan_grid`.

    Errors:
        ValueError: as for `grid.plan_grid`.
    """
    target = _machines(launcher)
    if target is not None:
        return _on_cluster(cells, swept, target, lengths=lengths, skip_refused=skip_refused)
    return plan_grid(
        cells,
        swept=swept,
        compose=composed,
        log=print,
        lengths=lengths,
        skip_refused=skip_refused,
    )


def _on_cluster(
    cells: Sequence[Sequence[str]],
    swept: Sequence[str],
    target: Target,
    *,
    lengths: Sequence[Sequence[str]],
    skip_refused: bool,
) -> Grid:
    """Return the grid as runs on the machines of a cluster."""

    def compose(words: Sequence[str]) -> Composed:
        # what fits the target alone is refused here, so it decides first
        keys = [key for key in defaults_in(words) if key in MACHINE]
        return composed([*words, *_of_machine(target, keys)])

    with hardware.target(target.name, target.torch):
        grid = plan_grid(
            cells,
            swept=swept,
            compose=compose,
            log=print,
            lengths=lengths,
            skip_refused=skip_refused,
        )
    cells_there = list[Cell]()
    for cell in grid.cells:
        of_machine = _of_machine(cell.plan.run.trainer, MACHINE)
        cells_there.append(replace(cell, overrides=(*cell.overrides, *of_machine)))
    return replace(grid, cells=tuple(cells_there))


def _of_machine(facts: Target | Trainer, keys: Iterable[str]) -> list[str]:
    """Return what a machine or a trainer has of these keys, as overrides."""
    overrides = list[str]()
    for key in keys:
        value = getattr(facts, key)
        if isinstance(value, Enum):
            value = value.name
        if value is not None:
            overrides.append(f"trainer.{key}={value}")
    return overrides
