"""How each command begins and ends as a process: without stdout or stderr, under `python -O`, and
where a library raises what nobody foresaw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.__main__ import COMMANDS
from nocap.config.entry import DEFECT
from tests.conftest import REPO
from tests.test_commands import MODULES
from tests.test_compare import write_run

# Command → words that it answers at once, and its exit code.
ASKED: dict[str, tuple[list[str], int]] = {
    "train": (["--cfg", "job", "model=nano", "data=synthetic"], 0),
    "data": (["list"], 0),
    "compare": (["outputs"], 0),
    "dashboard": (["--help"], 0),
    "runs": ([], 0),
    "plot": (["outputs"], 0),
    "generate": (["run=nobody"], 2),
    "profile": (["trainer.val_tokens=1000"], 2),
    "study": (["nothing"], 2),
    "race": (["--arm", "base=true"], 2),
    "bench": (["trainer.val_tokens=1000"], 2),
    "export": (["nobody", "model.safetensors"], 2),
    "new": (["mlp", "mine"], 0),
    "check": (["nothing"], 2),
}

# Each door as `python -m`, in a fork of one process: the streams are as that process was started
# with them, and what one door has imported the next one has as well. Each writes to a file what it
# ended with.
DRIVER = """
import json, os, runpy, sys
from pathlib import Path

# what takes them a second each
import nocap.launch.multirun, nocap.runs.verbs, nocap.sources.logs.load, nocap.study.plan_preview
import rich.table

doors, before = json.loads(sys.argv[1]), sys.argv[2]
for door, (module, words) in doors.items():
    if (pid := os.fork()) == 0:
        Path(door).mkdir()
        os.chdir(door)
        os.symlink("../../outputs", "outputs")
        sys.argv[:] = [module, *words]
        exec(before)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        os._exit(99)  # a door ends its process
    _, status = os.waitpid(pid, 0)
    Path(f"{door}.code").write_text(str(os.waitstatus_to_exitcode(status)))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two runs into `outputs` of a folder."""
    root = tmp_path_factory.mktemp("ends")
    for seed in range(2):
        write_run(root / "outputs", seed=seed)
    return root


def ended(
    root: Path, name: str, *, script: str = '"$@"', before: str = "", flags: tuple[str, ...] = ()
) -> tuple[dict[str, int], str, str]:
    """Go through all doors in a process that a shell `script` starts: exit codes, stdout, stderr.
    `before`: what a door's process does first."""
    folder = root / name
    folder.mkdir()
    doors = {door: (MODULES[door], words) for door, (words, _) in ASKED.items()}
    text = json.dumps(doors)
    command = ["bash", "-c", script, "bash", sys.executable, *flags, "-c", DRIVER, text, before]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    codes = {door: int((folder / f"{door}.code").read_text()) for door in doors}
    return (codes, done.stdout, done.stderr)


CODES = {door: code for door, (_, code) in ASKED.items()}
REFUSED = sum(code == 2 for code in CODES.values())


def test_all_commands_are_asked() -> None:
    assert ASKED.keys() == COMMANDS.keys()


@pytest.mark.slow
def test_each_door_ends_as_ever_without_stdout(outputs: Path) -> None:
    codes, out, err = ended(outputs, "out", script='"$@" >&-')
    assert codes == CODES
    assert out == ""
    assert "Traceback" not in err
    odd = [line for line in err.splitlines() if not line.startswith("nocap: ")]
    assert odd == []
    assert len(err.splitlines()) == REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("script", ['"$@" 2>&-', '"$@" <&- 2>&-'])
def test_each_door_ends_as_ever_without_stderr(outputs: Path, script: str) -> None:
    codes, out, err = ended(outputs, f"err{len(script)}", script=script)
    assert codes == CODES
    assert err == ""
    assert "Traceback" not in out
    assert "nocap: " not in out  # what was refused is not said to somebody else


@pytest.mark.slow
def test_each_door_refuses_a_python_without_assertions(outputs: Path) -> None:
    codes, out, err = ended(outputs, "optimized", flags=("-O",))
    rule = (
        "nocap: PYTHONOPTIMIZE must be unset or 0, because without assertions Hydra cannot "
        "read the command line, "
        "got 1"
    )
    assert set(codes.values()) == {2}
    assert out == ""
    assert err.splitlines() == [rule] * len(COMMANDS)


@pytest.mark.slow
def test_each_door_ends_as_ever_where_stdout_takes_ascii_alone(outputs: Path) -> None:
    codes, out, _ = ended(outputs, "ascii", script='PYTHONIOENCODING=ascii "$@"')
    assert codes == CODES
    assert out.isascii()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")
@pytest.mark.parametrize("words", [["--cfg", "job", "model=nano"], ["--help"], ["--info"]])
def test_an_answer_that_a_full_disk_does_not_take_is_none(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "nocap.train", *words]
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        done = subprocess.run(command, cwd=tmp_path, env=env, stdout=full, stderr=-1)
    assert done.returncode == 1
    assert done.stderr == b"nocap: [Errno 28] No space left on device\n"


def test_a_stdout_of_ascii_shows_the_rest_escaped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nocap.train", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trainer.batch_tokens=\\u2026" in done.stdout  # …


BROKEN = """
def raised(*words):
    raise ERROR

import nocap.outside
nocap.outside.arguments = raised
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", ["AttributeError('of a library')", "RecursionError('of a library')"]
)
def test_what_a_library_raises_is_a_defect_of_nocap_in_each_door(outputs: Path, error: str) -> None:
    broken = BROKEN.replace("ERROR", error)
    codes, out, err = ended(outputs, error[:9], before=broken)
    assert codes == dict.fromkeys(COMMANDS, 1)
    assert out == ""
    assert err.count("Traceback (most recent call last):") == len(COMMANDS)
    assert err.count(f"{error.partition('(')[0]}: of a library\n{DEFECT}\n") == len(COMMANDS)


# --- as it was typed ------------------------------------------------------------------------------


def test_a_range_under_pythonoptimize_is_refused(tmp_path: Path) -> None:
    words = ["-m", "model=nano", "data=synthetic", "model.n_layer=range(1,3)"]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONOPTIMIZE": "1"}
    command = [sys.executable, "-m", "nocap.train", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("nocap: PYTHONOPTIMIZE must be unset or 0, ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_documents_trainer_runs_in_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(REPO / "docs" / "own_train.py"), "0", "--steps", "1"]
    said = [subprocess.check_output(command, cwd=folder, text=True) for folder in (REPO, tmp_path)]
    assert said[0] == said[1]
    assert said[1].startswith("step 0 val loss 5.5")
