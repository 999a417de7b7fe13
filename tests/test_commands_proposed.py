"""Proposals that are commands: a program that changes flags, and one that edits files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nocap.study.log import FILE
from tests.conftest import INTERRUPTIBLE, Door, Finished
from tests.test_proposals import study_door as study_door
from tests.test_race import git

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
def folder(tmp_path: Path, study_door: Door) -> Path:
    """Of the study, beside the script, where one stands."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "evaluation.py").write_text("def report(loss):\n    print('val loss', loss)\n")
    (tmp_path / "ideas").mkdir()
    write(tmp_path / "ideas")
    return tmp_path / "ideas"


def write(folder: Path, **more: object) -> None:
    (folder / "study.yaml").write_text(json.dumps({"question": "does it help?", "propose": PROPOSE | more}))


def command(gain: float | str, seed: str = "{seed}") -> str:
    return f"{sys.executable} train.py {gain} {seed}"


def answers(finished: Finished) -> list[dict[str, Any]]:
    assert finished.code == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines()]


def commit(folder: Path) -> None:
    os.environ.setdefault("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "-q", "-b", "main")
    git("add", "--all")
    git(
        "-c",
        "user.name=somebody",
        "-c",
        "user.email=somebody@example.org",
        "commit",
        "-q",
        "-m",
        "the baseline",
    )


def test_a_gain_is_accepted_and_nothing_is_not(study_door: Door, folder: Path):
    """A proposal that was answered runs nothing, also with its runs deleted; the baseline's runs are
    everybody's."""
    good, none, bad = answers(
        study_door(folder, "--json", "--propose", command(0.1), command("0.00"), command("nan"))
    )
    assert [
        (answer["word"], answer["pairs"], answer["number"], answer["diverged"])
        for answer in (good, none, bad)
    ] == [("accepted", 16, 1, False), ("not shown", 4, 2, False), ("not shown", 4, 3, True)]
    assert good["overrides"] == [sys.executable, "train.py", "0.1", "{seed}"]
    assert good["gain"] == pytest.approx(0.1, abs=0.005)
    assert len(list(Path("outputs/commands").glob("*/result.json"))) == 16 + 16 + 4 + 4
    again = answers(study_door(folder, "output_dir=elsewhere", "--json", "--propose", command(0.1)))
    assert again == [good]
    assert not Path("elsewhere/commands").exists()
    assert answers(study_door(folder, "--json", "--propose")) == [good, none, bad]
    assert f"accepted: {sys.executable} train.py 0.1" in study_door(folder, "--propose").out


def test_of_a_metric_of_which_more_is_better(study_door: Door, folder: Path):
    write(folder, better="higher")
    (worse, better) = answers(study_door(folder, "--json", "--propose", command(0.1), command(-0.1)))
    assert (worse["word"], better["word"]) == ("not shown", "accepted")
    assert better["gain"] == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(
    ("proposal", "more", "line"),
    [
        (command(1, seed=""), {}, "--propose must have {seed}"),
        ("/no/such/program {seed}", {}, "arm proposal 1 must begin with a program that is there"),
        ("'train.py {seed}", {}, "--propose must be a command, with quotes in pairs"),
        (command(1), {"command": "python train.py"}, "propose.command must have {seed}"),
        (command(1), {"metric": "("}, "propose.metric must be a regular expression"),
        (command(1), {"metric": ""}, "propose.metric must be given with propose.command"),
        (command(1), {"command": "", "metric": "", "ref": "main"}, "arms must be given"),
        (command(1), {"flops": 2.0}, "propose.command must be without what is nocap's own trainer's"),
        (command(1), {"timeout": "soon"}, "propose.timeout must be a time"),
        (command(1), {"ref": "main"}, "--ref must be given in a git repository"),
        (command(1), {"link": ["data"]}, "propose.link must be given with propose.ref"),
    ],
)
def test_what_is_no_proposal_is_refused_before_anything_runs(
    study_door: Door, folder: Path, proposal: str, more: dict[str, object], line: str
):
    write(folder, **more)
    refused = study_door(folder, "--json", "--propose", proposal)
    assert (refused.code, refused.out) == (2, "")
    assert line in refused.err
    assert refused.err.count("\n") == 1
    assert not (folder / FILE).exists()
    assert not Path("outputs/commands").exists()


def test_a_command_that_ignores_its_seed_is_never_accepted(study_door: Door, folder: Path):
    (folder.parent / "lucky.py").write_text("print('val loss', 1)\n")
    refused = study_door(folder, "--propose", f"{sys.executable} lucky.py {{seed}}")
    assert refused.code == 2
    assert (
        "proposal 1 must use its seed: losses of other seeds are equal to rounding, got [1.0]" in refused.err
    )


def test_a_run_that_fails_says_so_and_its_mended_command_is_another_proposal(study_door: Door, folder: Path):
    broken = study_door(folder, "--propose", command("nothing"))
    assert broken.code == 1
    assert "proposal 1, seed 0: exit code 1" in broken.err
    assert "ValueError: could not convert string to float: 'nothing'" in broken.err
    assert answers(study_door(folder, "--json", "--propose", command(0.1)))[0]["number"] == 2


def test_a_study_with_a_command_runs_it_for_a_proposal_alone(study_door: Door, folder: Path):
    (folder.parent / "marks.py").write_text("open('mark', 'w')\nprint('val loss', 1)\n")
    write(folder, command=f"{sys.executable} marks.py {{seed}}")
    assert (
        study_door(folder).code
        == study_door(folder, "--plan").code
        == study_door(folder, "--judge").code
        == 2
    )
    assert study_door(folder, "--propose").code == 0
    assert not Path("mark").exists()
    study_door(folder, "--propose", command(0.1))
    assert Path("mark").exists()


@pytest.mark.slow
def test_a_proposal_that_is_stopped_goes_on(study_door: Door, folder: Path):
    (folder.parent / "train.py").write_text(f"{SCRIPT}\nimport time\ntime.sleep(0.5)\n")
    words = [sys.executable, "-m", "nocap.study", folder, "--json", "--propose", command(0)]
    running = subprocess.Popen(
        [*INTERRUPTIBLE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not list(Path("outputs/commands").glob("*/result.json")) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (75, "")
    assert err == "nocap: paused; runs that ended are kept, and the same command goes on\n"
    known = {path: path.stat().st_mtime_ns for path in Path("outputs/commands").glob("*/result.json")}
    assert answers(study_door(folder, "--json", "--propose", command(0)))[0]["number"] == 1
    assert {path: path.stat().st_mtime_ns for path in known} == known


@pytest.mark.slow
def test_files_that_change_need_a_ref_of_the_baseline(study_door: Door, folder: Path):
    commit(folder)
    assert answers(study_door(folder, "--json", "--propose", command("0.00")))[0]["word"] == "not shown"
    # the log is no part of the tree
    assert answers(study_door(folder, "--json", "--propose", command("0.000")))[0]["number"] == 2
    (folder.parent / "train.py").write_text(SCRIPT.replace("3 - gain", "2.9 - gain"))
    refused = study_door(folder, "--propose", command(0.1))
    assert refused.code == 2
    assert "must be what its proposals began with (files too, unless propose.ref is given)" in refused.err


def proposed(study_door: Door, folder: Path, changes: Sequence[tuple[str, str]]) -> Finished:
    for name, text in changes:
        (folder.parent / name).write_text(text)
    return study_door(folder, "--json", "--propose", BASE)


@pytest.mark.slow
def test_a_program_that_edits_files_is_answered_against_a_ref(study_door: Door, folder: Path):
    """What is trained is the tree, in worktrees that go; what is locked stays as it was; an edit that comes
    again is the same proposal."""
    write(folder, ref="main", locked=["evaluation.py"])
    commit(folder)
    better, worse = SCRIPT.replace("3 - gain", "2.9 - gain"), SCRIPT.replace("3 - gain", "3.1 - gain")
    (good,) = answers(proposed(study_door, folder, [("train.py", better)]))
    (bad,) = answers(proposed(study_door, folder, [("train.py", worse)]))
    assert [(answer["word"], answer["number"]) for answer in (good, bad)] == [
        ("accepted", 1),
        ("not shown", 2),
    ]
    assert answers(proposed(study_door, folder, [("train.py", better)])) == [good]
    evaluation = (folder.parent / "evaluation.py").read_text()
    cheated = proposed(study_door, folder, [("evaluation.py", evaluation.replace("loss)\n", "loss - 1)\n"))])
    assert cheated.code == 2
    assert "--locked must be equal in main and ., got evaluation.py" in cheated.err
    (folder.parent / "evaluation.py").write_text(evaluation)
    same = proposed(study_door, folder, [("train.py", SCRIPT)])
    assert same.code == 2
    assert "--ref must differ from main in a file" in same.err
    worktrees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert worktrees.count("\n") == 1
    commit(folder)  # the log: main is another commit
    assert answers(proposed(study_door, folder, [("train.py", better)])) == [good]
