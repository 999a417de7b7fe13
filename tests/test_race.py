"""Races of commands that are not nocap's, by a script that takes a fraction of a second."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy import stats

from nocap import race
from nocap.config.errors import FailedError
from nocap.metrics import Better
from nocap.sources.races import command, command_output
from nocap.sources.races.command import Command, RunSettings
from nocap.sources.races.command_output import LOG, RESULT, MetricReader
from nocap.sources.races.command_words import split_words
from nocap.sources.races.race import Race
from nocap.sources.races.race_arms import of_commands, of_refs
from nocap.sources.races.result_json import written
from nocap.store.lease import HeldError
from tests.attempts import wait_until
from tests.conftest import INTERRUPTIBLE, REPO
from tests.test_interval import of_a_mixed_model
from tests.test_report import text_of

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
METRIC = ("--metric", PATTERN)
THREE_SESSIONS = ("--sessions", "3", "--apart", "0.1s")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A repository with a branch `idea`, whose loss is 0.1 lower, and a folder of data that git
    ignores."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "data").mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("GAIN = 0.0\n")
    (folder / "evaluation.py").write_text("# the same for all\n")
    (folder / ".gitignore").write_text("outputs/\ndata/\n__pycache__/\n")
    (folder / "data" / "tokens.bin").write_bytes(b"tokens")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        git("init", "-q", "-b", "main")
        git("config", "user.name", "somebody")
        git("config", "user.email", "somebody@example.org")
        commit("the baseline")
        git("checkout", "-q", "-b", "idea")
        (folder / "helper.py").write_text("GAIN = 0.1\n")
        commit("the idea")
        git("checkout", "-q", "main")
    return folder


@pytest.fixture
def repo(template, tmp_path, monkeypatch):
    """A copy of it, which is the working directory; `other.py` has the idea's loss."""
    folder = shutil.copytree(template, tmp_path / "theirs")
    (folder / ".git" / "info" / "exclude").write_text("other.py\n")
    text = SCRIPT.replace("- GAIN", "- 0.1")
    (folder / "other.py").write_text(text)
    monkeypatch.chdir(folder)
    return folder


def git(*words):
    subprocess.run(["git", *words], check=True, capture_output=True)


def commit(message):
    git("add", "--all")
    git("commit", "-q", "-m", message)


def arms(**commands):
    words = []
    for name, line in commands.items():
        words += ["--arm", f"{name}={PYTHON} {line}"]
    return words


# both arms' runs are the same
ALIKE = [
    *arms(base="train.py {seed}", idea="train.py {seed}"),
    *METRIC,
]
GAINING = [*arms(base="train.py {seed}", idea="other.py {seed}"), *METRIC]


def refs(first, second, *flags, pairs=3):
    named = ["--ref", first, "--ref", second, *flags, *METRIC, "--pairs", str(pairs)]
    return [*named, "--", PYTHON, "train.py", "{seed}"]


@pytest.fixture
def raced(capsys):
    """The answer of a race, and what it printed on stderr."""

    def call(*words):
        if "--" in words:
            at = words.index("--")
        else:
            at = len(words)
        assert race.main([*words[:at], "--json", *words[at:]]) == 0
        out, err = capsys.readouterr()
        return {**json.loads(out), "said": err}

    return call


@pytest.fixture
def failed(capsys):
    """The exit code of a race that ends without an answer, and what it printed on stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            race.main(list(words))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().err

    return call


def verdict(answer):
    (row,) = answer["verdicts"]
    return row["word"], row["n"]


def costs(answer):
    return dict(answer["verdicts"][0]["costs"])


def page_of(answer):
    (folder,) = re.findall(r"^written: (.*?): ", answer["said"], re.M)
    return Path(folder, "result.html").read_text()


def ended(repo):
    return list(repo.glob("outputs/commands/*/result.json"))


# --- versions -------------------------------------------------------------------------------------


def test_refs_are_raced_in_worktrees_until_the_answer_is_safe(repo, raced):
    words = refs("main", "idea", "--locked", "eval*", pairs=12)
    answer = raced(*words)
    assert verdict(answer) == ("better", 3)
    gain = answer["verdicts"][0]["gain"]
    assert gain["low"] < 0.1 < gain["high"]
    verdicts = {cost["verdict"] for cost in costs(answer).values()}
    assert verdicts == {"no verdict"}  # times of one session
    lines = answer["said"].splitlines()
    order = [line.split(",")[0] for line in lines if ", seed " in line]
    assert order == ["main", "idea", "idea", "main", "main", "idea"]
    again = raced(*words)
    assert again["verdicts"] == answer["verdicts"]
    assert ", seed " not in again["said"]
    printed = [path.with_name("output.log").read_text() for path in ended(repo)]
    # nothing but what the command says
    assert [text.count("\n") for text in printed] == [3] * 6, printed
    listing = ["git", "worktree", "list"]
    worktrees = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert worktrees.count("\n") == 1


def test_a_race_leaves_the_worktrees_of_another(repo):
    def prepare(undo, *refs):
        commands = [(ref, [PYTHON, "train.py", "{seed}"]) for ref in refs]
        pairs_of_refs = of_refs(
            commands,
            RunSettings(timeout_s=60),
            locked=(),
            links=(),
            folder=Path("trees"),
            undo=undo,
            say=print,
        )
        return pairs_of_refs[0]

    with ExitStack() as undo:
        own = prepare(undo, "main", "idea")
        with pytest.raises(HeldError, match="must have one writer"), ExitStack() as others:
            prepare(others, "main", "idea")
        for arm in own:
            assert (arm.cwd / "train.py").is_file()
    with ExitStack() as undo:
        prepare(undo, "main", "idea")


def test_the_working_tree_is_an_arm(repo, raced):
    (repo / "helper.py").write_text("GAIN = 0.2\n")
    assert (
        "uncommitted changes of the working tree; add --ref . to race them"
        in raced(*refs("main", "idea", pairs=1))["said"]
    )
    answer = raced(*refs("idea", "."))
    assert verdict(answer) == ("better", 3)
    assert "changes" not in answer["said"]
    assert (repo / "helper.py").read_text() == "GAIN = 0.2\n"


def test_what_git_ignores_is_linked_in_and_may_not_be_written(repo, raced, failed, monkeypatch):
    words = refs("main", "idea", "--link", "data", pairs=1)
    monkeypatch.setenv("EXTRA", "assert open('data/tokens.bin').read() == 'tokens'")
    raced(*words)
    shutil.rmtree(repo / "outputs")
    monkeypatch.setenv("EXTRA", "open('data/tokens.bin', 'a').write('more')")
    code, said = failed(*words)
    assert code == 1
    assert "changed a file of a --link path" in said


def test_a_module_from_another_copy_ends_the_race(repo, failed, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(repo))
    # as an installed copy comes first
    (repo / "train.py").write_text(f"import sys\nsys.path.reverse()\n{SCRIPT}")
    commit("an installed copy comes first")
    git("branch", "-f", "other")
    (repo / "evaluation.py").write_text("# other\n")
    commit("other")
    code, said = failed(*refs("main", "other"))

    assert code == 1
    assert f"loaded {repo / 'helper.py'}, which is outside the arm's worktree" in said
    assert not ended(repo)


# --- seeds and words ------------------------------------------------------------------------------


def test_commands_that_ignore_the_seed_count_once(repo, raced):
    answer = raced(*arms(base="train.py", idea="train.py 5"), *METRIC, "--jobs", "2")
    assert verdict(answer) == ("no verdict", 1)
    assert answer["paired"] is False
    assert "n=1" in answer["said"]
    shown = text_of(page_of(answer))
    cases = (
        "unpaired (Welch)",
        "no verdict (n=1: all repeats give",
        "The runs shared the machine (--jobs 2)",
    )
    for line in cases:
        assert line in shown
    assert '<svg class="forest"' not in page_of(answer)


def test_commands_that_take_no_seed_are_not_paired(repo, raced):
    (repo / "noisy.py").write_text(
        "import sys, time\nprint('METRIC loss=' + str(3 + float(sys.argv[1]) + time.time_ns() % "
        "1000 / 1e5))"
    )
    words = [*arms(base="noisy.py 1", idea="noisy.py 0"), "--metric", "loss", "--pairs", "3"]
    answer = raced(*words)
    assert verdict(answer) == ("better", 3)
    assert answer["verdicts"][0]["gain"]["method"] == "unpaired (Welch)"
    assert raced(*words, "--reads-seed")["paired"] is True


WORDS = (
    ((), "better"),
    (("--expect", "0.05.."), "confirmed"),
    (("--guard", r"loss (\S+)$ 0.01"), "better"),
    # of the guard, and not of the metric before it
    (("--guard", r"loss (\S+)$ 0.01", "--higher"), "worse"),
)


def test_a_program_goes_on_by_the_next_command_alone(repo, raced):
    words = [*ALIKE, "--first-seed", "5", "--pairs", "3"]
    first = raced(*words)
    step = first["next"]
    assert step["command"][:3] == ["python", "-m", "nocap.race"]
    assert step["pairs"] == 6
    assert step["pairs_left"] == 0
    seconds = [row["wall_s"] for row in first["measurements"]]
    # of two arms, three pairs more
    spent = sum(seconds) / 60
    assert step["minutes"] == pytest.approx(spent, abs=1e-3)
    there = {path.stat().st_mtime_ns for path in ended(repo)}
    second = raced(*[word for word in step["command"][3:] if word != "--json"])
    assert verdict(second)[1] == 6
    assert second["hash"] == first["hash"]  # the same race
    assert there < {path.stat().st_mtime_ns for path in ended(repo)}


def test_a_race_with_an_answer_has_no_next_command(repo, raced):
    step = raced(*GAINING, "--pairs", "12")["next"]
    assert step == {"command": None, "minutes": None, "pairs": None, "pairs_left": 9}


def test_what_prepares_a_run_comes_before_each_and_counts_in_no_time(repo, raced, monkeypatch):
    clock = repo.parent / "clock.txt"  # where each preparation began and ended
    (repo / "prepare.py").write_text(
        "import pathlib, sys, time\n"
        "began = time.monotonic()\n"
        "time.sleep(0.4)\n"
        "path = pathlib.Path('data') / 'prepared.txt'\n"
        "path.write_text(path.read_text() + ' '.join(sys.argv[1:]) + ';' if path.exists() else "
        "'')\n"
        f"with open({str(clock)!r}, 'a') as file:\n"
        "    print(began, time.monotonic(), file=file)\n"
    )
    (repo / "data" / "prepared.txt").write_text("")
    monkeypatch.setenv("EXTRA", "print('METRIC seen', open('data/prepared.txt').read())")
    answer = raced(*GAINING, "--pairs", "3", "--prepare", f"{PYTHON} prepare.py {{arm}} {{seed}}")
    after = time.monotonic()
    # the arms take turns
    order = "base 0;idea 0;idea 1;base 1;base 2;idea 2;"
    assert (repo / "data" / "prepared.txt").read_text() == order
    # all that a run counts lies between the end of its preparation and the next one's beginning
    lines = [line.split() for line in clock.read_text().splitlines()]
    begins = [float(line[0]) for line in lines]
    ends = [float(line[1]) for line in lines]
    between = sum(begins[1:]) + after - sum(ends)
    assert sum(row["wall_s"] for row in answer["measurements"]) <= between
    plain = raced(*GAINING, "--pairs", "3")
    # another preparation is another arm
    assert plain["arms"]["base"][0] != answer["arms"]["base"][0]
    assert verdict(plain) == verdict(answer)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            "no_such_program x",
            2,
            "--prepare must be a command that begins with a program that exists, got "
            "no_such_program",
        ),
        ("make && make", 2, "--prepare must not have &&"),
        (
            f"{PYTHON} -c 'print(7); raise SystemExit(3)'",
            1,
            "base, seed 0: --prepare: exit code 3; see ",
        ),
    ],
)
def test_what_cannot_prepare_ends_the_race(repo, failed, words, code, line):
    ended_with, said = failed(*GAINING, "--prepare", words)
    assert ended_with == code
    assert line in said


def test_a_race_says_its_word_for_each_question(repo, raced):
    """Of six runs, each asked anew."""
    for words, word in WORDS:
        gained = raced(*GAINING, *words, "--pairs", "3")
        assert verdict(gained) == (word, 3), words
    assert len(ended(repo)) == 6


def test_the_page_of_a_race(repo, raced):
    """The tables, the intervals, what was registered and what a reader must be told; in one file
    without a script."""
    words = [
        *arms(base="train.py {seed}", **{"<b>idea</b>": "other.py {seed}"}),
        *METRIC,
        "--pairs",
        "3",
    ]
    first = raced(*words, "--guard", r"loss (\S+)$ 0.01", "--expect", "0.05..0.2")
    page = page_of(first)
    again = text_of(page_of(raced(*words)))
    shown = text_of(page)
    marks = ('<svg class="forest"', 'class="stated"', 'class="bound"', "<b>idea", "<script")
    expected = [2, 1, 1, 0, 1]

    assert [page.count(mark) for mark in marks] == expected
    for text in (
        "<b>idea</b> against base: confirmed",
        f"{PYTHON} other.py",
        first["at"],
        "0.05 to 0.2",
    ):
        assert text in shown
    assert shown.count("<b>idea</b> against base: confirmed") == 2  # the title and the heading
    assert "exploratory" not in shown
    assert "exploratory: 6 of its runs were there before the race was registered" in again


@pytest.mark.slow
def test_steps_to_a_target_and_times_of_three_sessions_have_verdicts(repo, raced):
    """Beside 2.5 each curve has a point a step: one gets there after 50 steps, the other after
    25."""
    for name, slope in (("slow.py", 0.01), ("quick.py", 0.02)):
        (repo / name).write_text(
            "import random, sys\n"
            "noise = random.Random(int(sys.argv[1])).gauss(0, 0.01)\n"
            f"for step in range(101): print('step', step, 'val loss', 3 - {slope} * step + noise)\n"
        )
    both = arms(base="slow.py {seed}", idea="quick.py {seed}")
    words = [*both, "--metric", r"step (?P<step>\d+) val loss (?P<value>\S+)", "--pairs", "3"]
    answer = raced(*words, "--target", "2.5", *THREE_SESSIONS)
    steps = costs(answer)["steps_to_target"]
    assert steps["verdict"] == "better"
    assert steps["low"] < 2 < steps["high"]
    assert costs(answer)["wall_s"]["verdict"] != "no verdict"
    assert answer["said"].count("waiting") == 2
    # none of one session is taken
    waiting = raced(*words[:-1], "6", *THREE_SESSIONS)
    assert "waiting" in waiting["said"]
    for way, target in (("--lower", "0.5"), ("--higher", "3.5")):
        never = raced(*words[:-2], way, "--target", target, "--pairs", "3")
        assert costs(never)["steps_to_target"]["mean"] is None
    assert "raced before" in never["exploratory"]


def test_steps_to_a_target_are_refused_where_one_arm_prints_its_loss_rarely(repo, raced):
    """Both have one curve, of which one prints each tenth point."""
    loss = "3 - 0.01 * step + 0.0001 * int(sys.argv[1])"
    curve = (
        f"import sys\nfor step in range(0, 101, EVERY): print('step', step, 'val loss', {loss})\n"
    )
    text = curve.replace("EVERY", "1")
    (repo / "often.py").write_text(text)
    text = curve.replace("EVERY", "10")
    (repo / "rarely.py").write_text(text)
    words = [*arms(base="often.py {seed}", idea="rarely.py {seed}"), "--metric"]
    answer = raced(
        *words, r"step (?P<step>\d+) val loss (?P<value>\S+)", "--target", "2.55", "--pairs", "3"
    )
    cost = costs(answer)["steps_to_target"]
    assert cost["mean"] is None
    assert cost["verdict"] == "no verdict"
    why = "one arm was validated every 10 steps there, and the other every 1"
    assert cost["method"].startswith(why)
    assert f"idea, steps to the target loss: {why}" in answer["said"]


def test_a_target_that_a_run_begins_at_has_no_ratio(repo, raced):
    words = [
        *GAINING[:-1],
        r"step (?P<step>\d+) val loss (?P<value>\S+)",
        "--pairs",
        "3",
        "--target",
        "9",
    ]
    answer = raced(*words)
    cost = costs(answer)["steps_to_target"]
    assert cost["verdict"] == "no verdict"
    assert cost["method"] == "a run never reached the target, or was there at its start"


FILES_WITH_METRICS = [
    ("result.json", '{"val_loss": 2.5}', 2.5),  # as nocap's own is called
    ("out.jsonl", '{"step": 0, "val_loss": 3}\n{"step": 1, "val_loss": 2.75}\n', 2.75),
    ("out.csv", "step,val_loss\n0,3\n1,2.25\n", 2.25),
    # the state of Hugging Face's Trainer
    (
        "s.json",
        '{"log_history": [{"step": 1, "val_loss": 3}, {"step": 2, "val_loss": 2.5}, {"step": 2}]}',
        2.5,
    ),
]


@pytest.mark.parametrize(("name", "text", "value"), FILES_WITH_METRICS)
def test_a_metric_in_a_file(repo, raced, name, text, value):
    (repo / "write.py").write_text(f"open({name!r}, 'w').write({text!r})\n")
    both = arms(base="write.py", idea="write.py {seed}")
    answer = raced(*both, "--metric", "val_loss", "--file", name, "--pairs", "1")
    losses = {row["val_loss"] for row in answer["measurements"]}
    assert losses == {value}
    assert not (repo / name).exists()


@pytest.mark.parametrize("name", ["out/{seed}/log.csv", "out/**/log-*.csv", "seed{seed}.csv"])
def test_a_file_may_be_named_by_the_seed_or_a_glob(repo, raced, name):
    """Of a glob the file counts that the run wrote last; an old one is not read."""
    text = (
        "import sys, pathlib, os\nseed, loss = sys.argv[1:]\n"
        f"place = pathlib.Path({name!r}.replace('{{seed}}', seed).replace('**', "
        f"seed).replace('*', '1'))\n"
        "place.parent.mkdir(parents=True, exist_ok=True)\n"
        "if '-1' in place.name:\n"
        "    place.with_name('log-0.csv').write_text('val_loss\\n9\\n')\n"
        "    os.utime(place.with_name('log-0.csv'), (1, 1))\n"
        "place.write_text(f'val_loss\\n{loss}.5\\n')\n"
    )
    (repo / "write.py").write_text(text)
    old = repo / "out" / "old" / "log-9.csv"
    old.parent.mkdir(parents=True)
    old.write_text("val_loss\n7\n")
    os.utime(old, (2**32, 2**32))
    both = arms(base="write.py {seed} 2", idea="write.py {seed} 1")
    answer = raced(*both, "--metric", "val_loss", "--file", name, "--pairs", "2")
    losses = [row["val_loss"] for row in answer["measurements"]]
    assert losses == [2.5, 2.5, 1.5, 1.5]
    assert "The wall-clock time includes the start of the program" in answer["said"]


# --- what goes wrong ------------------------------------------------------------------------------

GOOD = "print('final', 3 + noise)"


BAD_COMMANDS = [
    ("raise RuntimeError('broken')", 1, "RuntimeError: broken"),
    (
        "",
        1,
        "base, seed 0: final must be in the command's output (as text that matches 'final "
        "(\\\\S+)'), "
        "got nothing; see",
    ),
    ("print('final nan')", 1, "base, seed 0: final must be a finite number, got nan; see"),
    (
        # a bar
        "os.write(1, bytes(range(256)) * 100); print(); print('final 9', end=chr(13)); "
        "print('final ' + chr(27) + '[31m' + str(3 + noise) + chr(27) + '[0m', end=chr(13) + "
        "'step')",
        0,
        "",
    ),
    (
        f"{GOOD}; command = 'x' * 65_000 + chr(10); [print(command, end='') for _ in "
        "range(20)]; print('final 9')",
        1,
        "the output of the command must have at most 64 MiB (for more, let the command write "
        "a file, and add --file FILE)",
    ),
    (
        "time.sleep(1000)",
        1,
        "the command did not end within 1 s (--timeout)",
    ),  # longer than a test may take
    ("os.kill(os.getpid(), 9)", 1, "base, seed 0: exit code -9"),
    (
        "subprocess = __import__('subprocess').Popen([sys.executable, '-c', 'import time; "
        f"time.sleep(1000)']); {GOOD}",
        0,
        "",
    ),
    (f"print('final 9'); {GOOD}; print('final as it is')", 1, "final must be a number, got 'as'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "code", "line"), BAD_COMMANDS)
def test_what_a_command_does_badly(repo, raced, failed, monkeypatch, extra, code, line):
    """Its arm, seed and log are named, and the same command goes on once the cause is gone."""
    monkeypatch.setenv("EXTRA", extra)
    monkeypatch.setattr(
        command, "LOG_BYTES", 2**20 if "65_000" in extra else command_output.LOG_BYTES
    )
    if extra == "time.sleep(1000)":
        timeout = "1s"
    else:
        timeout = "60s"
    words = [*ALIKE[:-1], r"final (\S+)", "--pairs", "1", "--timeout"]
    ended, said = failed(*words, timeout) if code else (0, raced(*words, timeout)["said"])
    assert ended == code, said
    assert line in said, said
    log, *_ = repo.glob("outputs/commands/*-0/output.log")
    assert "val loss" in log.read_text()
    if code:
        monkeypatch.setenv("EXTRA", GOOD)
        if (
            "nan" in extra
        ):  # a value that is none is a result, which nobody tries again until it is better
            shutil.rmtree(log.parent)
        raced(*words, "60s")


@pytest.mark.slow
def test_a_full_disk_ends_the_run_whose_output_it_cannot_take(repo, raced, failed, monkeypatch):
    monkeypatch.setenv("EXTRA", "for i in range(20_000): print(i)")  # more than a pipe takes
    with monkeypatch.context() as full:
        full.setattr(command, "LOG", "/dev/full")
        code, said = failed(*ALIKE, "--pairs", "1")
    assert code == 1
    assert (
        "base, seed 0: nocap cannot write the command's output to /dev/full (No space left on "
        "device)" in said
    )
    raced(*ALIKE, "--pairs", "1")


def printed(folder, *lines):
    """Make the folder of a run that printed these lines."""
    folder.mkdir()
    (folder / LOG).write_text("".join(f"0.1\t{line}\n" for line in lines))
    text = json.dumps({"arm": "base", "seed": 0})
    (folder / RESULT).write_text(text)
    return folder


NOT_FINITE = [
    (r"val loss (\d+\.\d+)", ("val loss 2.5000", "val loss nan"), "nan"),
    (r"val loss (\d\.\d{4})$", ("val loss 2.5123", "val loss -Inf"), "-inf"),
    (r"val loss.*?([\d.]+)", ("val loss nan (best 2.31)",), "nan"),
    (r"best ([\d.]+)", ("val loss nan best 2.31",), "2.31"),
    (r"inf loss ([\d.]+)", ("inf loss 2.31",), "2.31"),  # of inference
]


@pytest.mark.parametrize(("pattern", "lines", "value"), NOT_FINITE)
def test_a_pattern_of_digits_does_not_pass_over_a_loss_that_is_not_finite(
    tmp_path, pattern, lines, value
):
    read = MetricReader(what=pattern).value(printed(tmp_path / "run", *lines), finite=False)
    assert str(read) == value


PARTS_OF_NUMBERS = [
    (r"val loss ([\d.]+)", "val loss 3.2e+12", "3.2e+12", "3.2"),
    (r".*(\d\.\d+)", "val loss 12.345", "12.345", "2.345"),
    (r"loss.*?(\d+\.\d+)", "loss -1.5", "-1.5", "1.5"),
    (r"step (?P<step>\d).*?(?P<value>\S+)$", "step 12 loss 2.5", "12", "1"),
]


@pytest.mark.parametrize(("pattern", "line", "whole", "part"), PARTS_OF_NUMBERS)
def test_a_pattern_that_takes_a_part_of_a_number_is_refused(tmp_path, pattern, line, whole, part):
    with pytest.raises(
        FailedError,
        match=f"must have a pattern that matches all of the number {re.escape(whole)}, got "
        f"{part}; see",
    ):
        MetricReader(what=pattern).value(printed(tmp_path / "run", line))


ENDING_NUMBERS = [
    ("out.jsonl", '{"loss": 3}\n{"loss": 2.5}\n{"loss": null}\n', "nan"),
    ("out.csv", "step,loss\n0,3\n1,2.5\n2,\n3,\n", "nan"),  # as pandas writes it
    ("out.csv", "step,loss\n0,\n1,2.5\n2,\n", "2.5"),  # rows of training between
    ("out.csv", "step,loss\n0,3\n1,\n2,2.5\n3,\n", "2.5"),
    ("out.json", '{"loss": NaN}', "nan"),
]


@pytest.mark.parametrize(("name", "text", "value"), ENDING_NUMBERS)
def test_a_file_whose_numbers_end_is_of_a_run_that_diverged(tmp_path, name, text, value):
    folder = printed(tmp_path / "run")
    (folder / f"kept-{name}").write_text(text)
    reader = MetricReader(what="loss", file=name)
    assert str(reader.value(folder, finite=False)) == value


def carried_out(folder, program, keep=()):
    """Run this Python program and return the folder of the run."""
    made = Command(name="base", words=(PYTHON, "-c", program), cwd=folder, digest="x")
    command.run(made, 0, folder / "run", RunSettings(timeout_s=60, keep=keep))
    return folder / "run"


def test_a_long_line_is_one_line(tmp_path):
    """A number may stand anywhere in it."""
    folder = carried_out(tmp_path, "print('x' * (2**16 - 12) + ' val loss 3.14159', 'x' * 2**16)")
    assert MetricReader(what=PATTERN).value(folder) == 3.14159
    assert len(list(command_output.output_lines(folder))) == 1


def test_a_file_that_was_there_before_is_there_afterwards(tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    write = "import sys; open('out.csv', 'a').write('loss\\n2.5\\n')"
    folder = carried_out(tmp_path, write, keep=["out.csv"])
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert MetricReader(what="loss", file="out.csv").value(folder) == 2.5
    with pytest.raises(FailedError, match="exit code 5"):
        carried_out(tmp_path, f"{write}; sys.exit(5)", keep=["out.csv"])
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_a_file_that_a_killed_race_had_set_aside_is_put_back(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs-out.csv").write_text("mine")
    (tmp_path / "out.csv").write_text("half of a r")
    folder = carried_out(tmp_path, "open('out.csv', 'w').write('loss\\n2.5\\n')", keep=["out.csv"])
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert MetricReader(what="loss", file="out.csv").value(folder) == 2.5


SHELL_SYNTAX = [
    ("{seed} && true", "&&"),
    ("{seed} | tee log", "|"),
    ("{seed}; true", ";"),
    ("{seed} > log 2>&1", ">"),
    ("--seed $NOCAP_SEED", "$N"),
    ("`date`", "`"),
    ("$(date)", "$("),
    ('--data "$HOME/x"', "$H"),
    ("--data ~/x", "~"),
    ("--lr 1 # as before", "#"),
]


@pytest.mark.parametrize(("text", "own"), SHELL_SYNTAX)
def test_what_a_shell_alone_reads_is_refused(repo, failed, text, own):
    code, said = failed(*arms(base=f"train.py {text}", idea="train.py"), *METRIC)
    assert code == 2
    assert (
        f"arm base must not have {own}, which only a shell reads (write sh -c '…', or put" in said
    )


QUOTED_WORDS = [
    ("sh -c 'python t.py && true'", "python t.py && true"),
    ('sh -c "echo $NOCAP_SEED | cat"', "echo $NOCAP_SEED | cat"),
    (r"python t.py a\;b", "a;b"),
    ("python t.py 'data/$x'", "data/$x"),
    ('python t.py "a>b"', "a>b"),
    ("python t.py data/*.bin", "data/*.bin"),
    ("python t.py '~/x'", "~/x"),
    ("python t.py a#b~c", "a#b~c"),
    ("python t.py \\\n  --lr 1", "1"),
    ("python t.py last \\\n", "last"),
]


@pytest.mark.parametrize(("text", "last"), QUOTED_WORDS)
def test_what_stands_in_quotes_is_a_word(text, last):
    assert split_words(text, "arm a")[-1] == last


def test_a_variable_before_a_command_is_named_with_env(repo, failed, raced):
    words = [
        f"--arm=base=X=1 {PYTHON} train.py {{seed}}",
        f"--arm=idea={PYTHON} train.py {{seed}}",
        *METRIC,
    ]
    code, said = failed(*words)
    assert code == 2
    assert (
        "arm base must be a command that begins with a program that exists (to set a "
        "variable: env X=1 PROGRAM), got "
        "X=1" in said
    )
    first_word = words[0].replace("X=1", "env X=1")
    raced(first_word, *words[1:], "--pairs", "1")


# --- what else may be wrong of an arm ---


def test_what_lies_where_one_stands_is_not_run_to_list_the_packages(repo, raced):
    """A random.py there is on no script's path but that of scripts beside it."""
    for name in ("random", "select", "json"):
        (repo / f"{name}.py").write_text("open('was_run', 'w')\nraise RuntimeError\n")
    (repo / "apart").mkdir()
    for name in ("train.py", "helper.py"):
        shutil.copy(repo / name, repo / "apart" / name)
    raced(
        *arms(base="apart/train.py {seed}", idea="apart/train.py {seed} again"),
        *METRIC,
        "--pairs",
        "1",
    )
    assert not (repo / "was_run").exists()


def test_a_python_that_cannot_list_its_packages_ends_the_race(repo, failed, raced):
    """A kill of that query made another arm of it."""
    (repo / "bin").mkdir()
    for number, line in enumerate(("kill -9 $$", "echo no such module >&2; exit 1")):
        python = repo / "bin" / f"python3.{number}"
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        code, said = failed(f"--arm=base={python} x", f"--arm=idea={python} y", *METRIC)
        assert code == 1
        why = ("exit code -9", "no such module")[number]
        assert f"{python} does not list its packages: {why}" in said
        code, said = failed(f"--arm=base=env X=1 {python} x", f"--arm=idea={python} y", *METRIC)
        assert code == 1
        assert f"{python} does not list its packages: {why}" in said
    assert not (repo / "outputs" / "commands").exists()


def test_a_repository_that_git_refuses_is_not_taken_for_none(repo, failed):
    (repo / ".git" / "config").write_text("[broken")
    code, said = failed(*ALIKE, "--pairs", "1")
    assert code == 2
    assert "git rev-parse --show-toplevel: fatal: bad config line" in said


SHELL = [
    "--arm",
    "base=sh -c 'echo val loss 3 | tee -a log.txt'",
    "--arm",
    "idea=echo val loss 2",
    *METRIC,
]


def test_a_file_of_the_repository_that_is_edited_ends_the_race(repo, failed, raced):
    """A mix of two versions would be compared."""
    (repo / "log.txt").write_text("so far\n")
    commit("a log")
    code, said = failed(*SHELL, "--pairs", "1")
    assert code == 1
    assert (
        "base, seed 0: log.txt changed during the race; --ref avoids this, because it runs a "
        "copy of each version" in said
    )
    assert not ended(repo)
    git("rm", "-q", "--cached", "log.txt")
    raced(*SHELL, "--pairs", "1")  # git does not know it: the command may write it


def test_a_file_of_the_repository_that_goes_ends_the_race(repo, failed):
    code, said = failed("--arm=base=rm helper.py", "--arm=idea=true", *METRIC)
    assert code == 1
    assert "base, seed 0: helper.py changed during the race" in said


def test_what_a_race_writes_may_be_a_file_of_the_repository(repo, raced):
    (repo / "log.json").write_text("{}")
    commit("a log")
    write = """sh -c 'echo "{\\"loss\\": 2}" > log.json'"""
    raced(
        f"--arm=a={write}",
        f"--arm=b={write}",
        "--metric",
        "loss",
        "--file",
        "log.json",
        "--pairs",
        "1",
    )
    assert (repo / "log.json").read_text() == "{}"


def test_a_file_that_git_does_not_know_is_not_copied_into_the_repository(repo):
    """It counts for the arm all the same."""
    contents = set()
    for text in ("mine", "another"):
        (repo / "notes.txt").write_text(text)
        made, _ = of_commands(
            [("base", ["true"])], RunSettings(timeout_s=60), locked=["evaluation.py"]
        )
        contents.add(made[0].digest)
        words = ["git", "hash-object", "notes.txt"]
        stdout = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        blob = stdout.strip()
        assert not (repo / ".git" / "objects" / blob[:2] / blob[2:]).exists()
    assert len(contents) == 2


REFUSALS = (  # words, and what the line begins with
    (["--metric", "("], "--metric must be a regular expression"),
    (["--metric", ""], "--metric must be a regular expression with one group, or a metric"),
    (["--metric", "loss", "--file", "data"], "--file must be a file, not a folder"),
    (["--metric", r"(\d+) (\d+)"], "--metric must have one group"),
    ([*METRIC, "--metric", r"^.*val loss (\S+)"], "--metric must have a name that no other"),
    ([], "nocap.race needs --metric"),
    (
        [*METRIC, "--arm", "third=/no/such/program"],
        "arm third must be a command that begins with a program that exists",
    ),
    ([*METRIC, "--arm", "base=true"], "--arm must appear at least twice"),
    ([*METRIC, "--arm", "train.py"], "--arm must be NAME=COMMAND"),
    ([*METRIC, "--arm", "=true"], "--arm must be NAME=COMMAND"),
    ([*METRIC, "--apart", "soon", "--sessions", "3"], "--apart must be a time"),
    ([*METRIC, "--apart", "5m"], "--apart works only with --sessions of 2 or more"),
    ([*METRIC, "--timeout", "0"], "--timeout must be above 0"),
    ([*METRIC, "--expect", "0.2..0.1"], "--expect must have LOW below HIGH"),
    ([*METRIC, "--guard", "loss"], "--guard must be a metric and a margin"),
    ([*METRIC, "--guard", "loss -1"], "--guard must have a finite margin of 0 or more"),
    (["--metric", "wall_s"], "--metric must have a name other than wall_s"),
    ([*METRIC, "--target", "nan"], "--target must be a finite number"),
    ([*METRIC, "--target", "3"], "--target needs --file, or a --metric with the group (?P<step>…)"),
    ([*METRIC, "--pairs", "0"], "--pairs must be at least 1"),
    ([*METRIC, "--pair", "3"], "unrecognized arguments: --pair 3"),
    ([*METRIC, "--ref", "main"], "nocap.race needs two or more --arm"),
    ([*METRIC, "--locked", "nothing*"], "--locked must match at least one file"),
    ([*METRIC, "--link", "data"], "--arm does not work with"),
    ([*METRIC, "--arm", "third='x"], "arm third must be a command in which each quote is closed"),
    ([*METRIC, "--jobs", "0"], "--jobs must be at least 1"),
    ([*METRIC, "--jobs", "2", "--sessions", "3"], "--jobs must be 1 with --sessions"),
    (["--metric", "loss", "--jobs", "2", "--file", "out.json"], "--jobs must be 1 with --file"),
    ([*METRIC, "--slurm", "partition=two"], "unrecognized arguments: --slurm partition=two"),
    (refs("main", "nowhere"), "--ref must be a commit, branch or tag"),
    (refs("main", "twin"), "--ref must differ from main in at least one file, got twin"),
    (refs("main", "idea")[2:], "--ref must appear at least twice"),
    (
        refs("main", "idea", "--locked", "helper.py"),
        "--locked must match only files that are equal in main and idea, got helper.py",
    ),
    (
        refs("main", "idea", "--locked", "nothing/**"),
        "--locked must match at least one file of main",
    ),
    (refs("main", "idea", "--link", "nothing"), "--link must be a file or folder"),
    (refs("main", "idea", "--link", "helper.py"), "--link must be a path that git ignores"),
)


@pytest.mark.parametrize(("words", "line"), REFUSALS)
def test_bad_input_is_refused_before_anything_runs(repo, failed, words, line):
    git("branch", "twin")
    code, said = failed(*([] if "--" in words else ALIKE[:4]), *words)
    assert code == 2
    assert said.startswith(f"nocap: {line}") or f" {line}" in said.splitlines()[-1], said
    assert not (repo / "outputs" / "commands").exists()


@pytest.mark.gate
def test_a_race_that_is_killed_goes_on(repo, raced, monkeypatch, tmp_path):
    """And the command that it was running ends with it."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    pid = tmp_path / "pid"
    nowhere = subprocess.DEVNULL
    extra = f"if seed == 1: open({str(pid)!r}, 'w').write(str(os.getpid())), time.sleep(60)"
    monkeypatch.setenv("EXTRA", extra)
    words = [*INTERRUPTIBLE, PYTHON, "-m", "nocap.race", *GAINING, "--pairs", "3"]
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 75)):
        running = subprocess.Popen(words, stdout=nowhere, stderr=nowhere)
        wait_until(lambda: pid.exists() and pid.read_text(), "the second seed")
        command = int(pid.read_text())
        pid.unlink()
        running.send_signal(number)
        assert running.wait(60) == code
        if shutil.which("setpriv"):  # of util-linux
            wait_until(lambda command=command: not psutil.pid_exists(command), "the command's end")
    known = {path: path.stat().st_mtime_ns for path in ended(repo)}
    assert len(known) == 2
    monkeypatch.setenv("EXTRA", "")
    assert raced(*GAINING, "--pairs", "3")["said"].count(", seed ") == 4
    assert {path: path.stat().st_mtime_ns for path in known} == known


def test_after_a_failure_nothing_more_begins_and_what_runs_ends(repo, failed, monkeypatch):
    monkeypatch.setenv("EXTRA", "time.sleep(1.5) if 'slow' in sys.argv else sys.exit(5)")
    words = [*arms(base="train.py {seed} slow", idea="train.py {seed}"), *METRIC, "--pairs", "3"]
    code, said = failed(*words, "--jobs", "2")
    assert code == 1
    assert "idea, seed 0: exit code 5" in said
    names = [json.loads(path.read_text())["arm"] for path in ended(repo)]
    assert names == ["base"]
    paths = list(repo.glob("outputs/commands/*"))
    assert len(paths) == 2


@pytest.mark.slow
def test_runs_at_once_share_the_machine_and_have_no_times(repo, raced, monkeypatch):
    monkeypatch.setenv("EXTRA", "began = time.time(); time.sleep(0.5); print(began, time.time())")
    answer = raced(*GAINING, "--pairs", "3", "--jobs", "4")
    assert verdict(answer) == ("better", 3)
    assert [*costs(answer)] == ["peak_mib"]
    assert "The runs shared the machine (--jobs 4)" in answer["said"]
    lines = []
    for path in repo.glob("outputs/commands/*/output.log"):
        last_line = path.read_text().splitlines()[-1]
        lines.append(last_line.split())
    spans = [(float(words[-2]), float(words[-1])) for words in lines]
    spans.sort()
    overlaps = [first[0] < second[0] < first[1] for first, second in itertools.pairwise(spans)]
    assert any(overlaps)
    alone = raced(*GAINING, "--pairs", "3")
    assert alone["said"].count(", seed ") == 6  # times are of runs that had the machine
    assert [*costs(alone)] == ["wall_s", "cpu_s", "peak_mib"]
    assert "raced before" in alone["exploratory"]


# --- what makes a command the same ----------------------------------------------------------------


@pytest.mark.slow
def test_what_a_race_writes_is_no_part_of_its_arms(repo, raced):
    (repo / ".gitignore").unlink()
    (repo / "write.py").write_text(
        "import helper, sys\nopen('out.json', 'w').write('{\"val_loss\": ' + sys.argv[1] + '.5}')\n"
    )
    commit("nothing is ignored")
    both = arms(base="write.py {seed}", idea="write.py 1{seed}")
    words = [*both, "--metric", "val_loss", "--file", "out.json", "--pairs", "1"]
    counts = [raced(*words)["said"].count(", seed ") for _ in range(2)]
    assert counts == [2, 0]
    assert "uncommitted changes" not in raced(*refs("main", "idea", pairs=1))["said"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sh -c '{PYTHON} {own}/it.py'", "{PYTHON} -m its.it"])
def test_a_program_that_is_edited_is_another_one(repo, raced, failed, form):
    """Where git does not see it, too: before a race and, which would mix two programs, while it
    goes on."""
    own = repo / "its"
    own.mkdir()
    (repo / ".gitignore").write_text("outputs/\nits/\n")
    (own / "it.py").write_text(
        "import sys, os; sys.path.insert(0, 'its'); import other; print('val loss', other.LOSS)\n"
    )
    both = [f"--arm={name}={form.format(PYTHON=PYTHON, own=own)}" for name in ("a", "b")]
    words = [*both, *METRIC, "--pairs", "1"]
    for loss in (3, 2):
        (own / "other.py").write_text(f"LOSS = {loss}\n")
        measurements = raced(*words)["measurements"]
        losses = {row["val loss"] for row in measurements}
        assert losses == {loss}
    text = (own / "it.py").read_text() + "open('its/other.py', 'a').write('LOSS = 1')\n"
    (own / "it.py").write_text(text)
    code, said = failed(*words)
    assert code == 1
    assert "the program of the command changed during the race" in said


# --- calibration ----------------------------------------------------------------------------------


def made_race(folder, chance, *, gain, pairs, skewed=False):
    """A race whose commands are drawn: seeds and arms have noise of the same size."""

    def begin(arm, seed, place):
        if skewed:
            noise = chance.expovariate(1.0)
        else:
            noise = chance.gauss(0, 1)
        place.mkdir(parents=True)
        (place / LOG).write_text(
            f"0.1\tval loss {9 + 0.01 * (noise - gain * (arm.name == 'idea')):.8f}\n"
        )
        content = {"wall_s": 1.0 + seed / 99, "cpu_s": 1.0, "peak_mib": 1.0}
        (place / RESULT).write_text(json.dumps(content))

    both = []
    for name in ("base", "idea"):
        arm_command = Command(name=name, words=("{seed}",), cwd=folder, digest=name)
        both.append(arm_command)
    reader = MetricReader(what=PATTERN, better=Better.lower)
    return Race(
        arms=both,
        readers=[reader],
        output_dir=folder,
        pairs=pairs,
        begin=begin,
        log=lambda line: None,
    )


@pytest.mark.parametrize(("pairs", "look"), [(3, 1), (6, 2)])
@pytest.mark.parametrize("seeded", [True, False])
def test_what_several_arms_print_has_one_interval_and_what_they_cost_the_cautious_one(
    tmp_path, pairs, look, seeded
):
    chance = np.random.default_rng(pairs)
    losses = {name: chance.normal(3, 0.01, pairs) for name in ("base", "a", "b", "c")}
    walls = {name: chance.uniform(1, 1.1, pairs) for name in losses}

    def begin(arm, seed, place):
        place.mkdir(parents=True)
        (place / LOG).write_text(f"0.1\tval loss {losses[arm.name][seed]:.17g}\n")
        costs = {"wall_s": walls[arm.name][seed], "cpu_s": 1.0, "peak_mib": 1.0}
        (place / RESULT).write_text(json.dumps(costs))

    arms = [Command(name=name, words=("{seed}",), cwd=tmp_path, digest=name) for name in losses]
    reader = MetricReader(what=PATTERN, better=Better.lower)
    racing = Race(
        arms=arms, readers=[reader], output_dir=tmp_path, pairs=pairs, seeded=seeded, begin=begin
    )
    verdicts = written(racing, racing.run())["verdicts"]
    base = losses["base"]
    others = [losses[name] for name in ("a", "b", "c")]
    ends = of_a_mixed_model(base - np.array(others), look=look)
    for verdict, other, (low, high) in zip(verdicts, others, ends, strict=True):
        if seeded:
            assert verdict["gain"]["low"] == pytest.approx(low, abs=1e-9)
            assert verdict["gain"]["high"] == pytest.approx(high, abs=1e-9)
        else:
            test = stats.ttest_ind(base, other, equal_var=False)
            welch = test.confidence_interval(1 - 0.05 / look**2)
            assert verdict["gain"]["low"] <= welch.low + 1e-9
            assert verdict["gain"]["high"] >= welch.high - 1e-9
    logs = np.log(walls["base"] / walls["a"])
    t = stats.t.isf(0.05 / look**2 / 3, pairs - 1)
    caution = 1 + 3.3 / np.sqrt(pairs)
    half = caution * t * stats.sem(logs) + 0.005
    expected = np.exp(logs.mean() + half)
    assert verdicts[0]["costs"]["wall_s"]["high"] == pytest.approx(expected)


def simulated(tmp_path, *, seed, gain, skewed=False):
    """The words of 200 races of twelve pairs that are drawn."""
    chance = random.Random(seed)
    words = []
    for number in range(200):
        made = made_race(tmp_path / str(number), chance, gain=gain, pairs=12, skewed=skewed)
        verdicts = written(made, made.run())["verdicts"]
        words.append(str(verdicts[0]["word"]))
    return words


@pytest.mark.slow
@pytest.mark.parametrize("skewed", [False, True])
def test_of_200_races_against_oneself_some_one_in_twenty_claims_a_difference(tmp_path, skewed):
    """Over three looks 6% err to either side; 11% of 200 is chance in one of a thousand."""
    words = simulated(tmp_path, seed=7, gain=0.0, skewed=skewed)
    assert words.count("no difference shown") >= 178


@pytest.mark.slow
def test_a_gain_of_three_standard_deviations_is_found_by_twelve_pairs(tmp_path):
    words = simulated(tmp_path, seed=11, gain=3 * 2**0.5)
    assert words.count("better") >= 160
    assert words.count("worse") == 0
