"""`--until-shown`: more seeds, look by look, until nothing is open or the budget has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from nocap.config.overrides import overrides_of
from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.launch import seed_looks
from nocap.store.runs import load_runs
from tests.conftest import Door
from tests.grids import CELL

ARMS = "optimizer.lr=0.003,0.002"


def at(folder: Path, seeds: int) -> Comparison | None:
    """The comparison of the grid with so many seeds; `None`: it was not trained."""
    for grid in (folder / "outputs" / "grids").iterdir():
        comparison = compare(load_runs([grid]))
        if len(comparison.baseline.arm.seeds) == seeds:
            return comparison
    return None


def test_looks_double_until_the_budget() -> None:
    every = seed_looks.looks(overrides_of(["attention=flash,gqa", "seed=4,0,1"], grid=True), 20)
    expected = [3, 6, 12, 20]
    assert [seed_looks.seeds_in(overrides) for overrides in every] == expected
    assert str(every[1][1].input_line) == "seed=0,1,2,3,4,5"
    assert seed_looks.plan_of(every).startswith(
        "--until-shown compares the arms after 3, 6, 12 and 20 seeds"
    )


@pytest.mark.slow
def test_it_goes_on_as_long_as_something_is_open_and_after_a_stop(
    tmp_path: Path, here: Door
) -> None:
    words = ["--until-shown", "4", *CELL, ARMS, "seed=0,1,2"]
    assert here("--multirun", *CELL, ARMS, "seed=0").code == 0  # a part of it is there already
    done = here(*words)
    assert done.code == 0
    assert "--until-shown compares the arms after 3 and 4 seeds" in done.out
    first = at(tmp_path, 3)
    assert first is not None
    if any(finding.is_open for finding in first.findings.found):
        assert "--until-shown: open after 3 seeds: lr=0.002; more seeds for every arm" in done.out
        last = at(tmp_path, 4)
        assert last is not None
        assert last.look == 2  # the seeds that were asked for first, and those of the budget
        assert (
            "no more seeds are allowed" in done.out
            or "no difference is open after 4 seeds" in done.out
        )
    else:
        assert at(tmp_path, 4) is None
        assert "--until-shown: no difference is open after 3 seeds" in done.out
    again = here(*words)
    assert "trained now" in again.out
    assert "; 0 trained now" in again.out
    lines = [line for line in again.out.splitlines() if line.startswith("until")]
    expected = [line for line in done.out.splitlines() if line.startswith("until")]
    assert lines == expected


def test_it_ends_at_the_first_look_where_all_is_shown(tmp_path: Path, here: Door) -> None:
    """An arm that learns nothing ends higher by far."""
    done = here("--until-shown", "6", *CELL, "optimizer.lr=0.003,1e-9", "seed=0,1,2")
    assert done.code == 0
    assert "--until-shown: no difference is open after 3 seeds" in done.out
    assert at(tmp_path, 6) is None


REFUSED = [
    (["6", ARMS], "seed must list 3 or more seeds with --until-shown (as in seed=0,1,2), got none"),
    (
        ["6", ARMS, "seed=1"],
        "seed must list 3 or more seeds with --until-shown (as in seed=0,1,2), got seed=1",
    ),
    (
        ["3", ARMS, "seed=0,1,2"],
        "--until-shown must be more than 3, the number of seeds in this command, got 3",
    ),
    (
        ["many", ARMS, "seed=0,1,2"],
        "--until-shown must be a whole number, the most seeds per arm (as in --until-shown 24), "
        "got many",
    ),
    (
        ["6", "search=random", "optimizer.lr=interval(1e-4,1e-2)"],
        "--until-shown does not work with search=",
    ),
    (
        ["6", "--detach", "hydra/launcher=slurm", ARMS, "seed=0,1,2"],
        "--until-shown does not work with --detach",
    ),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_what_it_cannot_do_is_refused(here: Door, words: list[str], why: str) -> None:
    done = here("--until-shown", *words, *CELL)
    assert done.code == 2
    assert done.out == ""
    assert why in done.err
