"""A dashboard as W&B's own library reads it back. Nothing leaves this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nocap import dashboard
from tests.conftest import REPO
from tests.test_compare import STEPS, write_run

ARMS = {"gpt2-flash-gelu4x": {}, "gpt2-gqa-gelu4x": {"attention.n_kv_heads": 2}}


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two arms of three seeds."""
    runs = [
        write_run(
            tmp_path, words=words, seed=seed, config=config, loss=3.3 + 0.01 * len(config) + 0.001 * seed
        )
        for words, config in ARMS.items()
        for seed in range(3)
    ]
    folder = tmp_path / "grids" / "attention-seed-0123abcd"
    folder.mkdir(parents=True)
    cells = [{"identity": run.name.rpartition("-")[2], "run": run.name} for run in runs]
    (folder / "grid.json").write_text(
        json.dumps({"name": folder.name, "swept": ["attention"], "cells": cells})
    )
    return folder


def written(*words: str, to: Path) -> dict[str, Any]:
    assert dashboard.main([*words, "--json", str(to)]) == 0
    content: dict[str, Any] = json.loads(to.read_text())
    return content


def read_back(content: dict[str, Any]) -> tuple[Any, Any]:
    """As the library makes its own objects of what a server has."""
    ws, wr = dashboard._library()
    from wandb_workspaces.reports.v2 import internal as reports
    from wandb_workspaces.workspaces import internal as workspaces

    workspace = ws.Workspace._from_model(workspaces.View.model_validate(content["workspace"]))
    return workspace, wr.Report._from_model(reports.ReportViewspec.model_validate(content["report"]))


def test_a_grid_has_its_curves_by_arm_and_its_verdicts(grid: Path, tmp_path: Path) -> None:
    workspace, report = read_back(
        written(str(grid), "--project", "p", "--entity", "e", to=tmp_path / "made.json")
    )
    assert (workspace.entity, workspace.project, workspace.name) == (
        "e",
        "p",
        "nocap: attention-seed-0123abcd",
    )
    sections = {section.name: section.panels for section in workspace.sections}
    assert [(section.name, section.is_open) for section in workspace.sections] == [
        ("Verdicts", True),
        ("Loss", True),
        ("Speed and memory", True),
        ("Where the time went", False),
    ]
    final, *curves = sections["Loss"]
    assert final.range_x[0] < 3.3 < 3.312 < final.range_x[1] < 3.32, (
        "the axis holds the losses at the end and little else"
    )
    assert curves[0].range_x == (pytest.approx(0.1 * STEPS[-1]), None), "the first tenth is out of sight"
    assert curves[0].range_y[0] < 3.3 < curves[0].range_y[1] < 3.312 + 2.0
    assert workspace.runset_settings.pinned_columns[1:] == [
        *(
            "config:arm.value",
            "config:seed.value",
            "summary:val/loss",
            "summary:perf/tokens_per_s",
            "summary:verdict",
        )
    ]
    lines = {panel.title for panel in sections["Where the time went"]}
    assert "train, s" in lines
    assert "teacher, s" not in lines, "no line that is always zero"
    loss = [(panel.x, panel.y[0].name) for panel in sections["Loss"] if hasattr(panel, "x")]
    assert [(str(getattr(x, "name", x)), y) for x, y in loss] == [
        ("step", "val/loss"),
        ("tokens", "val/loss"),
        ("clock/train_s", "val/loss"),
        ("step", "train/loss"),
    ]
    drawn = [panel for name, panels in sections.items() if name != "Verdicts" for panel in panels]
    assert {(panel.groupby_aggfunc, panel.groupby_rangefunc) for panel in drawn} == {("mean", "stddev")}
    assert [key.name for key in workspace.runset_settings.groupby] == ["arm"]
    ids = sorted(run.name.rpartition("-")[2] for run in (tmp_path / "runs").iterdir())
    assert len(ids) == 6
    assert all(identity in str(workspace.runset_settings.filters) for identity in ids)
    (verdicts,) = sections["Verdicts"]
    (gqa,) = [line for line in verdicts.markdown.splitlines() if line.startswith("| gqa | 3 |")]
    assert "| 3.3110 |" in gqa
    assert "| higher loss by 0.0100" in gqa
    assert report.blocks[0].text == verdicts.markdown
    grids = [block for block in report.blocks if hasattr(block, "runsets")]
    assert [len(block.panels) for block in grids] == [len(sections[name]) for name in list(sections)[1:]]
    places = [(panel.layout.x, panel.layout.y) for panel in grids[0].panels]
    assert len(set(places)) == len(places), "panels lie side by side"


def test_a_study_has_the_runs_of_its_ledger_and_its_claims(tmp_path: Path) -> None:
    workspace, report = read_back(written(str(REPO / "experiments" / "gqa"), to=tmp_path / "made.json"))
    assert workspace.name == "nocap: gqa"
    assert "A1.speed" in report.blocks[0].text
    assert "What was learnt" not in report.blocks[0].text
    assert "68056ce45e05" in str(workspace.runset_settings.filters)


def test_without_a_login_or_the_library_one_line_says_so(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("wandb.login", lambda **settings: False)
    with pytest.raises(SystemExit, match="2"):
        dashboard.main([str(grid)])
    assert capsys.readouterr().err == (
        "nocap: a dashboard is made in a W&B account, and there is no login: wandb login "
        "(--json FILE needs none)\n"
    )
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(SystemExit, match="2"):
        dashboard.main([str(grid), "--json", str(tmp_path / "made.json")])
    assert (
        capsys.readouterr().err
        == "nocap: a dashboard needs wandb_workspaces.reports.v2: pip install 'nocap[dashboard]'\n"
    )
    assert not (tmp_path / "made.json").exists()


def test_each_run_gets_the_verdict_of_its_arm(
    grid: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The summary of the run in W&B is where a column of the table of runs comes from."""
    ws, wr = dashboard._library()
    told: dict[str, dict[str, str]] = {}

    class Summary(dict[str, str]):
        def update(self) -> None:  # type: ignore[override]
            told[self.path] = dict(self)

    class Api:
        def run(self, path: str) -> Any:
            summary = Summary()
            summary.path = path  # type: ignore[attr-defined]
            return SimpleNamespace(summary=summary)

    for made in (ws.Workspace, wr.Report):
        monkeypatch.setattr(made, "save", lambda self: None)
        monkeypatch.setattr(made, "url", "https://example.org")
    monkeypatch.setattr("wandb.Api", Api)
    assert dashboard.main([str(grid), "--entity", "e", "--project", "p"]) == 0
    runs = {run.name.rpartition("-")[2]: run.name for run in (tmp_path / "runs").iterdir()}
    assert {path.rpartition("/")[0] for path in told} == {"e/p"}
    said = {runs[path.rpartition("/")[2]]: summary["verdict"] for path, summary in told.items()}
    assert len(said) == 6
    assert {verdict for name, verdict in said.items() if "flash" in name} == {"baseline"}
    assert {verdict for name, verdict in said.items() if "gqa" in name} == {"worse"}


def test_a_server_that_refuses_is_one_line(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ws, _ = dashboard._library()

    def refuse(self: object) -> None:
        raise RuntimeError("no such project")

    monkeypatch.setattr(ws.Workspace, "save", refuse)
    assert dashboard.main([str(grid), "--entity", "e"]) == 1
    assert capsys.readouterr().err == "nocap: W&B: not written: no such project\n"
