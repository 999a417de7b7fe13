"""Where files go and whose they are: devices and links stay, modes follow the umask, and a broken
disk is not bad input."""

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
from nocap.command_line import writing
from nocap.config.errors import refusals
from nocap.store.checkpoints import MODEL, OPTIMIZER
from nocap.store.file_writing import append_text, write_file, write_text
from nocap.store.record_files import read_json, write_json
from nocap.store.rows_file import RowsFile
from nocap.training.loading import newest_valid
from nocap.training.saving import write_checkpoint
from tests.conftest import Door, the_run
from tests.in_process import TINY
from tests.test_compare import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_run(tmp_path).parent


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    name = tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(name))
        for path in (pipe, tmp_path, name, *map(Path, ("/dev/null", "/dev/stdout", "/dev/fd/1"))):
            refused = pytest.raises(
                ValueError, match=r"^--json must be a file that can be written, got "
            )
            with refused, writing("--json", path):
                pytest.fail("it began")
            if path.is_relative_to(tmp_path):
                with pytest.raises(OSError, match="not a regular file"):
                    write_file(path, b"x")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_link_that_a_person_names_is_followed_and_one_in_a_record_is_not(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    for content in ({"a": 1}, {"a": 2}):  # dangling, and not
        with writing("--json", link) as there:
            write_json(there, content)
        assert link.is_symlink()
        assert read_json(target) == {"schema_version": 1, **content}
    # as a record's summary.json, which somebody sent as a link to one's own file
    write_json(link, {"a": 3})
    assert not link.is_symlink()
    assert read_json(target) == {"schema_version": 1, "a": 2}


# --- modes ----------------------------------------------------------------------------------------


@pytest.fixture(params=[0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes_in(folder: Path, umask: int) -> dict[str, str]:
    """What does not follow the umask."""
    wanted = {False: 0o666 & ~umask, True: 0o777 & ~umask}
    paths = folder.rglob("*")
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths}
    values: dict[str, str] = {}
    for path, mode in modes.items():
        if mode != wanted[path.is_dir()]:
            values[str(path.relative_to(folder))] = oct(mode)
    return values


def test_every_writer_follows_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "run"
    root.mkdir()
    write_json(root / "summary.json", {"a": 1})
    write_text(root / "runs.csv", "a\n")
    append_text(root / "train.log", "a\n")
    RowsFile(root / "metrics.jsonl").append({"step": 0})
    state = {"step": 4, "optimizer": {}}
    tensors = {name: {"w": torch.zeros(3)} for name in (MODEL, OPTIMIZER)}
    write_checkpoint(root / "checkpoints", tensors=tensors, state=state, rows=b"")
    assert newest_valid(root / "checkpoints").step == 4
    paths = list(root.rglob("*"))
    assert len(paths) == 11
    assert modes_in(root, umask) == {}


@pytest.mark.parametrize("umask", [0o77], indirect=True)
def test_a_whole_run_follows_the_umask(here: Door, tmp_path: Path, umask: int) -> None:
    assert here(*TINY, f"output_dir={tmp_path / 'out'}").code == 0
    assert modes_in(the_run(tmp_path / "out"), umask) == {}


# --- a broken disk --------------------------------------------------------------------------------


DISK_ERRORS = [
    *((number, 1) for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE)),
    *((number, 2) for number in (errno.EACCES, errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG)),
]


@pytest.mark.parametrize(
    ("number", "code"),
    DISK_ERRORS,
    ids=lambda number: errno.errorcode.get(number) if number > 2 else "",
)
def test_a_disk_that_fails_is_no_bad_input(
    number: int,
    code: int,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a wrong path is."""

    def broken(*about: object) -> Any:
        raise OSError(number, os.strerror(number), *filter(lambda it: isinstance(it, Path), about))

    out = tmp_path / "out.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(SystemExit, match=rf"^{code}$"):
            compare.main([str(runs), "--json", str(out)])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert not out.exists()
    if code == 1:
        assert f"({os.strerror(number)})" in err
        monkeypatch.setattr(Path, "read_bytes", broken)
        with pytest.raises(SystemExit, match=r"^1$"), refusals():
            read_json(next(runs.iterdir()) / "summary.json")
        assert os.strerror(number) in capsys.readouterr().err
