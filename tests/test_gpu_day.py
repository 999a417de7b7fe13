"""The GPU day's host side (experiments/gpu_day): its budget, a step that fails or hangs, what is missing,
what it prints."""

from __future__ import annotations

import importlib
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

import numpy as np
import psutil
import pytest

from nocap.config import hardware
from nocap.data.shards import write_shard
from nocap.measure.arms import compose_arms
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


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    return importlib.import_module("checks")


def writes(content: object) -> str:
    return (
        f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({json.dumps(content)!r}); print('done')"
    )


def step(day: ModuleType, code: str, **more: Any) -> Any:
    words = lambda shared, path: ["-c", code, str(path)]  # noqa: E731
    return day.Step(**{"limit_s": 20, "words": words, "figure": lambda x: f"found {x}", **more})


def test_all_steps_take_35_minutes_and_the_readmes_commands_ten(day: ModuleType) -> None:
    limits = {name: step.limit_s for name, step in day.STEPS.items()}
    assert sum(limits.values()) <= 35 * 60
    text = (FOLDER / "README.md").read_text()
    commands = [
        re.match(r"[a-z ]+", line)[0].split()
        for line in re.findall(r"^python experiments/gpu_day/day\.py (.*)", text, re.M)
    ]  # type: ignore[index]
    assert [name for command in commands for name in command] == list(limits)
    assert max(sum(limits[name] for name in command) for command in commands) < 10 * 60
    assert re.findall(r"^\| `(\w+)` \| (\d+) s", text, re.M) == [
        (name, str(limit)) for name, limit in limits.items()
    ]


def test_what_a_step_leaves_outlives_the_next_ones_failure(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
        return code, json.loads((tmp_path / "day.json").read_text())["rows"]

    monkeypatch.setattr(day, "STEPS", steps)
    assert told("good", "bad", "long", "absent")[0] == 1
    code, rows = told("other", "absent")
    keys = ("step", "rc", "json", "figure", "tail")
    assert (
        code,
        [[row[key] or row["skipped"] if key == "figure" else row[key] for key in keys] for row in rows],
    ) == (
        0,
        [
            ["good", 0, "good.json", "found {'a': 1}", ["done"]],
            ["bad", 1, None, "it broke", ["half", "it broke"]],
            ["long", None, None, "began", ["began"]],
            ["absent", None, None, "no folder was named", []],
            ["other", 0, "other.json", "done", ["done"]],
        ],
    )
    assert json.loads((tmp_path / "good.json").read_text()) == {"a": 1}
    assert "long       too long" in capsys.readouterr().out
    # a second call for what has not gone well
    monkeypatch.setattr(day, "STEPS", steps | {"bad": step(day, writes({"a": 3}))})
    code, rows = told("good", "bad", "other", "--only-failed")
    assert (code, [(row["step"], row["rc"]) for row in rows][:2]) == (0, [("good", 0), ("bad", 0)])
    assert re.findall(r"(\w+): at most", capsys.readouterr().out) == ["bad"]


ABSENT = "not on this machine"


@pytest.mark.parametrize(
    ("outcomes", "kernel"),
    [
        (["ok", "ok", ABSENT, "ok"], []),  # torch's own choice
        (["wrong", "ok", ABSENT, "ok"], ["attention.kernel=flash"]),
        ([ABSENT, ABSENT, ABSENT, "ok"], ["attention.kernel=efficient"]),
        ([ABSENT] * 4, []),
    ],
)
def test_later_steps_take_the_kernel_that_numerics_found_right(
    day: ModuleType, checks: ModuleType, tmp_path: Path, outcomes: list[str], kernel: list[str]
) -> None:
    shared = day.Day(out=tmp_path, scratch=tmp_path, device="cuda", small=False, challenge=Path("it"))
    assert shared.kernel == []  # numerics did not run
    names = checks.KERNELS[checks.Device.cuda]
    rows = [{"name": name, "outcome": word} for name, word in zip(names, outcomes, strict=True)]
    (tmp_path / "numerics.json").write_text(json.dumps({"kernel": checks.kernel(rows), "rows": rows}))
    assert shared.kernel == kernel
    for name in ("bench", "graphs", "options", "profile", "challenge"):
        words = day.STEPS[name].words(shared, tmp_path / "b.json")
        assert set(kernel) <= set(words)


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ({"a": 0.1, "b": 0.0}, "ok"),
        ({"a": 0.0, "b": 0.11}, "wrong"),
        ({"a": float("nan")}, "wrong"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "not on this machine"),
        (ValueError("attention.kernel must be …"), "not on this machine"),
        (RuntimeError("an illegal memory access"), "wrong"),
    ],
)
def test_a_check_is_right_wrong_or_not_on_this_machine(checks: ModuleType, errors: Any, outcome: str) -> None:
    def measured() -> dict[str, float]:
        if isinstance(errors, Exception):
            raise errors
        return errors  # type: ignore[no-any-return]

    assert checks.checked("it", 0.1, measured)["outcome"] == outcome


def script(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, str(FOLDER / name), *words, "--device", "cpu", "--small"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(whole, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), [("numerics", 8), ("ddp", 2), ("resume", 1)])
def test_this_cpu_computes_what_it_should(what: str, count: int, tmp_path: Path) -> None:
    done = script("checks.py", what, "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["outcome"] for row in rows] == ["ok"] * count, rows


def test_a_machine_without_what_every_step_needs_is_refused(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(day, "_version", lambda name: None if name in ("torch", "wandb") else "1")
    assert day.main([]) == 2
    out, err = capsys.readouterr()
    assert ("missing: torch" in out, "wandb" in out) == (True, False)  # nothing here uses wandb
    assert err == "gpu day: no step can run: torch is missing\n"
    with pytest.raises(SystemExit) as ended:
        day.main(["nonsense"])
    assert ended.value.code == 2


@pytest.mark.slow
def test_the_arms_of_the_bench_compose(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the bench would on a GPU, which is taken to be there. The kernel that all arms have is no arm, nor
    is one that is not there."""
    monkeypatch.setattr(hardware, "check_device", lambda *given, **named: None)
    monkeypatch.setattr(hardware, "cuda_devices", lambda: ("NVIDIA H200",))
    monkeypatch.setattr(hardware, "capability", lambda: (9, 0))
    shared = day.Day(out=tmp_path, scratch=tmp_path, device="cuda", small=False, challenge=None)

    def arms(step: str) -> int:
        words = day.STEPS[step].words(shared, tmp_path / f"{step}.json")
        every = [word for flag, word in pairwise(words) if flag == "--arm"]
        return len(compose_arms(words[2 : words.index("--arm")], every))

    whole = {"bench": len(day.ARMS), "compile": 3, "graphs": 4, "options": len(day.OPTIONS)}
    assert {step: arms(step) for step in whole} == whole
    rows = [{"name": name, "outcome": ABSENT} for name in ("fused", "cudnn")]
    (tmp_path / "numerics.json").write_text(json.dumps({"kernel": "flash", "rows": rows}))
    assert arms("bench") == len(day.ARMS) - 2
    half = replace(shared, share=0.5)
    words = day.STEPS["bench"].words
    assert [float(words(some, tmp_path / "bench.json")[-3]) for some in (shared, half)] == [190, 95]


def test_a_day_that_is_stopped_takes_its_step_with_it(tmp_path: Path) -> None:
    words = ["resume", "--device", "cpu", "--small", "--out", str(tmp_path)]
    running = subprocess.Popen([sys.executable, str(FOLDER / "day.py"), *words], stdout=subprocess.DEVNULL)

    def steps() -> list[psutil.Process]:
        return [process for process in psutil.Process(running.pid).children() if process.is_running()]

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
    words = [str(FOLDER / "day.py"), "resume", "--device", "cpu", "--small", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_START, *words], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == 143
    started = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(started) == 1
    assert not psutil.pid_exists(started[0])


@pytest.mark.slow
def test_the_recipe_meets_its_baseline_on_the_same_tokens(tmp_path: Path) -> None:
    for seed, name in enumerate(("train", "val")):
        some = np.random.default_rng(seed).integers(0, 200, 20_000).astype(np.uint16)
        write_shard(tmp_path / f"text_{name}.bin", some)
    words = ["tokenizer=gpt2", "--seeds", "1", "--json", "recipe.json"]
    done = script("recipe.py", ".", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "recipe.json").read_text())["runs"]
    assert [(run["arm"], run["seed"]) for run in runs] == [("nocap_baseline", 0), ("recipe_d12", 0)]
    for run in runs:
        assert list(run["val_loss"]) == ["0", "3", "6"]
        assert run["val_loss"]["6"] < run["val_loss"]["0"]  # it learns which tokens there are
    missing = script("recipe.py", "none", *words, cwd=tmp_path)
    assert (missing.returncode, "data.train must" in missing.stdout) == (1, True)
