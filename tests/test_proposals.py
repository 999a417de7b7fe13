"""Proposals of a program to a study: the rule against a plain t-interval, the answers against
everything a program may try, and commands of a program that changes flags or edits files."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.judge.proposal import BatchQuestion, LossPair, ProposalWord, batches_above, judge
from nocap.study.__main__ import main
from nocap.study.log import FILE, AnswerLine, LogLine, PairLine, ProposalLine
from nocap.study.proposals.campaign import MOST_PROPOSALS, Campaign
from nocap.study.spec import Propose
from tests.attempts import wait_until
from tests.conftest import INTERRUPTIBLE, REPO, SMALL, Door, Finished
from tests.test_race import git

# --- the rule -------------------------------------------------------------------------------------


def test_a_batch_is_above_where_the_lower_end_of_a_plain_t_interval_is():
    rng = np.random.default_rng(0)
    for row in rng.normal(0.8, 1, size=(200, 4)):
        low = stats.ttest_1samp(row, 0.1).confidence_interval(0.95).low
        assert batches_above(list(row), 0.1) == (low > 0.1)


GOOD = [0.3, 0.31, 0.29, 0.3]


BATCHES = [
    [*GOOD, 0.3, -0.3, 0.1, 0.0],
    GOOD[:3],
    [*GOOD, *GOOD[:3]],
    [],
    [*GOOD[:3], math.nan],
    [0.0] * 4,  # equal twins
]


@pytest.mark.parametrize("losses", BATCHES)
def test_every_batch_must_be_above_and_a_part_of_one_shows_nothing(losses: list[float]):
    assert batches_above(GOOD * 4, 0.0)
    assert not batches_above(losses, 0.0)


def pairs(*gains: float | None) -> list[LossPair]:
    """Make the pairs of these gains over a baseline at 3; None: the proposal diverged."""
    loss_pairs: list[LossPair] = []
    for gain in gains:
        pair = LossPair(loss=None if gain is None else 3 - gain, baseline=3.0)
        loss_pairs.append(pair)
    return loss_pairs


def test_a_proposal_is_judged_batch_by_batch():
    question = BatchQuestion(bar=0.2)
    words = [judge(pairs(*GOOD * batches), question).word for batches in (1, 2, 3, 4)]
    expected = [
        ProposalWord.undecided,
        ProposalWord.undecided,
        ProposalWord.undecided,
        ProposalWord.accepted,
    ]
    assert words == expected
    higher = judge(pairs(*GOOD), BatchQuestion(bar=0.3))
    assert higher.word is ProposalWord.not_shown
    assert higher.pairs == 4
    assert higher.gain == pytest.approx(0.3)


def test_a_proposal_that_diverged_shows_nothing():
    loss_pairs = pairs(*GOOD * 3, 0.3, 0.3, None, 0.3)
    lost = judge(loss_pairs, BatchQuestion(bar=0.0))
    assert lost.word is ProposalWord.not_shown
    assert lost.diverged
    assert lost.gain == -math.inf
    parts = [*pairs(*GOOD[:3]), LossPair(loss=2.0, baseline=None)]
    alone = judge(parts, BatchQuestion(bar=0.0))
    assert alone.word is ProposalWord.not_shown
    assert not alone.diverged


# --- answers --------------------------------------------------------------------------------------


class Trainer:
    """Losses of made runs, and which of them were asked for."""

    def __init__(self, gain: float, *, seed: int = 0, dies_at: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._gain = gain
        self._dies_at = dies_at
        self.asked: list[int] = []

    def __call__(self, seeds: Sequence[int]) -> dict[int, tuple[float, float]]:
        if self._dies_at in seeds:
            raise KeyboardInterrupt
        self.asked += seeds
        made = {seed: self._rng.normal(3.0, 0.01, size=2) for seed in seeds}
        values: dict[int, tuple[float, float]] = {}
        for seed, (loss, baseline) in made.items():
            values[seed] = (float(loss) - self._gain, float(baseline))
        return values


def propose(
    name: str, trainer: Any, lines: list[LogLine] | None = None, **rules: float
) -> AnswerLine:
    """Return the answer. `lines`: the log, which is read and written."""
    if lines is None:
        log = []
    else:
        log = lines
    campaign = Campaign(Propose(**rules), lines=list(log), write=log.append)  # type: ignore[arg-type]
    return campaign.propose(name, [], trainer, against="base")


def test_a_gain_has_four_batches_and_none_is_given_up_after_the_first():
    good = Trainer(0.1)
    same = Trainer(0.0)
    less = Trainer(0.1)
    assert propose("good", good).word == "accepted"
    assert good.asked == list(range(16))
    answer = propose("same", same)
    assert answer.word == "not shown"
    assert answer.pairs == 4
    assert same.asked == list(range(4))
    assert propose("good", less, gain=0.2).word == "not shown"  # below what is asked for


def test_the_same_arm_gets_the_same_answer_and_spends_nothing():
    lines = list[LogLine]()
    trainer = Trainer(0.0)
    first = propose("arm", trainer, lines)
    asked = trainer.asked[:]
    assert propose("arm", trainer, lines) == first
    assert trainer.asked == asked


def test_a_run_that_was_trained_again_counts_as_it_was_the_first_time():
    """Also the baseline's, for every later proposal."""
    lines = list[LogLine]()
    for seed, name in enumerate(("first", "second")):
        propose(name, Trainer(0.0, seed=seed), lines)
    pairs = [line for line in lines if isinstance(line, PairLine)]
    baselines = []
    for arm in ("first", "second"):
        of_arm = [line.baseline for line in pairs if line.arm == arm]
        baselines.append(of_arm)
    assert baselines[0] == baselines[1]
    losses = {line.loss for line in pairs}
    assert len(losses) == 8


def test_a_proposal_that_was_cut_off_goes_on_with_the_batches_it_has():
    lines = list[LogLine]()
    dies = Trainer(0.1, dies_at=8)
    goes_on = Trainer(0.1)
    with pytest.raises(KeyboardInterrupt):
        propose("arm", dies, lines)

    assert propose("arm", goes_on, lines).word == "accepted"
    assert dies.asked + goes_on.asked == list(range(16))
    assert sum(isinstance(line, ProposalLine) for line in lines) == 1


def test_a_diverged_proposal_is_never_accepted_and_a_diverged_baseline_is_no_gain():
    answer = propose(
        "bad", lambda seeds: {seed: (math.inf if seed == 1 else 1.0, 3.0) for seed in seeds}
    )
    assert answer.word == "not shown"
    assert answer.diverged
    assert answer.gain is None
    answer = propose(
        "arm", lambda seeds: {seed: (3.0, math.inf if seed % 2 else 4.0) for seed in seeds}
    )
    assert answer.word == "not shown"
    assert not answer.diverged


def test_no_more_proposals_than_the_error_budget_was_simulated_for():
    lines = list[LogLine]()
    for number in range(MOST_PROPOSALS):
        propose(f"arm {number}", Trainer(0.0, seed=number), lines)
    with pytest.raises(ValueError, match="proposal 201"):
        propose("another", Trainer(1.0), lines)
    assert propose("arm 7", Trainer(1.0), lines).word == "not shown"


def test_an_adversary_that_farms_seeds_over_two_hundred_proposals_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.syspath_prepend(str(REPO / "experiments" / "program_loop"))
    adversary = importlib.import_module("adversary")
    assert adversary.played("normal", 12)["with_a_false_acceptance"]["share"] == 0
    played = adversary.played("normal", 4, effect=3, share=0.1)
    assert played["found"] > 0.7


# --- the command ----------------------------------------------------------------------------------

STUDY = {
    "question": "does anything help?",
    "baseline": "base",
    "arms": {"base": []},
    "scales": {"cpu": {"overrides": [*SMALL, "trainer.device=cpu", "trainer.steps=4"]}},
    "propose": {"gain": 5.0},
}


@pytest.fixture
def study_door(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Door:
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
    text = json.dumps(STUDY)
    (tmp_path / "ideas" / "study.yaml").write_text(text)
    return tmp_path / "ideas"


UNFAIR = [
    ({}, ["attention=mqa", "seed=3"], "a proposal must not set seed"),
    ({}, ["trainer.init_from=x"], "a proposal must not set trainer.init_from"),
    (
        {},
        ["trainer.steps=8"],
        "trainer.steps × trainer.batch_tokens must be equal to the baseline's 8,192 tokens",
    ),
    ({}, ["model.seq_len=16"], "model.seq_len"),
    ({}, ["attention=nothing"], "attention"),
    ({}, ["'attention=mqa"], "each quote is closed"),
    ({}, None, "has no claims: add claims to its study.yaml, or type --propose"),
    ({"propose": {"gain": -1}}, [], "propose.gain must be"),
    ({"propose": {"lucky": 1}}, [], "lucky"),
    ({"propose": None}, [], "claims must have"),
    (
        {"propose": {"flops": 1.0}},
        ["model.n_layer=8"],
        "FLOPs of a token must be at most 1 times the baseline's",
    ),
]


@pytest.mark.parametrize(("changed", "proposals", "line"), UNFAIR)
def test_what_would_not_be_fair_is_refused_before_anything_runs(
    study_door: Door,
    folder: Path,
    changed: dict[str, object],
    proposals: list[str] | None,
    line: str,
):
    text = json.dumps(STUDY | changed)
    (folder / "study.yaml").write_text(text)
    if proposals is None:
        words = ()
    else:
        words = ("--propose", *proposals)
    refused = study_door(folder, *words)

    assert refused.code == 2
    assert refused.out == ""
    assert refused.err[:7] == "nocap: "
    assert refused.err.count("\n") == 1
    assert line in refused.err
    assert not (folder / FILE).exists()


@pytest.mark.slow
def test_proposals_from_the_first_to_rules_that_changed(
    study_door: Door, folder: Path, tmp_path: Path
):
    """The answer is JSON on stdout alone; a second time nothing runs, also with the runs
    deleted."""

    def told(out: str, proposal: str) -> dict[str, Any]:
        done = study_door(folder, f"output_dir={tmp_path / out}", "--json", "--propose", proposal)
        content = json.loads(done.out)
        return {"code": done.code, **content}

    answer = told("out", "attention=mqa")
    keys = ("code", "overrides", "pairs", "word")
    expected = [0, ["attention=mqa"], 4, "not shown"]
    assert [answer[key] for key in keys] == expected
    again = told("other", "attention=mqa attention.n_kv_heads=1")
    assert {**again, "overrides": 0} == {**answer, "overrides": 0}
    assert not (tmp_path / "other").exists()
    assert "not shown: attention=mqa" in study_door(folder, "--propose").out
    text = json.dumps(STUDY | {"propose": {"gain": 4.0}})
    (folder / "study.yaml").write_text(text)
    refused = study_door(folder, "--propose", "attention=gqa")
    assert refused.code == 2
    assert "must stay as its first proposal found it" in refused.err


# --- commands -------------------------------------------------------------------------------------

SCRIPT = """
import os, random, sys
from evaluation import report
gain, seed = float(sys.argv[1]), int(os.environ["NOCAP_SEED"])
noise = random.Random(seed).gauss(0, 0.01) + random.Random(f"{gain}{seed}").gauss(0, 0.001)
report(3 - gain + noise)
"""
BASE = f"{sys.executable} train.py 0 {{seed}}"
PROPOSE = {"gain": 0.01, "command": BASE, "metric": r"val loss (\S+)"}


@pytest.fixture
def beside(tmp_path: Path, study_door: Door) -> Path:
    """Of the study, beside the script, where one stands."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "evaluation.py").write_text("def report(loss):\n    print('val loss', loss)\n")
    (tmp_path / "ideas").mkdir()
    write(tmp_path / "ideas")
    return tmp_path / "ideas"


def write(beside: Path, **more: object) -> None:
    content = {"question": "does it help?", "propose": PROPOSE | more}
    (beside / "study.yaml").write_text(json.dumps(content))


def command(gain: float | str, seed: str = "{seed}") -> str:
    return f"{sys.executable} train.py {gain} {seed}"


def answers(finished: Finished) -> list[dict[str, Any]]:
    assert finished.code == 0, finished.err
    lines = finished.out.splitlines()
    return [json.loads(line) for line in lines]


def commit() -> None:
    os.environ.setdefault("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "-q", "-b", "main")
    git("add", "--all")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "the baseline")


def test_a_gain_is_accepted_and_nothing_is_not(study_door: Door, beside: Path):
    """Also where more is better. A proposal that was answered runs nothing, also with its runs
    deleted; the baseline's runs are everybody's."""
    write(beside, better="higher")
    said = study_door(beside, "--json", "--propose", command(-0.1), command(0.1), command("nan"))
    good, none, bad = answers(said)
    keys = ("word", "pairs", "number", "diverged")
    expected = [["accepted", 16, 1, False], ["not shown", 4, 2, False], ["not shown", 4, 3, True]]
    figures = []
    for answer in (good, none, bad):
        figures.append([answer[key] for key in keys])
    assert figures == expected
    assert good["overrides"] == [sys.executable, "train.py", "-0.1", "{seed}"]
    assert good["gain"] == pytest.approx(0.1, abs=0.005)
    paths = list(Path("outputs/commands").glob("*/result.json"))
    assert len(paths) == 16 + 16 + 4 + 4
    assert answers(
        study_door(beside, "output_dir=elsewhere", "--json", "--propose", command(-0.1))
    ) == [good]
    assert not Path("elsewhere/commands").exists()
    assert answers(study_door(beside, "--json", "--propose")) == [good, none, bad]
    assert f"accepted: {sys.executable} train.py -0.1" in study_door(beside, "--propose").out


NO_PROPOSALS = [
    (command(1, seed=""), {}, "--propose must have {seed}"),
    (
        "/no/such/program {seed}",
        {},
        "arm proposal 1 must be a command that begins with a program that exists",
    ),
    ("'train.py {seed}", {}, "--propose must be a command in which each quote is closed"),
    (command(1), {"command": "python train.py"}, "propose.command must have {seed}"),
    (command(1), {"metric": "("}, "propose.metric must be a regular expression"),
    (command(1), {"metric": ""}, "propose.command and propose.metric must both be set"),
    (command(1), {"command": "", "metric": "", "ref": "main"}, "arms must have at least one arm"),
    (command(1), {"flops": 2.0}, "propose.command does not work with propose.flops"),
    (command(1), {"timeout": "soon"}, "propose.timeout must be a time"),
    (command(1), {"ref": "main"}, "--ref works only in a git repository"),
    (command(1), {"link": ["data"]}, "propose.link works only with propose.ref"),
]


@pytest.mark.parametrize(("proposal", "more", "line"), NO_PROPOSALS)
def test_what_is_no_proposal_is_refused_before_anything_runs(
    study_door: Door, beside: Path, proposal: str, more: dict[str, object], line: str
):
    write(beside, **more)
    refused = study_door(beside, "--json", "--propose", proposal)
    assert refused.code == 2
    assert refused.out == ""
    assert line in refused.err
    assert refused.err.count("\n") == 1
    assert not (beside / FILE).exists()
    assert not Path("outputs/commands").exists()


@pytest.mark.slow
def test_a_run_that_fails_or_ignores_its_seed_says_so_and_a_mended_command_is_another_proposal(
    study_door: Door, beside: Path
):
    (beside.parent / "lucky.py").write_text("print('val loss', 1)\n")
    broken = study_door(beside, "--propose", command("nothing"))
    assert broken.code == 1
    assert "proposal 1, seed 0: exit code 1" in broken.err
    assert "ValueError: could not convert string to float: 'nothing'" in broken.err
    refused = study_door(beside, "--propose", f"{sys.executable} lucky.py {{seed}}")
    assert refused.code == 2
    assert (
        "must have different losses for different seeds (the command must use the seed)"
        in refused.err
    )
    done = study_door(beside, "--json", "--propose", command("0.00"))
    assert answers(done)[0]["number"] == 3


def test_a_study_with_a_command_runs_it_for_a_proposal_alone(study_door: Door, beside: Path):
    (beside.parent / "marks.py").write_text("open('mark', 'w')\nprint('val loss', 1)\n")
    write(beside, command=f"{sys.executable} marks.py {{seed}}")
    codes = []
    for words in ((), ("--plan",), ("--judge",), ("--propose",)):
        codes.append(study_door(beside, *words).code)
    assert codes == [2, 2, 2, 0]
    assert not Path("mark").exists()
    study_door(beside, "--propose", command(0.1))
    assert Path("mark").exists()


def times() -> dict[Path, int]:
    """Of the runs that ended."""
    paths = Path("outputs/commands").glob("*/result.json")
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.gate
def test_a_proposal_that_is_stopped_goes_on(study_door: Door, beside: Path):
    (beside.parent / "train.py").write_text(f"{SCRIPT}\nimport time\ntime.sleep(0.5)\n")
    words = [sys.executable, "-m", "nocap.study", beside, "--json", "--propose", command(0)]
    pipe = subprocess.PIPE
    running = subprocess.Popen([*INTERRUPTIBLE, *words], stdout=pipe, stderr=pipe, text=True)
    wait_until(times, "a run that ended")
    running.send_signal(signal.SIGINT)
    said = (*running.communicate(), running.returncode)
    assert said == (
        "",
        "nocap: paused; nocap keeps the runs that ended; to continue, type the same command "
        "again\n",
        75,
    )
    known = times()
    done = study_door(beside, "--json", "--propose", command(0))
    assert answers(done)[0]["number"] == 1
    assert known.items() <= times().items()


@pytest.mark.slow
def test_files_that_change_need_a_ref_of_the_baseline(study_door: Door, beside: Path):
    commit()
    for number, gain in enumerate(("0.00", "0.000"), 1):  # the log is no part of the tree
        (answer,) = answers(study_door(beside, "--json", "--propose", command(gain)))
        assert answer["word"] == "not shown"
        assert answer["number"] == number
    text = SCRIPT.replace("3 - gain", "2.9 - gain")
    (beside.parent / "train.py").write_text(text)
    refused = study_door(beside, "--propose", command(0.1))
    assert refused.code == 2
    assert (
        "must stay as its first proposal found it (files too, unless propose.ref is given)"
        in refused.err
    )


@pytest.mark.slow
def test_a_program_that_edits_files_is_answered_against_a_ref(study_door: Door, beside: Path):
    """What is trained is the tree, in worktrees that go; what is locked stays as it was; an edit
    that comes again is the same proposal."""

    def proposed(text: str, name: str = "train.py") -> Finished:
        (beside.parent / name).write_text(text)
        return study_door(beside, "--json", "--propose", BASE)

    write(beside, ref="main", locked=["evaluation.py"])
    commit()
    better, worse = (SCRIPT.replace("3 - gain", f"{base} - gain") for base in (2.9, 3.1))
    (good,) = answers(proposed(better))
    (bad,) = answers(proposed(worse))
    assert good["word"] == "accepted"
    assert good["number"] == 1
    assert bad["word"] == "not shown"
    assert bad["number"] == 2
    assert answers(proposed(better)) == [good]
    evaluation = (beside.parent / "evaluation.py").read_text()
    cheated = proposed(evaluation.replace("loss)\n", "loss - 1)\n"), "evaluation.py")
    (beside.parent / "evaluation.py").write_text(evaluation)
    same = proposed(SCRIPT)
    assert cheated.code == 2
    assert same.code == 2
    assert (
        "--locked must match only files that are equal in main and ., got evaluation.py"
        in cheated.err
    )
    assert "--ref must differ from main in at least one file" in same.err
    listing = ["git", "worktree", "list"]
    worktrees = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert worktrees.count("\n") == 1
    commit()  # the log: main is another commit
    assert answers(proposed(better)) == [good]
