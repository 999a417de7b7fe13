"""A study's claim about the time at equal loss: against the comparison of the same runs and a
closed form, what makes it inconclusive, what it trains and when, and how it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocap.judge.compare import compare
from nocap.launch.run_result import RunResult
from nocap.store.record import Record
from nocap.store.record_files import RunStatus
from nocap.store.runs import Found, load_runs
from nocap.study import study_command, study_pages
from nocap.study.__main__ import main
from nocap.study.carry_out import StudyOutcome
from nocap.study.claim_measurements import measurements
from nocap.study.evidence import Evidence
from nocap.study.registration import registrations
from nocap.study.result_maker import result_of
from nocap.study.result_writer import to_json
from nocap.study.standing import Standing
from nocap.study.study_plan import StudyPlan, prepare
from nocap.study.study_result import StudyResult
from nocap.study.tasks import Training
from tests import test_equal_loss
from tests.conftest import Door
from tests.lab import Lab, lab
from tests.studies import EQUAL, LOSS, SPEED, STUDY, Json, at, claim, loaded, study, tree, written
from tests.test_study_results import again, claims_of

__all__ = ["lab"]
MACHINE = {"name": "a CPU", "cores": 2, "torch": "2.13", "fingerprint": "a"}
STANDS = Standing(hash="made", at="2026-11-21T12:00:00+00:00", exploratory=None, notes=[])
STEPS = test_equal_loss.STEPS
ENDS = (105, 210)
PLANS: dict[str, StudyPlan] = {}
B = -0.1  # a loss of 2.3·(steps/150)^B
Changed = Callable[[Record], Record]


def base_law(steps: float) -> float:
    return 2.3 * (steps / STEPS) ** B


def made(
    seeds: int = 3,
    *,
    worth: float = 1.2,
    pace: float = 1.1,
    noise: float = 0.0,
    change: Changed = lambda each: each,
) -> Evidence:
    """Runs of two arms: mqa's losses are those of the baseline with `worth` times the steps, and
    its tokens take `pace` times as long."""
    rng = np.random.default_rng(3)

    def run(
        mlp: str, seed: int, loss: float, *, steps: int = STEPS, token_us: float = 1.0
    ) -> Record:
        spread = rng.normal(0, noise)
        kept = test_equal_loss.record("flash", mlp, seed, loss + spread, steps=steps, pace=token_us)
        return change(kept)

    runs = dict[tuple[str, int], Record]()
    lengths = dict[tuple[str, int], dict[int, Record]]()
    for seed in range(seeds):
        wobble = 1 + rng.normal(0, noise)
        runs["mha", seed] = run("gelu4x", seed, base_law(STEPS))
        runs["mqa", seed] = run("swiglu", seed, base_law(worth * STEPS), token_us=pace * wobble)
        lengths["mha", seed] = {n: run("gelu4x", seed, base_law(n), steps=n) for n in ENDS}
    return Evidence(runs=runs, other_lengths=lengths)


def planned(folder: Path, claims: Sequence[Json], seeds: int) -> StudyPlan:
    """Compose a study's arms, once for all tests that ask the same."""
    key = json.dumps([*claims, seeds])
    if key not in PLANS:
        content = study(claims=[*claims], seeds=list(range(seeds)))
        made_study = loaded(folder, content)
        PLANS[key] = prepare(made_study, "cpu", output_dir="outputs")
    return PLANS[key]


def resulted(tmp_path: Path, evidence: Evidence, *claims: Json, seeds: int = 3) -> StudyResult:
    """The results of a study with these claims, M.equal by default."""
    plan = planned(tmp_path / "made", claims or [EQUAL], seeds)
    stands = {each.id: STANDS for each in plan.study.claims}
    outcome = StudyOutcome(plan=plan, evidence=evidence, standings=stands)
    result = result_of(outcome, hardware=MACHINE, command="made")
    json.dumps(to_json(result), allow_nan=False)
    return result


def row(tmp_path: Path, evidence: Evidence, **more: Any) -> Json:
    (claimed,) = claims_of(resulted(tmp_path, evidence, **more))
    return claimed


# --- the estimate ---------------------------------------------------------------------------------


def test_an_arm_without_noise_has_the_closed_form(tmp_path: Path) -> None:
    """It is worth 1.2 times the steps, each of which takes 1.1 times as long."""
    content = resulted(tmp_path, made())
    (claimed,) = claims_of(content)
    figure = claimed["measured"]
    assert figure["mid"] == pytest.approx(1.1 / 1.2)
    figure = claimed["measured"]
    assert figure["high"] == pytest.approx(1.1 / 1.2)
    assert claimed["word"] == "confirmed"
    assert claimed["n"] == 3
    assert claimed["per"] == "seed"
    rows = {(m.arm, m.repeat): m.value for m in content.measurements["M.equal"]}
    expected = {
        **{("mha", seed): 1.0 for seed in range(3)},
        **{("mqa", seed): pytest.approx(1.1 / 1.2) for seed in range(3)},
    }
    assert rows == expected


def asked_for(record: Record, seeds: int, *, at: str) -> Record:
    """The record, with what its command asked of its arm."""
    asked = {"at": at, "seeds": list(range(seeds))}
    attempts = [{**attempt, "asked": asked} for attempt in record.manifest["attempts"]]
    manifest = {**record.manifest, "attempts": attempts}
    return replace(record, manifest=manifest)


def in_two_looks(record: Record) -> Record:
    """Of a study that analysed three seeds and then six."""
    first = record.seed < 3
    return asked_for(record, 3 if first else 6, at=f"2026-11-2{1 if first else 2}T12:00:00+00:00")


@pytest.mark.parametrize(
    ("seeds", "change", "look"), [(3, lambda each: each, 1), (6, in_two_looks, 2)], ids=["3", "6"]
)
def test_it_is_the_comparisons_of_the_same_runs(
    tmp_path: Path, seeds: int, change: Changed, look: int
) -> None:
    evidence = made(seeds, noise=0.002, change=change)
    runs = evidence.runs.values()
    records = [*runs, *(run for some in evidence.other_lengths.values() for run in some.values())]
    comparison = compare(Found(records=records), baseline="gelu4x")
    (ratio,) = [each.equal_loss.ratio for each in comparison.arms if each.equal_loss is not None]
    claimed = row(tmp_path, evidence, seeds=seeds)

    assert comparison.look == look
    assert claimed["analysis"] == look
    figure = claimed["measured"]
    assert figure["mid"] == pytest.approx(ratio.mid, rel=1e-12)
    figure = claimed["measured"]
    assert figure["low"] == pytest.approx(ratio.low, rel=1e-12)
    figure = claimed["measured"]
    assert figure["high"] == pytest.approx(ratio.high, rel=1e-12)


STATED = [
    ([None, 0.98], "confirmed", None),
    ([0.9, 0.95], "confirmed", None),
    ([0.95, 0.98], "exceeded", None),
    ([None, 0.9], "refuted", "below"),
    ([None, 0.917], "inconclusive", "undecided"),
]


@pytest.mark.parametrize(("expected", "word", "why"), STATED)
def test_below_what_was_stated_is_better(
    tmp_path: Path, expected: list[float | None], word: str, why: str | None
) -> None:
    content = resulted(tmp_path, made(noise=0.0002), claim(EQUAL, expected=expected))
    (claimed,) = claims_of(content)
    figure = claimed["measured"]
    assert 0.91 < figure["low"] < claimed["measured"]["high"] < 0.925
    assert claimed["word"] == word
    assert claimed["reason"] == why
    # stored results say the same when they are judged anew
    (stored,) = claims_of(again(content, tmp_path))
    assert {**stored, "hash": "made", "exploratory": None} == claimed


def test_a_bound_and_two_sides_are_of_the_ratio_too(tmp_path: Path) -> None:
    mechanism = {"bound": 0.95, "formula": "what was meant"}
    stated = claim(EQUAL, expected=[0.95, 0.98], two_sided=True, mechanism=mechanism)
    content = resulted(tmp_path, made(noise=0.0002), stated)
    (claimed,) = claims_of(content)
    assert claimed["word"] == "refuted"
    assert claimed["reason"] == "above"
    assert claimed["beyond_bound"]
    said = study_pages.render(content)
    assert (
        "arithmetic allows  at best 0.95 of the baseline's time at equal loss (what was meant)"
        in said
    )
    assert "expected           0.95 to 0.98 of the baseline's time at equal loss" in said
    assert ": better than stated: " in said


@pytest.mark.parametrize(
    ("pace", "word", "reason"), [(1.1, "confirmed", None), (1.3, "refuted", "guard")]
)
def test_a_guard_holds_the_time_at_equal_loss(
    tmp_path: Path, pace: float, word: str, reason: str | None
) -> None:
    """It may be 1% worse."""
    guard = {"metric": "time_at_equal_loss", "scale": "ratio", "margins": {"cpu": 1.01}}
    guarded = claim(LOSS, guards=[guard])
    content = resulted(tmp_path, made(pace=pace, noise=0.0002), guarded)
    (claimed,) = claims_of(content)
    assert claimed["word"] == word
    assert claimed["reason"] == reason
    mid = claimed["guards"][0]["measured"]["mid"]
    assert mid == pytest.approx(pace / 1.2, rel=0.01)
    assert "allowed: at most 1.01 of the baseline's time at equal loss" in study_pages.render(
        content
    )


# --- how it is told -------------------------------------------------------------------------------


def test_the_terminal_the_page_and_the_board_say_it_in_the_same_words(tmp_path: Path) -> None:
    content = resulted(tmp_path, made(noise=0.002))
    measured = claims_of(content)[0]["measured"]
    mid, low, high = (f"{measured[key]:.2f}" for key in ("mid", "low", "high"))
    words = f"{mid} of the baseline's time at equal loss [{low}, {high}]"
    assert f"measured           {words}, n=3" in study_pages.render(content)
    assert (
        "expected           at most 0.98 of the baseline's time at equal loss"
        in study_pages.render(content)
    )
    assert "; the baseline trained for 8, 12 and 17 steps" in study_pages.render(content)
    made_study = loaded(tmp_path / "made", study(claims=[EQUAL]))
    study_pages.write(made_study, tmp_path / "made", content)
    assert f"| {words}, n=3 |" in (tmp_path / "made" / "README.md").read_text()
    assert study_command.board(tmp_path) == 0
    assert f"| {words} | confirmed; exploratory | 3 |" in (tmp_path / "README.md").read_text()
    board = (tmp_path / "board.html").read_text()
    assert "time divided by the baseline&#39;s time, at equal loss; left is less time" in board


# --- what makes it inconclusive -------------------------------------------------------------------


def on_another_machine(each: Record) -> Record:
    hardware = {"name": "b", "fingerprint": "b"}
    if "swiglu" in each.arm:
        return replace(each, summary={**each.summary, "hardware": hardware})
    return each


def untimed(each: Record) -> Record:
    if "swiglu" in each.arm:
        return replace(each, summary={**each.summary, "token_us": None})
    return each


def flat(each: Record) -> Record:
    """The baseline learns nothing more after 105 steps."""
    loss = 2.3 + 0.001 * (each.seed % 3) * (-1) ** (each.config["trainer.steps"] // 105)
    if each.length_of:
        return replace(each, summary={**each.summary, "val_loss": loss})
    return each


def diverged(arm: str, seed: int, steps: int = STEPS) -> Changed:
    def change(each: Record) -> Record:
        here = (each.config["mlp.kind"], each.seed, each.config["trainer.steps"]) == (
            arm,
            seed,
            steps,
        )
        if here:
            return replace(each, status="diverged")
        return each

    return change


REFUSED: dict[str, tuple[Json, str]] = {
    "beyond the ends": (
        {"worth": 2.0},
        "the arm's loss is outside the range that the baseline reaches in 105 to 210 steps",
    ),
    "a flat baseline": (
        {"change": flat},
        "how fast the baseline's loss falls with its steps is not known well enough",
    ),
    "another machine": (
        {"change": on_another_machine},
        "other hardware: 1 × b (b); the baseline: 1 × a (a)",
    ),
    "no time": ({"change": untimed}, "a run's record has no time a token"),
    "a baseline that diverged": ({"change": diverged("gelu4x", 1)}, "mha diverged, seed 1"),
    "a length that diverged": (
        {"change": diverged("gelu4x", 1, 210)},
        "mha diverged, seed 1, 210 steps",
    ),
}


@pytest.mark.parametrize(("how", "why"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("seeds", [3, 6])
def test_what_it_cannot_say_is_refused_with_the_reason(
    tmp_path: Path, seeds: int, how: Json, why: str
) -> None:
    content = resulted(tmp_path, made(seeds, **how), seeds=seeds)
    (claimed,) = claims_of(content)
    assert claimed["word"] == "inconclusive"
    assert claimed["reason"] == "refused"
    figure = claimed["measured"]
    assert figure is None
    assert claimed["refused"] == why
    page = study_pages.render(content)
    assert re.search(
        rf"^M\.equal inconclusive at .*: {re.escape(claimed['refused'])}: ", page, re.M
    )
    (stored,) = claims_of(again(content, tmp_path))
    assert {**stored, "hash": "made", "exploratory": None} == claimed


@pytest.mark.parametrize("seeds", [3, 6])
def test_an_arm_that_diverged_is_the_worst(tmp_path: Path, seeds: int) -> None:
    runs = made(seeds, noise=0.0002, change=diverged("swiglu", 1))
    claimed = row(tmp_path, runs, seeds=seeds)
    assert claimed["word"] == "refuted"
    assert claimed["reason"] == "below"
    assert claimed["diverged"] == ["mqa, seed 1"]
    assert claimed["refused"] is None
    assert claimed["n"] == seeds


def test_what_is_missing_is_named_and_no_seed_is_passed_over(tmp_path: Path) -> None:
    evidence = made(6, noise=0.0002)
    del evidence.other_lengths["mha", 1][105]  # type: ignore[attr-defined]
    claimed = row(tmp_path, evidence, seeds=6)
    assert claimed["word"] == "inconclusive"
    assert claimed["reason"] == "missing"
    lacks = [(each["arm"], each["repeat"]) for each in claimed["missing"]]
    assert lacks == [("mha", 1)]
    # three seeds are whole: the first analysis stands, over these alone
    evidence = made(6, noise=0.0002)
    del evidence.runs["mqa", 4]  # type: ignore[attr-defined]
    three = made(3, noise=0.0002)
    claimed = row(tmp_path, evidence, seeds=6)
    figure = claimed["measured"]
    assert figure == row(tmp_path, three)["measured"]


def test_a_claim_rests_on_the_baselines_lengths(tmp_path: Path) -> None:
    content = study(claims=[EQUAL, LOSS])
    made_study = loaded(tmp_path / "made", content)
    equal, loss = made_study.claims
    evidence = made()
    names = {name for name, *_ in evidence.used(equal, made_study)}
    both = set()
    for arm in ("mha", "mqa"):
        for seed in range(3):
            both.add(f"{arm}, seed {seed}")
    lengths = set()
    for seed in range(3):
        lengths.update(f"mha, seed {seed}, {steps} steps" for steps in ENDS)

    assert names == both | lengths
    assert {name for name, *_ in evidence.used(loss, made_study)} == both
    metrics = {m.metric.name for m in measurements(equal, made_study, evidence)}
    assert metrics == {"time_at_equal_loss"}


# --- how it is carried out ------------------------------------------------------------------------


UNSURE = claim(EQUAL, id="M.unsure", expected=[None, 0.9])


def law(run: Training) -> float:
    """By a power law of the steps, with a seed's own noise."""
    steps = run.composed.run.trainer.steps
    return 3.0 * (steps / 12) ** -0.1 + 0.001 * (7 * run.seed % 5)


def paced(run: Training) -> float:
    """mqa takes 0.9 of the time, give or take 1%."""
    if run.arm == "mqa":
        return 0.9 + 0.01 * (3 * run.seed % 4 - 1.5)
    return 1.0


def of_a_seed(seed: int) -> list[str]:
    """Its runs, in their order."""
    return [
        f"mha, seed {seed}",
        f"mqa, seed {seed}",
        *(f"mha, seed {seed}, {n} steps" for n in (8, 17)),
    ]


@pytest.mark.slow
def test_the_baselines_lengths_are_trained_once_for_all_claims_with_each_analysis(lab: Lab) -> None:
    """As `--equal-loss` trains them: 0.7 and 1.4 of 12 steps."""
    lab.loss = law
    lab.pace = paced
    claims = lab.carry(claims=[EQUAL, UNSURE], seeds=[0, 1, 2, 3, 4, 5])
    assert claims["M.equal"]["word"] == "confirmed"
    assert claims["M.equal"]["n"] == 3
    assert claims["M.unsure"]["word"] == "inconclusive"
    assert claims["M.unsure"]["n"] == 6
    first = []
    for seed in (0, 1, 2):
        first.extend(of_a_seed(seed))
    then = []
    for seed in (3, 4, 5):
        then.extend(of_a_seed(seed))
    assert lab.tasks == first + then
    lines = [line for line in lab.lines("run") if line["short"]]
    expected = {("mha", 8), ("mha", 17)}
    assert {(line["arm"], line["short"]) for line in lines} == expected
    before = lab.log.read_text()
    again = lab.carry(claims=[EQUAL, UNSURE], seeds=[0, 1, 2, 3, 4, 5])
    assert lab.tasks == first + then
    assert lab.log.read_text() == before
    assert again == claims


def test_more_seeds_are_trained_for_a_slope_that_is_not_known_and_for_no_other_refusal(
    lab: Lab,
) -> None:
    lab.pace = paced

    def unsteady(run: Training) -> float:
        if run.other_length == 17 and run.seed < 3:
            wild = 0.08 * (-1) ** run.seed
        else:
            wild = 0.0
        return law(run) + wild

    lab.loss = unsteady
    seeds = list(range(12))
    claims = lab.carry(claims=[EQUAL], seeds=seeds)
    assert claims["M.equal"]["n"] == 6
    assert claims["M.equal"]["refused"] is None
    lab.loss = lambda run: law(run) - (1.0 if run.arm == "mqa" else 0.0)
    seeds = list(range(12))
    beyond = lab.carry("elsewhere", "elsewhere/made", claims=[EQUAL], seeds=seeds)
    assert beyond["M.equal"]["n"] == 3
    assert (
        beyond["M.equal"]["refused"]
        == "the arm's loss is outside the range that the baseline reaches in 8 to 17 steps"
    )


def test_a_baseline_that_diverged_ends_the_study_with_the_reason(lab: Lab) -> None:
    lab.pace = paced
    lab.loss = lambda run: (
        None if (run.arm, run.seed, run.other_length) == ("mha", 1, None) else law(run)
    )
    claims = lab.carry(claims=[EQUAL], seeds=[0, 1, 2, 3, 4, 5])
    assert claims["M.equal"]["refused"] == "mha diverged, seed 1"
    assert claims["M.equal"]["n"] == 3
    names = []
    for seed in (0, 1, 2):
        names.extend(of_a_seed(seed))
    assert lab.tasks == names


def test_a_length_that_fails_ends_the_study_with_1(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a later analysis, too: the claim goes on no more, and no pair is passed over."""
    lab.loss = law
    lab.pace = paced
    seeds = list(range(12))
    content = study(claims=[UNSURE], seeds=seeds)
    folder = written(lab.root / "made", content)

    def train(runs: Sequence[Training], label: str, **more: Any) -> dict[str, RunResult]:
        fails = [run for run in runs if (run.other_length, run.seed) == (17, 4)]
        rest = [run for run in runs if run not in fails]
        lab.train(rest, label, **more)
        failed = RunResult(status=RunStatus.failed, reason="no room on the disk")
        return {run.plan.identity: failed for run in fails}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nocap.study.conductor.train", train)
        assert main([str(folder), f"output_dir={lab.root / 'out'}"]) == 1
    out, err = capsys.readouterr()

    assert "nocap: mha, seed 4, 17 steps: failed, no room on the disk" in err
    assert re.search(r"^M\.unsure inconclusive .*\n(.*\n)*?  measured .*, n=3$", out, re.M)
    for task in lab.tasks:
        for seed in range(6, 12):
            assert f"seed {seed}" not in task


def test_the_shares_of_the_lengths_are_registered_and_other_claims_stay_as_they_were(
    lab: Lab,
) -> None:
    both = registrations(lab.plan(claims=[EQUAL, SPEED, LOSS]))
    alone = registrations(lab.plan(claims=[SPEED, LOSS]))
    assert {name: both[name] for name in alone} == alone
    claims = [claim(EQUAL, expected=[None, 0.9])]
    changed = registrations(lab.plan(claims=claims))["M.equal"]
    assert changed.subject == both["M.equal"].subject
    assert changed.hash != both["M.equal"].hash
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nocap.study.registration.SHARES", (0.5, 2.0))
        registered = registrations(lab.plan(claims=[EQUAL]))["M.equal"]
        assert registered.subject != both["M.equal"].subject


@pytest.mark.slow
def test_from_a_file_to_a_verdict_and_the_grid_that_asks_the_same(
    tmp_path: Path, here: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grid with `--equal-loss` finds all of its cells trained, and says the same."""
    words = [*STUDY["overrides"], "trainer.val_every=0", "trainer.checkpoint_every=0"]
    scales = at(train=["trainer.steps=12"])
    content = study(claims=[EQUAL], overrides=words, scales=scales)
    written(tmp_path / "made", content)
    planned = here("made", "scale=cpu", "--plan", module="nocap.study")
    assert "12 cells, 0 done, 12 to train" in planned.out
    assert re.search(r"^made mha steps=8 +3 +0 ", planned.out, re.M)
    assert re.search(r"^made mha steps=17 +3 +0 ", planned.out, re.M)
    assert (
        "equal loss: mha also trains for 8 and 17 steps: 6 runs more, as much as 2.1 arms"
        in planned.out
    )
    assert (
        "M.equal: time_at_equal_loss of mqa, expected at most 0.98 of the baseline's time"
        in planned.out
    )
    done = here("made", "scale=cpu", module="nocap.study")
    assert done.code == 0
    before = tree(tmp_path / "outputs" / "runs")
    (path,) = (tmp_path / "made").glob("results.cpu.*.json")
    (claimed,) = json.loads(path.read_text())["claims"]
    assert re.search(r"\d of the baseline's time at equal loss \[\d\.\d+, \d\.\d+\], n=3", done.out)
    records = load_runs([tmp_path / "outputs"]).records
    lengths = [record for record in records if record.length_of is not None]
    trainer_steps = sorted(record.config["trainer.steps"] for record in lengths)
    assert trainer_steps == [8] * 3 + [17] * 3
    grid = here("--equal-loss", *words, "trainer.steps=12", "attention=flash,mqa", "seed=0,1,2")
    assert "12 finished; 0 trained now" in grid.out
    assert tree(tmp_path / "outputs" / "runs") == before
    (own,) = (tmp_path / "outputs" / "grids").glob("made-*")
    assert "time at equal loss" in here(str(own), module="nocap.compare").out
    compared = here("outputs", "--json", "compared.json", module="nocap.compare")
    assert compared.code == 0
    text = (tmp_path / "compared.json").read_text()
    arms = json.loads(text)["arms"]
    (ratio,) = [arm["equal_loss"]["ratio"] for arm in arms if arm["equal_loss"] is not None]
    figure = claimed["measured"]
    assert figure["mid"] == pytest.approx(ratio["mean"], rel=1e-9)
    figure = claimed["measured"]
    assert figure["low"] == pytest.approx(ratio["low"], rel=1e-9)
    figure = claimed["measured"]
    assert figure["high"] == pytest.approx(ratio["high"], rel=1e-9)
    again = here("made", "scale=cpu", "--plan", module="nocap.study")
    assert "12 cells, 12 done, 0 to train" in again.out
    assert "gains in the time at equal loss that are shown in 80% of grids" in again.out
    assert re.search(
        r"M\.equal: .*; a time of 0\.\d+ of the baseline's or less is shown", again.out
    )
