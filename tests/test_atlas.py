"""The atlas: its arms compose, its runs become lines and go on where they stopped, and a planted
worth comes out of made lines."""

from __future__ import annotations

import importlib
import json
import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nocap.config.compose import composed
from nocap.study.study_folder import load_study
from tests.conftest import REPO

HERE = REPO / "experiments" / "atlas"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, atlas_ideas: None) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    module = importlib.import_module("jobs")
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs.jsonl")
    return module


@pytest.fixture
def atlas(jobs: ModuleType) -> ModuleType:
    return importlib.import_module("atlas")


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("worth")


def line(
    arm: str, seed: int, share: float, loss: float | None, machine: str = "here"
) -> dict[str, Any]:
    known = {"arm": arm, "seed": seed, "share": share, "val_loss": loss}
    return {**known, "machine": machine, "status": "finished"}


def made(
    worths: dict[str, float], *, slope: float = 0.3, noise: float = 0.002
) -> list[dict[str, Any]]:
    """Two machines of which one is 0.5 nats off, and arms that end lower by a share of steps."""
    chance = random.Random(1)
    lines = []
    for machine, off in (("here", 0.0), ("there", 0.5)):
        for seed in range(2):
            luck = chance.gauss(0, 0.05)  # of the seed, which all its arms share
            for share in (0.5, 1.0, 2.0):
                at_share = 2.0 + off + luck - slope * math.log(share)
                lines.append(line("baseline", seed, share, at_share, machine))
            for arm, factor in worths.items():
                loss = 2.0 + off + luck - slope * math.log(factor) + chance.gauss(0, noise)
                lines.append(line(arm, seed, 1.0, loss, machine))
    return lines


def timed(
    worth: ModuleType, ratios: dict[str, float], *, sessions: int = 3, noise: float = 0.002
) -> Any:
    """Sessions of timing that find these speeds of steps over the baseline's, but for noise."""
    chance = random.Random(2)
    timing = lambda x: {  # noqa: E731
        "speed": {"ratio": x * math.exp(chance.gauss(0, noise))},
        "speed_by_flops": 1.0,
    }
    timed_sessions = []
    for _ in range(sessions):
        timed_sessions.append({"steps": {words: timing(x) for words, x in ratios.items()}})
    return worth.Steps(timed_sessions)


def told(
    worth: ModuleType, runs: list[dict[str, Any]], arms: dict[str, Any], steps: Any
) -> dict[str, dict[str, str]]:
    """The page's rows by their arms, and each cell by its head."""
    rows = []
    worths = worth.worths(runs, arms, steps)
    for row in worth.table(worths, arms, steps, {})[2:]:
        words = row.removeprefix("| ").removesuffix(" |").split(" | ")
        rows.append(words)
    return {row[0]: dict(zip(worth.HEAD, row, strict=True)) for row in rows}


def test_a_planted_worth_comes_out_of_the_blocks_of_two_machines(worth: ModuleType) -> None:
    blocks = worth.Blocks(1.0, made({"good": 1.5, "bad": 0.8, "nothing": 1.0}))
    assert blocks.slope().mid == pytest.approx(0.3)
    for arm, factor in {"good": 1.5, "bad": 0.8, "nothing": 1.0}.items():
        lower = blocks.lower(arm)
        assert lower.low <= 0.3 * math.log(factor) <= lower.high
        # not the 0.5 nats between the machines, nor the 0.05 between the seeds
        assert lower.half_width < 0.01
    arms = {arm: {"with": [arm]} for arm in ("good", "bad", "nothing")}
    steps_of_ideas = timed(worth, {"good": 0.8, "bad": 1.0, "nothing": 1.0})
    rows = told(worth, blocks.runs, arms, steps_of_ideas)
    assert list(rows) == ["good", "nothing", "bad"]
    assert rows["good"]["a step's time, sessions"] == "1.25, n=3"
    words = rows["good"]["time"].split("×")
    assert float(words[0]) == pytest.approx(1.2, abs=0.02)
    verdicts = [row["verdict"] for row in rows.values()]
    assert verdicts == ["helps", "not seen", "hurts"]
    corrections = [row["after a correction"] for row in rows.values()]
    assert corrections == ["Holm", "–", "Holm"]


def test_one_seed_or_two_have_no_verdict(worth: ModuleType) -> None:
    lines = made({"good": 3.0, "bad": 0.3, "nothing": 1.0})
    few = []
    for run in lines:
        if run["arm"] != "good" or (run["seed"], run["machine"]) == (0, "here"):
            few.append(run)
    few = [run for run in few if run["arm"] != "bad" or run["machine"] == "here"]
    arms = {arm: {"with": [arm]} for arm in ("good", "bad")}
    steps = timed(worth, dict.fromkeys(arms, 1.0))
    others = [*few, *(line("other", seed, 1.0, 2.0 + seed / 100) for seed in range(2))]
    rows = told(worth, others, arms, steps)
    expected = {"good": "no verdict (n=1)", "bad": "no verdict (n=2)"}

    verdicts = {arm: row["verdict"] for arm, row in rows.items()}
    assert verdicts == expected
    assert {row["after a correction"] for row in rows.values()} == {"–"}
    assert "0 of 2 ideas help" in worth.left_of(worth.worths(few, arms, steps))[0]


@pytest.mark.usefixtures("worth")  # it puts the folder on the path
def test_what_is_left_after_a_correction() -> None:
    from estimate import benjamini_hochberg, holm

    p = {"a": 0.001, "b": 0.012, "c": 0.0125, "d": 0.04, "e": 0.9}
    expected = {"a", "b"} | ({"c"} if 0.0125 <= 0.05 / 3 else set())
    assert holm(p) == expected
    assert benjamini_hochberg(p) == {"a", "b", "c", "d"}
    corrected = holm({"a": 0.026, "b": 0.03})
    assert corrected == benjamini_hochberg({"a": 0.06, "b": 0.9}) == set()
    assert benjamini_hochberg({"a": 0.04, "b": 0.045}) == {"a", "b"}  # the first only by the second


@pytest.mark.usefixtures("worth")  # it puts the folder on the path
def test_sums_and_quotients_err_as_often_as_they_say() -> None:
    """An interval of five values each, over what is planted; and p agrees with it."""
    from estimate import interval

    chance = random.Random(3)
    misses = 0
    trials = 2000
    for _ in range(trials):
        gain = [chance.gauss(0.1, 0.03) for _ in range(5)]
        rate = [chance.gauss(0.3, 0.03) for _ in range(5)]
        speed = [chance.gauss(0.05, 0.03) for _ in range(5)]
        e = interval(gain).over(interval(rate)).plus(interval(speed))
        misses += not e.low <= 0.1 / 0.3 + 0.05 <= e.high
        expected = e.low > 0 or e.high < 0
        assert (e.p < 0.05) == expected
    assert misses / trials < 0.06


def test_an_arm_that_diverged_is_worth_nothing(worth: ModuleType) -> None:
    lines = [
        *made({"good": 1.5, "bad": 0.8, "nothing": 1.0}),
        line("lost", 0, 1.0, None),
        line("lost", 1, 1.0, 1.0),
    ]
    assert worth.Blocks(1.0, lines).lower("lost") is None
    lost = told(worth, lines, {"lost": {}}, worth.Steps([]))["lost"]
    assert lost["lower loss, nats"] == "diverged"
    odd = []
    for seed in range(2):
        odd.append(line("baseline", seed, 0.9, 5.0))  # a length that another question asked for
    expected = worth.Blocks(1.0, lines).slope()
    longer = worth.Blocks(1.0, [*lines, *odd])
    assert longer.slope() == expected
    alone = [line("baseline", 0, 0.5, 2.0), line("once", 0, 0.5, 1.9)]
    few_rows = told(worth, alone, {"once": {}}, worth.Steps([]))
    assert few_rows["once"]["lower loss, nats"] == "–"


def test_the_atlas_recipe_is_the_best_trial_of_its_stack(jobs: ModuleType) -> None:
    search = json.loads((HERE / "recipe.json").read_text())
    losses = [trial["val_loss"] for trial in search["trials"]]
    best, *others = (loss for loss in losses if loss is not None)
    assert best < min(others)
    words = [word for word in search["fixed"] if not word.startswith("output_dir")]
    text = jobs.STACK.read_text()
    assert words == json.loads(text)["with"]
    first_trial = search["trials"][0]["with"]
    recipe = composed([*jobs.SCALE, *search["fixed"], *first_trial]).run
    assert recipe.trainer.steps * recipe.trainer.batch_tokens == 1_572_864


@pytest.mark.slow
def test_the_recipe_is_what_the_race_judges_and_no_trial_of_its_search_was_better() -> None:
    folder = REPO / "experiments" / "recipe_tuned"
    raced = load_study(folder).arms["recipe"]
    lines = (folder / "search.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    steps = [word for word in raced if word.startswith("trainer.steps")]
    run = composed(["experiment=atlas_cpu", *raced]).run
    assert run == composed(["experiment=recipe_cpu", *steps]).run
    by_words: dict[str, list[float]] = {}
    for row in rows:
        if row["share"] < 1 and row["phase"] in ("tune muon", "again muon"):
            by_words.setdefault(" ".join(row["words"]), []).extend(row["losses"].values())
    twice = {words: sum(losses) for words, losses in by_words.items() if len(losses) == 4}
    expected = [word for word in raced if word not in steps]
    assert min(twice, key=lambda words: twice[words]).split() == expected


def test_a_trial_of_the_search_had_the_steps_that_its_time_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(REPO / "experiments" / "recipe_tuned"))
    search = importlib.import_module("search")
    for row in search.rows():
        steps = search.steps_of(row["words"], row["share"])
        assert row["steps"] == steps, row["name"]
    expected = dict([search.named("muon", search.PARTS[1:3])])["muon: partial_key_offset, ngrams"]
    assert search.start("muon") == expected


def test_the_page_has_the_figures_of_the_committed_lines(
    atlas: ModuleType, jobs: ModuleType, worth: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells but the lines of code, which change with a comment."""
    monkeypatch.setattr(jobs, "RUNS", HERE / "runs.jsonl")
    content = json.loads(jobs.STEPS.read_text())
    steps = worth.Steps(content["sessions"])
    worths = worth.worths(jobs.known(), jobs.arms(), steps)
    wanted = worth.table(worths, jobs.arms(), steps, {})
    estimate = worth.between(worth.CORRECTION)
    lines = estimate[1].strip().splitlines()
    assert lines == worth.left_of(worths)
    expected = worth.so_far(jobs.known())
    estimate = worth.between(worth.COUNT)
    assert estimate[1].strip().splitlines() == expected
    _, shown, _ = worth.between(worth.MARK)
    at = worth.HEAD.index("lines")

    def cells(rows: list[str]) -> list[list[str]]:
        cells: list[list[str]] = []
        for row in rows:
            words = enumerate(row.strip("| ").split(" | "))
            cells.append([cell for i, cell in words if i != at])
        return cells

    # a row for each but the baseline, below two lines of head
    assert len(wanted) == len(jobs.arms()) + 1
    assert cells(shown.strip().splitlines()) == cells(wanted)
    for mark, rows in atlas.of_recipe().items():
        estimate = worth.between(mark)
        assert estimate[1].strip().splitlines() == rows


def test_the_readme_counts_the_ideas_as_the_committed_lines_do(
    jobs: ModuleType, worth: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RUNS", HERE / "runs.jsonl")
    content = json.loads(jobs.STEPS.read_text())
    steps = worth.Steps(content["sessions"])
    ideas = worth.worths(jobs.known(), jobs.arms(), steps)
    helping = sum(idea.word == "helps" for idea in ideas)
    without = sum(idea.n < worth.LEAST_PAIRS for idea in ideas)
    words = (REPO / "README.md").read_text().split()
    text = " ".join(words)

    assert helping == 9
    assert f"nocap tried {len(ideas)} ideas, one at a time," in text
    assert "Nine ideas save training time" in text
    assert f"{without} have too few seeds for a verdict" in text


def test_an_idea_whose_code_went_keeps_its_row_and_is_not_run_again(
    atlas: ModuleType, jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RUNS", HERE / "runs.jsonl")
    gone = {"short_sequences", "small_batches", "short_windows"}
    assert set(jobs.arms()) - set(jobs.runnable()) == gone
    for asked in jobs.phases().values():
        arms = {arm for _, _, arm in asked}
        assert gone.isdisjoint(arms)
    lines = [atlas.lines_of(arm) for arm in sorted(gone)]
    assert lines == [146, 236, 146]
    with pytest.raises(ValueError, match="short_windows"):
        composed(["ideas=[short_windows]"])
