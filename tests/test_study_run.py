"""A study from its file to its verdicts, of a model that trains in a second: what it leaves, does not do
again, and labels."""

from __future__ import annotations

import copy
import json
import platform
import random
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from nocap.config.trainer import Device
from nocap.measure import roofline
from nocap.store.record import read_json
from nocap.study.__main__ import main
from nocap.study.log import FILE, read
from nocap.study.registration import name_of
from nocap.study.tasks import ROWS
from tests import soak
from tests.attempts import wait_until
from tests.conftest import REPO, Door, Finished, called, shared_folder
from tests.studies import LOSS, SPEED, Json, at, claim, study, tree, written

MADE = study()


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
    def place(self) -> Path:
        return self.out / "studies" / "made" / "cpu"

    @property
    def results(self) -> Json:
        return results_of(self.folder)

    @property
    def runs(self) -> list[str]:
        return sorted(path.name for path in (self.out / "runs").iterdir())

    @property
    def sessions(self) -> list[Path]:
        return sorted((self.place / "sessions").glob("[!.]*.json"))


def results_of(folder: Path) -> Json:
    (path,) = folder.glob("results.cpu.*.json")
    return json_of(path)


def json_of(path: Path) -> Json:
    content = read_json(path)
    assert content is not None
    return content


def words_of(root: Path) -> list[str]:
    return [str(written(root / "made", MADE)), "scale=cpu", f"output_dir={root / 'out'}"]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Carried:
    """`MADE`, carried out once, also where several workers ask for it."""
    with shared_folder(tmp_path_factory, "carried") as root:
        if not (root / "done.json").exists():
            with pytest.MonkeyPatch.context() as patch:
                # the machine's peak is nothing that is asked here
                patch.setitem(roofline.PRODUCT, Device.cpu, 256)
                done = called(
                    *words_of(root),
                    cwd=root,
                    module="nocap.study.__main__",
                    env={"NOCAP_CACHE": str(cache_dir)},
                )
            (root / "done.json").write_text(json.dumps([done.code, done.out, done.err]))
        return Carried(root, Finished(*json.loads((root / "done.json").read_text())))


@pytest.fixture
def copied(carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carried:
    """A copy that may be changed."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    for name in ("made", "out"):
        shutil.copytree(carried.root / name, tmp_path / name)
    return Carried(tmp_path, carried.process)


def asked(it: Carried, *more: str) -> list[str]:
    return [str(it.folder), "scale=cpu", f"output_dir={it.out}", *more]


def rewrite(it: Carried, **changed: object) -> None:
    written(it.folder, {**copy.deepcopy(MADE), **changed})


def shown(out: str) -> dict[str, str]:
    """Claim → what the screen says of it."""
    blocks = (block for block in out.split("\n\n") if block.startswith("M."))
    # `M.speed: …` is a warning
    return {name: block for block in blocks if not (name := block.split()[0]).endswith(":")}


# --- once ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_from_its_file_to_its_verdicts(carried: Carried):
    assert (carried.process.code, carried.process.err) == (0, "")
    speed, loss = carried.results["claims"]
    assert [
        (verdict["id"], verdict["exploratory"], verdict["notes"], verdict["missing"], verdict["n"])
        for verdict in (speed, loss)
    ] == [(name, None, [], [], 3) for name in ("M.speed", "M.loss")]
    assert loss["word"] == "confirmed"
    assert (speed["per"], loss["per"]) == ("session", "seed")
    mha, mqa = carried.results["arms"]
    assert speed["bound"] == pytest.approx(mha["flops_per_token"] / mqa["flops_per_token"])
    rows = {
        (row["claim"], row["metric"], row["arm"], row["repeat"]): row["value"]
        for row in carried.results["measurements"]
    }
    for number, path in enumerate(carried.sessions, start=1):
        assert path.name.startswith(f"bench-{number}-")
        for arm, row in json_of(path)["measured"]["arms"].items():
            assert rows["M.speed", "tokens_per_s", arm, number] == row["tokens_per_s"]
    losses = sorted(json_of(carried.out / "runs" / run / "summary.json")["val_loss"] for run in carried.runs)
    assert losses == sorted(
        rows["M.loss", "val_loss", arm, seed] for arm in ("mha", "mqa") for seed in range(3)
    )
    gains = [
        rows["M.loss", "val_loss", "mha", seed] - rows["M.loss", "val_loss", "mqa", seed] for seed in range(3)
    ]
    assert loss["measured"]["mid"] == pytest.approx(sum(gains) / 3)
    assert (
        (carried.folder / "README.md")
        .read_text()
        .startswith(f"# made: M.speed {speed['word']}, M.loss confirmed (cpu, ")
    )
    assert {f"M.speed {speed['word']}", "M.loss confirmed"} <= {
        " ".join(text.split()[:2]) for text in shown(carried.process.out).values()
    }
    assert (len(carried.runs), len(carried.sessions)) == (6, 3)


def test_claims_are_registered_before_anything_runs_and_the_log_has_what_came_out(carried: Carried):
    log = read(carried.folder / FILE)
    assert log.broken == []
    registered = log.lines[:2]
    assert {verdict["id"]: verdict["hash"] for verdict in carried.results["claims"]} == {
        line["claim"]: line["hash"] for line in registered
    }
    assert [line["event"] for line in log.lines] == [
        *["registration"] * 2,
        *["run"] * 6,
        *["session"] * 3,
        *["analysis"] * 2,
    ]
    runs = {line["identity"]: line for line in log.of("run", status="finished", short=0)}
    for run in carried.runs:
        line, manifest = runs.pop(run[-12:]), json_of(carried.out / "runs" / run / "manifest.json")
        assert line["val_loss"] == json_of(carried.out / "runs" / run / "summary.json")["val_loss"]
        assert line["started"] == manifest["attempts"][0]["started"]
    sessions = {f"{line['place']}-{line['number']}-{line['key']}.json": line for line in log.of("session")}
    for path in carried.sessions:
        line, content = sessions.pop(path.name), json_of(path)
        assert line["measured"] == {
            arm: row["tokens_per_s"] for arm, row in content["measured"]["arms"].items()
        }
        assert line["started"] == content["started"]
    began = [datetime.fromisoformat(line["started"]) for line in log.of("run", "session")]
    assert max(datetime.fromisoformat(line["at"]) for line in registered) <= min(began)
    assert [(line["claim"], line["word"]) for line in log.of("analysis")] == [
        (verdict["id"], verdict["word"]) for verdict in carried.results["claims"]
    ]


def test_the_second_time_nothing_is_trained_timed_or_written(
    copied: Carried, capsys: pytest.CaptureFixture[str]
):
    """But what is said of it, with the words of a reader that were changed."""
    before, results, log = tree(copied.out), copied.results, (copied.folder / FILE).read_text()
    rewrite(copied, question="Does it?", method="In other words.")
    with (copied.folder / "README.md").open("a") as file:
        file.write("\nA word more.\n")
    assert main(asked(copied)) == 0
    printed = capsys.readouterr()
    assert "start" not in printed.out
    assert printed.err == ""
    assert tree(copied.out) == before
    assert (copied.folder / FILE).read_text() == log
    assert [copied.results[key] for key in ("claims", "arms", "measurements")] == [
        results[key] for key in ("claims", "arms", "measurements")
    ]
    assert (copied.folder / "README.md").read_text().endswith("\nA word more.\n")


def test_a_claim_that_was_changed_after_its_runs_is_exploratory(
    copied: Carried, capsys: pytest.CaptureFixture[str]
):
    """On the screen, in the results and on the page; whatever is trained is not trained again."""
    before = tree(copied.out / "runs", copied.place / "sessions")
    rewrite(
        copied,
        claims=[
            claim(SPEED, expected=[1.05, 1.3]),
            LOSS,
            claim(LOSS, id="M.late", scale="ratio", expected=[0.5, None]),
        ],
    )
    assert main(asked(copied)) == 0
    labels = {name: "exploratory: " in text for name, text in shown(capsys.readouterr().out).items()}
    assert labels == {"M.speed": True, "M.loss": False, "M.late": True}
    assert [verdict["exploratory"] is not None for verdict in copied.results["claims"]] == [*labels.values()]
    assert (copied.folder / "README.md").read_text().count("exploratory: registered after ") == 2
    assert tree(copied.out / "runs", copied.place / "sessions") == before
    (copied.folder / FILE).unlink()
    assert main(asked(copied, "--judge")) == 0
    assert all("exploratory: not registered" in text for text in shown(capsys.readouterr().out).values())
    assert not (copied.folder / FILE).exists()


@pytest.mark.slow
def test_runs_of_a_grid_and_of_another_study_are_the_baseline(
    tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    out = tmp_path / "out"
    baseline = [*MADE["overrides"], *MADE["scales"]["cpu"]["train"], "attention=flash", f"output_dir={out}"]
    for seeds in (["seed=0"], ["-m", "seed=1,2"]):  # a run, and a grid
        done = door(*baseline, *seeds)
        assert done.code == 0, done.err
    older, at = sorted(path.name for path in (out / "runs").iterdir()), tree(out / "runs")
    assert len(older) == 3
    time.sleep(1)  # times are whole seconds
    for name, arm in (("first", "attention=mqa"), ("second", "mlp=relu2")):
        content = study(arms={"mha": ["attention=flash"], "mqa": [arm]}, claims=[LOSS])
        assert main([str(written(tmp_path / name, content)), f"output_dir={out}"]) == 0
        (row,) = results_of(tmp_path / name)["claims"]
        assert (row["n"], row["exploratory"], row["notes"]) == (
            3,
            None,
            ["older baseline: mha, seed 0 and 2 more"],
        )
        assert "older baseline: mha, seed 0 and 2 more" in (tmp_path / name / "README.md").read_text()
        assert sorted(run.rsplit("-")[-1] for run in older) == sorted(
            results_of(tmp_path / name)["arms"][0]["runs"]
        )
    assert len(list((out / "runs").iterdir())) == 3 + 3 + 3
    assert {path: when for path, when in tree(out / "runs").items() if path in at} == at


# --- what is missing ----------------------------------------------------------------------------------------


def test_judging_names_what_is_missing(copied: Carried, capsys: pytest.CaptureFixture[str]):
    (gone,) = (run for run in copied.runs if "mqa" in run and "-s1-" in run)
    (copied.out / "runs" / gone).rename(copied.root / gone)
    before = tree(copied.root)
    assert main(asked(copied, "--judge")) == 1
    told = shown(capsys.readouterr().out)
    assert all(
        "inconclusive" in text and "1 missing (val_loss of mqa, seed 1)" in text for text in told.values()
    )
    assert tree(copied.root) == before
    (copied.root / gone).rename(copied.out / "runs" / gone)
    copied.sessions[2].unlink()
    assert main(asked(copied, "--judge")) == 1
    told = shown(capsys.readouterr().out)
    assert "1 missing (tokens_per_s, session 3)" in told["M.speed"]
    assert told["M.loss"].startswith("M.loss confirmed")


def test_a_session_that_fails_is_named_and_the_rest_is_judged(
    copied: Carried, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    copied.sessions[0].unlink()
    monkeypatch.setattr("nocap.study.tasks.WORKER", "nocap.study.nowhere")
    assert main(asked(copied)) == 1
    printed = capsys.readouterr()
    assert "nocap: bench, session 1: " in printed.err
    assert "No module named nocap.study.nowhere; see " in printed.err
    assert shown(printed.out)["M.loss"].startswith("M.loss confirmed")
    assert "1 missing (tokens_per_s, session 3)" in shown(printed.out)["M.speed"]


@pytest.mark.slow
def test_planning_trains_nothing_and_counts_what_is_there(
    copied: Carried, capsys: pytest.CaptureFixture[str]
):
    before = tree(copied.out)
    assert main(asked(copied, "--plan")) == 0
    out = capsys.readouterr().out
    assert ": 6 cells, 6 done, 0 to train" in out
    assert "sigma of one run's final loss: 0.0" in out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("bench "))
    assert ([word.strip(",") for word in row[1:3]], row[-2:]) == (["mha", "mqa"], ["3", "3"])
    assert tree(copied.out) == before


# --- another machine ----------------------------------------------------------------------------------------


def test_another_machine_takes_the_runs_of_this_one(
    copied: Carried, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """With the log and the rows committed, and a fresh output_dir: it trains nothing, and both runs of a pair
    are of one machine."""
    rewrite(copied, claims=[LOSS])
    assert main(asked(copied, "--rows")) == 0
    assert f"written: {copied.folder / ROWS}" in capsys.readouterr().out
    here = copied.results["hardware"]["fingerprint"]
    shutil.rmtree(copied.out)
    monkeypatch.setattr(platform, "node", lambda: "another host")
    monkeypatch.setattr("nocap.study.tasks.Runner", lambda *args, **more: pytest.fail("something is trained"))
    assert main(asked(copied)) == 0
    there = next(
        results
        for results in map(json_of, copied.folder.glob("results.cpu.*.json"))
        if results["hardware"]["fingerprint"] != here
    )
    (loss,) = there["claims"]
    assert (loss["word"], loss["exploratory"], loss["n"]) == ("confirmed", None, 3)
    assert loss["notes"] == [f"confirmed on another machine ({here})"]
    assert {row["where"] for row in there["measurements"]} == {here}
    assert not (copied.out / "runs").exists()

    rows = (copied.folder / ROWS).read_text()
    value = there["measurements"][0]["value"]
    (copied.folder / ROWS).write_text(rows.replace(str(value), str(value - 1)))
    with pytest.raises(SystemExit, match="2"):
        main(asked(copied))
    err = capsys.readouterr().err
    assert "must have a loss that the study's log has" in err
    assert err.count("\n") == 1


# --- processes ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_that_is_killed_at_four_random_moments_ends_as_one_that_is_not(
    carried: Carried, tmp_path: Path
):
    """The same runs with the same losses, bit for bit; in the log no task twice."""
    chance, kills = random.Random(0), 0
    while kills < 4:
        root = tmp_path / f"from-kill-{kills}"
        it = Carried(root, carried.process)
        written(it.folder, MADE)
        process = soak.start(["-m", "nocap.study", "made", "scale=cpu", "output_dir=out"], root)
        while kills < 4 and soak.at_a_moment(process, root, chance):
            process.kill()
            process.wait()
            kills += 1
            wait_until(lambda root=root: not soak.processes(root), "the end of its workers")  # type: ignore[misc]
            process = soak.start(["-m", "nocap.study", "made", "scale=cpu", "output_dir=out"], root)
        assert process.wait(soak.DEADLINE_S) == 0, root.with_suffix(".err").read_text()
        assert it.runs == carried.runs
        assert [path.name for path in it.sessions] == [path.name for path in carried.sessions]
        log, twin = (read(x.folder / FILE) for x in (it, carried))
        assert log.broken == []
        assert sorted(map(name_of, log.of("run", "session"))) == sorted(
            map(name_of, twin.of("run", "session"))
        )
        losses = [{(line["identity"], line["val_loss"]) for line in x.of("run")} for x in (log, twin)]
        assert losses[0] == losses[1]
        assert [(x["hash"], x["exploratory"], x["n"]) for x in it.results["claims"]] == [
            (x["hash"], None, 3) for x in carried.results["claims"]
        ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_studies_side_by_side_train_together_and_time_one_after_the_other(tmp_path: Path):
    """In one output_dir, where the baseline is trained once for both."""
    arms = {"made": "attention=mqa", "other": "mlp=relu2"}
    for name, arm in arms.items():
        apart = at(apart_min=0.05)  # sessions lie between the runs
        written(
            tmp_path / "root" / name, study(arms={"mha": ["attention=flash"], "mqa": [arm]}, scales=apart)
        )
    commands = [
        soak.start(["-m", "nocap.study", name, "scale=cpu", "output_dir=out"], tmp_path / "root")
        for name in arms
    ]
    assert [command.wait(soak.DEADLINE_S) for command in commands] == [0, 0], (
        tmp_path / "root.err"
    ).read_text()
    logs = {name: read(tmp_path / "root" / name / FILE) for name in arms}
    began = {
        name: [line["started"] for line in log.of("run", "session") if line.get("arm") != "mha"]
        for name, log in logs.items()
    }
    # neither waited for the whole of the other
    assert max(map(min, began.values())) <= min(map(max, began.values()))
    files = map(json_of, tmp_path.glob("root/out/studies/*/cpu/sessions/*.json"))
    spans = sorted(
        [datetime.fromisoformat(session[end]) for end in ("started", "ended")] for session in files
    )
    assert len(spans) == 6
    assert all(first[1] <= then[0] for first, then in pairwise(spans))
    assert len(list((tmp_path / "root" / "out" / "runs").iterdir())) == 9
    for log in logs.values():
        assert log.broken == []
        assert len(log.of("run")) == len(set(map(name_of, log.of("run")))) == 6
