"""The doors that read a record, each as a call in the working directory, with what its answer says
in numbers."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nocap import api, compare, generate
from nocap import train as train_door
from nocap.config.errors import refusals
from nocap.runs import __main__ as runs_door
from nocap.store.record import Record
from nocap.study import __main__ as study
from tests.attempts import steady
from tests.fuzz.library import DONE, GRID, HALF, STUDY_FOLDER, TINY, train
from tests.fuzz.process import Answer

Numbers = dict[str, Any]  # what must not change without a word: a thing's name → its numbers


@dataclass(frozen=True, kw_only=True)
class Door:
    name: str
    call: Callable[[], Any]
    focus: tuple[str, ...]  # globs of what is damaged
    writes: tuple[str, ...] = ()  # globs of what it may write
    numbers: Callable[[Answer], Numbers] = field(default=lambda done: {"": done.out})
    needs: tuple[str, ...] = ("done", "half", "grid")  # runs of the library
    lists: bool = False  # what lies in a folder, whatever that is
    pages: tuple[str, ...] = ()  # globs of what it writes for a browser
    weight: int = 2


# --- calls ----------------------------------------------------------------------------------------


def grid() -> None:
    with patch.object(sys, "argv", ["train", *TINY, "--multirun", *GRID]):
        train_door.main()


def from_half() -> int:
    (half,) = RUNS["half"]
    return train(
        "seed=2",
        "trainer.steps=7",
        f"trainer.init_from=outputs/runs/{half}/checkpoints/step-00000004",
    )


def _study(flag: str) -> Callable[[], int]:
    return lambda: study.main([str(STUDY_FOLDER), "scale=cpu", flag])


def _in_refusals(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call of the library: what it raises for bad input is its refusal."""

    def called() -> Any:
        with refusals():
            return call()

    return called


GRID_FOLDER: list[str] = []
RUNS: dict[str, list[str]] = {}  # done, half, grid, study → its folders' names; `learn` fills it


def learn(library: Path) -> None:
    """Names of the runs in a library."""
    GRID_FOLDER[:] = [path.name for path in library.glob(GRIDS)]
    paths = (library / "outputs/runs").iterdir()
    names = sorted(path.name for path in paths)
    seeds = {"done": ("1",), "half": ("2",), "grid": ("3",), "study": ("10", "11", "12")}
    for what, which in seeds.items():
        RUNS[what] = [name for name in names if name.split("-s")[-1].split("-")[0] in which]


# --- numbers --------------------------------------------------------------------------------------


def _trained(what: str) -> Callable[[Answer], Numbers]:
    """The table; and of the runs that this call trained, their state."""

    def numbers(done: Answer) -> Numbers:
        folders = [Path("outputs/runs") / name for name in RUNS[what]]
        now = [(folder / "summary.json").stat().st_mtime >= done.began for folder in folders]
        values = {}
        for folder, new in zip(folders, now, strict=True):
            values[folder.name] = {"said": _said(done.out), "state": state(folder) if new else None}
        return values

    return numbers


def _said(out: str) -> list[str]:
    return [line.strip() for line in out.splitlines() if line.strip().startswith("validation ")]


def state(folder: Path) -> Any:
    """The last step's weights and optimizer, as hashes, and the rows."""
    (last,) = sorted((folder / "checkpoints").glob(f"step-{'[0-9]' * 8}"))[-1:]
    paths = sorted(last.glob("*.safetensors"))
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in paths}
    return last.name, hashes, steady(folder)


def _compared(content: dict[str, Any]) -> Numbers:
    """By run, without its label, which says how it differs from the others; and the rest of the
    comparison."""
    return {
        **{run["identity"]: {**run, "label": None} for run in content["runs"]},
        "": {key: content[key] for key in ("arms", "baseline")},
    }


def _of_json(file: str) -> Callable[[Answer], Numbers]:
    return lambda done: _compared(json.loads(Path(file).read_text()))


def _records(done: Answer) -> Numbers:
    records: list[Record] = done.value
    values = {}
    for run in records:
        summary = dict(run.summary)
        values[run.identity] = {
            "status": run.status,
            "summary": summary,
            "curve": asdict(run.curve),
            "config": run.config,
        }
    return values


# --- the doors ------------------------------------------------------------------------------------

ONE = ("done", "half")
STUDIED = ("done", "study")
GRIDS = "outputs/grids/attention-*"
BOARD = ("experiments/README.md", "experiments/tiny/README.md")
READMES = ("experiments/README.md", "experiments/board.html", "experiments/*/README.md")


def _grid() -> str:
    return f"outputs/grids/{GRID_FOLDER[0]}"


def _compare(*words: str) -> Callable[[], Any]:
    return lambda: compare.main([_grid() if word == "GRID" else word for word in words])


def _doors() -> Sequence[Door]:
    def runs(*what: str) -> tuple[str, ...]:
        paths = []
        for kind in what:
            paths += [f"outputs/runs/{name}" for name in RUNS[kind]]
        return tuple(paths)

    (half,) = RUNS["half"]
    two = RUNS["grid"]
    ran = ("outputs/runs", *runs("done", "half", "grid"))
    record = (*runs("grid"), GRIDS, "outputs/grids")
    studied = (*runs("study"), "outputs/studies", "experiments", "outputs/studies/*")
    return [
        Door(
            name="resume",
            needs=ONE,
            call=lambda: train(*HALF),
            focus=runs("half"),
            writes=runs("half"),
            numbers=_trained("half"),
            weight=8,
        ),
        Door(
            name="finished",
            needs=ONE,
            call=lambda: train(*DONE),
            focus=runs("done"),
            writes=runs("done"),
            numbers=_trained("done"),
            weight=3,
        ),
        Door(
            name="init",
            needs=ONE,
            call=from_half,
            focus=runs("half"),
            writes=("outputs/runs/*",),
            numbers=_begun,
            weight=2,
        ),
        Door(
            name="grid",
            call=grid,
            focus=record,
            writes=(*runs("grid"), "outputs/grids"),
            numbers=_trained("grid"),
            weight=2,
        ),
        Door(name="compare", call=_compare("GRID"), focus=record, weight=3),
        Door(
            name="compare --json",
            call=_compare("outputs", "--json", "c.json", "--csv", "c.csv"),
            focus=("outputs", *ran, GRIDS, "outputs/grids"),
            writes=("c.json", "c.csv"),
            numbers=_of_json("c.json"),
            lists=True,
            weight=8,
        ),
        Door(
            name="compare --html",
            call=_compare("GRID", "--html", "c.html", "--json", "c.json"),
            focus=record,
            writes=("c.html", "c.json"),
            numbers=_of_json("c.json"),
            pages=("c.html",),
            weight=3,
        ),
        Door(
            name="runs why",
            call=lambda: runs_door.main(["why", *(f"outputs/runs/{name}" for name in two)]),
            focus=runs("grid"),
        ),
        Door(name="study --judge", needs=STUDIED, call=_study("--judge"), focus=studied, weight=3),
        Door(
            name="study --plan",
            needs=STUDIED,
            call=_study("--plan"),
            focus=studied,
            writes=("outputs/plans",),
            numbers=lambda done: {},  # a plan is an estimate
        ),
        Door(
            name="study --board",
            needs=(),
            call=lambda: study.main(["--board", "experiments"]),
            focus=("experiments", "experiments/*"),
            writes=READMES,
            numbers=lambda done: {"": [Path(file).read_text() for file in BOARD]},
            pages=READMES,
            weight=2,
        ),
        Door(
            name="generate",
            needs=ONE,
            call=lambda: generate.main(
                [f"run=outputs/runs/{half}", "max_tokens=3", "prompt=ab", "threads=1", "device=cpu"]
            ),
            focus=runs("half"),
            weight=4,
        ),
        Door(
            name="api.load",
            call=_in_refusals(lambda: api.load("outputs/runs")),
            focus=ran,
            numbers=_records,
            lists=True,
        ),
        Door(
            name="api.frame",
            call=_in_refusals(lambda: api.frame("outputs/runs").to_json(orient="records")),
            focus=runs("grid"),
            numbers=_framed,
            lists=True,
        ),
        Door(
            name="api.compare",
            call=_in_refusals(lambda: api.compare(_grid())),
            focus=record,
            numbers=lambda done: _compared(done.value),
            weight=3,
        ),
    ]


def _framed(done: Answer) -> Numbers:
    kept = (
        "status",
        "seed",
        "steps",
        "tokens",
        "val_loss",
        "tokens_per_s",
        "step_ms",
        "model_mib",
        "train_s",
        "wall_s",
        "kernel",
    )
    content = json.loads(done.value)
    values = {}
    for row in content:
        values[row["identity"]] = {key: row[key] for key in kept}
    return values


def _begun(done: Answer) -> Numbers:
    paths = Path("outputs/runs").glob("nano-*-s2-*")
    folders = [path for path in paths if path.name not in RUNS["half"] and path.is_dir()]
    # no copy
    (folder,) = [path for path in folders if (path / "summary.json").stat().st_mtime >= done.began]
    return {"": {"said": _said(done.out), "state": state(folder)}}


def doors(library: Path) -> dict[str, Door]:
    learn(library)
    whole = (library / STUDY_FOLDER).exists()
    return {door.name: door for door in _doors() if whole or "study" not in door.name.split()}
