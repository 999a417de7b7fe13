"""Proposals that are commands: a program that changes flags, and one that edits files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nocap.study.log import FILE
from tests.attempts import wait_until
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


def commit() -> None:
    os.environ.setdefault("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "-q", "-b", "main")
    git("add", "--all")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "the baseline")


def test_a_gain_is_accepted_and_nothing_is_not(study_door: Door, folder: Path):
    """Also where more is better. A proposal that was answered runs nothing, also with its runs deleted; the
    baseline's runs are everybody's."""
    write(folder, better="higher")
    good, none, bad = answers(
        study_door(folder, "--json", "--propose", command(-0.1), command(0.1), command("nan"))
    )
    keys = ("word", "pairs", "number", "diverged")
    assert [[answer[key] for key in keys] for answer in (good, none, bad)] == [
        ["accepted", 16, 1, False],
        ["not shown", 4, 2, False],
        ["not shown", 4, 3, True],
    ]
    assert good["overrides"] == [sys.executable, "train.py", "-0.1", "{seed}"]
    assert good["gain"] == pytest.approx(0.1, abs=0.005)
    assert len(list(Path("outputs/commands").glob("*/result.json"))) == 16 + 16 + 4 + 4
    assert answers(study_door(folder, "output_dir=elsewhere", "--json", "--propose", command(-0.1))) == [good]
    assert not Path("elsewhere/commands").exists()
    assert answers(study_door(folder, "--json", "--propose")) == [good, none, bad]
    assert f"accepted: {sys.executable} train.py -0.1" in study_door(folder, "--propose").out


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


def test_a_run_that_fails_or_ignores_its_seed_says_so_and_a_mended_command_is_another_proposal(
    study_door: Door, folder: Path
):
    (folder.parent / "lucky.py").write_text("print('val loss', 1)\n")
    broken = study_door(folder, "--propose", command("nothing"))
    assert broken.code == 1
    assert "proposal 1, seed 0: exit code 1" in broken.err
    assert "ValueError: could not convert string to float: 'nothing'" in broken.err
    refused = study_door(folder, "--propose", f"{sys.executable} lucky.py {{seed}}")
    assert refused.code == 2
    assert "must use its seed: losses of other seeds are equal to rounding, got [1.0]" in refused.err
    assert answers(study_door(folder, "--json", "--propose", command("0.00")))[0]["number"] == 3


def test_a_study_with_a_command_runs_it_for_a_proposal_alone(study_door: Door, folder: Path):
    (folder.parent / "marks.py").write_text("open('mark', 'w')\nprint('val loss', 1)\n")
    write(folder, command=f"{sys.executable} marks.py {{seed}}")
    codes = [study_door(folder, *words).code for words in ((), ("--plan",), ("--judge",), ("--propose",))]
    assert (codes, Path("mark").exists()) == ([2, 2, 2, 0], False)
    study_door(folder, "--propose", command(0.1))
    assert Path("mark").exists()


def times() -> dict[Path, int]:
    """Of the runs that ended."""
    return {path: path.stat().st_mtime_ns for path in Path("outputs/commands").glob("*/result.json")}


@pytest.mark.slow
def test_a_proposal_that_is_stopped_goes_on(study_door: Door, folder: Path):
    (folder.parent / "train.py").write_text(f"{SCRIPT}\nimport time\ntime.sleep(0.5)\n")
    words = [sys.executable, "-m", "nocap.study", folder, "--json", "--propose", command(0)]
    pipe = subprocess.PIPE
    running = subprocess.Popen([*INTERRUPTIBLE, *words], stdout=pipe, stderr=pipe, text=True)
    wait_until(times, "a run that ended")
    running.send_signal(signal.SIGINT)
    said = (*running.communicate(timeout=60), running.returncode)
    assert said == ("", "nocap: paused; runs that ended are kept, and the same command goes on\n", 75)
    known = times()
    assert answers(study_door(folder, "--json", "--propose", command(0)))[0]["number"] == 1
    assert known.items() <= times().items()


@pytest.mark.slow
def test_files_that_change_need_a_ref_of_the_baseline(study_door: Door, folder: Path):
    commit()
    for number, gain in enumerate(("0.00", "0.000"), 1):  # the log is no part of the tree
        (answer,) = answers(study_door(folder, "--json", "--propose", command(gain)))
        assert (answer["word"], answer["number"]) == ("not shown", number)
    (folder.parent / "train.py").write_text(SCRIPT.replace("3 - gain", "2.9 - gain"))
    refused = study_door(folder, "--propose", command(0.1))
    assert refused.code == 2
    assert "must be what its proposals began with (files too, unless propose.ref is given)" in refused.err


@pytest.mark.slow
def test_a_program_that_edits_files_is_answered_against_a_ref(study_door: Door, folder: Path):
    """What is trained is the tree, in worktrees that go; what is locked stays as it was; an edit that comes
    again is the same proposal."""

    def proposed(text: str, name: str = "train.py") -> Finished:
        (folder.parent / name).write_text(text)
        return study_door(folder, "--json", "--propose", BASE)

    write(folder, ref="main", locked=["evaluation.py"])
    commit()
    better, worse = (SCRIPT.replace("3 - gain", f"{base} - gain") for base in (2.9, 3.1))
    (good,), (bad,) = answers(proposed(better)), answers(proposed(worse))
    assert (good["word"], good["number"], bad["word"], bad["number"]) == ("accepted", 1, "not shown", 2)
    assert answers(proposed(better)) == [good]
    evaluation = (folder.parent / "evaluation.py").read_text()
    cheated = proposed(evaluation.replace("loss)\n", "loss - 1)\n"), "evaluation.py")
    (folder.parent / "evaluation.py").write_text(evaluation)
    same = proposed(SCRIPT)
    assert (cheated.code, same.code) == (2, 2)
    assert "--locked must be equal in main and ., got evaluation.py" in cheated.err
    assert "--ref must differ from main in a file" in same.err
    worktrees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert worktrees.count("\n") == 1
    commit()  # the log: main is another commit
    assert answers(proposed(better)) == [good]
