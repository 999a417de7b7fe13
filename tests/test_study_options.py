"""Options that a study brings: the folder that its `config_dir` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from nocap import outside
from nocap.study.study_folder import files_of, load_study
from tests.conftest import REPO, Door
from tests.studies import LOSS, claim, study, written

SOFTER = """\
from dataclasses import dataclass

from nocap.options.ideas import Idea


@dataclass(kw_only=True, slots=True)
class KIND(Idea):
    kind: str = "KIND"

    def embed(self, part, x_BTC, context):
        return 0.5 * x_BTC

    def build(self, run, *, vocab_size):
        from torch import nn

        return nn.Module()
"""


def made(folder: Path, kind: str, config_dir: str = "own") -> Path:
    """Write a study whose second arm is an idea of its own, and return its folder."""
    arms = {"mha": ["attention=flash"], "mqa": [f"ideas=[{kind}]"]}
    claims = [claim(LOSS)]
    content = study(arms=arms, config_dir=config_dir, claims=claims)
    place = folder / "own" / "ideas"
    place.mkdir(parents=True)
    text = SOFTER.replace("KIND", kind)
    (place / f"{kind}.py").write_text(text)
    (place / f"{kind}.yaml").write_text(f"# @package ideas.{kind}\nkind: {kind}\n")
    return written(folder, content)


@pytest.mark.slow
def test_a_study_is_carried_out_with_its_own_options(here: Door, tmp_path: Path) -> None:
    made(tmp_path / "first", "softer")
    done = here("first", "--allow-code", module="nocap.study")
    assert done.code == 0, done.err
    assert (
        "nocap.study first scale=cpu --allow-code" in (tmp_path / "first" / "README.md").read_text()
    )
    assert "M.loss" in (tmp_path / "first" / "README.md").read_text()
    paths = (tmp_path / "outputs" / "runs").iterdir()
    runs = [path.name for path in paths]
    names = [name for name in runs if "softer" in name]
    assert len(names) == 3


@pytest.mark.slow
def test_several_studies_have_options_of_their_own(here: Door, tmp_path: Path) -> None:
    made(tmp_path / "first", "softer")
    made(tmp_path / "second", "weaker")
    done = here("first", "second", "--judge", "--allow-code", module="nocap.study")
    assert done.code == 1, done.err  # nothing was trained
    assert "ideas=[softer]" in done.out
    assert "ideas=[weaker]" in done.out


@pytest.mark.parametrize("flag", ["--plan", "--judge"])
def test_code_that_nobody_allowed_is_not_run(flag: str, here: Door, tmp_path: Path) -> None:
    folder = made(tmp_path / "first", "softer")
    ran = tmp_path / "ran"
    (folder / "own" / "ideas" / "softer.py").write_text(f"open({str(ran)!r}, 'w')\n")
    done = here("first", flag, module="nocap.study")

    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "holds code that this command runs only with --allow-code" in done.err
    assert not ran.exists()


def test_leave_to_run_code_is_refused_where_there_is_none(here: Door, tmp_path: Path) -> None:
    content = study(claims=[claim(LOSS)])
    written(tmp_path / "plain", content)
    done = here("plain", "--judge", "--allow-code", module="nocap.study")
    assert done.code == 2
    assert "--allow-code works only for a study that sets config_dir" in done.err
    done = here("--board", ".", "--allow-code", module="nocap.study")
    assert done.code == 2
    assert "--allow-code does not work with --board" in done.err


def test_the_options_of_a_study_are_no_other_commands(here: Door, tmp_path: Path) -> None:
    made(tmp_path / "first", "softer")
    done = here("ideas=[softer]", "--cfg", "job")
    assert done.code == 2
    assert "ideas/softer is no option" in done.err


@pytest.mark.parametrize("value", ["../elsewhere", "nowhere", "study.yaml", "/", "link"])
def test_a_folder_that_is_not_inside_the_studys_is_refused(
    value: str, here: Door, tmp_path: Path
) -> None:
    folder = made(tmp_path / "first", "softer", config_dir=value)
    made(tmp_path / "elsewhere", "weaker")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    done = here("first", "--judge", module="nocap.study")

    assert done.code == 2
    assert done.err.count("\n") == 1
    assert f"config_dir must be a folder inside the study's folder, got {value}" in done.err


def test_to_read_a_study_imports_nothing_of_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "first", "softer")
    (folder / "own" / "ideas" / "softer.py").write_text("raise RuntimeError\n")
    assert load_study(folder).config_dir == "own"
    assert outside.config_dirs() == []


def test_the_files_of_a_study_are_its_yaml_and_its_options() -> None:
    names = {"study.yaml"}
    for idea in ("curriculum", "entropy"):
        names |= {f"options/ideas/{idea}.py", f"options/ideas/{idea}.yaml"}
    files = files_of(load_study(REPO / "experiments" / "objectives"))
    assert {str(path) for path in files} == names
    content = (REPO / "experiments" / "objectives" / "study.yaml").read_bytes()
    assert files[Path("study.yaml")] == content
