"""A study from its file to its verdicts, of a model that trains in a second: what it leaves, does
not do again, and labels."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from nocap.config.trainer import Device
from nocap.measure import roofline
from nocap.study.__main__ import main
from nocap.study.log import FILE, AnalysisLine, RegistrationLine, RunLine, SessionLine, read
from tests import soak
from tests.conftest import Door, called, shared_folder
from tests.studies import LOSS, Json, at, study, tree, written

MADE = study()
COMMAND = ("-m", "nocap.study", "made", "scale=cpu", "output_dir=out")


def left(root: Path) -> SimpleNamespace:
    """What a study left in the folders `made` and `out`."""
    (results,) = root.glob("made/results.cpu.*.json")
    return SimpleNamespace(
        results=json_of(results),
        claims=json_of(results)["claims"],
        log=read(root / "made" / FILE),
        page=(root / "made" / "README.md").read_text(),
        runs={
            path.name: json_of(path / "summary.json") for path in (root / "out" / "runs").iterdir()
        },
        sessions={
            path.name: json_of(path)
            for path in sorted(root.glob("out/studies/made/cpu/sessions/b*.json"))
        },
    )


def json_of(path: Path) -> Json:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """Of `MADE`, carried out once, also where several workers ask for it. Copy it before changing
    it."""
    with shared_folder(tmp_path_factory, "carried") as root:
        if not (root / "done.json").exists():
            written(root / "made", MADE)
            with pytest.MonkeyPatch.context() as patch:
                # the machine's peak is nothing that is asked here
                patch.setitem(roofline.PRODUCT, Device.cpu, 256)
                env = {"NOCAP_CACHE": str(cache_dir)}
                done = called(*COMMAND[2:], cwd=root, module="nocap.study.__main__", env=env)
            (root / "done.json").write_text(json.dumps([done.code, done.out, done.err]))
    return root


# --- once -----------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_study_from_its_file_to_its_verdicts(root: Path):
    (code, out, err), it = json_of(root / "done.json"), left(root)
    assert (code, err) == (0, "")
    keys = ("id", "per", "exploratory", "notes", "missing", "n")
    assert [[row[key] for key in keys] for row in it.claims] == [
        ["M.speed", "session", None, [], [], 3],
        ["M.loss", "seed", None, [], [], 3],
    ]
    (speed, loss), (mha, mqa) = it.claims, it.results["arms"]
    assert speed["bound"] == pytest.approx(mha["flops_per_token"] / mqa["flops_per_token"])
    rows = {
        (row["metric"], row["arm"], row["repeat"]): row["value"]
        for row in it.results["measurements"]
        if (row["claim"], row["metric"]) in (("M.speed", "tokens_per_s"), ("M.loss", "val_loss"))
    }
    measured = {
        ("tokens_per_s", arm, number): row["tokens_per_s"]
        for number, session in enumerate(it.sessions.values(), start=1)
        for arm, row in session["measured"]["arms"].items()
    }
    for name, summary in it.runs.items():
        arm, seed = ("mqa" if "mqa" in name else "mha"), int(name.rsplit("-", 2)[1][1:])
        measured["val_loss", arm, seed] = summary["val_loss"]
    assert rows == measured
    assert len(rows) == 2 * 3 + 2 * 3
    gains = [rows["val_loss", "mha", seed] - rows["val_loss", "mqa", seed] for seed in range(3)]
    assert loss["measured"]["mid"] == pytest.approx(sum(gains) / 3)
    assert f"**Verdicts.** M.speed {speed['word']}, M.loss confirmed (cpu, " in it.page
    assert it.page.startswith("# made: tokens/s, claimed 20% to 30% faster, came to ")
    for said in (f"\n\nM.speed {speed['word']} ", "\n\nM.loss confirmed "):
        assert said in out


@pytest.mark.gate
def test_claims_are_registered_before_anything_runs_and_the_log_has_what_came_out(root: Path):
    it = left(root)
    log = it.log
    registered, runs, sessions = log.of(RegistrationLine), log.of(RunLine), log.of(SessionLine)
    assert [type(line) for line in log.lines] == (
        [RegistrationLine] * 2 + [RunLine] * 6 + [SessionLine] * 3 + [AnalysisLine] * 2
    )
    assert [(row["id"], row["hash"]) for row in it.claims] == [
        (line.claim, line.hash) for line in registered
    ]
    began = [datetime.fromisoformat(line.started) for line in (*runs, *sessions)]
    assert max(datetime.fromisoformat(line.at) for line in registered) <= min(began)
    assert {(line.identity, line.val_loss, line.started) for line in runs} == {
        (name[-12:], summary["val_loss"], json_of(manifest)["attempts"][0]["started"])
        for name, summary in it.runs.items()
        for manifest in [root / "out" / "runs" / name / "manifest.json"]
    }
    assert [(line.started, line.measured) for line in sessions] == [
        (
            content["started"],
            {arm: row["tokens_per_s"] for arm, row in content["measured"]["arms"].items()},
        )
        for content in it.sessions.values()
    ]
    assert [(line.claim, line.word) for line in log.of(AnalysisLine)] == [
        (row["id"], row["word"]) for row in it.claims
    ]


@pytest.mark.gate
def test_the_second_time_nothing_is_trained_timed_or_written(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """But what is said of it, with the words of a reader that were changed."""
    copy = shutil.copytree(root, tmp_path / "copy")
    words = [str(copy / "made"), "scale=cpu", f"output_dir={copy / 'out'}"]
    first, before, log = left(copy), tree(copy / "out"), (copy / "made" / FILE).read_text()
    assert main([*words, "--plan"]) == 0
    assert ": 6 cells, 6 done, 0 to train" in capsys.readouterr().out
    written(copy / "made", {**MADE, "question": "Does it?", "method": "In other words."})
    (copy / "made" / "README.md").write_text(f"{first.page}\nA word more.\n")
    assert main(words) == 0
    printed, again = capsys.readouterr(), left(copy)
    assert ("start" in printed.out, printed.err) == (False, "")
    assert (tree(copy / "out"), (copy / "made" / FILE).read_text()) == (before, log)
    for key in ("claims", "arms", "measurements"):
        assert again.results[key] == first.results[key]
    assert "Does it?" in again.page
    assert again.page.endswith("\nA word more.\n")


@pytest.mark.slow
def test_runs_of_a_grid_are_the_baseline(
    tmp_path: Path, here: Door, monkeypatch: pytest.MonkeyPatch
):
    baseline = [
        *MADE["overrides"],
        *MADE["scales"]["cpu"]["train"],
        "attention=flash",
        "output_dir=out",
    ]
    assert here(*baseline, "-m", "seed=0,1,2").code == 0
    before = tree(tmp_path / "out" / "runs")
    monkeypatch.setattr(
        "nocap.study.log.now", lambda: "2100-01-01T00:00:00+00:00"
    )  # times are whole seconds
    written(tmp_path / "made", {**MADE, "claims": [LOSS]})
    assert here(*COMMAND[2:], module="nocap.study").code == 0
    it, older = left(tmp_path), "older baseline: mha, seed 0 and 2 more"
    assert (it.claims[0]["n"], older in it.claims[0]["notes"], older in it.page) == (3, True, True)
    assert len(it.runs) == 3 + 3
    assert before.items() <= tree(tmp_path / "out" / "runs").items()


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_studies_side_by_side_train_together_and_time_one_after_the_other(tmp_path: Path):
    """In one output_dir, where the baseline is trained once for both."""
    root, arms = tmp_path / "root", {"made": "attention=mqa", "other": "mlp=relu2"}
    for name, arm in arms.items():
        apart = at(apart_min=0.05)  # sessions lie between the runs
        written(root / name, study(arms={"mha": ["attention=flash"], "mqa": [arm]}, scales=apart))
    commands = [soak.start([*COMMAND[:2], name, *COMMAND[3:]], root) for name in arms]
    codes = [command.wait(soak.DEADLINE_S) for command in commands]
    assert codes == [0, 0], (tmp_path / "root.err").read_text()
    logs = [read(root / name / FILE) for name in arms]
    began = list[list[str]]()
    for log in logs:
        runs = [line.started for line in log.of(RunLine) if line.arm != "mha"]
        began.append([*runs, *(line.started for line in log.of(SessionLine))])
    # neither waited for the whole of the other
    assert max(map(min, began)) <= min(map(max, began))
    files = map(json_of, root.glob("out/studies/*/cpu/sessions/*.json"))
    spans = sorted(
        [datetime.fromisoformat(session[end]) for end in ("started", "ended")] for session in files
    )
    assert len(spans) == 6
    assert all(first[1] <= then[0] for first, then in pairwise(spans))
    assert len(list((root / "out" / "runs").iterdir())) == 9
    for log in logs:
        runs = log.of(RunLine)
        assert len(runs) == 6
        assert len({(line.arm, line.seed) for line in runs}) == 6
