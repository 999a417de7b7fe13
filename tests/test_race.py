"""Races of commands that are not nocap's, by a script that takes a fraction of a second."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from nocap import race
from nocap.sources import command
from nocap.sources.arms import of_refs
from nocap.sources.command import LOG, RESULT, Command, Reading
from nocap.sources.race import Race, content
from nocap.sources.slurm import on_slurm
from nocap.store.lease import HeldError
from nocap.store.metrics import Better
from tests.attempts import wait_until
from tests.conftest import INTERRUPTIBLE, REPO
from tests.test_report import text_of
from tests.tools import slurm

SCRIPT = """
import os, random, sys, time
from helper import GAIN
seed = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else 0
noise = random.Random(seed).gauss(0, 0.01) + random.Random(f"{GAIN}{seed}").gauss(0, 0.001)
for step in range(3):
    print(f"step {step} val loss {3 - 0.1 * step - GAIN + noise:.5f}")
exec(os.environ.get("EXTRA", ""))
"""
PYTHON = sys.executable
PATTERN = r"val loss (\S+)"
THREE_SESSIONS = ("--sessions", "3", "--apart", "0.1s")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a branch `idea`, whose loss is 0.1 lower, and a folder of data that git ignores."""
    folder = tmp_path / "theirs"
    (folder / "data").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("GAIN = 0.0\n")
    (folder / "evaluation.py").write_text("# the same for all\n")
    (folder / ".gitignore").write_text("outputs/\ndata/\n__pycache__/\n")
    (folder / "data" / "tokens.bin").write_bytes(b"tokens")
    git("init", "-q", "-b", "main")
    commit("the baseline")
    git("checkout", "-q", "-b", "idea")
    (folder / "helper.py").write_text("GAIN = 0.1\n")
    commit("the idea")
    git("checkout", "-q", "main")
    return folder


def git(*words: str) -> None:
    subprocess.run(["git", *words], check=True, capture_output=True)


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "-q", "-m", message)


def arms(**commands: str) -> list[str]:
    return [word for name, command in commands.items() for word in ("--arm", f"{name}={PYTHON} {command}")]


def refs(first: str, second: str, *flags: str, pairs: int = 3) -> list[str]:
    named = ["--ref", first, "--ref", second, *flags, "--metric", PATTERN, "--pairs", str(pairs)]
    return [*named, "--", PYTHON, "train.py", "{seed}"]


Answer = dict[str, object]


@pytest.fixture
def raced(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The answer of a race, and what it printed on stderr."""

    def call(*words: str) -> Answer:
        head, tail = (
            (words, ()) if "--" not in words else (words[: words.index("--")], words[words.index("--") :])
        )
        assert race.main([*head, "--json", *tail]) == 0
        out, err = capsys.readouterr()
        answer: Answer = json.loads(out)
        return {**answer, "said": err}

    return call


def verdict(answer: Answer) -> tuple[str, int]:
    (row,) = answer["verdicts"]  # type: ignore[misc]
    return row["word"], row["n"]


def test_refs_are_raced_in_worktrees_until_the_answer_is_safe(
    repo: Path, raced: Callable[..., Answer]
) -> None:
    words = refs("main", "idea", "--locked", "eval*", pairs=12)
    answer = raced(*words)
    assert verdict(answer) == ("better", 3)
    (row,) = answer["verdicts"]  # type: ignore[misc]
    assert row["gain"]["low"] < 0.1 < row["gain"]["high"]
    assert {cost["verdict"] for cost in row["costs"].values()} == {"no verdict"}  # times of one session
    order = [line.split(",")[0] for line in str(answer["said"]).splitlines() if ", seed " in line]
    assert order == ["main", "idea", "idea", "main", "main", "idea"]
    again = raced(*words)
    assert again["verdicts"] == answer["verdicts"]
    assert ", seed " not in str(again["said"])
    worktrees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert worktrees.count("\n") == 1


def test_a_race_leaves_the_worktrees_of_another(repo: Path) -> None:
    def prepare(undo: ExitStack, *refs: str) -> list[Command]:
        commands = [(ref, [PYTHON, "train.py", "{seed}"]) for ref in refs]
        return of_refs(commands, locked=(), links=(), folder=Path("trees"), undo=undo, say=print)[0]

    with ExitStack() as undo:
        own = prepare(undo, "main", "idea")
        with pytest.raises(HeldError, match="must have one writer"), ExitStack() as others:
            prepare(others, "main", "idea")
        assert all((arm.cwd / "train.py").is_file() for arm in own)
    with ExitStack() as undo:
        prepare(undo, "main", "idea")


def test_a_ref_against_itself_shows_no_difference(repo: Path, raced: Callable[..., Answer]) -> None:
    answer = raced(*refs("main", "main"))
    assert verdict(answer) == ("no difference shown", 3)
    assert len(list((repo / "outputs" / "commands").glob("*/result.json"))) == 6
    printed = [path.read_text() for path in (repo / "outputs" / "commands").glob("*/output.log")]
    assert [text.count("\n") for text in printed] == [3] * 6, printed  # nothing but what the command says


def test_the_working_tree_is_an_arm(repo: Path, raced: Callable[..., Answer]) -> None:
    (repo / "helper.py").write_text("GAIN = 0.2\n")
    noted = raced(*refs("main", "idea"))
    assert "changes that no --ref . names" in str(noted["said"])
    answer = raced(*refs("idea", "."))
    assert verdict(answer) == ("better", 3)
    assert "changes" not in str(answer["said"])
    assert (repo / "helper.py").read_text() == "GAIN = 0.2\n"


def test_what_git_ignores_is_linked_in_and_may_not_be_written(
    repo: Path,
    raced: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = refs("main", "idea", "--link", "data")
    monkeypatch.setenv("EXTRA", "assert open('data/tokens.bin').read() == 'tokens'")
    assert verdict(raced(*words)) == ("better", 3)
    shutil.rmtree(repo / "outputs")
    monkeypatch.setenv("EXTRA", "open('data/tokens.bin', 'a').write('more')")
    assert failed(*words) == 1
    assert "changed what --link names" in capsys.readouterr().err


def failed(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        race.main(list(words))
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_module_from_another_copy_ends_the_race(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo))
    # as an installed copy comes first
    (repo / "train.py").write_text(f"import sys\nsys.path.reverse()\n{SCRIPT}")
    commit("an installed copy comes first")
    git("branch", "-f", "other")
    (repo / "evaluation.py").write_text("# other\n")
    commit("other")
    words = ("--ref", "main", "--ref", "other", "--metric", PATTERN, "--", PYTHON, "train.py", "{seed}")
    assert failed(*words) == 1
    assert f"loaded {repo / 'helper.py'}, which is not of its worktree" in capsys.readouterr().err
    assert not list((repo / "outputs" / "commands").glob("*/result.json"))


def test_commands_that_ignore_the_seed_count_once(repo: Path, raced: Callable[..., Answer]) -> None:
    answer = raced(*arms(base="train.py", idea="train.py 5"), "--metric", PATTERN)
    assert verdict(answer) == ("no verdict", 1)
    assert answer["paired"] is False
    assert "n=1" in str(answer["said"])


def test_commands_that_take_no_seed_are_not_paired(repo: Path, raced: Callable[..., Answer]) -> None:
    (repo / "noisy.py").write_text(
        "import sys, time\nprint('val loss', 3 + float(sys.argv[1]) + time.time_ns() % 1000 / 1e5)\n"
    )
    words = arms(base="noisy.py 1", idea="noisy.py 0")
    answer = raced(*words, "--metric", PATTERN, "--pairs", "3")
    assert verdict(answer) == ("better", 3)
    assert answer["verdicts"][0]["gain"]["method"] == "unpaired (Welch)"  # type: ignore[index]
    assert raced(*words, "--metric", PATTERN, "--pairs", "3", "--reads-seed")["paired"] is True


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), "better"),
        (("--higher",), "worse"),
        (("--expect", "0.05.."), "confirmed"),
        (("--expect", "0.01..0.02"), "exceeded"),
        (("--expect", "0.2.."), "refuted"),
        (("--guard", r"loss (\S+)$ 0.01"), "better"),
        # of the guard, and not of the metric before it
        (("--guard", r"loss (\S+)$ 0.01", "--higher"), "worse"),
    ],
)
def test_words(repo: Path, raced: Callable[..., Answer], words: tuple[str, ...], word: str) -> None:
    (repo / "other.py").write_text(SCRIPT.replace("- GAIN", "- 0.1"))
    both = arms(base="train.py {seed}", idea="other.py {seed}")
    assert verdict(raced(*both, "--metric", PATTERN, *words, "--pairs", "3")) == (word, 3)


def test_a_guard_that_is_worse_decides(repo: Path, raced: Callable[..., Answer]) -> None:
    (repo / "both.py").write_text(SCRIPT + "print('METRIC mib=' + str(100 + noise + 1000 * GAIN))\n")
    (repo / "costly.py").write_text(
        SCRIPT.replace("- GAIN", "- 0.1") + "print('METRIC mib=' + str(200 + noise))\n"
    )
    words = arms(base="both.py {seed}", idea="costly.py {seed}")
    assert verdict(raced(*words, "--metric", PATTERN, "--guard", "mib 5", "--pairs", "3")) == ("worse", 3)


@pytest.mark.slow
def test_steps_to_a_target_and_times_of_three_sessions_have_verdicts(
    repo: Path, raced: Callable[..., Answer]
) -> None:
    (repo / "other.py").write_text(SCRIPT.replace("0.1 * step", "0.3 * step"))
    words = arms(base="train.py {seed}", idea="other.py {seed}")
    metric = r"step (?P<step>\d+) val loss (?P<value>\S+)"
    answer = raced(*words, "--metric", metric, "--target", "2.9", *THREE_SESSIONS, "--pairs", "3")
    costs = answer["verdicts"][0]["costs"]  # type: ignore[index]
    assert costs["steps_to_target"]["verdict"] == "better"
    assert costs["wall_s"]["verdict"] != "no verdict"
    assert str(answer["said"]).count("waiting") == 2
    with_rise = metric.replace("val loss ", r"val loss -?")
    for way, target in (("--lower", "2.9"), ("--higher", "3.5")):  # no more is better than at the first step
        risen = raced(*words, "--metric", with_rise, way, "--target", target, "--pairs", "3")["verdicts"][0][
            "costs"
        ]  # type: ignore[index]
        assert (risen["steps_to_target"]["mean"] is None) == (way == "--higher")
    # none of one session is taken
    assert "waiting" in str(raced(*words, "--metric", metric, *THREE_SESSIONS, "--pairs", "6")["said"])
    never = raced(*words, "--metric", metric, "--target", "0.5", "--pairs", "3")
    assert "raced before" in str(never["exploratory"])
    assert never["verdicts"][0]["costs"]["steps_to_target"]["mean"] is None  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("out.json", '{"val_loss": 2.5}', 2.5),
        ("result.json", '{"val_loss": 2.5}', 2.5),  # as nocap's own is called
        ("out.jsonl", '{"step": 0, "val_loss": 3}\n{"step": 1, "val_loss": 2.75}\n', 2.75),
        ("out.csv", "step,val_loss\n0,3\n1,2.25\n", 2.25),
    ],
)
def test_a_metric_in_a_file(
    repo: Path, raced: Callable[..., Answer], name: str, text: str, value: float
) -> None:
    (repo / "write.py").write_text(f"open({name!r}, 'w').write({text!r})\n")
    answer = raced(
        *arms(base="write.py", idea="write.py {seed}"), "--metric", "val_loss", "--file", name, "--pairs", "2"
    )
    assert {row["val_loss"] for row in answer["measurements"]} == {value}  # type: ignore[attr-defined]


GOOD = "print('final', 3 + noise)"


@pytest.mark.parametrize(
    ("extra", "code", "line"),
    [
        ("raise RuntimeError('broken')", 1, "RuntimeError: broken"),
        ("", 1, "base, seed 0: final must be in what it printed, by 'final (\\\\S+)', got nothing; see"),
        ("print('final nan')", 1, "base, seed 0: final must be a finite number, got nan; see"),
        ("print('final ' + chr(27) + ']0;')", 1, "base, seed 0: final must be a number"),
        ("print('final ' + chr(27) + '[31m' + str(3 + noise) + chr(27) + '[0m')", 0, ""),
        ("print('final 9', end=chr(13)); print('final', 3 + noise, end=chr(13) + 'step')", 0, ""),  # a bar
        (
            f"{GOOD}; command = 'x' * 65_000 + chr(10); [print(command, end='') for _ in "
            "range(20)]; print('final 9')",
            1,
            "MiB of it",
        ),
        ("os.write(1, b'final \\xff\\xfe\\n')", 1, "base, seed 0: final must be a number"),
        ("time.sleep(60)", 1, "no end after 1 s (--timeout)"),
        ("open('/dev/full', 'wb', 0).write(b'x')", 1, "OSError: [Errno 28] No space left on device"),
        ("os.kill(os.getpid(), 9)", 1, "base, seed 0: exit code -9"),
        (f"os.write(1, bytes(range(256)) * 100); print(); {GOOD}", 0, ""),
        (
            "subprocess = __import__('subprocess').Popen([sys.executable, '-c', 'import time; "
            f"time.sleep(60)']); {GOOD}",
            0,
            "",
        ),
        (f"print('final 9'); {GOOD}; print('final as it is')", 1, "final must be a number, got 'as'"),
    ],
)
def test_what_a_command_does_badly(
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    extra: str,
    code: int,
    line: str,
) -> None:
    """Its arm, seed and log are named, and the same command goes on once the cause is gone."""
    monkeypatch.setenv("EXTRA", extra)
    monkeypatch.setattr(command, "LOG_BYTES", 2**20 if "65_000" in extra else command.LOG_BYTES)
    began, timeout = time.monotonic(), "1s" if 'sleep(60)"' in f'{extra}"' else "60s"
    words = [
        *arms(base="train.py {seed}", idea="train.py {seed}"),
        "--metric",
        r"final (\S+)",
        "--pairs",
        "1",
        "--timeout",
        timeout,
    ]
    assert (failed(*words) if code else race.main(words)) == code
    assert line in capsys.readouterr().err
    assert time.monotonic() - began < 40
    (log, *_) = repo.glob("outputs/commands/*-0/output.log")
    assert "val loss" in log.read_text()
    monkeypatch.setenv("EXTRA", GOOD)
    if "nan" in extra:  # a value that is none is a result, which nobody tries again until it is better
        shutil.rmtree(log.parent)
    assert race.main([*words[:-1], "60s"]) == 0
    assert "final" in capsys.readouterr().out


def test_a_full_disk_ends_the_run_whose_output_it_cannot_take(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*arms(base="train.py {seed}", idea="train.py {seed}"), "--metric", PATTERN, "--pairs", "1"]
    monkeypatch.setenv("EXTRA", "for i in range(20_000): print(i)")  # more than a pipe takes
    with monkeypatch.context() as full:
        full.setattr(command, "LOG", "/dev/full")
        assert failed(*words) == 1
    assert (
        "base, seed 0: its output cannot be written: /dev/full (No space left on device)"
        in capsys.readouterr().err
    )
    assert race.main(words) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--metric", "("], "--metric must be a regular expression"),
        (["--metric", r"(\d+) (\d+)"], "--metric must have one group"),
        (["--metric", PATTERN, "--metric", r"^.*val loss (\S+)"], "--metric must differ in name"),
        ([], "--metric must be given"),
        (
            ["--metric", PATTERN, "--arm", "third=/no/such/program"],
            "arm third must begin with a program that is there",
        ),
        (
            ["--metric", PATTERN, "--arm", "base=true"],
            "--arm must be two or more, each NAME=COMMAND with a name of its own",
        ),
        (["--metric", PATTERN, "--apart", "soon"], "--apart must be a time"),
        (["--metric", PATTERN, "--expect", "0.2..0.1"], "--expect must hold something"),
        (["--metric", PATTERN, "--guard", "loss"], "--guard must be a metric and how much worse"),
        (["--metric", PATTERN, "--guard", "loss -1"], "--guard must have a margin of 0 or more"),
        (["--metric", "wall_s"], "--metric must have another name than wall_s"),
        (["--metric", PATTERN, "--target", "nan"], "--target must be a finite number"),
        (
            ["--metric", PATTERN, "--target", "3"],
            "--target must be given with a metric that has a group step",
        ),
        (["--metric", PATTERN, "--pairs", "0"], "--pairs must be at least 1"),
        (["--metric", PATTERN, "--ref", "main"], "--arm must be given, or --ref"),
        (["--metric", PATTERN, "--locked", "nothing*"], "--locked must match a file"),
        (["--metric", PATTERN, "--link", "data"], "--arm must be without"),
        (["--metric", PATTERN, "--arm", "third='x"], "arm third must be a command, with quotes in pairs"),
        (["--metric", PATTERN, "--timeout", "soon"], "--timeout must be a time"),
        (["--metric", PATTERN, "--jobs", "0"], "--jobs must be at least 1"),
        (["--metric", PATTERN, "--jobs", "2", "--sessions", "3"], "--jobs must be 1 with --sessions"),
        (["--metric", "loss", "--jobs", "2", "--file", "out.json"], "--jobs must be 1 with --file"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    repo: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert failed(*arms(base="train.py {seed}", idea="train.py {seed}"), *words) == 2
    assert line in capsys.readouterr().err
    assert not (repo / "outputs" / "commands").exists()


@pytest.mark.parametrize(
    ("refs", "words", "line"),
    [
        (("main", "nowhere"), (), "--ref must be a commit, branch or tag"),
        (("main", "twin"), (), "--ref must differ from main in a file, got twin"),
        (("main",), (), "--ref must be two or more"),
        (
            ("main", "idea"),
            ("--locked", "helper.py"),
            "--locked must be equal in main and idea, got helper.py",
        ),
        (("main", "idea"), ("--locked", "nothing/**"), "--locked must match a file of main"),
        (("main", "idea"), ("--link", "nothing"), "--link must be a file or folder"),
        (("main", "idea"), ("--link", "helper.py"), "--link must be a path that git ignores"),
        (("main", "idea"), ("--arm", "a=true"), "--arm must be given, or --ref"),
    ],
)
def test_refs_that_cannot_be_raced(
    repo: Path, capsys: pytest.CaptureFixture[str], refs: tuple[str, ...], words: tuple[str, ...], line: str
) -> None:
    git("branch", "twin")
    named = [word for ref in refs for word in ("--ref", ref)]
    assert failed(*named, *words, "--metric", PATTERN, "--", PYTHON, "train.py") == 2
    assert line in capsys.readouterr().err
    assert not (repo / "outputs" / "commands").exists()


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_race_that_is_killed_goes_on(repo: Path, monkeypatch: pytest.MonkeyPatch, jobs: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    words = [
        "-m",
        "nocap.race",
        *arms(base="train.py {seed}", idea="train.py {seed}"),
        "--metric",
        PATTERN,
        "--pairs",
        "3",
    ]
    words += ["--jobs", jobs]
    env = {**os.environ, "EXTRA": "time.sleep(0.5)"}
    for number in (signal.SIGKILL, signal.SIGINT):
        running = subprocess.Popen(
            [*INTERRUPTIBLE, PYTHON, *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        there = len(list(repo.glob("outputs/commands/*/result.json")))
        while len(list(repo.glob("outputs/commands/*/result.json"))) == there and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
        assert running.returncode == (-9 if number is signal.SIGKILL else 75), err
    known = {path: path.stat().st_mtime_ns for path in repo.glob("outputs/commands/*/result.json")}
    assert 2 <= len(known) < 6
    done = subprocess.run([PYTHON, *words], env=env, capture_output=True, text=True, check=True)
    assert {path: path.stat().st_mtime_ns for path in known} == known
    assert done.stdout.count(", seed ") == 6 - len(known)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux's setpriv is not here")
def test_a_command_ends_with_the_race_that_is_killed(repo: Path) -> None:
    words = [
        PYTHON,
        "-m",
        "nocap.race",
        *arms(base="train.py {seed}", idea="train.py {seed}"),
        "--metric",
        PATTERN,
    ]
    env = {**os.environ, "EXTRA": "time.sleep(60)", "PYTHONPATH": str(REPO)}
    running = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    commands: list[psutil.Process] = []
    while not any("train.py" in process.cmdline() for process in commands):
        assert running.poll() is None
        time.sleep(0.05)
        commands = [process for process in psutil.Process(running.pid).children() if process.name() != "git"]
    running.kill()
    running.wait()
    gone, alive = psutil.wait_procs(commands, timeout=10)
    assert (len(gone), alive) == (1, [])


@pytest.mark.slow
def test_runs_at_once_share_the_machine_and_have_no_times(
    repo: Path, raced: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "EXTRA", "began = time.time(); time.sleep(0.5); print('from', began, 'to', time.time())"
    )
    (repo / "other.py").write_text(SCRIPT.replace("- GAIN", "- 0.1"))
    words = [*arms(base="train.py {seed}", idea="other.py {seed}"), "--metric", PATTERN, "--pairs", "3"]
    answer = raced(*words, "--jobs", "4")
    assert verdict(answer) == ("better", 3)
    assert [*answer["verdicts"][0]["costs"]] == ["peak_mib"]  # type: ignore[index]
    assert "Runs shared the machine (--jobs 4)" in str(answer["said"])
    lines = [path.read_text().splitlines()[-1].split() for path in repo.glob("outputs/commands/*/output.log")]
    spans = [(float(words[2]), float(words[4])) for words in lines]
    assert any(a != b and a[0] < b[0] < a[1] for a in spans for b in spans)
    alone = raced(*words)
    assert str(alone["said"]).count(", seed ") == 6  # times are of runs that had the machine
    assert [*alone["verdicts"][0]["costs"]] == ["wall_s", "cpu_s", "peak_mib"]  # type: ignore[index]
    assert "raced before" in str(alone["exploratory"])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a pretended Slurm."""
    submitit = pytest.importorskip("submitit", reason="submitit is not installed: pip install 'nocap[slurm]'")
    submitit.SlurmJob.watcher.clear()  # of the jobs of another test's cluster, whose numbers are the same
    for name, value in slurm.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    return tmp_path / "slurm" / "state"


@pytest.mark.parametrize(
    "keys", [["partition"], ["partitoin=two"], ["timeout_min=0"], ["partition=two", "--jobs", "2"]]
)
def test_a_wrong_key_of_slurms_is_refused(
    repo: Path, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*arms(base="train.py {seed}", idea="train.py {seed} x"), "--metric", PATTERN, "--slurm", *keys]
    assert failed(*words) == 2
    said = capsys.readouterr().err
    assert re.match(r"nocap: (hydra\.launcher\.|--slurm must be without|override|'?hydra)", said), said
    assert not (repo / "outputs" / "commands").exists()


@pytest.mark.slow
def test_runs_are_jobs_of_slurm_where_only_the_loss_is_asked(
    repo: Path, cluster: Path, raced: Callable[..., Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--ref",
        "main",
        "--ref",
        "idea",
        "--metric",
        PATTERN,
        "--pairs",
        "3",
        "--slurm",
        "partition=two",
    ]
    command = ["--", PYTHON, "train.py", "{seed}"]
    answer = raced(*words, *command)
    assert verdict(answer) == ("better", 3)
    assert [*answer["verdicts"][0]["costs"]] == ["peak_mib"]  # type: ignore[index]
    assert "Runs were jobs of Slurm (--slurm): no times" in str(answer["said"])
    jobs = len(list(cluster.glob("submitted-*")))
    assert 1 <= jobs <= 6
    assert verdict(raced(*words, *command)) == ("better", 3)
    assert len(list(cluster.glob("submitted-*"))) == jobs  # nothing runs twice
    assert not list(repo.glob("outputs/commands/*.job"))
    place = next(repo.glob("outputs/commands/*/result.json")).parent
    place.with_suffix(".job").write_text(next(cluster.glob("job-*")).name[4:])
    # as if a command had been killed, whose job ends while the next one begins
    wait = on_slurm(pytest.fail, ["partition=two"], repo / "outputs" / "races")
    wait(None, 0, place, stop=threading.Event())
    assert len(list(cluster.glob("submitted-*"))) == jobs
    assert failed(*words, "--", PYTHON, "-c", "print('so far'); raise SystemExit(5)") == 1
    assert re.search(r"^nocap: (main|idea), seed 0: exit code 5; see ", capsys.readouterr().err)
    assert failed(*words[:-1], "partition=none", *command, "x") == 1
    assert "Invalid partition name specified" in capsys.readouterr().err


@pytest.mark.slow
def test_a_race_on_slurm_is_paused_and_outlives_a_kill(
    repo: Path, cluster: Path, raced: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *arms(base="train.py {seed}", idea="train.py {seed} x"),
        "--metric",
        PATTERN,
        "--pairs",
        "3",
        "--slurm",
        "partition=two",
    ]
    monkeypatch.setenv("EXTRA", "time.sleep(30)")  # beyond what a busy machine needs to cancel a job

    def begun() -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        running = subprocess.Popen(
            [*INTERRUPTIBLE, PYTHON, "-m", "nocap.race", *words], stdout=nowhere, stderr=nowhere
        )
        wait_until(
            lambda: any(path.stat().st_size for path in repo.glob("outputs/commands/*.job")), "a job's number"
        )
        return running

    def submitted() -> int:
        return len(list(cluster.glob("submitted-*")))

    paused = begun()
    paused.send_signal(signal.SIGINT)
    assert paused.wait(60) == 75
    wait_until(
        lambda: not {"RUNNING", "PENDING"} & {path.read_text() for path in cluster.glob("job-*")},
        "the end of all jobs",
    )
    assert any(path.read_text() == "CANCELLED" for path in cluster.glob("job-*"))
    assert not list(repo.glob("outputs/commands/*.job"))
    monkeypatch.setenv("EXTRA", "time.sleep(4)")
    killed = begun()
    time.sleep(1)
    killed.kill()
    killed.wait()
    before = submitted()
    handed_over = sum(path.stat().st_size > 0 for path in repo.glob("outputs/commands/*.job"))
    assert verdict(raced(*words))[1] == 3
    assert handed_over >= 1
    # of three pairs, none again but the one whose `sbatch` the kill met, as nothing knows its number
    assert submitted() <= before + 6 - handed_over + 1


def test_after_a_failure_nothing_more_begins_and_what_runs_ends(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXTRA", "time.sleep(1.5) if 'slow' in sys.argv else sys.exit(5)")
    words = [*arms(base="train.py {seed} slow", idea="train.py {seed}"), "--metric", PATTERN, "--pairs", "3"]
    assert failed(*words, "--jobs", "2") == 1
    assert "idea, seed 0: exit code 5" in capsys.readouterr().err
    assert [json.loads(path.read_text())["arm"] for path in repo.glob("outputs/commands/*/result.json")] == [
        "base"
    ]
    assert len(list(repo.glob("outputs/commands/*"))) == 2


@pytest.mark.slow
def test_what_a_race_writes_is_no_part_of_its_arms(repo: Path, raced: Callable[..., Answer]) -> None:
    (repo / ".gitignore").unlink()
    (repo / "write.py").write_text(
        "import helper, sys\nopen('out.json', 'w').write('{\"val_loss\": ' + sys.argv[1] + '.5}')\n"
    )
    commit("nothing is ignored")
    words = [
        *arms(base="write.py {seed}", idea="write.py 1{seed}"),
        "--metric",
        "val_loss",
        "--file",
        "out.json",
        "--pairs",
        "2",
    ]
    assert str(raced(*words)["said"]).count(", seed ") == 4
    assert ", seed " not in str(raced(*words)["said"])
    (repo / "out.json").unlink()
    noted = raced(*refs("main", "idea", pairs=2))
    assert "changes that no --ref" not in str(noted["said"])


def test_what_this_process_has_imported_makes_no_other_command(
    repo: Path, raced: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """setuptools puts its own packages on the path of a process that imports it, as torch's compiler does."""
    words = [*arms(base="train.py {seed}", idea="train.py {seed} x"), "--metric", PATTERN, "--pairs", "1"]
    raced(*words)
    runs = {path.name for path in repo.glob("outputs/commands/*")}
    package = tmp_path / "vendored" / "extra-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: extra\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    raced(*words)
    assert {path.name for path in repo.glob("outputs/commands/*")} == runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["{PYTHON} {own}/it.py", "sh -c '{PYTHON} {own}/it.py'", "{PYTHON} -m its.it"]
)
def test_a_program_that_is_edited_is_another_one(
    repo: Path,
    raced: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    """Where git does not see it, too: before a race and, which would mix two programs, while it goes on."""
    own = repo / "its"
    own.mkdir()
    (repo / ".gitignore").write_text("outputs/\nits/\n")
    (own / "other.py").write_text("LOSS = 3\n")
    (own / "it.py").write_text(
        "import sys, os; sys.path.insert(0, 'its'); import other; print('val loss', other.LOSS)\n"
    )
    words = [f"--arm={name}={form.format(PYTHON=PYTHON, own=own)}" for name in ("a", "b")] + [
        "--metric",
        PATTERN,
        "--pairs",
        "1",
    ]
    for loss in (3, 2):
        (own / "other.py").write_text(f"LOSS = {loss}\n")
        assert {row["val loss"] for row in raced(*words)["measurements"]} == {loss}  # type: ignore[attr-defined]
    (own / "it.py").write_text((own / "it.py").read_text() + "open('its/other.py', 'a').write('LOSS = 1')\n")
    assert failed(*words) == 1
    assert "its program was edited while it was raced" in capsys.readouterr().err


def page_of(answer: Answer) -> str:
    (folder,) = (
        line.split(": ")[1] for line in str(answer["said"]).splitlines() if line.startswith("written: ")
    )
    return Path(folder, "result.html").read_text()


def test_the_page_of_a_race(repo: Path, raced: Callable[..., Answer]) -> None:
    """The tables, the intervals, what was registered and what a reader must be told; in one file without a
    script."""
    (repo / "other.py").write_text(SCRIPT.replace("- GAIN", "- 0.1"))
    words = [
        *arms(base="train.py {seed}", **{"<b>idea</b>": "other.py {seed}"}),
        "--metric",
        PATTERN,
        "--pairs",
        "3",
    ]
    first = raced(*words, "--guard", r"loss (\S+)$ 0.01", "--expect", "0.05..0.2")
    page = page_of(first)
    shown = text_of(page)
    assert "<b>idea" not in page
    assert "<script" not in page
    assert page.count('<svg class="forest"') == 2
    assert 'class="stated"' in page
    assert 'class="bound"' in page
    assert "<b>idea</b>: confirmed" in shown
    assert f"{PYTHON} other.py" in shown
    assert str(first["at"]) in shown
    assert "[0.05, 0.2]" in shown
    assert "exploratory" not in shown
    assert "exploratory: 6 of its runs were there before it was registered" in text_of(page_of(raced(*words)))


def test_the_page_says_that_arms_are_not_paired_and_of_one_seed(
    repo: Path, raced: Callable[..., Answer]
) -> None:
    page = page_of(raced(*arms(base="train.py", idea="train.py 5"), "--metric", PATTERN, "--jobs", "2"))
    assert "Unpaired (Welch)" in text_of(page)
    assert "no verdict (n=1: repeats are equal to rounding" in text_of(page)
    assert "Runs shared the machine (--jobs 2)" in text_of(page)
    assert "<svg" not in page


def made_race(folder: Path, chance: random.Random, *, gain: float, pairs: int, skewed: bool = False) -> Race:
    """A race whose commands are drawn: seeds and arms have noise of the same size."""

    def begin(arm: Command, seed: int, place: Path) -> None:
        noise = chance.expovariate(1.0) if skewed else chance.gauss(0, 1)
        place.mkdir(parents=True)
        (place / LOG).write_text(f"0.1\tval loss {9 + 0.01 * (noise - gain * (arm.name == 'idea')):.8f}\n")
        (place / RESULT).write_text(json.dumps({"wall_s": 1.0 + seed / 99, "cpu_s": 1.0, "peak_mib": 1.0}))

    both = [Command(name=name, words=("{seed}",), cwd=folder, content=name) for name in ("base", "idea")]
    reading = Reading(what=PATTERN, better=Better.lower)
    return Race(
        arms=both, readings=[reading], output_dir=folder, pairs=pairs, begin=begin, log=lambda line: None
    )


def simulated(tmp_path: Path, chance: random.Random, *, gain: float, pairs: int, skewed: bool = False) -> str:
    """The word of a race that is drawn."""
    shutil.rmtree(tmp_path, ignore_errors=True)
    made = made_race(tmp_path, chance, gain=gain, pairs=pairs, skewed=skewed)
    return str(content(made, made.run())["verdicts"][0]["word"])


@pytest.mark.slow
@pytest.mark.parametrize("skewed", [False, True])
def test_of_200_races_against_oneself_at_most_one_in_twenty_claims_a_difference(
    tmp_path: Path, skewed: bool
) -> None:
    chance = random.Random(7)
    words = [simulated(tmp_path / "race", chance, gain=0.0, pairs=12, skewed=skewed) for _ in range(200)]
    assert words.count("no difference shown") >= 190


@pytest.mark.slow
def test_a_gain_of_three_standard_deviations_is_found_by_twelve_pairs(tmp_path: Path) -> None:
    chance = random.Random(11)
    words = [simulated(tmp_path / "race", chance, gain=3 * 2**0.5, pairs=12) for _ in range(200)]
    assert words.count("better") >= 160
    assert words.count("worse") == 0


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (r"val loss (\S+)", "val loss"),
        (r"val_loss=(\S+)", "val_loss"),
        (r"step (?P<step>\d+) .*val (?P<value>\S+)", "val"),
        ("val_loss", "val_loss"),
    ],
)
def test_a_metric_is_named_by_the_words_before_it(what: str, name: str) -> None:
    assert Reading(what=what).name == name
