"""Proposals of a program to a study: the rule against a plain t-interval, and the answers against everything
a program may try."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from nocap.judge.interval import batches_above
from nocap.study.__main__ import main
from nocap.study.log import FILE
from nocap.study.propose import ACCEPTED, MOST, Campaign, Line
from nocap.study.spec import Propose
from tests.conftest import REPO, SMALL, Door, Finished


def load_adversary() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "adversary", REPO / "experiments" / "program_loop" / "adversary.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["adversary"] = module
    spec.loader.exec_module(module)
    return module


# --- the rule -----------------------------------------------------------------------------------------------


def test_a_batch_is_above_where_the_lower_end_of_a_plain_t_interval_is():
    rng = np.random.default_rng(0)
    for row in rng.normal(0.8, 1, size=(200, 4)):
        low = stats.ttest_1samp(row, 0.1).confidence_interval(0.95).low
        assert batches_above(list(row), 0.1) == (low > 0.1)


def test_every_batch_must_be_above_and_a_part_of_one_shows_nothing():
    good, bad = [0.3, 0.31, 0.29, 0.3], [0.3, -0.3, 0.1, 0.0]
    assert batches_above(good * 4, 0.0)
    assert not batches_above([*good, *bad], 0.0)
    assert not batches_above(good[:3], 0.0)
    assert not batches_above([], 0.0)
    assert not batches_above([*good[:3], math.nan], 0.0)
    assert not batches_above([0.0] * 4, 0.0)  # twins without noise


# --- answers ------------------------------------------------------------------------------------------------


class Trainer:
    """Losses of made runs, and which of them were asked for."""

    def __init__(self, gain: float, *, sigma: float = 0.01, seed: int = 0) -> None:
        self._rng, self._gain, self._sigma = np.random.default_rng(seed), gain, sigma
        self.asked: list[int] = []

    def __call__(self, seeds: Sequence[int]) -> dict[int, tuple[float, float]]:
        self.asked += seeds
        made = {seed: self._rng.normal(3.0, self._sigma, size=2) for seed in seeds}
        return {seed: (float(loss) - self._gain, float(baseline)) for seed, (loss, baseline) in made.items()}


def campaign(lines: list[Line] | None = None, **rules: float) -> Campaign:
    known = [] if lines is None else lines
    write: Callable[[Line], None] = (lambda line: None) if lines is None else lines.append
    return Campaign(Propose(**rules), lines=list(known), write=write)  # type: ignore[arg-type]


def test_a_gain_has_four_batches_and_none_is_given_up_after_the_first():
    proposals, nothing = campaign(), Trainer(0.0)
    assert proposals.propose("good", [], Trainer(0.1), against="base")["word"] == ACCEPTED
    answer = proposals.propose("same", [], nothing, against="base")
    assert (answer["word"], answer["pairs"], len(nothing.asked)) == ("not shown", 4, 4)


def test_the_same_arm_gets_the_same_answer_and_spends_nothing():
    lines: list[Line] = []
    proposals, trainer = campaign(lines), Trainer(0.0)
    first = proposals.propose("arm", ["a"], trainer, against="base")
    asked, again = len(trainer.asked), proposals.propose("arm", ["another name"], trainer, against="base")
    assert (again, len(trainer.asked)) == (first, asked)
    assert campaign(lines).propose("arm", [], trainer, against="base") == first  # from the log


def test_a_run_that_was_trained_again_counts_as_it_was_the_first_time():
    """Also the baseline's, for every later proposal."""
    lines: list[Line] = []
    campaign(lines).propose("first", [], Trainer(0.0), against="base")
    campaign(lines).propose("second", [], Trainer(0.0, seed=5), against="base")
    pairs = [line for line in lines if line["event"] == "pair"]
    baselines = {
        arm: [line["baseline"] for line in pairs if line["arm"] == arm] for arm in ("first", "second")
    }
    assert baselines["first"] == baselines["second"]
    assert len({line["loss"] for line in pairs}) == 8


def test_a_proposal_that_was_cut_off_goes_on_with_the_batches_it_has():
    lines: list[Line] = []
    trainer = Trainer(0.1)

    def dies(seeds: Sequence[int]) -> dict[int, tuple[float, float]]:
        if 8 in seeds:
            raise KeyboardInterrupt
        return trainer(seeds)

    with pytest.raises(KeyboardInterrupt):
        campaign(lines).propose("arm", [], dies, against="base")
    assert campaign(lines).propose("arm", [], trainer, against="base")["word"] == ACCEPTED
    assert trainer.asked == list(range(16))
    assert sum(line["event"] == "proposal" for line in lines) == 1


def test_a_diverged_proposal_is_never_accepted_and_a_diverged_baseline_is_no_gain():
    answer = campaign().propose(
        "bad",
        [],
        lambda seeds: {seed: (math.inf if seed == 1 else 1.0, 3.0) for seed in seeds},
        against="base",
    )
    assert (answer["word"], answer["diverged"], answer["gain"]) == ("not shown", True, None)
    answer = campaign().propose(
        "arm",
        [],
        lambda seeds: {seed: (3.0, math.inf if seed % 2 else 4.0) for seed in seeds},
        against="base",
    )
    assert (answer["word"], answer["diverged"]) == ("not shown", False)


def test_a_gain_below_what_is_asked_for_is_not_accepted():
    assert campaign(gain=0.2).propose("arm", [], Trainer(0.1), against="base")["word"] == "not shown"


def test_no_more_proposals_than_the_error_budget_was_simulated_for():
    proposals = campaign()
    for number in range(MOST):
        proposals.propose(f"arm {number}", [], Trainer(0.0, seed=number), against="base")
    with pytest.raises(ValueError, match="proposal 201"):
        proposals.propose("another", [], Trainer(1.0), against="base")
    assert proposals.propose("arm 7", [], Trainer(1.0), against="base")["word"] == "not shown"


def test_an_adversary_that_farms_seeds_over_two_hundred_proposals_gets_nothing():
    adversary = load_adversary()
    assert adversary.played("normal", 12)["with_a_false_acceptance"]["share"] == 0
    assert adversary.played("normal", 4, effect=3, share=0.1)["found"] > 0.7


# --- the command --------------------------------------------------------------------------------------------

STUDY = {
    "question": "does anything help?",
    "baseline": "base",
    "arms": {"base": []},
    "scales": {"cpu": {"overrides": [*SMALL, "trainer.device=cpu", "trainer.steps=4"]}},
    "propose": {"gain": 5.0},
}


@pytest.fixture
def study_door(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The command in this process: its runs have processes of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))

    def call(*words: object, **more: object) -> Finished:
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Finished(code, printed.out, printed.err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "study.yaml").write_text(json.dumps(STUDY))
    return tmp_path / "ideas"


@pytest.mark.parametrize(
    ("proposal", "line"),
    [
        ("seed=3", "seed must be left out of a proposal"),
        ("trainer.init_from=x", "trainer.init_from must be left out of a proposal"),
        ("trainer.steps=8", "trainer.steps × trainer.batch_tokens must be the baseline's 8,192 tokens"),
        ("model.seq_len=16", "model.seq_len"),
        ("attention=nothing", "attention"),
        ("'attention=mqa", "quotes in pairs"),
    ],
)
def test_a_proposal_that_would_not_be_fair_is_refused_before_anything_runs(
    study_door: Door, folder: Path, proposal: str, line: str
):
    refused = study_door(folder, "--propose", "attention=mqa", proposal)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("nocap: ")
    assert line in refused.err
    assert refused.err.count("\n") == 1
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"propose": {"gain": -1}}, "propose.gain must be"),
        ({"propose": {"lucky": 1}}, "lucky"),
        ({"propose": None}, "claims must have"),
    ],
)
def test_a_rule_that_is_none_is_refused(
    study_door: Door, folder: Path, changed: dict[str, object], line: str
):
    (folder / "study.yaml").write_text(json.dumps(STUDY | changed))
    refused = study_door(folder, "--propose")
    assert refused.code == 2
    assert line in refused.err
    assert refused.err.count("\n") == 1


def test_a_study_without_claims_is_for_proposals_alone(study_door: Door, folder: Path):
    assert "--propose must be given" in study_door(folder).err
    assert study_door(folder, "--propose").out == ""


def test_flops_may_be_limited(study_door: Door, folder: Path):
    (folder / "study.yaml").write_text(json.dumps(STUDY | {"propose": {"flops": 1.0}}))
    refused = study_door(folder, "--propose", "model.n_layer=8")
    assert refused.code == 2
    assert "FLOPs of a token must be at most 1 of the baseline's" in refused.err


@pytest.mark.slow
def test_proposals_from_the_first_to_rules_that_changed(study_door: Door, folder: Path, tmp_path: Path):
    """The answer is JSON on stdout alone; a second time nothing runs, also with the runs deleted."""
    told = study_door(folder, f"output_dir={tmp_path / 'out'}", "--json", "--propose", "attention=mqa")
    answer = json.loads(told.out)
    assert (told.code, answer["overrides"], answer["pairs"], answer["word"]) == (
        0,
        ["attention=mqa"],
        4,
        "not shown",
    )
    again = study_door(
        folder,
        f"output_dir={tmp_path / 'other'}",
        "--json",
        "--propose",
        "attention=mqa attention.n_kv_heads=1",
    )
    assert {**json.loads(again.out), "overrides": 0} == {**answer, "overrides": 0}
    assert not (tmp_path / "other").exists()
    assert "not shown: attention=mqa" in study_door(folder, "--propose").out
    (folder / "study.yaml").write_text(json.dumps(STUDY | {"propose": {"gain": 4.0}}))
    refused = study_door(folder, "--propose", "attention=gqa")
    assert refused.code == 2
    assert "must be what its proposals began with" in refused.err
