"""What a machine decides in silence: whose code runs on it."""

from __future__ import annotations

import getpass
import os
import stat
from pathlib import Path

import pytest

from tests.conftest import Door

# A run of two steps that chooses no precision.
WIDE = [
    "model=tiny",
    "model.n_layer=1",
    "data=synthetic",
    "data.train_tokens=20000",
    "data.val_tokens=5000",
    "tracker=none",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.steps=2",
    "trainer.batch_tokens=512",
    "trainer.micro_batch=2",
    "trainer.val_every=0",
    "trainer.val_tokens=512",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("NOCAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- whose code runs ------------------------------------------------------------------------------


@pytest.fixture
def unset(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said where compiled code shall lie."""
    for name in ("INDUCTOR_CACHE_DIR", "INDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"):
        monkeypatch.delenv(f"TORCH{name}", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)


COMPILED = (*WIDE, "trainer.precision=fp32", "trainer.compile=regional")


@pytest.mark.slow
def test_compiled_code_of_another_user_never_runs(
    unset: None, cache: Path, door: Door, tmp_path: Path
) -> None:
    """A folder for temporary files that all can write in, where somebody else has made torch's own
    place before."""
    temporary = tmp_path / "temporary"
    planted = temporary / f"torchinductor_{getpass.getuser()}"
    for folder in (temporary, planted, planted / "precompiled_headers"):
        folder.mkdir()
        folder.chmod(0o777)
    # a C++ compiler that makes nothing
    path = tmp_path / "g++"
    asked = tmp_path / "asked"
    path.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\ncase "$1" in --version) echo "g++ 13.2.0";; *) exit '
        f"1;; esac\n"
    )
    path.chmod(0o700)
    env = {"TMPDIR": str(temporary), "CXX": str(path)}
    done = door(*COMPILED, env=env)
    assert done.code == 1  # there is no compiler
    paths = sorted(planted.rglob("*"))
    expected = [str(planted / "precompiled_headers")]
    assert [str(p) for p in paths] == expected
    assert str(planted) not in asked.read_text()
    assert str(cache / "compiled") in asked.read_text()
    assert stat.S_IMODE((cache / "compiled").stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_folder_for_compiled_code_that_others_can_write_in_is_refused(
    unset: None, cache: Path, door: Door, tmp_path: Path
) -> None:
    folder = cache / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    cases = (("nocap.train", COMPILED), ("nocap.profile", ("model=nano", COMPILED[-1])))
    for module, words in cases:
        done = door(*words, module=module)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert f"{folder}" in done.err
        assert "mode 777" in done.err
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert door(*COMPILED).code == 2
    folder.unlink()
    if os.getuid() == 0:
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        assert "user 65534" in door(*COMPILED).err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("variable", "path"),
    [
        ("NOCAP_CACHE", "a b"),
        ("NOCAP_CACHE", 'a"b'),
        ("TORCHINDUCTOR_CACHE_DIR", "o'brien"),
        ("TMPDIR", "for a while"),
        ("CXX", "g++ 13"),
    ],
)
def test_a_path_that_torch_would_split_is_refused(
    unset: None,
    here: Door,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    path: str,
) -> None:
    folder = tmp_path / path
    compiler = tmp_path / "g++"
    folder.mkdir()
    for file in (compiler, folder / "g++"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", None)  # looked for again
    if variable == "CXX":
        value = folder / "g++"
    else:
        value = folder
    env = {"CXX": str(compiler), variable: str(value)}
    done = here(*COMPILED, env=env)
    assert done.code == 2
    assert done.err.count("\n") == 1
    if variable == "NOCAP_CACHE":
        named = "TORCHINDUCTOR_CACHE_DIR"
    else:
        named = variable
    assert f"{named} must be a path without blanks, quotes and backslashes" in done.err
    assert str(value) in done.err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_plugins_in_a_strangers_folder_are_not_imported(door: Door, tmp_path: Path) -> None:
    for place in ("hydra_plugins/evil.py", "hydra_plugins/more/__init__.py", "study/study.yaml"):
        parent = (tmp_path / place).parent
        parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    narrow = (*WIDE, "model=nano")
    cases = (
        ("nocap", ("train", "--help"), 0),
        ("nocap.train", narrow, 0),
        ("nocap.train", ("--multirun", *narrow, "seed=0,nope"), 2),
        ("nocap.runs", ("list",), 0),
        ("nocap.study", ("study",), 2),
        ("nocap.bench", ("--arm", "model=nano", "--arm", "model=nope"), 2),
    )
    for module, words, code in cases:
        done = door(*words, module=module)
        assert done.code == code, (module, words, done.err)
        assert not (tmp_path / "ran").exists(), (module, words)
