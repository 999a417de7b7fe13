"""Random damage to records, through every door. Three outcomes only: mended, refused by name, left out by
name (`tests/fuzz/judge.py`).

A failure prints its case; `Bench.run` repeats it. `make fuzz` runs 20,000.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nocap import api, compare, generate
from nocap.config.bounded import read_bytes
from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.store.files import append_text
from nocap.study import __main__ as study
from nocap.study.pages import check_readme
from tests.fuzz.doors import RUNS
from tests.fuzz.judge import Bench, Case, Wound
from tests.fuzz.library import DONE, HALF, copy_of, make, train
from tests.fuzz.process import answer, workers_here

MEMORY_BYTES = 6 * 2**30  # of address space


@pytest.fixture(scope="session")
def runs(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Doors to runs and grids."""
    return _bench(cache_dir, tmp_path_factory, whole=False)


@pytest.fixture(scope="session")
def bench(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """All doors."""
    return _bench(cache_dir, tmp_path_factory, whole=True)


def _bench(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory, *, whole: bool) -> Bench:
    library = tmp_path_factory.mktemp("records") / "library"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOCAP_CACHE", str(cache_dir))
        make(library, whole=whole)
    return Bench(library, tmp_path_factory.mktemp("fuzz"))


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """What would take the machine's memory raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcomes(bench: Bench, *, number: int, cases: int) -> set[str]:
    """Of so many random cases; no fault among them."""
    rng, faults, kinds = random.Random(number), list[str](), set[str]()
    for case in (bench.random_case(rng) for _ in range(cases)):
        verdict = bench.run(case)
        kinds.add(verdict.outcome)
        faults += [f"{verdict.outcome}: {verdict.detail}\n{case!r}"] if verdict.is_fault else []
    assert not faults, "\n".join(faults)
    return kinds


@pytest.mark.slow
def test_damage_is_mended_refused_or_left_out(runs: Bench):
    assert outcomes(runs, number=0, cases=60) >= {"same", "refused", "left out"}


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(1, 41))
def test_damage_for_an_hour(bench: Bench, number: int, bounded_memory: None):
    outcomes(bench, number=number, cases=int(os.environ.get("CASES", "500")))


@pytest.mark.slow
def test_undamaged_records_give_the_same_answer_again(bench: Bench):
    """Else a difference after damage would say nothing."""
    elsewhere = (Wound("outside/canary.txt", "extend", 0),)
    assert {name: bench.run(Case(name, elsewhere)).outcome for name in bench.doors} == dict.fromkeys(
        bench.doors, "same"
    )


# --- what it found ------------------------------------------------------------------------------------------


@pytest.fixture
def copied(runs: Bench, tmp_path: Path) -> Iterator[Bench]:
    """A copy of the runs, which is the working directory."""
    with copy_of(runs.library, tmp_path / "copy"), workers_here():
        yield runs


def refusal(call: Callable[[], object]) -> str:
    """The one line of a door that refuses."""
    said = answer(call)
    assert (said.code, said.crash, said.err.count("\n")) == (2, None, 1), said
    return said.err


def test_a_cell_without_a_record_is_named(copied: Bench):
    lost, damaged = sorted(RUNS["grid"])
    (grid,) = Path("outputs/grids").iterdir()
    shutil.rmtree(Path("outputs/runs") / lost)
    assert any("1 cell without a record" in line and lost in line for line in api.compare(grid)["problems"])
    (Path("outputs/runs") / damaged / "manifest.json").write_text("{")
    assert damaged in refusal(lambda: compare.main([str(grid)]))
    shutil.rmtree(Path("outputs/runs") / damaged)
    assert f"2 cells without a record ({lost}, {damaged})" in refusal(lambda: compare.main([str(grid)]))


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere"), os.mkfifo])
def test_a_run_whose_summary_is_no_file_is_named(copied: Bench, make: Callable[[Path], None]):
    (done,) = RUNS["done"]
    folder = Path("outputs/runs") / done
    (folder / "manifest.json").unlink()
    (folder / "summary.json").unlink()
    make(folder / "summary.json")
    (left_out,) = [row for row in api.compare("outputs")["not_compared"] if row["name"] == done]
    assert re.match(r"unreadable: .*(summary|manifest)\.json", left_out["status"])


def test_a_cell_that_is_no_more_in_its_grid_is_missed(copied: Bench):
    (grid,) = Path("outputs/grids").iterdir()
    content = json.loads((grid / "grid.json").read_text())
    (grid / "grid.json").write_text(json.dumps({**content, "cells": content["cells"][:1]}))
    assert any("lists other cells" in line for line in api.compare(grid)["problems"])


def test_a_pipe_in_place_of_a_log_keeps_nobody_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / "train.log")
    with pytest.raises(OSError, match=r"train\.log"):
        append_text(tmp_path / "train.log", "a line")


def test_a_damaged_record_is_no_silent_gap_in_a_program(copied: Bench):
    (done,) = RUNS["done"]
    (Path("outputs/runs") / done / "summary.json").write_text("{")
    for call in (api.load, api.frame):
        with pytest.warns(UserWarning, match=f"{done}: left out, .*summary.json"):
            call("outputs/runs")


def test_text_is_not_made_with_another_runs_checkpoint(copied: Bench):
    (done,), (half,) = RUNS["done"], RUNS["half"]
    place = Path("outputs/runs") / done / "checkpoints"
    shutil.rmtree(place)
    shutil.copytree(Path("outputs/runs") / half / "checkpoints", place)
    said = answer(
        lambda: generate.main([f"run=outputs/runs/{done}", "max_tokens=2", "threads=1", "device=cpu"])
    )
    assert said.code == 2
    assert f"it is of another run, {half}" in said.err


def test_a_forged_state_is_refused_by_name(copied: Bench):
    (half,) = RUNS["half"]
    for state in (Path("outputs/runs") / half / "checkpoints").glob("step-*/state.json"):
        content = json.loads(state.read_text())
        content["optimizer"]["groups"] = [{"a": 1}]
        state.write_text(json.dumps(content))
        sums = json.loads(state.with_name("manifest.json").read_text())
        state.with_name("manifest.json").write_text(
            json.dumps({**sums, state.name: hashlib.sha256(state.read_bytes()).hexdigest()})
        )
    assert f"{half}/checkpoints/step-" in refusal(lambda: train(*HALF))


def test_results_of_another_form_are_refused_by_name(tmp_path: Path):
    results = tmp_path / "study" / "results.cpu.x.json"
    results.parent.mkdir()
    results.write_text(json.dumps({"kind": "study", "schema_version": 1, "claims": [], "arms": 5}))
    assert str(results) in refusal(lambda: study.main(["--board", str(tmp_path)]))


def test_a_readme_that_is_a_pipe_is_refused_by_name(tmp_path: Path):
    os.mkfifo(tmp_path / "README.md")
    with pytest.raises(ValueError, match=r"README\.md must be a regular file"):
        check_readme(tmp_path)


def test_a_finished_run_whose_rows_and_checkpoint_are_gone_is_refused_by_name(copied: Bench):
    (done,) = RUNS["done"]
    folder = Path("outputs/runs") / done
    (folder / "metrics.jsonl").write_text("")
    next(folder.glob("checkpoints/step-*/state.json")).write_text("{}")
    assert f"{done}: metrics.jsonl is not what its digest in summary.json says; there is no valid" in refusal(
        lambda: train(*DONE)
    )


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=f"{tmp_path} must be a regular file"):
        read_bytes(tmp_path)


def test_a_refusal_is_a_line_that_a_person_can_read():
    line = refusal(lambda: _refused(str([2] * 1000)))
    assert len(line) < 1_100


def _refused(value: str) -> None:
    with refusals():
        require(False, "key", "be short", value)
