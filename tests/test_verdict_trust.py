"""The scripts that count wrong verdicts: simulated studies, and real runs of an arm against itself."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.config.compose import composed
from nocap.config.plain import to_plain
from nocap.judge import noise
from nocap.launch.runner import Result
from nocap.store.runs import Record, load
from nocap.study.arms import compose_arms
from nocap.study.cells import Cells, FailedError
from nocap.study.evidence import Evidence
from tests.conftest import REPO, SMALL
from tests.studies import later, record, session

sys.path.append(str(REPO / "experiments" / "verdict_trust"))
counting, noises, tables, simulated, real = map(importlib.import_module, ("counting", "noises", "tables", "simulated", "real"))
STUDY = real.make_study()
LOSS, SPEED = STUDY.claims
SIDES = ("arm", "baseline")


# --- simulated ---------------------------------------------------------------------------------------------------------------------


FOLDER = REPO / "experiments" / "verdict_trust"
SIGMAS = simulated.LOSS, simulated.QUIET
FEW = [simulated.Design(sigma=sigma, looks=looks, declared=True) for sigma in SIGMAS for looks in ((4,), (3, 6, 9))]


def test_simulated_studies_keep_their_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulated, "DESIGNS", FEW)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{tables.START}\nold\n{tables.END}\nafter\n")
    assert simulated.main(["--studies", "1000", "--json", str(tmp_path / "trust.json"), "--readme", str(readme)]) == 0
    result = json.loads((tmp_path / "trust.json").read_text())
    assert "broken" not in {bar["verdict"] for bar in result["bars"]}
    assert len(result["rows"]) == 2 * 8 + 2 * 3 + 8
    assert tables.render(result) in (out := capsys.readouterr().out)
    assert "* 3σ confirmed, 4 pairs of declared noise (at least 80%): 9" in out
    assert readme.read_text() == f"before\n{tables.START}\n\n{tables.render(result)}\n\n{tables.END}\nafter\n"


def test_the_readmes_table_is_of_the_committed_counts():
    result = json.loads((FOLDER / "results.json").read_text())
    assert tables.render(result) in (FOLDER / "README.md").read_text()
    assert result["ok"]
    assert result["studies"] == simulated.STUDIES


def test_a_plain_t_test_breaks_the_bars(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(noise, "CAUTION", 0.0)
    monkeypatch.setattr(simulated, "DESIGNS", [replace(one, declared=False) for one in FEW[:2]])
    result = simulated.calibrate(studies=1000)
    assert {bar["what"] for bar in result["bars"] if bar["verdict"] == "broken"} == {"confirmed falsely", "refuted falsely"}
    assert not result["ok"]


def test_a_simulation_that_the_judge_does_not_share_stops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulated, "judged", lambda *args: replace_words(judged(*args)))
    with pytest.raises(AssertionError):
        simulated.calibrate(studies=100)


judged = simulated.judged


def replace_words(found: Any) -> Any:
    return replace(found, words=(found.words + 1) % 3)


@pytest.mark.parametrize("name", noises.CLOCK)
def test_noises_have_mean_0_and_variance_1(name: str):
    values = noises.CLOCK[name](np.random.default_rng(0), (200_000, 3))
    assert (values.mean(), values.std()) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.03))
    sign = {"−": -1, "+": 1}.get(name.partition("skew ")[2][:1])
    if sign:
        assert scipy_stats.skew(values.ravel()) == pytest.approx(2 * sign, abs=0.15)
        assert scipy_stats.kurtosis(values.ravel()) == pytest.approx(7, abs=1.5)
    rho = float(name.partition("ρ ")[2] or 0)
    assert np.corrcoef(values[:, 0], values[:, 2])[0, 1] == pytest.approx(rho**2, abs=0.01)


def test_shares_have_exact_intervals():
    found = counting.share(5, 100)
    assert (found["low"], found["high"]) == (pytest.approx(0.01643, abs=1e-5), pytest.approx(0.11283, abs=1e-5))  # Clopper and Pearson


# --- real --------------------------------------------------------------------------------------------------------------------------


def losses(*comparisons: tuple[list[float | None], list[float | None]]) -> list[Evidence]:
    """The evidence of comparisons, each with its arm's and its baseline's losses."""
    records = {
        seed: record(side, seed, 48, value)
        for i, sides in enumerate(comparisons)
        for side, values in zip(SIDES, sides, strict=True)
        for seed, value in zip(real.seeds_of(i)[side], values, strict=True)
    }
    return [real.paired(records, i) for i in range(len(comparisons))]


BASE: list[float | None] = [2.0, 2.0, 2.0]
# Against a t of 4.303 for two sides and of 2.920 for one, two degrees of freedom:
GAINED: list[float | None] = [1.98, 1.979, 1.981]  # t = 34.6: different and confirmed
LOST: list[float | None] = [2.02, 2.021, 2.019]  # t = -34.6: different and refuted
EVEN: list[float | None] = [2.01, 1.99, 2.0]  # t = 0: neither
NEARLY: list[float | None] = [2 - 0.01 * gain for gain in (0.505, 1.0, 1.495)]  # t = 3.5: the interval holds 0
CAREFUL: list[float | None] = [2 - 0.01 * gain for gain in (0.7, 1.0, 1.3)]  # t = 5.8: different, and confirms nothing
LOST_ONE: list[float | None] = [2.0, None, 2.0]  # diverged: refuted, and no interval


def test_both_sides_are_one_arm_and_no_seed_is_used_twice():
    arms = compose_arms(STUDY, STUDY.scales["real"], SIDES, STUDY.scales["real"].train)
    assert to_plain(arms["arm"].run) == to_plain(arms["baseline"].run)
    assert real.seeds_of(1) == {"arm": [6, 7, 8], "baseline": [9, 10, 11]}
    every = [seed for i in range(20) for seeds in real.seeds_of(i).values() for seed in seeds]
    assert len(every) == len(set(every)) == 120


def test_runs_are_paired_under_their_own_seeds():
    records: dict[int, Record] = {seed: record("a", seed, 48, 2.0) for seed in range(12)}
    found = {key: run.seed for key, run in real.paired(records, 1).runs.items()}
    assert found == {**{("arm", pair): 6 + pair for pair in range(3)}, **{("baseline", pair): 9 + pair for pair in range(3)}}


def test_counts_of_verdicts_worked_out_by_hand():
    sides = [GAINED, LOST, EVEN, NEARLY, LOST_ONE, CAREFUL]
    found = real.judged(STUDY, LOSS, losses(*((side, BASE) for side in sides)))
    assert found["counts"] == {"different": 3, "confirmed": 1, "refuted": 2, "found": 1, "covered": 2}
    assert [one["verdict"] for one in found["each"]] == ["confirmed", "refuted", "inconclusive", "inconclusive", "refuted", "inconclusive"]
    assert [one["gain"] is None for one in found["each"]] == [False, False, False, False, True, False]
    assert [one["arm"] for one in found["each"]] == sides
    assert not found["ok"]
    assert real.judged(STUDY, LOSS, losses((LOST, BASE), (EVEN, BASE)), planted=True)["ok"]
    (row,) = found["rows"]
    low, high = scipy_stats.beta.ppf([0.025, 0.975], [3, 4], [4, 3])  # Clopper and Pearson, 3 of 6
    assert row["different"] == {"share": 0.5, "low": pytest.approx(low), "high": pytest.approx(high)}
    assert row["studies"] == 6
    assert "different 3, confirmed 1, refuted 2, covered 2" in real.render({"trainings": found, "ok": found["ok"]})


def test_shares_out_of_reach_break_the_bars():
    found = real.judged(STUDY, LOSS, losses(*[(GAINED, BASE)] * 3, *[(EVEN, BASE)] * 2))
    assert {bar["what"]: bar["verdict"] for bar in found["bars"]} == {
        "A/A called different": "broken",  # 3 of 5: at least 14.7%
        "A/A confirmed as a gain": "broken",
        "A/A refuted": "not contradicted",
        "interval holds no change": "broken",
    }
    assert not found["ok"]
    assert real.judged(STUDY, LOSS, losses(*[(EVEN, BASE)] * 5))["ok"]


def test_sittings_are_the_pairs_of_a_timing():
    def held(*speeds: tuple[float, float]) -> Evidence:
        sides = [{side: {"tokens_per_s": x} for side, x in zip(SIDES, both, strict=True)} for both in speeds]
        return Evidence(bench=[session(arms, seed=i, started=later(10 * i)) for i, arms in enumerate(sides)])

    faster = held(*((1.02 * x, x) for x in (100, 201, 400)))  # a machine whose speed changes changes both
    alike = held((101, 100), (99, 100), (100, 100))
    found = real.judged(STUDY, SPEED, [faster, alike])
    assert found["counts"] == {"different": 1, "confirmed": 1, "refuted": 0, "found": 1, "covered": 1}
    assert found["each"][0]["gain"]["mid"] == pytest.approx(1.02)


def test_spread_is_pooled_within_each_three():
    values = np.random.default_rng(0).normal(size=(4, 2, 3))
    found = real.spread(LOSS, [dict(zip(SIDES, sides.tolist(), strict=True)) for sides in values])
    gains = values[:, 1] - values[:, 0]  # less is better
    assert found["sigma"] == pytest.approx(math.sqrt(values.var(axis=2, ddof=1).mean()))
    assert found["sigma_of_pairs"] == pytest.approx(math.sqrt(gains.var(axis=1, ddof=1).mean()))
    test = scipy_stats.ttest_1samp(gains.ravel(), 0)
    expected = {"pairs": 12, "mid": gains.mean(), "low": test.confidence_interval().low, "high": test.confidence_interval().high}
    assert found["all_pairs"] == pytest.approx({**expected, "p": test.pvalue})
    none = {"sigma": None, "sigma_of_pairs": None, "all_pairs": None}
    assert real.spread(LOSS, [{"arm": [1.0, None, None], "baseline": [None] * 3}]) == none
    ratio = real.spread(SPEED, [{"arm": [1.0, 1.0, math.e**2], "baseline": [math.e] * 3}])  # of logarithms
    assert ratio["sigma"] == pytest.approx(math.sqrt(2 / 3))
    assert ratio["all_pairs"]["mid"] == pytest.approx(math.exp(-1 / 3))


def test_a_run_that_failed_leaves_no_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def train(cells: Cells) -> dict[str, Result]:
        return {cells.of[0][1].plan.identity: Result(status="failed", reason="out of memory")}

    monkeypatch.setattr(Cells, "train", train)
    with pytest.raises(FailedError, match=r"^A/A arm seed=0: out of memory; "):
        real.trained(dict.fromkeys(SIDES, composed([*SMALL, f"output_dir='{tmp_path}'"])), 2)


@pytest.mark.parametrize(
    ("script", "words", "reason"),
    [
        (simulated, "--studies 5", "--studies must be at least 100, got 5"),
        (simulated, "--readme LICENSE", "--readme must be a file with <!-- table: "),
        (simulated, "--json /dev/null/x", "--json must be a file that can be written, got /dev/null/x"),
        (real, "--trainings 1", "--trainings must be at least 2, got 1"),
        (real, "--timings -3", "--timings must be at least 2, got -3"),
        (real, "--output-dir out", "--trainings or --timings must be given, got neither"),
        (real, "--timings 2 --json /dev/null/x", "--json must be a file that can be written, got /dev/null/x"),
    ],
)
def test_refusals(script: Any, words: str, reason: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        script.main(words.split())
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_comparisons_are_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setattr(real, "APART_MIN", 0.0)
    words = f"--trainings 2 --timings 2 --output-dir {tmp_path} --json {tmp_path / 'aa.json'}".split()
    code = real.main(words)
    first, out = json.loads((tmp_path / "aa.json").read_text()), capsys.readouterr().out
    assert code == (0 if first["ok"] else 1)  # two timings on a busy machine may both err: then a bar is broken, and it says so
    assert (out.count(" done "), out.count("aa, seed ")) == (12, 6)
    assert "host" not in first["hardware"]
    records = {record.seed: record for record in load([tmp_path / "runs"]).records}
    assert sorted(records) == list(range(12))
    for i, one in enumerate(first["trainings"]["each"]):
        assert {side: one[side] for side in SIDES} == {
            side: [records[s].val_loss for s in seeds] for side, seeds in real.seeds_of(i).items()
        }
    assert len({record.val_loss for record in records.values()}) == 12
    assert real.main(words) == code
    assert " done " not in (again := capsys.readouterr().out)
    assert "aa, seed " not in again
    assert json.loads((tmp_path / "aa.json").read_text()) == first


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_planted_effects_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Fewer steps end higher; and the ballast's share of a step is what was measured, in every session's arm and in no baseline."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setattr(real, "APART_MIN", 0.0)
    real.main(f"--planted --trainings 2 --timings 2 --output-dir {tmp_path} --json {tmp_path / 'planted.json'}".split())
    found, ballast = json.loads((tmp_path / "planted.json").read_text()), json.loads((tmp_path / "studies/aa/ballast.json").read_text())
    assert found["planted"]
    assert found["trainings"]["all_pairs"]["mid"] < 0
    assert ballast["products"] * ballast["product_ms"] == pytest.approx(0.02 * ballast["step_ms"], rel=0.05)
    assert found["timings"]["words"][-1] == f"ideas.ballast.products={ballast['products']}"
    sessions = [json.loads(path.read_text()) for path in (tmp_path / "studies/aa/sessions").glob("aa-*.json")]
    assert len(sessions) == 6
    assert all(f"ideas.ballast.products={ballast['products']}" in one["arms"]["arm"] for one in sessions)
    assert not any("ballast" in word for one in sessions for word in one["arms"]["baseline"])
