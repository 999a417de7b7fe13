"""nocap's own studies by name, in a folder that has no checkout around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nocap.config.errors import FailedError
from nocap.study.__main__ import main
from nocap.study.study_folder import folder_of, shipped
from nocap.study.study_plan import StudyPlan
from tests.conftest import REPO

YAML = REPO / "experiments" / "order_short" / "study.yaml"


@pytest.fixture(autouse=True)
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StudyPlan]:
    """The plans that were shown or carried out in an empty folder; none trains anything."""
    made = list[StudyPlan]()

    def carry_out(plan: StudyPlan, **more: Any) -> None:
        made.append(plan)
        raise FailedError("not carried out in this test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "nocap.study.plan_preview.render", lambda plan: made.append(plan) or "planned"
    )
    monkeypatch.setattr("nocap.study.carry_out.carry_out", carry_out)
    return made


@pytest.mark.slow
def test_a_plan_writes_nothing_and_a_run_makes_the_studys_own_folder(
    tmp_path: Path, plans: list[StudyPlan]
) -> None:
    file = tmp_path / "experiments" / "order_short" / "study.yaml"
    for mode in ("--plan", "--judge"):
        main(["order_short", "scale=cpu", mode])
        assert list(tmp_path.iterdir()) == []
    assert main(["experiments/order_short", "scale=cpu"]) == 1
    assert file.read_bytes() == YAML.read_bytes()
    folders = [plan.study.folder for plan in plans]
    assert folders == [str(file.parent)] * 3
    changed = YAML.read_text().replace("question: ", "question: Of mine, ", 1)
    file.write_text(changed)
    # from here on the file in this folder is the study
    assert main(["order_short", "scale=cpu"]) == 1
    assert file.read_text() == changed
    assert plans[-1].study.question.startswith("Of mine, ")


def test_a_name_in_this_folder_comes_first_and_an_unknown_one_is_refused_with_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = (REPO / "experiments").glob("*/study.yaml")
    names = {path.parent.name for path in paths}
    assert set(shipped()) == names
    (tmp_path / "gqa").mkdir()
    assert folder_of("gqa") == Path("gqa")
    assert folder_of("mlp") == Path("experiments/mlp")
    for word in ("gqq", "elsewhere/gqa", "../gqa", "/nowhere/gqa", "experiments/../gqa"):
        with pytest.raises(SystemExit, match="2"):
            main([word, "--plan"])
        assert "or one of nocap's studies: anatomy, fused, gqa, " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["gqa"]
