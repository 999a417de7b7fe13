"""The soak sees what it is there to see, and goes on after it was killed itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Undisturbed
from tests.soak import Soak, differences, left


def test_a_twin_differs_in_no_time_and_in_all_else(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    twin = Path(shutil.copytree(undisturbed.output_dir, tmp_path / "twin"))
    root = Path(shutil.copytree(undisturbed.output_dir, tmp_path / "root"))
    run = root / "runs" / undisturbed.run_dir.name
    (model,) = run.glob("checkpoints/*/model.safetensors")

    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    cases = (
        ("metrics.jsonl", '"clock/wall_s": ', '"clock/wall_s": 9', ""),
        ("summary.json", '"wall": ', '"wall": 9', ""),
        ("train.log", "", "other lines\n", ""),
        ("metrics.jsonl", '"train/loss": ', '"train/loss": 9', "differs"),
        ("metrics.jsonl", rows[7], "", "differs"),
        ("metrics.jsonl", rows[7], 2 * rows[7], "differs"),
        ("summary.json", '"val_loss": ', '"val_loss": 9', "differs"),
        ("config.yaml", "seed: 0", "seed: 1", "differs"),
        (".step-00000008.tmp", "", "", "is left over"),
    )
    for name, old, new, says in cases:
        path = run / name
        if path.exists():
            before = path.read_text()
        else:
            before = None
        path.write_text((before or "").replace(old, new) if old else new)
        if says:
            expected = [f"{path.relative_to(root)} {says}"]
        else:
            expected = []
        assert differences(left(root), left(twin)) == expected
        path.unlink() if before is None else path.write_text(before)

    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    model.with_name("optimizer.safetensors").unlink()
    place = model.parent.relative_to(root)
    assert differences(left(root), left(twin)) == [
        f"{place}/optimizer.safetensors is missing",
        f"{place}/model.safetensors differs",
    ]


@pytest.mark.parametrize(
    ("value", "lost"), [(1, None), (2, "AssertionError: rows.json differs (see ")]
)
def test_a_job_that_ends_elsewhere_is_lost_and_kept(
    value: int, lost: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(
        words: list[str], root: Path, chance: object, *, more: Callable[[], bool]
    ) -> Iterator[list[str]]:
        while more():
            yield ["worker", "parent"]
        (root / "rows.json").write_text(f'{{"loss": {value}}}')

    monkeypatch.setattr(
        "tests.soak.finish", lambda words, root: (root / "rows.json").write_text('{"loss": 1}')
    )
    monkeypatch.setattr("tests.soak.disturbed", disturbed)
    soak = Soak(folder=tmp_path, seed=0, kills=5)
    soak.run(lanes=1)
    (job,) = soak.jobs
    assert job["killed"] == {"parent": 3, "worker": 3}
    assert job["moments"] == 3
    assert (job["lost"] or "").startswith(lost or "")
    paths = list(tmp_path.glob("job-0-*"))
    assert len(paths) == (0 if lost is None else 1)
    assert len(soak.result()["lost"]) == (0 if lost is None else 1)


def test_it_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    job = {
        "kind": "pool",
        "killed": {"parent": 1, "worker": 2},
        "moments": 2,
        "s": 60.0,
        "lost": None,
    }
    lines = [json.dumps({**job, "job": number}) + "\n" for number in (0, 4, 1)]
    for name in ("job-1-half", "job-4-lost"):
        (tmp_path / name).mkdir()
    soak = Soak(folder=tmp_path, seed=3, kills=7)
    soak.state.write_text("".join(lines)[:-9])
    soak.resume()
    text = soak.state.read_text()
    assert text == lines[0] + lines[1]
    paths = tmp_path.glob("job-*")
    assert [path.name for path in paths] == ["job-4-lost"]
    assert soak.injected == 6
    assert soak.more()
    assert not Soak(folder=tmp_path, seed=3, kills=6, injected=6).more()
    counts = soak.result()
    expected = [6, 4, 8, 2.0]
    assert [counts[key] for key in ("sigkills", "moments", "runs", "lane_minutes")] == expected
    assert counts["injected"]["pool"] == {"parent": 2, "worker": 4}


def test_a_part_of_a_grid_of_the_twin_may_be_left() -> None:
    def grid(*runs: str) -> list[Any]:
        return [{"name": "g", "cells": [{"run": run} for run in runs]}]

    twin = {"grids/a/grid.json": grid("x", "y", "z")}
    for runs, strange in ((("x", "z"), []), (("x", "other"), ["grids/b/grid.json is left over"])):
        assert differences({**twin, "grids/b/grid.json": grid(*runs)}, twin) == strange
    assert differences({"grids/b/grid.json": grid("x", "z")}, twin) == [
        "grids/a/grid.json is missing"
    ]
