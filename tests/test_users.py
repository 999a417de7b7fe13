"""What four users come for, each a script of `tests/users` written from the pages alone. Of two every command
ends well, and the answer is there; the others' are run where their pages are (tests/test_docs.py).

`# docs/PAGE` in a script names the page that the commands below it are from. $NANO and its like make them
short.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tools import slurm
from tests.tools.run_docs import ROOT, environment, scratch, simple_commands, split_commands

USERS = ROOT / "tests" / "users"
SHORT = {
    "TINY": "model=nano trainer.steps=20",
    "NANO": "model=nano data=synthetic trainer.steps=20",
    "TIMED": "model=nano --seconds 60 --rounds 4",
    "SHORT_TEXT": "max_tokens=20",
    "PARTITION": "two",  # of the pretended Slurm
}
NEEDS = {"lab": ("submitit", "wandb_workspaces", "matplotlib", "optuna")}


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _words(comparison: Path) -> dict[str, str | None]:
    """The verdict of each arm but the baseline."""
    content = _read(comparison)
    assert content["baseline"] == content["arms"][0]["arm"]
    return {arm["label"]: arm["difference"]["verdict"] for arm in content["arms"][1:]}


def _lab(where: Path, said: str) -> None:
    words = _words(where / "comparison.json")
    assert (set(words), len((where / "runs.csv").read_text().splitlines())) == ({"gqa", "mqa"}, 10)
    assert set(words.values()) <= {"better", "worse", "no difference shown"}
    # nine cells, and [x0]: two machines trained each cell once, and [] is flash at seed 0
    assert len(_read(where / "runs.json")["runs"]) == 10
    assert (where / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert _read(where / "dashboard.json")


def _program(where: Path, said: str) -> None:
    accepted, not_shown = (_read(where / f"{name}.json") for name in ("accepted", "not-shown"))
    assert (accepted["word"], not_shown["word"]) == ("accepted", "not shown")
    assert _read(where / "again.json") == accepted
    assert (where / "failed.json").read_text() == ""
    assert [(arm["arm"], arm["word"]) for arm in _read(where / "race.json")["verdicts"]] == [
        ("slow", "worse")
    ]
    assert _words(where / "comparison.json") == {"gqa": "no difference shown"}
    assert _read(where / "api.json") == ["flash", "gqa"]


ANSWERS: dict[str, Callable[[Path, str], None]] = {"lab": _lab, "program": _program}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", ANSWERS)
def test_a_user_gets_the_answer(user: str, tmp_path: Path) -> None:
    if missing := [name for name in NEEDS.get(user, ()) if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    where = scratch(tmp_path)
    env = environment(where)
    if user == "lab":
        cluster = slurm.install(tmp_path / "slurm")
        env |= {**cluster, "PATH": f"{cluster['PATH'].partition(':')[0]}:{env['PATH']}"}
    done = subprocess.run(
        ["bash", "-ex", str(USERS / f"{user}.sh")],
        cwd=where,
        env={**env, **SHORT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    ANSWERS[user](where, done.stdout + done.stderr)


@pytest.mark.parametrize("user", sorted(path.stem for path in USERS.glob("*.sh")))
def test_the_pages_show_what_a_user_types(user: str) -> None:
    """Each command, flag, key and option of a script is on the page that it names."""
    parts = re.split(r"^# ((?:docs/)?\w[\w-]*\.md)$", (USERS / f"{user}.sh").read_text(), flags=re.MULTILINE)
    assert len(parts) > 2
    for page, script in zip(parts[1::2], parts[2::2], strict=True):
        # what all commands have
        text = (ROOT / page).read_text() + (ROOT / "docs" / "commands.md").read_text()
        for words in (words for command in split_commands(script) for words in simple_commands(command)):
            name = words[2] if words[:2] == ["python", "-m"] else " ".join(words[:2])
            typed = [word for word in words if re.match(r"--[a-z]|[a-z][\w./]*=", word)]
            missing = [word for word in (name, *typed) if word.partition("=")[0] not in text]
            assert not missing or not name.startswith("nocap"), f"{page} does not show {missing}"
