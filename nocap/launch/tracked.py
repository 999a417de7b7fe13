"""What trackers are told of runs and grids, and how what they left offline is uploaded. No torch here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.keys import flat
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.judge.arms import short_keys, spell
from nocap.options.tracker import RunFacts
from nocap.store.files import write_text
from nocap.store.identity import digest
from nocap.store.tracking import offline, track_comparison

if TYPE_CHECKING:  # a worker, which knows no grids, starts without Hydra
    from nocap.launch.grid import Grid
    from nocap.launch.plan import Plan

OFFLINE = "offline.txt"  # in a grid's folder: what is to be uploaded, a folder a line


def comparison_of(grid: str) -> str:
    """The identity under which trackers have a grid's comparison."""
    return digest({"grid": grid})


def run_facts(run: Run, run_dir: Path, manifest: Mapping[str, Any]) -> RunFacts:
    """Of a run and its manifest, which may be from before it had options and swept keys."""
    attempt, options, config = manifest["attempts"][-1], manifest.get("options") or {}, to_plain(run)
    grid, values = attempt.get("grid"), dict(flat(config))
    swept = {key: options.get(key, values.get(key)) for key in attempt.get("swept") or () if key in options or key in values}
    short = short_keys(list(swept))
    words = [
        str(value) if key in options and value != "none" else f"{short[key]}={spell(value)}"
        for key, value in swept.items()
        if key != "seed"
    ]
    if grid is None or not words:
        words = [str(manifest["name"]).removesuffix(f"-s{run.seed}"), *words]
    arm = " ".join(words)
    return RunFacts(
        identity=manifest["identity"],
        name=f"{arm} s{run.seed}",
        arm=arm,
        seed=run.seed,
        run_dir=run_dir,
        config=config,
        group=grid,
        tags=(arm, *(f"{group}={name}" for group, names in options.items() for name in names.split(","))),
        options=options,
        swept={short[key]: value for key, value in swept.items()},
        comparison=None if grid is None else comparison_of(grid),
    )


def typed_keys(run: Run, overrides: Iterable[str]) -> tuple[str, ...]:
    """The keys that a command line sets and that make another run, in its order; options are in the run's name already."""
    counted = dict(flat(run.that_count("identity", to_plain(run))))
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return tuple(dict.fromkeys(key for key in keys if "." in key and key in counted))


def track_grid(grid: Grid, comparison: Mapping[str, Any], *, report: Path) -> str | None:
    """A grid's comparison as a run of its group; where that is online."""
    tracker = grid.cells[0].plan.run.tracker
    facts = RunFacts(
        identity=comparison_of(grid.name),
        name=grid.name,
        arm="comparison",
        seed=0,
        run_dir=grid.folder,
        config={"grid": grid.name},
        group=grid.name,
        tags=("comparison",),
    )
    address = track_comparison(tracker, facts, comparison=comparison, report=report)
    return None if offline(tracker, [grid.folder]) else address


def upload_all(folder: Path, plans: Sequence[Plan]) -> Iterator[str]:
    """A command for each tracker that uploads what it left offline of these runs and of the grid in `folder`, where it lists that."""
    waiting = offline(plans[0].run.tracker, [*(plan.run_dir for plan in plans), folder]) if plans else {}
    for uploader, places in waiting.items():
        write_text(folder / OFFLINE, "".join(f"{shlex.quote(str(place))}\n" for place in places))
        yield f"{len(places)} offline; one command uploads them: xargs {uploader} < {shlex.quote(shown(folder / OFFLINE))}"


def shown(path: Path) -> str:
    """As it is typed here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
