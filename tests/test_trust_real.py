"""Real A/A comparisons: which runs make a pair, what is counted of their verdicts, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.config.compose import composed, to_plain
from nocap.launch.runner import Result
from nocap.store.runs import Curve, Record, load
from nocap.study import __main__ as study_door
from nocap.study import trust_real
from nocap.study.arms import all_composed, with_seed
from nocap.study.evidence import Evidence, first_claims
from nocap.study.training import grid_of, wanted
from nocap.study.trust_real import AT, SIDES, controlled, judged, paired, render, seeds_of, spread, study
from tests.conftest import SMALL

LOSS, SPEED = study().claims


def record(seed: int, val_loss: float | None) -> Record:
    """A made-up run; `None`: it diverged."""
    status = "diverged" if val_loss is None else "finished"
    known: dict[str, Any] = {"folder": Path("nowhere"), "arm": "a", "started": "", "config": {}, "parts": {}, "manifest": {}}
    return Record(seed=seed, identity=str(seed), name=str(seed), status=status, summary={"val_loss": val_loss}, curve=Curve(), **known)


def losses(*comparisons: tuple[list[float | None], list[float | None]]) -> list[Evidence]:
    """The evidence of comparisons, each with its arm's and its baseline's losses."""
    records = {}
    for i, sides in enumerate(comparisons):
        for side, values in zip(SIDES, sides, strict=True):
            records |= {seed: record(seed, value) for seed, value in zip(seeds_of(i)[side], values, strict=True)}
    return [paired(records, i) for i in range(len(comparisons))]


BASE: list[float | None] = [2.0, 2.0, 2.0]
# Against a t of 4.303 for two sides and of 2.920 for one, two degrees of freedom:
GAINED = [1.98, 1.979, 1.981]  # t = 34.6: different and confirmed
LOST = [2.02, 2.021, 2.019]  # t = -34.6: different and refuted
EVEN = [2.01, 1.99, 2.0]  # t = 0: neither
NEARLY = [2 - 0.01 * gain for gain in (0.505, 1.0, 1.495)]  # t = 3.5: confirmed, and yet the two-sided interval holds 0
LOST_ONE: list[float | None] = [2.0, None, 2.0]  # diverged: refuted, and no interval


def test_both_sides_are_one_arm_and_no_seed_is_used_twice():
    asked = study()
    arms = all_composed(asked, asked.scales[AT], SIDES, asked.scales[AT].train)
    assert to_plain(arms["arm"].run) == to_plain(arms["baseline"].run)
    assert seeds_of(1) == {"arm": [6, 7, 8], "baseline": [9, 10, 11]}
    every = [seed for i in range(20) for seeds in seeds_of(i).values() for seed in seeds]
    assert len(every) == len(set(every)) == 120


def test_runs_are_paired_under_their_own_seeds():
    records = {seed: record(seed, 2.0) for seed in range(12)}
    runs = paired(records, 1).runs
    assert {key: run.seed for key, run in runs.items()} == {
        **{("arm", pair): 6 + pair for pair in range(3)},
        **{("baseline", pair): 9 + pair for pair in range(3)},
    }


def test_what_is_counted_of_verdicts_worked_out_by_hand():
    sides = [GAINED, LOST, EVEN, NEARLY, LOST_ONE]
    found = judged(study(), LOSS, losses(*((side, BASE) for side in sides)))
    assert found["counts"] == {"different": 2, "confirmed": 2, "refuted": 2, "found": 1, "covered": 2}
    assert [one["verdict"] for one in found["each"]] == ["confirmed", "refuted", "inconclusive", "confirmed", "refuted"]
    assert [one["gain"] is None for one in found["each"]] == [False, False, False, False, True]
    (row,) = found["rows"]
    low, high = scipy_stats.beta.ppf([0.025, 0.975], [2, 3], [4, 3])  # Clopper and Pearson, 2 of 5
    assert row["different"] == {"share": 0.4, "low": pytest.approx(low), "high": pytest.approx(high)}
    assert row["studies"] == 5
    assert "different 2, confirmed 2, refuted 2, covered 2" in render({"trainings": found, "ok": found["ok"]})


def test_figures_out_of_reach_break_the_bars():
    found = judged(study(), LOSS, losses(*[(GAINED, BASE)] * 3, *[(EVEN, BASE)] * 2))
    verdicts = {bar["what"]: bar["verdict"] for bar in found["bars"]}
    assert verdicts == {
        "A/A called different": "broken",  # 3 of 5: at least 14.7%
        "A/A confirmed as a gain": "broken",
        "A/A refuted": "not contradicted",
        "interval holds no change": "broken",
    }
    assert not found["ok"]
    assert judged(study(), LOSS, losses(*[(EVEN, BASE)] * 5))["ok"]


def session(arm: float, control: float) -> dict[str, Any]:
    return {"arms": {"arm": {"tokens_per_s": (arm * control) ** 0.5}}, "control": {"tokens_per_s": [arm, control]}}


def test_a_session_is_the_arm_against_its_control():
    faster = controlled([session(1.02 * x, x) for x in (100, 201, 400)])  # a machine whose speed changes changes both
    alike = controlled([session(101, 100), session(99, 100), session(100, 100)])
    found = judged(study(), SPEED, [faster, alike])
    assert found["counts"] == {"different": 1, "confirmed": 1, "refuted": 0, "found": 1, "covered": 1}
    assert found["each"][0]["gain"]["mid"] == pytest.approx(1.02)


def test_spread_is_pooled_within_each_three():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 2, 3))
    each = [dict(zip(SIDES, sides.tolist(), strict=True)) for sides in values]
    found = spread(LOSS, each)
    gains = values[:, 1] - values[:, 0]  # less is better
    assert found["sigma"] == pytest.approx(math.sqrt(values.var(axis=2, ddof=1).mean()))
    assert found["sigma_of_pairs"] == pytest.approx(math.sqrt(gains.var(axis=1, ddof=1).mean()))
    test = scipy_stats.ttest_1samp(gains.ravel(), 0)
    expected = {"pairs": 12, "mid": gains.mean(), "low": test.confidence_interval().low, "high": test.confidence_interval().high}
    assert found["all_pairs"] == pytest.approx({**expected, "p": test.pvalue})
    none = {"sigma": None, "sigma_of_pairs": None, "all_pairs": None}
    assert spread(LOSS, [{"arm": [1.0, None, None], "baseline": [None] * 3}]) == none


def test_spread_of_a_ratio_is_of_logarithms():
    found = spread(SPEED, [{"arm": [1.0, 1.0, math.e**2], "baseline": [math.e] * 3}])
    assert found["sigma"] == pytest.approx(math.sqrt(2 / 3))
    assert found["all_pairs"]["mid"] == pytest.approx(math.exp(-1 / 3))


def test_a_run_that_failed_leaves_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = composed([*SMALL, f"output_dir='{tmp_path}'"])
    arms = dict.fromkeys(SIDES, one)
    grid, of = grid_of(wanted({"arm": one}, [0]), label="A/A", claims={})
    failed = {of[0].plan.identity: Result(status="failed", reason="out of memory")}
    monkeypatch.setattr(trust_real, "train", lambda grid: failed)
    with pytest.raises(trust_real.UnfinishedError, match=r"^A/A arm seed=0: out of memory; "):
        trust_real.trained(arms, 2, claims={})
    assert with_seed(one, 0).overrides == grid.cells[0].overrides


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--calibrate-verdicts", "--trainings", "1"), "--trainings must be at least 2, got 1"),
        (("--calibrate-verdicts", "--timings", "-3"), "--timings must be at least 2, got -3"),
        (("--power", "0.9", "--effect", "1", "--sigma", "1", "--trainings", "20"), "--trainings must be given with --calibrate-verdicts"),
        (("experiments/gqa", "--timings", "20"), "--timings must be given with --calibrate-verdicts, and only there, got 20"),
        (("experiments/gqa", "--json", "x.json"), "--json must be given with --calibrate-verdicts, and only there, got x.json"),
        (
            ("--calibrate-verdicts", "--output-dir", "out"),
            "--output-dir must be given with --trainings or --timings",
        ),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        study_door.main([*words])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_comparisons_are_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = [
        "--calibrate-verdicts",
        "--trainings",
        "2",
        "--timings",
        "2",
        "--output-dir",
        str(tmp_path),
        "--json",
        str(tmp_path / "aa.json"),
    ]
    assert study_door.main(words) == 0
    first, said = json.loads((tmp_path / "aa.json").read_text()), capsys.readouterr().out
    assert (said.count(" done "), said.count("aa, seed ")) == (12, 6)
    assert "host" not in first["hardware"]
    records = {record.seed: record for record in load([tmp_path / "studies" / "aa" / "runs"]).records}
    assert sorted(records) == list(range(12))
    for i, one in enumerate(first["trainings"]["each"]):
        assert {side: one[side] for side in SIDES} == {side: [records[s].val_loss for s in seeds] for side, seeds in seeds_of(i).items()}
    assert len({record.val_loss for record in records.values()}) == 12
    assert all(first_claims(record)["aa.val_loss"] == LOSS.hash() for record in records.values())
    assert study_door.main(words) == 0
    assert " done " not in (again := capsys.readouterr().out)
    assert "aa, seed " not in again
    assert json.loads((tmp_path / "aa.json").read_text()) == first
