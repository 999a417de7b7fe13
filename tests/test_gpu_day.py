"""The GPU day's host side (experiments/gpu_day): its budget, a step that fails or hangs, what is
missing, what it prints."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from nocap.config import hardware
from nocap.measure.bench_arms import compose_arms
from nocap.study.__main__ import main
from nocap.study.board import read_board
from tests.attempts import wait_until
from tests.conftest import REPO

FOLDER = REPO / "experiments" / "gpu_day"


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))  # as where a script runs
        yield


@pytest.fixture(scope="module")
def day() -> ModuleType:
    return importlib.import_module("day")


def writes(content: object) -> str:
    return (
        f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({json.dumps(content)!r}); "
        f"print('done')"
    )


def step(day: ModuleType, code: str, **more: Any) -> Any:
    words = lambda shared, path: ["-c", code, str(path)]  # noqa: E731
    defaults = {"limit_s": 20, "words": words, "figure": lambda x: f"found {x}", **more}
    return day.Step(**defaults)


def test_all_steps_take_35_minutes_and_the_readmes_commands_ten(day: ModuleType) -> None:
    limits = {name: step.limit_s for name, step in day.STEPS.items()}
    assert sum(limits.values()) <= 35 * 60
    text = (FOLDER / "README.md").read_text()
    matches = re.findall(r"^python experiments/gpu_day/day\.py (.*)", text, re.M)
    commands = [re.split(r" --", line)[0].split() for line in matches]
    assert [*itertools.chain(*commands)] == list(limits)
    for command in commands:
        assert sum(limits[name] + day.GRACE_S for name in command) <= 9 * 60
    matches = re.findall(r"^\| `(\w+)` \| (\d+) s", text, re.M)
    expected = [(name, str(limit)) for name, limit in limits.items()]
    assert matches == expected


def test_what_a_step_leaves_outlives_the_next_ones_failure(
    day: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = {
        "good": step(day, writes({"a": 1})),
        "bad": step(day, "import sys; print('half'); sys.exit('it broke')"),
        "long": step(day, "import time; print('began', flush=True); time.sleep(1000)", limit_s=0.5),
        "absent": step(day, "", skip=lambda shared: "no folder was named"),
        "other": step(day, writes([2]), figure=lambda content: content["a"]),
    }

    def told(*words: str) -> tuple[int, list[dict[str, Any]]]:
        code = day.main([*words, "--device", "cpu", "--small", "--out", str(tmp_path)])
        text = (tmp_path / "day.json").read_text()
        return code, json.loads(text)["rows"]

    monkeypatch.setattr(day, "STEPS", steps)
    assert told("good", "bad", "long", "absent")[0] == 1
    code, rows = told("other", "absent")
    keys = ("step", "rc", "json", "figure", "tail")
    assert code == 0
    expected = [
        ["good", 0, "good.json", "found {'a': 1}", ["done"]],
        ["bad", 1, None, "it broke", ["half", "it broke"]],
        ["long", None, None, "began", ["began"]],
        ["absent", None, None, "no folder was named", []],
        ["other", 0, "other.json", "done", ["done"]],
    ]
    figures = [
        [row[key] or row["skipped"] if key == "figure" else row[key] for key in keys]
        for row in rows
    ]
    assert figures == expected
    text = (tmp_path / "good.json").read_text()
    assert json.loads(text) == {"a": 1}
    assert "long       too long" in capsys.readouterr().out
    # a second call for what has not gone well
    more_steps = steps | {"bad": step(day, writes({"a": 3}))}
    monkeypatch.setattr(day, "STEPS", more_steps)
    code, rows = told("good", "bad", "other", "--only-failed")
    assert code == 0
    shown = [(row["step"], row["rc"]) for row in rows]
    assert shown[:2] == [("good", 0), ("bad", 0)]
    out = capsys.readouterr().out
    assert re.findall(r"(\w+): at most", out) == ["bad"]


def script(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, str(FOLDER / name), *words, "--device", "cpu", "--small"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(whole, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_the_clock_of_a_grids_cells_is_there(tmp_path: Path, day: ModuleType) -> None:
    done = script("grid.py", "--json", "grid.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "grid.json").read_text())
    cells = [(cell["attention"], cell["seed"], cell["status"]) for cell in found["cells"]]
    expected = []
    for seed in (0, 1, 2):
        for name in ("flash", "gqa"):
            expected.append((name, seed, "finished"))
    assert cells == expected
    for cell in found["cells"]:
        clock_s = dict(cell["clock_s"])
        assert clock_s.pop("wall") == pytest.approx(sum(clock_s.values()))
    assert day.STEPS["grid"].figure(found).startswith("beside training ")


@pytest.mark.slow
def test_a_grid_that_is_stopped_leaves_what_its_cells_took(tmp_path: Path) -> None:
    """As by a step's time limit."""
    words = ["trainer.steps=10,100000", "--json", "grid.json"]
    command = [sys.executable, str(FOLDER / "grid.py"), *words, "--device", "cpu", "--small"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    running = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.glob("*/runs/*/summary.json")), "a cell")
    running.terminate()
    assert running.wait() != 0
    found = json.loads((tmp_path / "grid.json").read_text())
    assert "finished" in [cell["status"] for cell in found["cells"]]
    assert found["rc"] == running.returncode


# --- sessions of several days ---------------------------------------------------------------------

H200 = FOLDER / "h200-2026-11-27"
MACHINE = "c12a9b99edf7"


def of_day(day: str, **speeds: float) -> dict[str, Any]:
    """Return the session of 2026-11-27 as if it were of this day, its arms with other speeds."""
    content: dict[str, Any] = json.loads((H200 / "options.json").read_text())
    content["started"] = f"{day}T13:44:37+00:00"
    content["ended"] = f"{day}T13:48:51+00:00"
    for arm in content["arms"]:
        label = arm["label"].replace("attention=", "")
        arm["tokens_per_s"] *= speeds.get(label, 1.0)
    return content


@pytest.fixture
def options(tmp_path: Path) -> Path:
    """Return a folder with the study's file alone."""
    folder = tmp_path / "experiments" / "options"
    folder.mkdir(parents=True)
    shutil.copy(REPO / "experiments" / "options" / "study.yaml", folder)
    return folder


def carried_out(options: Path, *sessions: dict[str, Any]) -> dict[str, Any]:
    """Return the study's claims by their names, from these sessions."""
    paths = [options.parent / f"{number}.json" for number in range(len(sessions))]
    for path, content in zip(paths, sessions, strict=True):
        path.write_text(json.dumps(content))
    assert main([str(options), "scale=gpu", "--sessions-from", *map(str, paths)]) == 0
    result = json.loads((options / f"results.gpu.{MACHINE}.json").read_text())
    return {claim["id"]: claim for claim in result["claims"]}


def test_the_third_days_session_makes_a_verdict(options: Path) -> None:
    first = of_day("2026-11-27")
    second = of_day("2026-12-01", gqa=1.01, flash=1.01)
    gqa = carried_out(options, first)["G1.gqa"]
    assert gqa["n"] == 1
    assert gqa["measured"] is None
    assert gqa["bound"] == pytest.approx(1.0764, abs=1e-4)
    board = read_board(options.parent).files()[options.parent / "README.md"]
    (line,) = [line for line in board.splitlines() if "4 of 12 key/value heads" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:] == [
        "tokens/s: 20% to 30% faster",
        "–",
        "1 session: no verdict yet; exploratory",
        "1 session",
        "32 × 1,024 tokens, GPU, NVIDIA H200",
    ]
    third = of_day("2026-12-02", flash=0.99, gqa=0.995)
    gqa = carried_out(options, third, first, second)["G1.gqa"]
    assert gqa["n"] == 3
    assert gqa["word"] == "refuted"
    assert gqa["measured"]["mid"] == pytest.approx(1.029, abs=1e-3)
    log = [json.loads(line) for line in (options / "log.jsonl").read_text().splitlines()]
    sessions = [line for line in log if line["event"] == "session"]
    assert {line["machine"] for line in log} == {MACHINE}
    assert [line["started"][:10] for line in sessions] == ["2026-11-27", "2026-12-01", "2026-12-02"]


def test_keys_that_the_machine_chooses_need_not_be_typed(options: Path) -> None:
    file = options / "study.yaml"
    typed = "trainer.micro_batch=16, trainer.batch_tokens=32768, "
    text = file.read_text()
    assert typed in text
    file.write_text(
        text.replace(typed, "trainer.batch_tokens=32768, ").replace(
            ", trainer.cuda_graphs=false", ""
        )
    )
    gqa = carried_out(options, of_day("2026-11-27"))["G1.gqa"]
    assert gqa["n"] == 1


def refused(options: Path, capsys: pytest.CaptureFixture[str], *sessions: dict[str, Any]) -> str:
    with pytest.raises(SystemExit) as ended:
        carried_out(options, *sessions)
    assert ended.value.code == 2
    assert [path.name for path in options.iterdir()] == ["study.yaml"]
    return capsys.readouterr().err


def test_sessions_of_two_chips_are_refused(
    options: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = of_day("2026-12-01")
    other["hardware"]["name"] = "NVIDIA H100 80GB HBM3"
    assert refused(options, capsys, of_day("2026-11-27"), other) == (
        "nocap: --sessions-from must name files with the same hardware.name, got NVIDIA H200, "
        "NVIDIA H100 80GB HBM3\n"
    )


def test_a_session_that_is_given_twice_is_refused(
    options: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = of_day("2026-11-27")
    err = refused(options, capsys, first, first)
    assert err.startswith(
        "nocap: --sessions-from must name files whose sessions are at least 5 minutes apart, got -4"
    )


def test_a_bench_of_another_step_is_refused(
    options: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.loads((H200 / "graphs.json").read_text())
    err = refused(options, capsys, other)
    assert "--sessions-from must name a file with all arms of a claim" in err


def test_what_is_no_bench_is_refused(options: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(options, capsys, {"kind": "gpu day"})
    assert "0.json must be a file that nocap.bench --json wrote, got " in err
    assert err.count("\n") == 1


def test_an_arm_of_another_configuration_is_no_session_of_it(options: Path) -> None:
    other = of_day("2026-12-01")
    (gqa,) = [arm for arm in other["arms"] if arm["label"] == "attention=gqa"]
    gqa["config"]["trainer"]["compile"] = "full"
    claims = carried_out(options, of_day("2026-11-27"), other)
    assert claims["G1.gqa"]["n"] == 1
    assert claims["G1.mqa"]["n"] == 2


# --- the machine ----------------------------------------------------------------------------------


def test_a_machine_without_what_every_step_needs_is_refused(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(day, "_version", lambda name: None if name in ("torch", "wandb") else "1")
    assert day.main([]) == 2
    out, err = capsys.readouterr()
    # nothing here uses wandb
    assert "missing: torch" in out
    assert "wandb" not in out
    assert err == "gpu day: no step can run: torch is missing\n"
    with pytest.raises(SystemExit) as ended:
        day.main(["nonsense"])
    assert ended.value.code == 2


@pytest.mark.slow
def test_the_arms_of_the_bench_compose(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the bench would on a GPU, which is taken to be there; small, on a CPU."""
    monkeypatch.setattr(hardware, "check_device", lambda *given, **named: None)
    monkeypatch.setattr(hardware, "cuda_devices", lambda: ("NVIDIA H200",))
    monkeypatch.setattr(hardware, "capability", lambda: (9, 0))
    shared = day.Day(
        out=tmp_path, scratch=tmp_path, device="cuda", small=False, challenge=Path("it")
    )

    def arms(shared: Any) -> int:
        words = day.STEPS["options"].words(shared, tmp_path / "options.json")
        every = [word for flag, word in pairwise(words) if flag == "--arm"]
        return len(compose_arms(words[2 : words.index("--arm")], every))

    assert arms(shared) == len(day.OPTIONS)
    expected = len(day.OPTIONS) - 1
    assert arms(replace(shared, device="cpu", small=True)) == expected  # no fp8
    monkeypatch.setattr(hardware, "capability", lambda: (8, 0))
    arm_words = day.STEPS["options"].words(shared, tmp_path / "o.json")
    assert len(arm_words) > 2 * (len(day.OPTIONS) - 1)
    words = day.STEPS["options"].words
    half = replace(shared, share=0.5)
    seconds = [float(words(some, tmp_path / "bench.json")[-3]) for some in (shared, half)]
    assert seconds == [245, 122.5]
    best = day.STEPS["best"].words(shared, tmp_path / "best.json")
    assert set(day.BEST.split()) <= set(best)


def test_a_day_that_is_stopped_takes_its_step_with_it(tmp_path: Path) -> None:
    words = ["options", "--device", "cpu", "--small", "--out", str(tmp_path)]
    command = [sys.executable, str(FOLDER / "day.py"), *words]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def steps() -> list[psutil.Process]:
        processes: list[psutil.Process] = []
        for process in psutil.Process(running.pid).children():
            if process.is_running():
                processes.append(process)
        return processes

    wait_until(steps, "a step")
    left = steps()
    running.terminate()

    assert running.wait() == 143
    assert len(left) == 1
    assert not left[0].is_running()


STOPPED_AT_START = """
import os, runpy, signal, subprocess, sys

class Stopped(subprocess.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        print("step", self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Stopped
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_day_that_is_stopped_while_its_step_starts_takes_it_with_it(tmp_path: Path) -> None:
    words = [
        str(FOLDER / "day.py"),
        "options",
        "--device",
        "cpu",
        "--small",
        "--out",
        str(tmp_path),
    ]
    command = [sys.executable, "-c", STOPPED_AT_START, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 143
    lines = done.stdout.splitlines()
    started = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    assert len(started) == 1
    assert not psutil.pid_exists(started[0])
