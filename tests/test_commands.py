"""What all commands have in common: their help's width, `--json`, and the run that is taken where none is
named."""

from __future__ import annotations

import argparse
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

from nocap import export, outside, plot
from nocap.__main__ import COMMANDS
from nocap.config.compose import from_overrides
from nocap.config.paths import STDOUT
from nocap.generate import Generate
from nocap.runs.__main__ import VERBS
from nocap.runs.__main__ import main as runs_door
from nocap.store.command import answering
from tests.conftest import REPO
from tests.test_compare import write_run

# without an answer of their own: a run's is its summary.json, a grid's is compare's
SILENT = {"train", "new"}
PACKAGES = ("data", "runs", "study")
OTHERS = [("runs", verb) for verb in VERBS] + [("data", verb) for verb in ("list", "prepare", "verify")]
HELPS = [*((command,) for command in COMMANDS if command != "train"), *OTHERS]


def door(command: str) -> Callable[[list[str]], Any]:
    main: Callable[[list[str]], Any] = import_module(
        f"nocap.{command}.__main__" if command in PACKAGES else f"nocap.{command}"
    ).main
    return main


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
    assert said[0] == said[1]
    assert [line for line in said[0].splitlines() if len(line) > outside.WIDTH] == []
    answers = words[0] not in SILENT and words not in [
        ("data",),
        *(("runs", verb) for verb in ("sync", "rm", "gc")),
    ]
    assert ("--json [FILE]" in said[0]) == answers
    assert "--config-dir" in said[0]


def test_runs_documents_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        runs_door(["--help"])
    said = capsys.readouterr().out
    assert [
        line.split()[0] for line in said.splitlines() if line.startswith("  ") and line.split()[0] in VERBS
    ] == [*VERBS]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("train", "study")])
def test_help_needs_neither_torch_nor_hydra(command: str) -> None:
    module = f"nocap.{command}{'.__main__' if command in PACKAGES else ''}"
    code = f"import sys, {module} as door\ntry: door.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'hydra', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, timeout=60)
    assert done.stdout.endswith("[]\n"), done.stderr


# --- --json -------------------------------------------------------------------------------------------------


def parsed(*words: str) -> Path | None:
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*")
    outside.document(parser, answer="it")
    path: Path | None = parser.parse_args(words).json
    return path


def test_json_takes_a_file_or_a_dash_or_nothing() -> None:
    forms = {
        (): None,
        ("--json",): STDOUT,
        ("--json", "-"): STDOUT,
        ("--json=-", "x"): STDOUT,
        ("x", "--json", "a.json"): Path("a.json"),
    }
    assert {words: parsed(*words) for words in forms} == forms


ANSWERS: list[Mapping[str, Any]] = [{"a": 1.5, "b": "ü\n"}, {"a": None}]


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("lines", [False, True])
def test_an_answer_on_stdout_is_alone_there(n: int, lines: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(STDOUT, lines=lines) as answer:
        print("for people")
        for content in ANSWERS[:n]:
            answer(content)
    print("later")
    out, err = capsys.readouterr()
    assert err == "for people\n"
    assert out.endswith("later\n")
    assert [json.loads(line) for line in out.splitlines()[:-1]] == [
        {"schema_version": 1, **content} for content in ANSWERS[:n]
    ]


def test_an_answer_in_a_file_is_written_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "a.json"
    with answering(path) as answer:
        answer(ANSWERS[0])
        assert not path.exists()
    assert json.loads(path.read_text()) == {"schema_version": 1, **ANSWERS[0]}
    for n in (0, 1, 2):
        with answering(path, lines=True) as answer:
            for content in ANSWERS[:n]:
                answer(content)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [
            {"schema_version": 1, **content} for content in ANSWERS[:n]
        ]
    assert capsys.readouterr().out.splitlines() == [f"written: {path}"] * 4
    with answering(None) as answer:
        answer(ANSWERS[0])
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_refused_before_anything(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null/x"), Path("steps=4")):
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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "outputs", seed=0, curve=(5.0, 4.0, 3.5, 3.4, 3.3))
    return tmp_path


def last(here: Path) -> Path:
    return write_run(here / "outputs", seed=1, curve=(5.0, 4.5, 3.8, 3.5, 3.4), started="2026-01-02T00:00:00")


SAYS = [
    ("runs", ["--columns", "run,val_loss"], "runs"),
    ("runs", ["show", "last"], "summary"),
    ("runs", ["why", "outputs/runs/*-s0-*", "last"], "differences"),
    ("compare", ["outputs"], "arms"),
    ("plot", ["outputs"], "curves"),
    ("data", ["list"], "sources"),
]


@pytest.mark.parametrize(
    ("command", "words", "key"),
    SAYS,
    ids=lambda parameter: " ".join(parameter) if isinstance(parameter, list) else parameter,
)
def test_a_command_s_answer(
    command: str, words: list[str], key: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last(here)
    assert door(command)([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert key in json.loads(out)
    assert err
    assert door(command)([*words, "--json", "a.json"]) == 0
    assert capsys.readouterr().out == err + "written: a.json\n"
    assert json.loads((here / "a.json").read_text()) == json.loads(out)


# --- the last run -------------------------------------------------------------------------------------------


def test_without_a_run_the_last_is_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = last(here)
    assert (
        export._parser().parse_args(["m.safetensors"]).run,
        export._parser().parse_args(["last", "m.safetensors"]).run,
    ) == ("last",) * 2
    assert from_overrides(Generate, []).run == "last"
    assert plot.main([]) == 0
    assert runs_door(["show"]) == 0
    out = capsys.readouterr().out
    assert folder.name in out
    assert "-s0-" not in out


def test_diff_is_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder.name for folder in (here / "outputs" / "runs").iterdir()] + [last(here).name]
    said = []
    for verb in ("why", "diff"):
        assert runs_door([verb, *words]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "seed" in said[0]
