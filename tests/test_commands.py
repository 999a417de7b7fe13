"""What all commands have in common: the console script, their help, `--json`, and the run that is
taken where none is named."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import nocap
from nocap import __main__ as console
from nocap import export, outside, plot
from nocap.__main__ import COMMANDS
from nocap.command_line import answering
from nocap.config.compose import from_overrides
from nocap.config.paths import STDOUT
from nocap.generate import Generate
from nocap.runs.__main__ import VERBS
from nocap.runs.__main__ import main as runs_door
from tests.conftest import REPO
from tests.test_compare import write_run

# without an answer of their own: a run's is its summary.json, a grid's is compare's
SILENT = [("train",), ("new",), ("data",), *(("runs", verb) for verb in ("sync", "rm"))]
PACKAGES = ("data", "runs", "study")
MODULES = {command: f"nocap.{command}{'.__main__' * (command in PACKAGES)}" for command in COMMANDS}
OTHERS = [("runs", verb) for verb in VERBS]
OTHERS += [("data", "list"), ("data", "prepare"), ("data", "verify")]
HELPS = [*((command,) for command in COMMANDS if command != "train"), *OTHERS]


def door(command: str) -> Callable[[list[str]], Any]:
    main: Callable[[list[str]], Any] = import_module(MODULES[command]).main
    return main


CONSOLE = [
    (["--help"], 0, "nocap train "),
    (["--version"], 0, f"nocap {nocap.__version__}"),
    (["trian"], 2, "nocap: 'trian' is no command (did you mean train?)\n"),
    *((["bench"], code, "") for code in (0, 1, None)),  # passed on
]


@pytest.mark.parametrize(("words", "code", "says"), CONSOLE)
def test_the_console_script_answers_its_words(
    words: list[str],
    code: int | None,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("nocap.bench.main", lambda: code)
    monkeypatch.setattr("sys.argv", ["nocap", *words])
    with pytest.raises(SystemExit) as left:
        console.main()
    out, err = capsys.readouterr()

    assert left.value.code == code
    assert says in (err if code == 2 else out)
    assert bool(out) == (code == 0 and bool(says))
    assert bool(err) == (code == 2)


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_has_one_width_whatever_the_terminal_and_says_what_answers_as_json(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit, match="0"):
            door(words[0])([*words[1:], "--help"])
        said.append(out.getvalue())
    lines = [line for line in said[0].splitlines() if len(line) > outside.WIDTH]
    assert said[1] == said[0]
    assert lines == []
    assert "--config-dir" in said[0]
    assert ("--json [FILE]" in said[0]) == (words not in SILENT)
    shown = [line.split()[0] for line in said[0].splitlines() if line.startswith("  ")]
    assert words != ("runs",) or [word for word in shown if word in VERBS] == [*VERBS]


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_a_flag_has_one_spelling(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        door(words[0])([*words[1:], "--hel"])
    assert "usage: " in capsys.readouterr().err


HELP = """
import contextlib, io, sys
from importlib import import_module

def told(module, heavy, *words):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sys.argv = [module, *words]
            import_module(module).main(*[[*words]] * (module != "nocap.train"))
    except SystemExit:
        pass
    if left := heavy & set(sys.modules):
        sys.exit(f"{module} {words} imports {left}")

heavy = {"torch", "tiktoken", "wandb", "pandas", "matplotlib", "huggingface_hub"}
for module in MODULES:
    told(module, heavy | {"hydra"} if module != "nocap.study.__main__" else heavy, "--help")
import nocap.data.prepare, nocap.options.data.fineweb
told("nocap.data.__main__", heavy, "list")
told("nocap.train", heavy, "--help")
told("nocap.train", heavy, "--cfg", "job", "experiment=nocap_baseline", "--resolve")
print("hydra" in sys.modules)
"""


def test_help_list_and_cfg_need_no_library_that_takes_long() -> None:
    late = {"nocap.study.__main__": 1, "nocap.train": 2}  # these have Hydra
    modules = sorted(
        (m for m in MODULES.values() if m != "nocap.train"), key=lambda m: late.get(m, 0)
    )
    code = HELP.replace("MODULES", repr(modules))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["True"], done.stderr


# --- --json ---------------------------------------------------------------------------------------


ANSWERS: list[Mapping[str, Any]] = [{"a": 1.5, "b": "ü\n"}, {"a": None}]
WRITTEN = [{"schema_version": 1, **content} for content in ANSWERS]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_an_answer_on_stdout_is_alone_there_and_in_a_file_at_the_end(
    n: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "a.json"
    for place in (STDOUT, path):
        with answering(place, lines=True) as answer:
            print("for people")
            for content in ANSWERS[:n]:
                answer(content)
            assert not path.exists()
        print("later")
    with answering(None) as answer:
        answer(ANSWERS[0])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    rows = [json.loads(line) for line in lines[:n]]
    assert rows == WRITTEN[:n]
    assert err == "for people\n"
    assert lines[n:] == ["later", "for people", f"written: {path}", "later"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == WRITTEN[:n]
    with answering(path) as answer:
        answer(ANSWERS[0])
    assert json.loads(path.read_text()) == WRITTEN[0]


@pytest.mark.parametrize("path", [Path("/"), Path("/dev/null/x"), Path("steps=4")])
def test_a_file_that_cannot_be_written_is_refused_before_anything(path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--json must be "), answering(path):
        pytest.fail("it began")


def test_an_error_leaves_no_file_and_stdout_as_it_was(tmp_path: Path) -> None:
    before = sys.stdout
    for path in (STDOUT, tmp_path / "a.json"):
        with pytest.raises(ZeroDivisionError), answering(path) as answer:
            answer({"a": 1 / 0})
        assert sys.stdout is before
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The later of two runs in `outputs`, where the commands are given."""
    monkeypatch.chdir(tmp_path)
    curve = (5.0, 4.0, 3.5, 3.4, 3.3)
    write_run(tmp_path / "outputs", seed=0, curve=curve)
    later = {"seed": 1, "started": "2026-01-02T00:00:00"}
    later_curve = (5.0, 4.5, 3.8, 3.5, 3.4)
    return write_run(tmp_path / "outputs", curve=later_curve, **later)


JSON_ANSWERS = [
    ("runs --columns run,val_loss", "runs"),
    ("runs show last", "summary"),
    ("runs why outputs/runs/*-s0-* last", "differences"),
    ("runs diff outputs/runs/*-s0-* last", "differences"),  # the same
    ("compare outputs", "arms"),
    ("plot outputs", "curves"),
    ("data list", "sources"),
]


@pytest.mark.parametrize(("words", "key"), JSON_ANSWERS)
def test_a_command_s_answer(
    words: str, key: str, last: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *more = words.split()
    no_files = ["-"] * (command == "plot")
    assert door(command)([*more, "--json", *no_files]) == 0
    out, err = capsys.readouterr()
    assert key in json.loads(out)
    assert err
    assert door(command)([*more, "--json", "a.json"]) == 0
    assert capsys.readouterr().out == err + "written: a.json\n"
    answers = [json.loads(text) for text in (out, Path("a.json").read_text())]
    for answer in answers:
        answer.pop("command", None)  # of a comparison, with what was typed
        answer.pop("date", None)
    assert answers[0] == answers[1]


# --- the last run ---------------------------------------------------------------------------------


def test_without_a_run_the_last_is_taken(last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        export.main(["m"])
    assert "FILE must end in .safetensors, got m" in capsys.readouterr().err
    assert from_overrides(Generate, []).run == "last"
    assert plot.main([]) == 0
    assert runs_door(["show"]) == 0
    out = capsys.readouterr().out
    assert last.name in out
    assert "-s0-" not in out
