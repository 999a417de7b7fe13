"""A race of proposals: its evidence against integration and simulation, its answers against everything a program may try."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import integrate, stats

from nocap.judge.interval import Declared
from nocap.race.__main__ import main
from nocap.race.campaign import ACCEPTED, Campaign, Line
from nocap.race.evalue import gain_evidence, threshold
from nocap.race.rules import Rules
from tests.conftest import REPO, SMALL, Door, Finished


def load_adversary() -> ModuleType:
    spec = importlib.util.spec_from_file_location("adversary", REPO / "experiments" / "program_loop" / "adversary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["adversary"] = module
    spec.loader.exec_module(module)
    return module


# --- evidence ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gains", [[0.3, 0.5, 0.1], [-0.2, 0.4, 0.3, 0.1, 0.2], [2.0, 2.1, 1.9, 2.2]])
def test_evidence_is_the_integral_of_the_noncentral_t_over_half_normal_effects(gains: list[float]):
    n, spread = len(gains), 4.0
    t = float(np.mean(gains) / (np.std(gains, ddof=1) / math.sqrt(n)))

    def density(effect: float) -> float:
        return float(stats.nct.pdf(t, n - 1, effect * math.sqrt(n))) * 2 * float(stats.norm.pdf(effect, scale=math.sqrt(spread)))

    expected = integrate.quad(density, 0, 12, limit=200)[0] / float(stats.t.pdf(t, n - 1))
    assert gain_evidence(gains, spread=spread) == pytest.approx(expected, rel=1e-4)


def test_noise_that_was_declared_counts_as_earlier_observations_around_zero():
    """As many observations of sum 0 and the declared spread, put before the gains, add nothing to the mean and all to the variance."""
    gains, sd, df = [0.5, 0.7, 0.4], 0.3, 6
    known = gain_evidence(gains, sd=sd, df=df)
    assert known > gain_evidence(gains)
    assert gain_evidence([-x for x in gains], sd=sd, df=df) < 1 < known


@pytest.mark.parametrize("df", [0, 8])
def test_no_effect_reaches_twenty_in_at_most_one_of_twenty_however_often_one_looks(df: int):
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 0.03, size=(1500, 12))
    reached = sum(any(gain_evidence(row[:n], sd=0.03, df=df) >= 20 for n in range(2, 13)) for row in rows)
    assert reached / len(rows) <= 0.05


def test_a_negative_gain_reaches_it_less_often():
    rows = np.random.default_rng(2).normal(-0.5, 1, size=(500, 8))
    assert np.mean([gain_evidence(row) for row in rows]) < 1


def test_twins_without_noise_are_no_evidence_and_a_diverged_arm_is_evidence_against():
    assert gain_evidence([0.0, 0.0, 0.0]) == 1.0
    assert gain_evidence([0.1]) == 1.0
    assert gain_evidence([0.1, 0.2, -math.inf]) == 0.0


def test_the_error_level_is_spent_once():
    assert math.fsum(1 / threshold(k, accepted=0, alpha=0.05) for k in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)
    assert threshold(7, accepted=3, alpha=0.05) == threshold(7, accepted=0, alpha=0.05) / 4


# --- answers -----------------------------------------------------------------------------------------------------------------------


class Trainer:
    """Losses of made runs, and which of them were asked for."""

    def __init__(self, gain: float, *, sigma: float = 0.01, seed: int = 0) -> None:
        self._rng, self._gain, self._sigma = np.random.default_rng(seed), gain, sigma
        self.asked: list[int] = []

    def __call__(self, seed: int) -> tuple[float, float]:
        self.asked.append(seed)
        mine, theirs = self._rng.normal(3.0, self._sigma, size=2)
        return float(mine) - self._gain, float(theirs)


def race(lines: list[Line] | None = None, **changed: object) -> Campaign:
    known = [] if lines is None else lines
    write: Callable[[Line], None] = (lambda line: None) if lines is None else lines.append
    return Campaign(Rules(question="?", **changed), lines=list(known), write=write)  # type: ignore[arg-type]


def test_a_large_gain_is_accepted_and_none_is_given_up_early():
    campaign, nothing = race(), Trainer(0.0)
    assert campaign.propose("good", [], Trainer(0.1), against="base")["word"] == ACCEPTED
    answer = campaign.propose("same", [], nothing, against="base")
    assert (answer["word"], answer["pairs"]) == ("not shown", len(nothing.asked))
    assert len(nothing.asked) < campaign.rules.most


def test_the_same_arm_gets_the_same_answer_and_spends_nothing():
    lines: list[Line] = []
    campaign, trainer = race(lines), Trainer(0.0)
    first, needs = campaign.propose("arm", ["a"], trainer, against="base"), campaign.needs()
    asked, again = len(trainer.asked), campaign.propose("arm", ["another name"], trainer, against="base")
    assert (again, campaign.needs(), len(trainer.asked)) == (first, needs, asked)
    assert race(lines).propose("arm", [], trainer, against="base") == first  # from the ledger


def test_a_run_that_was_trained_again_counts_as_it_was_the_first_time():
    """Also the baseline's, for every later proposal."""
    lines: list[Line] = []
    race(lines, most=3).propose("first", [], Trainer(0.0), against="base")
    race(lines, most=3).propose("second", [], Trainer(0.0, seed=5), against="base")
    pairs = [line for line in lines if line["event"] == "pair"]
    of = {arm: [line["baseline"] for line in pairs if line["arm"] == arm] for arm in ("first", "second")}
    assert of["first"] == of["second"]
    assert len({line["loss"] for line in pairs}) == 6


def test_a_proposal_that_was_cut_off_goes_on_with_the_pairs_it_has():
    lines: list[Line] = []
    trainer = Trainer(0.1)

    def dies(seed: int) -> tuple[float, float]:
        if seed == 2:
            raise KeyboardInterrupt
        return trainer(seed)

    with pytest.raises(KeyboardInterrupt):
        race(lines).propose("arm", [], dies, against="base")
    assert race(lines).propose("arm", [], trainer, against="base")["word"] == ACCEPTED
    assert trainer.asked == sorted(set(trainer.asked))
    assert sum(line["event"] == "proposal" for line in lines) == 1


def test_a_diverged_proposal_is_never_accepted_and_a_diverged_baseline_says_nothing():
    answer = race().propose("bad", [], lambda seed: (math.inf if seed == 1 else 1.0, 3.0 + seed / 100), against="base")
    assert (answer["word"], answer["diverged"], answer["gain"]) == ("not shown", True, None)
    answer = race().propose("arm", [], lambda seed: (3.0 + seed / 1000, math.inf if seed % 2 else 3.0), against="base")
    assert answer["word"] == "not shown"


def test_a_gain_below_what_is_asked_for_is_not_accepted():
    assert race(gain=0.2, most=6).propose("arm", [], Trainer(0.1), against="base")["word"] == "not shown"


def test_an_adversary_that_farms_seeds_over_two_hundred_proposals_gets_nothing():
    adversary = load_adversary()
    rules = Rules(question="?", noise=Declared(sd=adversary.SIGMA * math.sqrt(2), df=8, source="made"))
    assert adversary.played(rules, 12)["with_a_false_acceptance"]["share"] == 0
    planted = adversary.played(rules, 4, effect=3 * adversary.SIGMA * math.sqrt(2), share=0.1)
    assert planted["found"] > 0.8


# --- the command -------------------------------------------------------------------------------------------------------------------

RACE = {"question": "does anything help?", "overrides": [*SMALL, "trainer.device=cpu", "trainer.steps=4"], "least": 2, "most": 2}


@pytest.fixture
def race_door(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The command in this process: its runs have processes of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))

    def call(*words: object, **more: object) -> Finished:
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        seen = capsys.readouterr()
        return Finished(code, seen.out, seen.err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "race.yaml").write_text(json.dumps(RACE))
    return tmp_path / "ideas"


@pytest.mark.parametrize(
    ("proposal", "line"),
    [
        ("seed=3", "seed must be left out of a proposal"),
        ("trainer.init_from=x", "trainer.init_from must be left out of a proposal"),
        ("trainer.steps=8", "trainer.steps × trainer.batch_tokens must be the baseline's 8,192 tokens"),
        ("model.seq_len=16", "model.seq_len"),
        ("attention=nothing", "attention"),
    ],
)
def test_a_proposal_that_would_not_be_fair_is_refused_before_anything_runs(race_door: Door, folder: Path, proposal: str, line: str):
    refused = race_door(folder, "attention=mqa", proposal)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("nocap: ")
    assert line in refused.err
    assert refused.err.count("\n") == 1
    assert not (folder / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"alpha": 0.7}, "alpha must be"),
        ({"most": 1}, "most must be"),
        ({"question": " "}, "question must be given"),
        ({"lucky": 1}, "lucky"),
    ],
)
def test_a_rule_that_is_none_is_refused(race_door: Door, folder: Path, changed: dict[str, object], line: str):
    (folder / "race.yaml").write_text(json.dumps(RACE | changed))
    refused = race_door(folder)
    assert refused.code == 2
    assert line in refused.err
    assert refused.err.count("\n") == 1


def test_flops_may_be_limited(race_door: Door, folder: Path):
    (folder / "race.yaml").write_text(json.dumps(RACE | {"flops": 1.0}))
    refused = race_door(folder, "model.n_layer=8")
    assert refused.code == 2
    assert "FLOPs of a token must be at most 1 of the baseline's" in refused.err


@pytest.mark.slow
def test_a_race_from_its_first_proposal_to_rules_that_changed(race_door: Door, folder: Path, tmp_path: Path):
    """The answer is JSON on stdout alone; a second time nothing runs, also with the runs deleted."""
    told = race_door(folder, "attention=mqa", "--json", "--output-dir", tmp_path / "out")
    answer = json.loads(told.out)
    assert (told.code, answer["overrides"], answer["pairs"], answer["needs"]) == (0, ["attention=mqa"], 2, 40.0)
    again = race_door(folder, "attention=mqa attention.n_kv_heads=1", "--json", "--output-dir", tmp_path / "other")
    assert {**json.loads(again.out), "overrides": 0} == {**answer, "overrides": 0}
    assert not (tmp_path / "other").exists()
    assert "the next needs evidence of 120" in race_door(folder).out
    (folder / "race.yaml").write_text(json.dumps(RACE | {"most": 3}))
    refused = race_door(folder, "attention=gqa")
    assert refused.code == 2
    assert "must be what the race began with" in refused.err
