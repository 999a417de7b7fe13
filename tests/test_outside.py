"""Options from outside: what brings them in, what is refused, and that each process has the same bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from nocap import outside
from nocap.config import registry
from nocap.config.compose import compose
from nocap.config.plain import load
from nocap.store.source import source_hashes
from tests.attempts import state_of
from tests.conftest import FAULTS, REPO, SMALL, Door, Undisturbed, rows_of, the_run

STRANGERS = REPO / "tests" / "strangers"
MINE = [word for word in SMALL if not word.startswith("data")]  # for a data source of its own
NAMES = ("softcap", "geglu", "signum", "next_but_one", "my_x0", "my_value_embeddings", "counting", "csv_rows")
WORDS = {  # how each is asked for
    "softcap": ("attention=softcap",),
    "geglu": ("mlp=geglu",),
    "signum": ("optimizer=signum",),
    "next_but_one": ("ideas=[next_but_one]",),
    "my_x0": ("ideas=[my_x0]",),
    "my_value_embeddings": ("ideas=[my_value_embeddings]",),
    "counting": ("data=counting",),
    "csv_rows": ("tracker=csv_rows",),
}


def asked(*names: str) -> list[str]:
    """The command line of a small run with these, all ideas together."""
    flags = [word for name in names for word in ("--config-dir", str(STRANGERS / name))]
    ideas = [name for name in names if WORDS[name][0].startswith("ideas=")]
    words = [word for name in names if name not in ideas for word in WORDS[name]]
    base = MINE if "counting" in names else list(SMALL)
    chosen = [word for word in base if not (word == "tracker=none" and "csv_rows" in names)]
    return [*flags, *chosen, *words, *([f"ideas=[{','.join(ideas)}]"] if ideas else [])]


# --- a stranger's idea, one file and one yaml --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_idea_is_one_short_file_and_one_yaml(name: str):
    files = [path for path in (STRANGERS / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sorted(path.suffix for path in files) == [".py", ".yaml"]
    assert all(len(path.read_text().splitlines()) < 60 for path in files)


TOGETHER = pytest.param(("my_x0", "my_value_embeddings"), marks=pytest.mark.slow, id="my_x0 and my_value_embeddings")


@pytest.mark.parametrize("names", [pytest.param(NAMES, marks=pytest.mark.slow, id="all at once"), TOGETHER])
def test_it_trains_resumes_and_is_in_the_record(door: Door, tmp_path: Path, names: tuple[str, ...]):
    words = asked(*names)
    assert door(*words, "output_dir=whole").code == 0
    killed = door(*words, env={"PYTHONPATH": FAULTS, "NOCAP_FAULT": "kill@7", "NOCAP_FAULT_DIR": str(tmp_path)})
    assert killed.code == 0, killed.err
    assert "starting again from the last checkpoint" in killed.err
    run_dir = the_run(tmp_path / "whole")
    assert state_of(the_run(tmp_path / "outputs")) == state_of(run_dir)
    rows, summary = rows_of(run_dir), json.loads((run_dir / "summary.json").read_text())
    assert rows[-1]["val/loss"] < rows[0]["val/loss"]
    assert summary["status"] == "finished"
    for name in names:
        (group,) = [path.name for path in (STRANGERS / name).iterdir()]
        copies = [run_dir / "options" / group / f"{name}{suffix}" for suffix in (".py", ".yaml")]
        assert [copy.read_bytes() for copy in copies] == [(STRANGERS / name / group / copy.name).read_bytes() for copy in copies]
        manifest = json.loads((run_dir / "manifest.json").read_text())
        assert (group, name) in {(row["group"], row["name"]) for row in manifest["outside"]}
        assert (f"nocap.outside.{group}.{name}" in manifest["parts"]["source"]) == (group not in ("data", "tracker"))
    if "next_but_one" in names:
        assert rows[0]["train/loss_next_but_one"] > 0
    if "csv_rows" in names:
        lines = (run_dir / "rows.csv").read_text().splitlines()
        assert lines[0] == "step,tokens,train/loss,val/loss"
        assert len(lines) == 1 + len(rows)
    if "csv_rows" not in names or len(names) > 1:
        text = door(f"run={run_dir}", "max_tokens=4", "--allow-code", module="nocap.generate")
        assert text.code == 0, text.err
        assert ("no cache" in text.err) == ("softcap" in names)


def test_a_tracker_that_fails_stops_no_training(here: Door, tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "csv_rows", tmp_path / "broken")
    file = folder / "tracker" / "csv_rows.py"
    file.write_text(file.read_text().replace("def log(self, row):", "def log(self, row):\n        raise OSError('no room')"))
    words = [word for word in asked("csv_rows") if word != str(STRANGERS / "csv_rows")]
    words.insert(1, str(folder))
    done = here(*words)
    assert done.code == 0
    assert done.err.count("no mirror of this run from here on: no room") == 1


# --- text from it ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generate_asks_for_the_code(door: Door, tmp_path: Path):
    assert door(*asked("softcap")).code == 0
    run = f"run={the_run(tmp_path / 'outputs')}"
    refused = door(run, module="nocap.generate")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "attention.kind must be one of" in refused.err
    assert "--allow-code" in refused.err
    given = door(run, "max_tokens=8", "--config-dir", str(STRANGERS / "softcap"), module="nocap.generate")
    copied = door(run, "max_tokens=8", "--allow-code", module="nocap.generate")
    assert given.code == copied.code == 0
    assert given.out == copied.out
    assert "no cache: attention.kind=softcap defines no cache_slots of its mixer; the prefix is computed again" in given.err


def test_a_record_brings_no_code_along(here: Door, tmp_path: Path, undisturbed: Undisturbed):
    """Whatever a stranger put into it."""
    run_dir, mark = shutil.copytree(undisturbed.run_dir, tmp_path / "runs" / undisturbed.run_dir.name), tmp_path / "mark"
    (run_dir / "options" / "attention").mkdir(parents=True)
    code = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"
    (run_dir / "options" / "attention" / "evil.py").write_text(code)
    config = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(config.replace("kind: global", "kind: evil"))
    assert here(f"run={run_dir}", module="nocap.generate").code == 2
    refused = here(str(run_dir), module="nocap.compare")
    assert refused.code == 2
    assert "config.yaml is not what its digest in summary.json says" in refused.err
    assert not mark.exists()


# --- what is refused ---------------------------------------------------------------------------------------------------------------


def option(folder: Path, name: str, source: str, *, group: str = "attention") -> list[str]:
    """The words of a run with an option of this source."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.py").write_text(source)
    (folder / group / f"{name}.yaml").write_text(f"defaults: [/schema/{group}/{name}@_here_]\nn_kv_heads: 4\n")
    return ["--config-dir", str(folder), *SMALL, f"{group}={name}"]


GOOD = (STRANGERS / "softcap" / "attention" / "softcap.py").read_text().replace("    cap: float\n", "    cap: float = 1.0\n")


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("broken", "def (:\n", "broken.py cannot be imported: SyntaxError"),
        ("failing", "import nothing_like_this\n", "failing.py cannot be imported: ModuleNotFoundError"),
        ("raising", "raise ValueError('no')\n", "raising.py cannot be imported: ValueError: no"),
        ("empty", "x = 1\n", "empty.py must define an option: a dataclass that extends Attention"),
        ("taken", GOOD.replace('"softcap"', '"global"'), "Softcap must have a kind of its own, as in kind: str = 'taken', got 'global'"),
        ("undecorated", GOOD.replace("@dataclass(kw_only=True)\n", ""), "Softcap must be decorated as a dataclass"),
        ("flash", GOOD, "flash.yaml must have another name"),
        ("not-a-name", GOOD, "must be named as a Python module is"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, source: str, says: str):
    flag, folder, *words = option(tmp_path / "mine", name, source)
    assert flag == "--config-dir"

    def ask() -> None:
        outside.use([folder])
        compose(words)

    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        ask()
    assert len(str(refused.value).splitlines()) == 1


def test_a_bad_file_is_refused_at_the_door(door: Door, tmp_path: Path):
    done = door(*option(tmp_path / "mine", "broken", "def (:\n"))
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("attention.cpa=3",), "attention.cpa is no key of softcap (did you mean cap?)"),
        (("attention.cap=abc",), "attention.cap"),
        (("attention.cap=-1",), "attention.cap must be above 0, got -1.0"),
        (("attention.cap=inf",), "attention.cap must be a finite number"),
        (("attention.kind=global",), "attention.kind must stay what the option set"),
    ],
)
def test_wrong_keys_are_refused_like_built_in_ones(words: tuple[str, ...], says: str):
    outside.use([STRANGERS / "softcap"])
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        compose([*SMALL, "attention=softcap", *words])
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("module", ["train", "bench", "profile", "generate", "study", "compare", "data"])
def test_every_door_refuses_a_folder_that_is_not_there(door: Door, module: str):
    done = door("--config-dir", "nowhere", module=f"nocap.{module}")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--config-dir must be a folder, got " in done.err


def test_two_options_of_one_name_are_refused(here: Door, tmp_path: Path):
    shutil.copytree(STRANGERS / "softcap", tmp_path / "again")
    done = here("--config-dir", str(tmp_path / "again"), *asked("softcap"))
    assert done.code == 2
    assert "must have another name" in done.err


def test_a_file_that_changed_since_the_command_began_is_refused(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "softcap", tmp_path / "mine")
    outside.use([folder])
    (file,) = outside.files()
    assert file.load().Softcap
    path = folder / "attention" / "softcap.py"
    path.write_text(path.read_text() + "\n")
    del sys.modules[file.module]  # another process, which has the environment of this one
    with pytest.raises(ValueError, match="must be what this command began with, sha256"):
        file.load()


# --- identity ----------------------------------------------------------------------------------------------------------------------


def test_its_source_is_in_the_identity(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "softcap", tmp_path / "mine")
    path, hashes = folder / "attention" / "softcap.py", []
    for text in (path.read_text(), path.read_text().replace("torch.tanh", "torch.sin"), "# a comment\n" + path.read_text()):
        path.write_text(text)
        os.environ.pop(outside.VARIABLE, None)
        outside.use([folder])
        hashes.append(source_hashes(compose([*SMALL, "attention=softcap", "attention.cap=2"])))
    assert hashes[0] == hashes[2]
    changed = [module for module in hashes[0] if hashes[0][module] != hashes[1][module]]
    assert changed == ["nocap.outside.attention.softcap"]


def test_an_option_that_is_there_and_not_used_changes_no_identity():
    before = source_hashes(compose(list(SMALL)))
    outside.use([STRANGERS / name for name in NAMES])
    assert source_hashes(compose(list(SMALL))) == before


# --- an installed package ----------------------------------------------------------------------------------------------------------


def installed(site: Path) -> None:
    """A package with an option, as pip would leave it, whose option imports a module of the package's own."""
    shutil.copytree(STRANGERS / "softcap", site / "their_ideas" / "options")
    for folder in (site / "their_ideas", site / "their_ideas" / "options"):
        (folder / "__init__.py").touch()
    (site / "their_ideas" / "caps.py").write_text("SMALLEST = 0\n")
    file = site / "their_ideas" / "options" / "attention" / "softcap.py"
    file.write_text(
        file.read_text().replace("import torch\n", "import torch\n\nfrom their_ideas.caps import SMALLEST\n").replace("> 0", "> SMALLEST")
    )
    facts = site / "their_ideas-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-ideas\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[nocap.options]\ntheirs = their_ideas.options\n")


@pytest.mark.slow
def test_an_installed_package_brings_options(door: Door, tmp_path: Path):
    installed(tmp_path / "site")
    path = {"PYTHONPATH": os.pathsep.join([str(REPO), str(tmp_path / "site")])}
    done = door(*SMALL, "attention=softcap", env=path)
    assert done.code == 0, done.err
    source = json.loads((the_run(tmp_path / "outputs") / "manifest.json").read_text())["parts"]["source"]
    assert {"nocap.outside.attention.softcap", "their_ideas.caps"} <= source.keys()
    assert door(*SMALL, "attention=softcap").code == 2  # without the package


# --- records -----------------------------------------------------------------------------------------------------------------------


def test_a_config_from_before_ideas_is_read(tmp_path: Path):
    from nocap.config.plain import dump, to_plain

    plain = to_plain(compose(list(SMALL)))
    for group in ("mlp", "norm", "model", "objective", "tokenizer"):
        del plain[group]["kind"]
    del plain["ideas"]
    (tmp_path / "config.yaml").write_text(dump(plain))
    assert to_plain(load(tmp_path / "config.yaml")) == to_plain(compose(list(SMALL)))


def test_groups_are_folders():
    assert set(registry.groups()) >= {"attention", "mlp", "norm", "position", "ideas", "optimizer", "schedule", "objective", "data"}
    kinds: dict[str, Any] = {group: registry.options(group) for group in registry.groups()}
    assert all(kinds.values())
    assert all(cls.__doc__ for rows in kinds.values() for cls in rows.values())
