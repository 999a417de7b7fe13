"""A study from its file to its verdicts, of a model that trains in a second: what it leaves, does not do
again, and labels."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nocap.config.trainer import Device
from nocap.measure import roofline
from nocap.store.record import read_json
from nocap.study.__main__ import main
from nocap.study.log import FILE, read
from nocap.study.registration import name_of
from tests import soak
from tests.attempts import wait_until
from tests.conftest import Door, Finished, called, shared_folder
from tests.studies import LOSS, Json, at, study, tree, written

MADE = study()
COMMAND = ("-m", "nocap.study", "made", "scale=cpu", "output_dir=out")


@dataclass(frozen=True)
class Carried:
    """A study that was carried out. Copy it before changing it."""

    root: Path
    process: Finished

    @property
    def folder(self) -> Path:
        return self.root / "made"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def results(self) -> Json:
        (path,) = self.folder.glob("results.cpu.*.json")
        return json_of(path)

    @property
    def runs(self) -> list[str]:
        return sorted(path.name for path in (self.out / "runs").iterdir())

    @property
    def sessions(self) -> list[Path]:
        return sorted(self.out.glob("studies/made/cpu/sessions/[!.]*.json"))

    def asked(self, *more: str) -> list[str]:
        return [str(self.folder), "scale=cpu", f"output_dir={self.out}", *more]


def json_of(path: Path) -> Json:
    content = read_json(path)
    assert content is not None
    return content


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Carried:
    """`MADE`, carried out once, also where several workers ask for it."""
    with shared_folder(tmp_path_factory, "carried") as root:
        made = Carried(root, Finished(0, "", ""))
        if not (root / "done.json").exists():
            written(made.folder, MADE)
            with pytest.MonkeyPatch.context() as patch:
                # the machine's peak is nothing that is asked here
                patch.setitem(roofline.PRODUCT, Device.cpu, 256)
                env = {"NOCAP_CACHE": str(cache_dir)}
                done = called(*made.asked(), cwd=root, module="nocap.study.__main__", env=env)
            (root / "done.json").write_text(json.dumps([done.code, done.out, done.err]))
        return Carried(root, Finished(*json.loads((root / "done.json").read_text())))


# --- once ---------------------------------------------------------------------------------------------------


def test_a_study_from_its_file_to_its_verdicts(carried: Carried):
    assert (carried.process.code, carried.process.err) == (0, "")
    speed, loss = carried.results["claims"]
    keys = ("id", "per", "exploratory", "notes", "missing", "n")
    assert [[row[key] for key in keys] for row in (speed, loss)] == [
        ["M.speed", "session", None, [], [], 3],
        ["M.loss", "seed", None, [], [], 3],
    ]
    assert loss["word"] == "confirmed"
    mha, mqa = carried.results["arms"]
    assert speed["bound"] == pytest.approx(mha["flops_per_token"] / mqa["flops_per_token"])
    rows = {
        (row["metric"], row["arm"], row["repeat"]): row["value"]
        for row in carried.results["measurements"]
        if (row["claim"], row["metric"]) in (("M.speed", "tokens_per_s"), ("M.loss", "val_loss"))
    }
    measured = {
        ("tokens_per_s", arm, number): row["tokens_per_s"]
        for number, path in enumerate(carried.sessions, start=1)
        for arm, row in json_of(path)["measured"]["arms"].items()
    }
    for run in carried.runs:
        arm, seed = ("mqa" if "mqa" in run else "mha"), int(run.rsplit("-", 2)[1][1:])
        measured["val_loss", arm, seed] = json_of(carried.out / "runs" / run / "summary.json")["val_loss"]
    assert rows == measured
    assert len(rows) == 2 * 3 + 2 * 3
    gains = [rows["val_loss", "mha", seed] - rows["val_loss", "mqa", seed] for seed in range(3)]
    assert loss["measured"]["mid"] == pytest.approx(sum(gains) / 3)
    head = f"# made: M.speed {speed['word']}, M.loss confirmed (cpu, "
    assert (carried.folder / "README.md").read_text().startswith(head)
    for said in (f"\n\nM.speed {speed['word']} ", "\n\nM.loss confirmed "):
        assert said in carried.process.out


def test_claims_are_registered_before_anything_runs_and_the_log_has_what_came_out(carried: Carried):
    log, claims = read(carried.folder / FILE), carried.results["claims"]
    events = ["registration"] * 2 + ["run"] * 6 + ["session"] * 3 + ["analysis"] * 2
    assert ([line["event"] for line in log.lines], log.broken) == (events, [])
    registered, runs = log.lines[:2], [carried.out / "runs" / run for run in carried.runs]
    assert {row["id"]: row["hash"] for row in claims} == {line["claim"]: line["hash"] for line in registered}
    began = [datetime.fromisoformat(line["started"]) for line in log.of("run", "session")]
    assert max(datetime.fromisoformat(line["at"]) for line in registered) <= min(began)
    assert sorted((line["identity"], line["val_loss"], line["started"]) for line in log.of("run")) == sorted(
        (
            run.name[-12:],
            json_of(run / "summary.json")["val_loss"],
            json_of(run / "manifest.json")["attempts"][0]["started"],
        )
        for run in runs
    )
    assert [(line["started"], line["measured"]) for line in log.of("session")] == [
        (content["started"], {arm: row["tokens_per_s"] for arm, row in content["measured"]["arms"].items()})
        for content in map(json_of, carried.sessions)
    ]
    assert [(line["claim"], line["word"]) for line in log.of("analysis")] == [
        (row["id"], row["word"]) for row in claims
    ]


def test_the_second_time_nothing_is_trained_timed_or_written(
    carried: Carried, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """But what is said of it, with the words of a reader that were changed."""
    copied = Carried(shutil.copytree(carried.root, tmp_path / "copy"), carried.process)
    before, results, log = tree(copied.out), copied.results, (copied.folder / FILE).read_text()
    assert main(copied.asked("--plan")) == 0
    assert ": 6 cells, 6 done, 0 to train" in capsys.readouterr().out
    written(copied.folder, {**MADE, "question": "Does it?", "method": "In other words."})
    with (copied.folder / "README.md").open("a") as file:
        file.write("\nA word more.\n")
    assert main(copied.asked()) == 0
    printed = capsys.readouterr()
    assert "start" not in printed.out
    assert printed.err == ""
    assert (tree(copied.out), (copied.folder / FILE).read_text()) == (before, log)
    for key in ("claims", "arms", "measurements"):
        assert copied.results[key] == results[key]
    assert (copied.folder / "README.md").read_text().endswith("\nA word more.\n")


@pytest.mark.slow
def test_runs_of_a_grid_are_the_baseline(tmp_path: Path, here: Door, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    baseline = [*MADE["overrides"], *MADE["scales"]["cpu"]["train"], "attention=flash", f"output_dir={out}"]
    assert here(*baseline, "-m", "seed=0,1,2").code == 0
    before = tree(out / "runs")
    monkeypatch.setattr("nocap.study.log.now", lambda: "2100-01-01T00:00:00+00:00")  # times are whole seconds
    written(tmp_path / "made", {**MADE, "claims": [LOSS]})
    assert here("made", f"output_dir={out}", module="nocap.study").code == 0
    (row,) = Carried(tmp_path, Finished(0, "", "")).results["claims"]
    older = "older baseline: mha, seed 0 and 2 more"
    assert (row["n"], older in row["notes"]) == (3, True)
    assert older in (tmp_path / "made" / "README.md").read_text()
    assert len(list((out / "runs").iterdir())) == 3 + 3
    assert before.items() <= tree(out / "runs").items()


# --- processes ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_that_is_killed_at_random_moments_ends_as_one_that_is_not(carried: Carried, tmp_path: Path):
    """The same runs with the same losses, bit for bit; in the log no task twice."""
    chance, it = random.Random(0), Carried(tmp_path / "killed", carried.process)
    written(it.folder, MADE)
    for kills in range(4):
        process = soak.start([*COMMAND], it.root)
        if kills == 3 or not soak.at_a_moment(process, it.root, chance):
            break
        process.kill()
        process.wait()
        wait_until(lambda: not soak.processes(it.root), "the end of its workers")
    assert kills > 1
    assert process.wait(soak.DEADLINE_S) == 0, it.root.with_suffix(".err").read_text()

    def told(study: Carried) -> list[Any]:
        log = read(study.folder / FILE)
        return [
            log.broken,
            [path.name for path in study.sessions],
            sorted(map(name_of, log.of("run", "session"))),
            sorted((line["identity"], line["val_loss"]) for line in log.of("run")),
            [(row["hash"], row["exploratory"], row["n"]) for row in study.results["claims"]],
        ]

    assert told(it) == told(carried)
    assert it.runs == carried.runs


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
    began = [
        [line["started"] for line in log.of("run", "session") if line.get("arm") != "mha"] for log in logs
    ]
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
        assert log.broken == []
        assert len(log.of("run")) == len(set(map(name_of, log.of("run")))) == 6
