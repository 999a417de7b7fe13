"""Random damage to records, through every door. Three outcomes only: mended, refused by name, left
out by name (`tests/fuzz/judge.py`).

A failure prints its case; `Bench.run` repeats it. `make fuzz` runs 20,000.
"""

import hashlib
import json
import os
import random
import re
import resource
import shutil
from pathlib import Path

import pytest

from nocap import api, compare, generate
from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.config.untrusted_files import read_bytes
from nocap.store.file_writing import append_text
from nocap.study import __main__ as study
from nocap.study.study_pages import check_readme
from tests.conftest import REPO
from tests.fuzz.doors import RUNS
from tests.fuzz.judge import FAULTS, Bench, Case, Wound
from tests.fuzz.library import DONE, HALF, copy_of, make, train
from tests.fuzz.process import answer, workers_here

MEMORY_BYTES = 6 * 2**30  # of address space


@pytest.fixture(scope="session")
def bench(request, cache_dir, tmp_path_factory):
    """All doors; or, where a test says so, those to runs and grids."""
    library = tmp_path_factory.mktemp("records") / "library"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOCAP_CACHE", str(cache_dir))
        make(library, whole=getattr(request, "param", True))
    return Bench(library, tmp_path_factory.mktemp("fuzz"))


runs = pytest.mark.parametrize("bench", [False], indirect=True, ids=["runs"])


@pytest.fixture
def bounded_memory():
    """What would take the machine's memory raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcomes(bench, *, number, cases):
    """Of so many random cases; no fault among them."""
    rng = random.Random(number)
    faults = []
    kinds = set[str]()
    for case in (bench.random_case(rng) for _ in range(cases)):
        verdict = bench.run(case)
        kinds.add(verdict.outcome)
        faults += [f"{verdict.outcome}: {verdict.detail}\n{case!r}"] * (verdict.outcome in FAULTS)
    assert not faults, "\n".join(faults)
    return kinds


@runs
@pytest.mark.slow
def test_damage_is_mended_refused_or_left_out(bench):
    reasons = outcomes(bench, number=0, cases=60)
    assert reasons >= {"same", "refused", "left out"}


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(1, 41))
def test_damage_for_an_hour(bench, number, bounded_memory):
    cases = int(os.environ.get("CASES", "500"))
    outcomes(bench, number=number, cases=cases)


@pytest.mark.slow
def test_undamaged_records_give_the_same_answer_again(bench):
    """Else a difference after damage would say nothing."""
    elsewhere = (Wound("outside/canary.txt", "extend", 0),)
    results = {bench.run(Case(name, elsewhere)).outcome for name in bench.doors}
    assert results == {"same"}


# --- what it found --------------------------------------------------------------------------------


@pytest.fixture
def copied(bench, tmp_path):
    """A copy of the runs, which is the working directory: the folders of the finished run and of
    the half."""
    with copy_of(bench.library, tmp_path / "copy"), workers_here():
        yield {name: Path("outputs/runs") / RUNS[name][0] for name in ("done", "half")}


def refusal(call):
    """The one line of a door that refuses."""
    said = answer(call)
    assert said.code == 2, said
    assert said.crash is None, said
    assert said.err.count("\n") == 1, said
    return said.err


@runs
@pytest.mark.slow
def test_a_cell_without_a_record_is_named(copied):
    lost, damaged = sorted(RUNS["grid"])
    (grid,) = Path("outputs/grids").iterdir()
    shutil.rmtree(Path("outputs/runs") / lost)
    problems = api.compare(grid)["problems"]
    assert any("1 cell without a record" in line and lost in line for line in problems)
    (Path("outputs/runs") / damaged / "manifest.json").write_text("{")
    assert damaged in refusal(lambda: compare.main([str(grid)]))
    shutil.rmtree(Path("outputs/runs") / damaged)
    assert f"2 cells without a record ({lost}, {damaged})" in refusal(
        lambda: compare.main([str(grid)])
    )


@runs
def test_a_cell_that_is_no_more_in_its_grid_is_missed(copied):
    (file,) = Path("outputs/grids").glob("*/grid.json")
    content = json.loads(file.read_text())
    text = json.dumps({**content, "cells": content["cells"][:1]})
    file.write_text(text)
    problems = api.compare(file.parent)["problems"]
    assert any("do not match the folder's name" in line for line in problems)


@runs
@pytest.mark.parametrize("make", [lambda path: path.symlink_to("nowhere"), os.mkfifo])
def test_a_run_whose_summary_is_no_file_is_named(copied, make):
    for name in ("manifest.json", "summary.json"):
        (copied["done"] / name).unlink()
    make(copied["done"] / "summary.json")
    comparison = api.compare("outputs")
    status = {row["name"]: row["status"] for row in comparison["not_compared"]}
    assert re.match(r"unreadable: .*(summary|manifest)\.json", status[copied["done"].name])


@runs
def test_a_damaged_record_is_no_silent_gap_in_a_program(copied):
    (copied["done"] / "summary.json").write_text("{")
    for call in (api.load, api.frame):
        with pytest.warns(UserWarning, match=f"{copied['done'].name}: left out, .*summary.json"):
            call("outputs/runs")


@runs
def test_text_is_not_made_with_another_runs_checkpoint(copied):
    shutil.rmtree(copied["done"] / "checkpoints")
    shutil.copytree(copied["half"] / "checkpoints", copied["done"] / "checkpoints")
    words = [f"run={copied['done']}", "max_tokens=2", "threads=1", "device=cpu"]
    said = answer(lambda: generate.main(words))
    assert said.code == 2
    assert f"the checkpoint is from another run, {copied['half'].name}" in said.err


@runs
def test_a_forged_state_is_refused_by_name(copied):
    for state in (copied["half"] / "checkpoints").glob("step-*/state.json"):
        content = json.loads(state.read_text())
        sums = state.with_name("manifest.json")
        content["optimizer"]["groups"] = [{"a": 1}]
        state.write_text(json.dumps(content))
        digest = hashlib.sha256(state.read_bytes()).hexdigest()
        text = json.dumps({**json.loads(sums.read_text()), state.name: digest})
        sums.write_text(text)
    assert f"{copied['half'].name}/checkpoints/step-" in refusal(lambda: train(*HALF))


def test_results_of_another_form_are_refused_by_name(tmp_path):
    results = tmp_path / "study" / "results.cpu.x.json"
    results.parent.mkdir()
    content = {"kind": "study", "schema_version": 1, "claims": [], "arms": 5}
    results.write_text(json.dumps(content))
    alone = refusal(lambda: study.main(["--board", str(tmp_path)]))
    assert f"{results} must be in a folder that has a study.yaml, got none" in alone
    shutil.copy(REPO / "experiments" / "norms" / "study.yaml", results.parent)
    assert str(results) in refusal(lambda: study.main(["--board", str(tmp_path)]))


@runs
def test_a_finished_run_whose_rows_and_checkpoint_are_gone_is_refused_by_name(copied):
    (copied["done"] / "metrics.jsonl").write_text("")
    paths = copied["done"].glob("checkpoints/step-*/state.json")
    next(paths).write_text("{}")
    line = "metrics.jsonl does not match its digest in summary.json; no valid"
    assert f"{copied['done'].name}: {line}" in refusal(lambda: train(*DONE))


def test_a_folder_or_a_pipe_in_place_of_a_file_is_named(tmp_path):
    for name in ("README.md", "train.log"):
        os.mkfifo(tmp_path / name)
    cases = (
        (lambda: read_bytes(tmp_path), f"{tmp_path} must be a regular file"),
        (lambda: check_readme(tmp_path), r"README\.md must be a regular file"),
        (lambda: append_text(tmp_path / "train.log", "a line"), r"train\.log"),
    )
    for call, line in cases:
        with pytest.raises((ValueError, OSError), match=line):
            call()


def test_a_refusal_is_a_line_that_a_person_can_read():
    long = refusals()(lambda: require(False, "key", "be short", str([2] * 1000)))
    assert len(refusal(long)) < 1_100
