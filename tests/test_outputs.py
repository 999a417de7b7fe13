"""Where files go and whose they are: devices and links stay, modes follow the umask, and a broken disk is not
bad input."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nocap import compare
from nocap.config.errors import refusals
from nocap.config.keys import FAULTS
from nocap.store.command import writing
from nocap.store.files import append_text, write_file, write_text
from nocap.store.record import Metrics, read_json, write_json
from nocap.training import checkpoint
from tests.conftest import SMALL, Door, the_run
from tests.test_outward import hostile


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        hostile(tmp_path, "r", seed, "plain")
    return tmp_path / "runs"


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    pipe, folder, name = tmp_path / "pipe", tmp_path / "folder", tmp_path / "socket"
    os.mkfifo(pipe)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(name))
        for path in (pipe, folder, name):
            with pytest.raises(OSError, match="not a regular file"):
                write_file(path, b"x")
        for path in (pipe, folder, name, *map(Path, ("/dev/null", "/dev/stdout", "/dev/fd/1"))):
            with (
                pytest.raises(ValueError, match=r"^--json must be a file that can be written, got "),
                writing("--json", path),
            ):
                pytest.fail("it began")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_link_that_a_person_names_is_followed_and_one_in_a_record_is_not(tmp_path: Path) -> None:
    target, link, dangling = tmp_path / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("mine\n")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "new")
    for path in (link, dangling):
        with writing("--json", path) as there:
            write_json(there, {"a": 1})
        assert path.is_symlink()
    assert read_json(target) == read_json(tmp_path / "new") == {"schema_version": 1, "a": 1}
    target.write_text("mine\n")
    write_json(link, {"a": 2})  # as a record's summary.json, which somebody sent as a link to one's own file
    assert not link.is_symlink()
    assert target.read_text() == "mine\n"


# --- modes --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes_in(folder: Path, umask: int) -> dict[str, str]:
    """What does not follow the umask."""
    wanted = {False: 0o666 & ~umask, True: 0o777 & ~umask}
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    return {
        str(path.relative_to(folder)): oct(mode)
        for path, mode in modes.items()
        if mode != wanted[path.is_dir()]
    }


def test_every_writer_follows_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "run"
    root.mkdir()
    write_json(root / "summary.json", {"a": 1})
    write_text(root / "runs.csv", "a\n")
    append_text(root / "train.log", "a\n")
    Metrics(root / "metrics.jsonl").append({"step": 0})
    state = {"step": 4, "optimizer": {}}
    tensors = {name: {"w": torch.zeros(3)} for name in (checkpoint.MODEL, checkpoint.OPTIMIZER)}
    checkpoint._write(root / "checkpoints", tensors=tensors, state=state, rows=b"")
    assert checkpoint.find(root / "checkpoints").step == 4
    assert len(list(root.rglob("*"))) == 11
    assert modes_in(root, umask) == {}


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o77], indirect=True)
def test_a_whole_run_follows_the_umask(door: Door, tmp_path: Path, umask: int) -> None:
    words = [word for word in SMALL if not word.startswith("tracker")]
    done = door(
        *words,
        "tracker=wandb",
        "tracker.mode=offline",
        f"output_dir={tmp_path / 'out'}",
        env={"HOME": str(tmp_path)},
    )
    assert (done.code, done.err) == (0, "")
    odd = modes_in(the_run(tmp_path / "out"), umask)
    assert {name: mode for name, mode in odd.items() if not name.startswith("wandb")} == {}


# --- a broken disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", sorted(FAULTS), ids=lambda number: errno.errorcode[number])
def test_a_disk_that_fails_is_no_bad_input(
    number: int,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raiser(number))
        assert ended(["--json", str(out)], runs) == 1
    err = capsys.readouterr().err
    assert (err.count("\n"), out.exists()) == (1, False)
    assert f"({os.strerror(number)})" in err

    def broken(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(SystemExit) as stopped, refusals():
        read_json(next(runs.iterdir()) / "summary.json")
    assert stopped.value.code == 1
    assert os.strerror(number) in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG])
def test_a_wrong_path_is_bad_input(
    number: int, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", raiser(number))
    assert ended(["--json", str(tmp_path / "out.json")], runs) == 2


def raiser(number: int) -> Any:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def ended(words: list[str], runs: Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        compare.main([str(runs), *words])
    return int(str(stopped.value.code))
