"""The GPU day's host side (experiments/gpu_day): its budget, a step that fails or hangs, what is
missing, what it prints."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
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
        assert sum(limits[name] for name in command) <= 9 * 60
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


# --- sessions of several days ---------------------------------------------------------------------

SESSION = FOLDER / "h200-2026-11-27" / "options.json"


def of_another_day(started: str, **speeds: float) -> dict[str, Any]:
    """That day's session again, whose arms have other speeds."""
    content: dict[str, Any] = json.loads(SESSION.read_text())
    content["started"] = started
    for arm in content["arms"]:
        label = arm["label"].replace("attention=", "")
        arm["tokens_per_s"] *= speeds.get(label, 1.0)
    return content


def judged(tmp_path: Path, *sessions: dict[str, Any]) -> tuple[int, str, str]:
    paths = [tmp_path / f"{number}.json" for number in range(len(sessions))]
    for path, content in zip(paths, sessions, strict=True):
        path.write_text(json.dumps(content))
    words = [sys.executable, str(FOLDER / "sessions.py"), *map(str, paths)]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


def row(text: str, arm: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{arm} ")]
    return line


def test_the_third_session_makes_a_verdict(tmp_path: Path) -> None:
    first = json.loads(SESSION.read_text())
    second = of_another_day("2026-12-01", flash=1.01, mha=1.01)
    code, out, err = judged(tmp_path, first, second)
    assert code == 0, err
    assert row(out, "attention=mha").endswith("no verdict (n=2)")
    third = of_another_day("2026-12-02", flash=0.99, mha=0.995)
    code, out, _ = judged(tmp_path, first, second, third)
    assert code == 0
    assert row(out, "attention=mha").endswith("worse")
    assert "23.3% slower" in row(out, "attention=mha") or "23.2% slower" in row(
        out, "attention=mha"
    )
    assert row(out, "mlp=swiglu").endswith("no difference shown")


def test_sessions_of_two_chips_or_of_one_start_are_refused(tmp_path: Path) -> None:
    first = json.loads(SESSION.read_text())
    assert judged(tmp_path, first, first)[0] == 2
    other = of_another_day("2026-12-01")
    other["hardware"]["name"] = "NVIDIA H100 80GB HBM3"
    code, _, err = judged(tmp_path, first, other)
    assert code == 2
    assert "the chip must be the same in all sessions" in err


def test_an_arm_of_another_configuration_is_left_out(tmp_path: Path) -> None:
    other = of_another_day("2026-12-01")
    (gqa,) = [arm for arm in other["arms"] if arm["label"] == "attention=gqa"]
    gqa["config"]["trainer"]["compile"] = "full"
    content = json.loads(SESSION.read_text())
    _, out, _ = judged(tmp_path, content, other)
    assert not [line for line in out.splitlines() if line.startswith("attention=gqa  ")]
    assert row(out, "attention=mqa")


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
