"""Options from outside: what brings them in, what is refused, and that each process has the same bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from nocap import outside
from nocap.config.compose import compose
from nocap.store.identity import source_hashes
from tests.attempts import state_of
from tests.conftest import FAULTS, REPO, SMALL, Door, Undisturbed, rows_of, the_run

STRANGERS = REPO / "tests" / "strangers"
WORDS = {  # how each is asked for
    "head_temperature": ("attention=head_temperature",),
    "scaled_relu2": ("mlp=scaled_relu2",),
    "sophia": ("optimizer=sophia", "optimizer.every=5"),
    "power_law": ("schedule=power_law",),
    "ngram_loss": ("ideas=[ngram_loss]",),
    "first_values": ("ideas=[first_values]",),
    "parallel": ("model=parallel",),
    "jsonl": ("data=jsonl", "data.path=numbers.jsonl"),
    "sqlite_rows": ("tracker=sqlite_rows",),
}
NAMES = tuple(WORDS)


def flags(*names: str) -> list[str]:
    return [word for name in names for word in ("--config-dir", str(STRANGERS / name))]


def without(groups: set[str], words: tuple[str, ...] = SMALL) -> list[str]:
    """A small run's words, but for those of these groups."""
    return [word for word in words if word.partition("=")[0].partition(".")[0] not in groups]


def asked(*names: str) -> list[str]:
    """The command line of a small run with these, all ideas together."""
    ideas = [name for name in names if WORDS[name][0].startswith("ideas=")]
    words = [word for name in names if name not in ideas for word in WORDS[name]]
    base = without({word.partition("=")[0] for word in words})
    return [*flags(*names), *base, *words, *([f"ideas=[{','.join(ideas)}]"] if ideas else [])]


# --- a stranger's idea, one file and one yaml ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_idea_is_one_short_file_and_one_yaml(name: str):
    files = [
        path for path in (STRANGERS / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sorted(path.suffix for path in files) == [".py", ".yaml"]
    assert all(len(path.read_text().splitlines()) <= 80 for path in files)


@pytest.mark.slow
@pytest.mark.usefixtures("numbers")
def test_all_train_at_once_resume_and_are_in_the_record(door: Door, tmp_path: Path):
    words = asked(*NAMES)
    assert door(*words, "output_dir=whole").code == 0
    killed = door(
        *words, env={"PYTHONPATH": FAULTS, "NOCAP_FAULT": "kill@7", "NOCAP_FAULT_DIR": str(tmp_path)}
    )
    assert killed.code == 0, killed.err
    assert "starting again from the last checkpoint" in killed.err
    run_dir, again = the_run(tmp_path / "whole"), the_run(tmp_path / "outputs")
    assert state_of(again) == state_of(run_dir)
    rows, summary = rows_of(run_dir), json.loads((run_dir / "summary.json").read_text())
    assert rows[-1]["val/loss"] < rows[0]["val/loss"]
    assert rows[0]["train/loss_ngram_loss"] > 0
    assert summary["status"] == "finished"
    manifest = json.loads((run_dir / "manifest.json").read_text())
    for name in NAMES:
        (group,) = [path.name for path in (STRANGERS / name).iterdir()]
        for file in (STRANGERS / name / group).glob("*.*"):
            assert (run_dir / "options" / group / file.name).read_bytes() == file.read_bytes()
        assert (group, name) in {(row["group"], row["name"]) for row in manifest["outside"]}
        in_source = f"nocap.outside.{group}.{name}" in manifest["parts"]["source"]
        assert in_source == (group not in ("data", "tracker"))
    losses = [(row["step"], row["val/loss"]) for row in rows if "val/loss" in row]
    for folder in (run_dir, again):
        select = "SELECT step, value FROM rows WHERE name = 'val/loss' ORDER BY step"
        assert sqlite3.connect(folder / "rows.sqlite").execute(select).fetchall() == losses
    text = door(f"run={run_dir}", "max_tokens=4", "--allow-code", module="nocap.generate")
    assert text.code == 0, text.err
    assert "no cache: model.kind=parallel" in text.err


@pytest.mark.slow
def test_what_is_per_token_decodes_from_a_cache(door: Door, tmp_path: Path):
    assert door(*asked("sophia", "scaled_relu2", "ngram_loss", "first_values")).code == 0
    run = f"run={the_run(tmp_path / 'outputs')}"
    text = door(run, "max_tokens=4", "--allow-code", module="nocap.generate")
    assert text.code == 0, text.err
    assert "no cache" not in text.err


@pytest.mark.slow
def test_a_tracker_that_fails_stops_no_training(here: Door, tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "sqlite_rows", tmp_path / "broken")
    file = folder / "tracker" / "sqlite_rows.py"
    file.write_text(
        file.read_text().replace(
            "def log(self, row):", "def log(self, row):\n        raise OSError('no room')"
        )
    )
    done = here("--config-dir", str(folder), *asked("sqlite_rows")[2:])
    assert done.code == 0
    assert done.err.count("no mirror of this run from here on: no room") == 1


# --- text from it -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generate_asks_for_the_code(here: Door, tmp_path: Path):
    assert here(*asked("head_temperature")).code == 0
    run = f"run={the_run(tmp_path / 'outputs')}"
    refused = here(run, module="nocap.generate")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "attention.kind must be one of" in refused.err
    assert "--allow-code" in refused.err
    given = here(
        run, "max_tokens=8", "--config-dir", str(STRANGERS / "head_temperature"), module="nocap.generate"
    )
    copied = here(run, "max_tokens=8", "--allow-code", module="nocap.generate")
    assert given.code == copied.code == 0
    assert given.out == copied.out
    assert (
        "no cache: attention.kind=head_temperature defines no cache_slots of its mixer with these keys; "
        "the prefix is computed again" in given.err
    )


def test_a_record_brings_no_code_along(here: Door, tmp_path: Path, undisturbed: Undisturbed):
    """Whatever a stranger put into it."""
    run_dir, mark = (
        shutil.copytree(undisturbed.run_dir, tmp_path / "runs" / undisturbed.run_dir.name),
        tmp_path / "mark",
    )
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


def test_experiments_of_a_folder_may_lie_deeper_and_its_name_be_odd(tmp_path: Path):
    folder = tmp_path / "it's a \\ folder, [with] ${odd} {letters}\\" / "experiment" / "mine"
    folder.mkdir(parents=True)
    (folder / "short.yaml").write_text("# @package _global_\ntrainer: {steps: 3}\n")
    outside.use([folder.parents[1]])
    assert compose([*SMALL[:1], "experiment=mine/short"]).trainer.steps == 3


# --- what is refused ----------------------------------------------------------------------------------------


def option(folder: Path, name: str, source: str, *, group: str = "attention") -> list[str]:
    """The words of a run with an option of this source."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.py").write_text(source)
    (folder / group / f"{name}.yaml").write_text(f"kind: {name}\nn_kv_heads: 4\n")
    return ["--config-dir", str(folder), *SMALL, f"{group}={name}"]


GOOD = (STRANGERS / "head_temperature" / "attention" / "head_temperature.py").read_text()
GOOD = GOOD.replace("    start: float\n", "    start: float = 1.0\n")


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("broken", "def (:\n", "broken.py cannot be imported: SyntaxError"),
        ("failing", "import nothing_like_this\n", "failing.py cannot be imported: ModuleNotFoundError"),
        ("raising", "raise ValueError('no')\n", "raising.py cannot be imported: ValueError: no"),
        ("empty", "x = 1\n", "empty.py must define an option, got no dataclass of Attention"),
        (
            "taken",
            GOOD.replace('"head_temperature"', '"global"'),
            "must have a kind of its own, as in kind: str = 'taken', got 'global'",
        ),
        (
            "undecorated",
            GOOD.replace("@dataclass(kw_only=True)\n", ""),
            "HeadTemperature must be decorated as a dataclass",
        ),
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("attention.strat=3",), "attention.strat is no key of head_temperature (did you mean start?)"),
        (("attention.start=abc",), "attention.start"),
        (("attention.start=-1",), "attention.start must be above 0, got -1.0"),
        (("attention.start=inf",), "attention.start must be a finite number"),
        (("attention.kind=global",), "attention.kind must stay what the option set"),
    ],
)
def test_wrong_keys_are_refused_like_built_in_ones(words: tuple[str, ...], says: str):
    outside.use([STRANGERS / "head_temperature"])
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        compose([*SMALL, "attention=head_temperature", *words])
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("module", ["train", "bench", "profile", "generate", "study", "compare", "data"])
def test_every_door_refuses_a_folder_that_is_not_there(door: Door, module: str):
    done = door("--config-dir", "nowhere", module=f"nocap.{module}")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--config-dir must be a folder, got " in done.err


def test_a_file_that_changed_since_the_command_began_is_refused(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    outside.use([folder])
    (file,) = outside.files()
    assert file.load().HeadTemperature
    path = folder / "attention" / "head_temperature.py"
    path.write_text(path.read_text() + "\n")
    del sys.modules[file.module]  # another process, which has the environment of this one
    with pytest.raises(ValueError, match="must be what this command began with, sha256"):
        file.load()


# --- identity -----------------------------------------------------------------------------------------------


def test_its_source_is_in_the_identity(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    path, hashes = folder / "attention" / "head_temperature.py", []
    for text in (
        path.read_text(),
        path.read_text().replace("q_BHTD * self", "q_BHTD / self"),
        "# a comment\n" + path.read_text(),
    ):
        path.write_text(text)
        os.environ.pop(outside.VARIABLE, None)
        outside.use([folder])
        hashes.append(source_hashes(compose([*SMALL, "attention=head_temperature"])))
    assert hashes[0] == hashes[2]
    changed = [module for module in hashes[0] if hashes[0][module] != hashes[1][module]]
    assert changed == ["nocap.outside.attention.head_temperature"]


def test_an_option_that_is_there_and_not_used_changes_no_identity():
    before = source_hashes(compose(list(SMALL)))
    outside.use([STRANGERS / name for name in NAMES])
    assert source_hashes(compose(list(SMALL))) == before


# --- an installed package -----------------------------------------------------------------------------------


def installed(site: Path) -> None:
    """A package with an option, as pip would leave it, whose option imports a module of the package's own."""
    shutil.copytree(STRANGERS / "head_temperature", site / "their_ideas" / "options")
    for folder in (site / "their_ideas", site / "their_ideas" / "options"):
        (folder / "__init__.py").touch()
    (site / "their_ideas" / "starts.py").write_text("SMALLEST = 0\n")
    file = site / "their_ideas" / "options" / "attention" / "head_temperature.py"
    file.write_text(
        file.read_text()
        .replace("import torch\n", "import torch\nfrom their_ideas.starts import SMALLEST\n")
        .replace("> 0", "> SMALLEST")
    )
    facts = site / "their_ideas-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-ideas\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[nocap.options]\ntheirs = their_ideas.options\n")


@pytest.mark.slow
def test_an_installed_package_brings_options(door: Door, tmp_path: Path):
    installed(tmp_path / "site")
    path = {"PYTHONPATH": os.pathsep.join([str(REPO), str(tmp_path / "site")])}
    done = door(*SMALL, "attention=head_temperature", env=path)
    assert done.code == 0, done.err
    source = json.loads((the_run(tmp_path / "outputs") / "manifest.json").read_text())["parts"]["source"]
    assert {"nocap.outside.attention.head_temperature", "their_ideas.starts"} <= source.keys()
    assert door(*SMALL, "attention=head_temperature").code == 2  # without the package


# --- the shelf ----------------------------------------------------------------------------------------------


def test_groups_are_folders():
    assert set(outside.groups()) >= {
        "attention",
        "mlp",
        "norm",
        "position",
        "ideas",
        "optimizer",
        "schedule",
        "objective",
        "data",
    }
    kinds: dict[str, Any] = {group: outside.options(group) for group in outside.groups()}
    assert all(kinds.values())
    assert all(cls.__doc__ for rows in kinds.values() for cls in rows.values())
