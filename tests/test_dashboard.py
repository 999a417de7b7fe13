"""A dashboard as W&B's own library reads it back. Nothing leaves this machine."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from nocap import dashboard
from nocap.launch.run_facts import born
from nocap.options.tracker.wandb.mirror_place import run_id
from nocap.store.record_files import write_summary
from tests.conftest import REPO
from tests.test_compare import STEPS, refusal, write_run

ARMS = {"gpt2-flash-gelu4x": {}, "gpt2-gqa-gelu4x": {"attention.n_kv_heads": 2}}


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two arms of three seeds."""
    runs = []
    for words, config in ARMS.items():
        for seed in range(3):
            loss = 3.3 + len(config) / 100 + seed / 1000
            runs.append(write_run(tmp_path, words=words, seed=seed, config=config, loss=loss))
    folder = tmp_path / "grids" / "attention-seed"
    folder.mkdir(parents=True)
    cells = [{"identity": run.name.rpartition("-")[2], "run": run.name} for run in runs]
    content = {"name": folder.name, "swept": ["attention"], "cells": cells}
    (folder / "grid.json").write_text(json.dumps(content))
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
    return workspace, wr.Report._from_model(
        reports.ReportViewspec.model_validate(content["report"])
    )


def test_a_grid_has_its_curves_by_arm_and_its_verdicts(grid: Path, tmp_path: Path) -> None:
    words = (str(grid), "--project", "p", "--entity", "e")
    workspace, report = read_back(written(*words, to=tmp_path / "made.json"))
    names = (workspace.entity, workspace.project, workspace.name)
    assert names == ("e", "p", "nocap: attention-seed")
    sections = {section.name: section.panels for section in workspace.sections}
    assert [*sections] == ["Verdicts", "Loss", "Speed and memory", "Where the time went"]
    final, *curves = sections["Loss"]
    assert final.range_x[0] < 3.3 < 3.312 < final.range_x[1] < 3.32, (
        "the losses at the end and little else"
    )
    expected = (pytest.approx(0.1 * STEPS[-1]), None)
    assert curves[0].range_x == expected, "the first tenth is out of sight"
    first_range = curves[0].range_y
    assert first_range[0] < 3.3 < curves[0].range_y[1] < 3.312 + 2.0
    axes = [(str(getattr(panel.x, "name", panel.x)), panel.y[0].name) for panel in curves]
    assert axes == [
        ("step", "eval/loss"),
        ("tokens", "eval/loss"),
        ("clock/train_s", "eval/loss"),
        ("step", "train/loss"),
    ]
    assert "summary:verdict" in workspace.runset_settings.pinned_columns
    lines = {panel.title for panel in sections["Where the time went"]}
    assert "train, s" in lines, "no line that is always zero"
    assert "teacher, s" not in lines, "no line that is always zero"
    (verdicts,) = sections.pop("Verdicts")
    drawn = []
    for panels in sections.values():
        drawn.extend(panels)
    functions = {(panel.groupby_aggfunc, panel.groupby_rangefunc) for panel in drawn}
    assert functions == {("mean", "stddev")}
    assert [key.name for key in workspace.runset_settings.groupby] == ["arm", "arm_id"]
    paths = (tmp_path / "runs").iterdir()
    ids = [run.name.rpartition("-")[2] for run in paths]
    for identity in ids:
        assert identity in str(workspace.runset_settings.filters)
    (gqa,) = [line for line in verdicts.markdown.splitlines() if line.startswith("| gqa | 3 |")]
    assert "| 3.3110 |" in gqa
    assert "| higher loss by 0.0100" in gqa
    assert report.blocks[0].text == verdicts.markdown
    grids = [block.panels for block in report.blocks if hasattr(block, "runsets")]
    lengths = [*map(len, sections.values())]
    assert [*map(len, grids)] == lengths
    runsets = []
    for block in report.blocks:
        if hasattr(block, "runsets"):
            runsets.extend(block.runsets)
    groups = {tuple(runset.groupby) for runset in runsets}
    assert groups == {("config.arm.value", "config.arm_id.value")}
    places = {(panel.layout.x, panel.layout.y) for panel in grids[0]}
    assert len(places) == len(grids[0]), "side by side"


def test_the_variables_of_wandb_say_where_the_runs_are(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_ENTITY", "team")
    shown = dashboard._parser().parse_args([str(grid)])
    assert shown.project == "p"
    assert shown.entity == "team"
    monkeypatch.setattr("wandb.login", MagicMock(side_effect=AssertionError("nobody needs to ask")))
    refuse = MagicMock(side_effect=RuntimeError("no such project"))
    workspace = dashboard._library()[0].Workspace
    monkeypatch.setattr(workspace, "save", refuse)
    assert dashboard.main([str(grid)]) == 1


def damaged(run: Path) -> str:
    (run / "metrics.jsonl").write_text("")
    return f"{run.name} (unreadable: "


def preempted(run: Path) -> str:
    content = json.loads((run / "summary.json").read_text())
    write_summary(run, {**content, "status": "preempted"})
    return f"{run.name} (preempted"


def removed(run: Path) -> str:
    shutil.rmtree(run)
    return f"1 cell without a record ({run.name})"


@pytest.mark.parametrize("spoil", [damaged, preempted, removed])
def test_a_run_that_a_dashboard_leaves_out_is_named(
    spoil: Callable[[Path], str], grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The screen names it, and so does the text below the verdicts."""
    run = next((tmp_path / "runs").glob("gpt2-gqa-*-s1-*"))
    told = spoil(run)
    _, report = read_back(written(str(grid), "--entity", "e", to=tmp_path / "made.json"))
    assert told in capsys.readouterr().err
    assert told in report.blocks[0].text
    assert "| gqa | 2 |" in report.blocks[0].text


def test_a_study_has_the_runs_of_its_ledger_and_its_claims(tmp_path: Path) -> None:
    workspace, report = read_back(
        written(str(REPO / "experiments" / "gqa"), to=tmp_path / "made.json")
    )
    assert workspace.name == "nocap: gqa"
    assert "A1.speed" in report.blocks[0].text
    assert "What was learnt" not in report.blocks[0].text
    assert "68056ce45e05" in str(workspace.runset_settings.filters)


def test_without_a_login_the_library_or_a_server_one_line_says_so(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refuse = MagicMock(side_effect=RuntimeError("no such project"))
    workspace = dashboard._library()[0].Workspace
    monkeypatch.setattr(workspace, "save", refuse)
    assert dashboard.main([str(grid), "--entity", "e"]) == 1
    assert (
        capsys.readouterr().err == "nocap: W&B: nocap could not write the pages: no such project\n"
    )
    monkeypatch.setattr("wandb.login", lambda **settings: False)
    said = refusal([grid], capsys, command=dashboard)
    assert "a dashboard needs a W&B login: type wandb login (--json FILE needs no login)" in said
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    said = refusal([grid, "--json", tmp_path / "made.json"], capsys, command=dashboard)
    assert (
        said
        == "nocap: a dashboard needs wandb_workspaces.reports.v2: pip install 'nocap[dashboard]'\n"
    )
    assert not (tmp_path / "made.json").exists()


def test_each_run_gets_the_verdict_of_its_arm(
    grid: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The summary of the run in W&B is where a column of the table of runs comes from."""
    ws, wr = dashboard._library()
    summaries: dict[str, MagicMock] = {}
    run = MagicMock(
        side_effect=lambda path: SimpleNamespace(summary=summaries.setdefault(path, MagicMock()))
    )
    monkeypatch.setattr("wandb.Api", lambda: SimpleNamespace(run=run))
    for made in (ws.Workspace, wr.Report):
        monkeypatch.setattr(made, "save", lambda self: None)
        monkeypatch.setattr(made, "url", "https://example.org")
    assert dashboard.main([str(grid), "--entity", "e", "--project", "p"]) == 0
    for summary in summaries.values():
        assert summary.update.called
    expected = dict[str, tuple[str, str]]()
    for folder in (tmp_path / "runs").iterdir():
        if "gqa" in folder.name:
            verdict = "worse"
        else:
            verdict = "baseline"
        expected[f"e/p/{id_of(folder)}"] = ("verdict", verdict)
    found = {path: summary.__setitem__.call_args.args for path, summary in summaries.items()}
    assert found == expected


def id_of(folder: Path) -> str:
    manifest = json.loads((folder / "manifest.json").read_text())
    return run_id(folder, identity=manifest["identity"], born=born(manifest))


def test_a_second_dashboard_takes_the_place_of_the_first(
    grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, wr = dashboard._library()
    before = list[tuple[str, str]]()

    def save_workspace(made: Any) -> None:
        before.append(("workspace", made._internal_id))
        made._internal_id = "W"
        made._internal_name = "nw-W"

    def save_report(made: Any) -> None:
        before.append(("report", made.id))
        made.id = "R"

    monkeypatch.setattr(ws.Workspace, "save", save_workspace)
    monkeypatch.setattr(wr.Report, "save", save_report)
    for made in (ws.Workspace, wr.Report):
        monkeypatch.setattr(made, "url", "https://example.org")
    monkeypatch.setattr("wandb.Api", MagicMock())
    for project in ("p", "p", "other"):
        assert dashboard.main([str(grid), "--entity", "e", "--project", project]) == 0
    first = [("workspace", ""), ("report", "")]
    second = [("workspace", "W"), ("report", "R")]
    assert before == [*first, *second, *first]


def test_a_grid_of_two_keys_has_its_runs_as_lines_through_them(tmp_path: Path) -> None:
    cells = list[dict[str, str]]()
    for heads in (2, 4):
        for lr in (0.001, 0.003):
            for seed in range(3):
                config = {"attention.n_kv_heads": heads, "optimizer.lr": lr}
                run = write_run(
                    tmp_path, words=f"gpt2-{heads}-{lr}", seed=seed, config=config, loss=3.3 + lr
                )
                cells.append({"identity": run.name.rpartition("-")[2], "run": run.name})
    folder = tmp_path / "grids" / "two-keys"
    folder.mkdir(parents=True)
    content = {"name": folder.name, "cells": cells}
    (folder / "grid.json").write_text(json.dumps(content))
    workspace, _ = read_back(written(str(folder), "--entity", "e", to=tmp_path / "made.json"))
    (lines,) = next(section.panels for section in workspace.sections if section.name == "By key")
    named = [column.metric.name for column in lines.columns]
    assert named == ["attention.n_kv_heads", "optimizer.lr", "eval/loss", "perf/tokens_per_s"]


def test_a_login_that_cannot_work_is_a_line(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wandb.login", MagicMock(side_effect=ValueError("the key\nis too short")))
    assert (
        refusal([grid], capsys, command=dashboard) == "nocap: W&B: no login: the key is too short\n"
    )
