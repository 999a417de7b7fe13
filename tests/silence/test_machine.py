"""What a machine decides in silence: the precision that is faster on it, and whose code runs on it."""

from __future__ import annotations

import getpass
import json
import os
import re
import stat
from pathlib import Path

import pytest

from tests.conftest import Door, the_run

# A run of two steps that is wide enough for bf16, and chooses no precision.
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
CPU = Path("/proc/cpuinfo")
NATIVE = CPU.exists() and re.search(
    r"^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b", CPU.read_text(), re.M
)
native = pytest.mark.skipif(
    not NATIVE, reason="this CPU has no bf16 products, and computes in fp32 without a probe"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("NOCAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def default(door: Door, *words: str) -> str:
    """The precision that the command gets."""
    shown = door(*WIDE, *words, "--cfg", "job", "--resolve")
    assert shown.code == 0, shown.err
    return re.findall(r"^  precision: (\w+)", shown.out, re.M)[0]


# --- precision ----------------------------------------------------------------------------------------------


@native
@pytest.mark.slow
def test_bf16_is_the_default_only_where_it_is_faster(cache: Path, here: Door, tmp_path: Path) -> None:
    cache.mkdir()
    kept = cache / "bf16.json"
    kept.write_text('{"AMD EP')  # a damaged answer is measured again
    measured = default(here)
    ((key, gain),) = json.loads(kept.read_text()).items()
    assert key.endswith(", 1 threads, 512 x 128 x 512")
    assert measured == ("bf16" if gain >= 1.2 else "fp32")

    kept.write_text(json.dumps({key: 2.0}))  # what is kept decides, and nothing is measured again
    assert (default(here), default(here, "trainer.precision=fp32")) == ("bf16", "fp32")
    kept.write_text(json.dumps({key: 0.56}))
    trained = here(*WIDE)
    assert "\ncompile off: " in trained.out
    assert "precision fp32: bf16 is 0.56 times as fast here (512 × 128 × 512, 1 thread)" in trained.out
    assert json.loads(kept.read_text()) == {key: 0.56}

    kept.unlink()  # the run that is there goes before another probe
    again = here(*WIDE)
    assert ("already finished" in again.out, kept.exists()) == (True, False)
    assert the_run(tmp_path / "outputs")


@native
def test_a_record_decides_where_nobody_has_measured(cache: Path, here: Door, tmp_path: Path) -> None:
    """Also a half-done one, and in a grid."""
    assert here(*WIDE, "trainer.precision=bf16").code == 0
    assert "already finished" in here(*WIDE).out
    (the_run(tmp_path / "outputs") / "summary.json").unlink()
    assert here("--multirun", *WIDE, "seed=0,1").code == 0
    configs = [path.read_text() for path in (tmp_path / "outputs").rglob("config.yaml")]
    assert [re.findall(r"^  precision: (\w+)", text, re.M) for text in configs] == [["bf16"], ["bf16"]]
    assert not (cache / "bf16.json").exists()


@pytest.mark.slow
def test_what_decides_nothing_is_not_measured(cache: Path, here: Door) -> None:
    """A precision that is given, a narrow shape, an arm that is not the baseline, a question."""
    assert default(here, "trainer.precision=bf16") == "bf16"
    questions = (("experiment=d12_step", "--cfg", "job"), (*WIDE, "--cfg", "job"), (*WIDE, "--help"))
    for words in (*questions, ("--multirun", *WIDE, "model=nano,tiny")):
        assert here(*words).code == 0
    assert not (cache / "bf16.json").exists()


# --- whose code runs ----------------------------------------------------------------------------------------


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
    """A folder for temporary files that all can write in, where somebody else has made torch's own place
    before."""
    temporary = tmp_path / "temporary"
    planted = temporary / f"torchinductor_{getpass.getuser()}"
    for folder in (temporary, planted, planted / "precompiled_headers"):
        folder.mkdir()
        folder.chmod(0o777)
    path, asked = tmp_path / "g++", tmp_path / "asked"  # a C++ compiler that makes nothing
    path.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\ncase "$1" in --version) echo "g++ 13.2.0";; *) exit 1;; esac\n'
    )
    path.chmod(0o700)
    done = door(*COMPILED, env={"TMPDIR": str(temporary), "CXX": str(path)})
    assert done.code == 1  # there is no compiler
    assert [str(p) for p in sorted(planted.rglob("*"))] == [str(planted / "precompiled_headers")]
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
    for module, words in (("nocap.train", COMPILED), ("nocap.profile", ("model=nano", COMPILED[-1]))):
        done = door(*words, module=module)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert (f"{folder}" in done.err, "mode 777" in done.err) == (True, True)
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
    unset: None, here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, path: str
) -> None:
    folder, compiler = tmp_path / path, tmp_path / "g++"
    folder.mkdir()
    for file in (compiler, folder / "g++"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", None)  # looked for again
    value = folder / "g++" if variable == "CXX" else folder
    done = here(*COMPILED, env={"CXX": str(compiler), variable: str(value)})
    assert done.code == 2
    assert done.err.count("\n") == 1
    named = "TORCHINDUCTOR_CACHE_DIR" if variable == "NOCAP_CACHE" else variable
    assert f"{named} must be a path without blanks, quotes and backslashes" in done.err
    assert str(value) in done.err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_plugins_in_a_strangers_folder_are_not_imported(door: Door, tmp_path: Path) -> None:
    for place in ("hydra_plugins/evil.py", "hydra_plugins/more/__init__.py", "study/study.yaml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    narrow = (*WIDE, "model=nano")
    for module, words, code in (
        ("nocap", ("train", "--help"), 0),
        ("nocap.train", narrow, 0),
        ("nocap.train", ("--multirun", *narrow, "seed=0,nope"), 2),
        ("nocap.runs", ("list",), 0),
        ("nocap.study", ("study",), 2),
        ("nocap.bench", ("--arm", "model=nano", "--arm", "model=nope"), 2),
    ):
        done = door(*words, module=module)
        assert done.code == code, (module, words, done.err)
        assert not (tmp_path / "ran").exists(), (module, words)
