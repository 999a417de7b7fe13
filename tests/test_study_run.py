"""A study from its file to its verdicts, of a model that trains in a second: what it leaves, does not do again, and labels."""

from __future__ import annotations

import copy
import json
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from nocap.config.trainer import Device
from nocap.measure import roofline
from nocap.store.record import read_json
from nocap.study.__main__ import main
from nocap.study.ledger import FILE, read
from tests.conftest import REPO, Door, Finished, called, shared_folder
from tests.studies import LOSS, SPEED, Json, claim, study, tree, written

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
        return sorted((self.place / "sessions").iterdir())


def results_of(folder: Path) -> Json:
    (path,) = folder.glob("results.cpu.*.json")
    return json_of(path)


def json_of(path: Path) -> Json:
    found = read_json(path)
    assert found is not None
    return found


def words_of(root: Path) -> list[str]:
    return [str(written(root / "made", MADE)), "scale=cpu", f"output_dir={root / 'out'}"]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Carried:
    """`MADE`, carried out once, also where several workers ask for it."""
    with shared_folder(tmp_path_factory, "carried") as root:
        if not (root / "done.json").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(roofline.PRODUCT, Device.cpu, 256)  # the machine's peak is nothing that is asked here
                done = called(*words_of(root), cwd=root, module="nocap.study.__main__", env={"NOCAP_CACHE": str(cache_dir)})
            (root / "done.json").write_text(json.dumps([done.code, done.out, done.err]))
        return Carried(root, Finished(*json.loads((root / "done.json").read_text())))


@pytest.fixture
def mine(carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carried:
    """A copy that may be changed."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    for name in ("made", "out"):
        shutil.copytree(carried.root / name, tmp_path / name)
    return Carried(tmp_path, carried.process)


def asked(of: Carried, *more: str) -> list[str]:
    return [str(of.folder), "scale=cpu", f"output_dir={of.out}", *more]


def rewrite(of: Carried, **changed: object) -> None:
    written(of.folder, {**copy.deepcopy(MADE), **changed})


# --- once --------------------------------------------------------------------------------------------------------------------------


def test_a_study_from_its_file_to_its_verdicts(carried: Carried):
    assert (carried.process.code, carried.process.err) == (0, "")
    found = carried.results
    assert [one["id"] for one in found["claims"]] == ["M.speed", "M.loss"]
    assert all((one["exploratory"], one["older_baseline"], one["missing"], one["n"]) == (None, None, [], 3) for one in found["claims"])
    speed, loss = found["claims"]
    assert loss["word"] == "confirmed"
    assert speed["bound"] == pytest.approx(found["arms"][0]["flops_per_token"] / found["arms"][1]["flops_per_token"])
    bench = list(map(json_of, carried.sessions))
    for name in ("mha", "mqa"):
        assert speed["seeds"][name] == {str(i): one["measured"]["arms"][name]["tokens_per_s"] for i, one in enumerate(bench, start=1)}
    assert (speed["per"], loss["per"]) == ("sitting", "seed")
    summaries = [json_of(carried.out / "runs" / run / "summary.json") for run in carried.runs]
    losses = sorted(one["val_loss"] for one in summaries)
    assert losses == sorted(x for name in ("mha", "mqa") for x in loss["seeds"][name].values())
    gains = [loss["seeds"]["mha"][seed] - loss["seeds"]["mqa"][seed] for seed in "012"]
    assert loss["measured"]["mid"] == pytest.approx(sum(gains) / 3)

    readme = (carried.folder / "README.md").read_text()
    assert readme.startswith(f"# made: M.speed {speed['word']}, M.loss confirmed (cpu, ")
    for one in found["claims"]:
        assert f"{one['id']} {one['word']}" in carried.process.out
    assert len(carried.runs) == 6
    assert [path.name[:9] for path in carried.sessions] == ["bench-s0-", "bench-s1-", "bench-s2-"]


@pytest.mark.slow
def test_a_process_with_workers_of_its_own_leaves_the_same(carried: Carried, tmp_path: Path, door: Door):
    done = door(*words_of(tmp_path), module="nocap.study", timeout=280)
    assert (done.code, done.err) == (0, "")
    own = Carried(tmp_path, done)
    assert own.runs == carried.runs
    assert [path.name for path in own.sessions] == [path.name for path in carried.sessions]
    assert [one["registered"]["hash"] for one in own.results["claims"]] == [one["registered"]["hash"] for one in carried.results["claims"]]
    assert own.results["claims"][1]["seeds"] == carried.results["claims"][1]["seeds"]


def test_claims_are_registered_before_anything_runs(carried: Carried):
    ledger = read(carried.folder / FILE)
    assert ledger.broken == []
    lines = ledger.lines[:2]
    assert [line["event"] for line in lines] == ["registration"] * 2
    assert {one["id"]: one["hash"] for one in carried.results["claims"]} == {line["claim"]: line["hash"] for line in lines}
    manifests = [json_of(carried.out / "runs" / run / "manifest.json") for run in carried.runs]
    began = [manifest["attempts"][0]["started"] for manifest in manifests] + [json_of(path)["started"] for path in carried.sessions]
    assert max(datetime.fromisoformat(line["at"]) for line in lines) <= min(map(datetime.fromisoformat, began))
    assert "claims" not in manifests[0]["attempts"][0]


def test_the_ledger_has_each_run_and_session_as_it_was(carried: Carried):
    ledger = read(carried.folder / FILE)
    runs = {line["identity"]: line for line in ledger.of("run", status="finished")}
    assert [line["status"] for line in ledger.of("run")].count("begun") == len(runs) == 6
    for run in carried.runs:
        line, manifest = runs[run[-12:]], json_of(carried.out / "runs" / run / "manifest.json")
        assert line["val_loss"] == json_of(carried.out / "runs" / run / "summary.json")["val_loss"]
        assert (line["started"], line["step"]) == (manifest["attempts"][0]["started"], 12)
    sessions = {f"{line['what']}-s{line['seed']}-{line['key']}.json": line for line in ledger.of("session")}
    for path in carried.sessions:
        seen = json_of(path)
        line = sessions.pop(path.name)
        assert line["measured"] == {arm: one["tokens_per_s"] for arm, one in seen["measured"]["arms"].items()}
        assert line["started"] == seen["started"]
    assert sessions == {}
    assert [(line["claim"], line["word"]) for line in ledger.of("look")] == [(one["id"], one["word"]) for one in carried.results["claims"]]
    assert all(one["registered"]["hash"] == one["hash"] and one["ledger"] == [] for one in carried.results["claims"])


def test_the_second_time_nothing_is_trained_or_timed(mine: Carried, capsys: pytest.CaptureFixture[str]):
    before, results, ledger = tree(mine.out), mine.results, (mine.folder / FILE).read_text()
    assert main(asked(mine)) == 0
    printed = capsys.readouterr()
    assert "start" not in printed.out
    assert printed.err == ""
    assert tree(mine.out) == before
    assert (mine.folder / FILE).read_text() == ledger
    assert mine.results["claims"] == results["claims"]
    assert mine.results["arms"] == results["arms"]


# --- registration ------------------------------------------------------------------------------------------------------------------


def labels(of: Carried, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, bool]:
    """Claim → whether it is labelled as exploratory."""
    capsys.readouterr()
    assert main(asked(of, *more)) == 0
    return {name: "exploratory: " in text for name, text in shown(capsys.readouterr().out).items()}


def shown(out: str) -> dict[str, str]:
    """Claim → what the screen says of it."""
    blocks = (block for block in out.split("\n\n") if block.startswith("M."))
    return {name: block for block in blocks if not (name := block.split()[0]).endswith(":")}  # `M.speed: …` is a warning


def test_a_claim_that_was_changed_after_its_runs_is_exploratory(mine: Carried, capsys: pytest.CaptureFixture[str]):
    before = tree(mine.out / "runs", mine.place / "sessions")
    (mine.folder / "README.md").write_text((mine.folder / "README.md").read_text() + "\nA word more.\n")
    rewrite(mine, method="In other words.", question="Does it?")
    assert labels(mine, capsys) == {"M.speed": False, "M.loss": False}
    assert (mine.folder / "README.md").read_text().endswith("\nA word more.\n")
    rewrite(mine, claims=[SPEED, claim(LOSS, expected=[-1.5, None])])
    assert labels(mine, capsys, "--judge") == {"M.speed": False, "M.loss": True}
    rewrite(mine, claims=[claim(SPEED, expected=[1.05, 1.3]), LOSS, claim(LOSS, id="M.late")])  # the last one after the results
    assert labels(mine, capsys) == {"M.speed": True, "M.loss": False, "M.late": True}
    assert [one["exploratory"] is not None for one in mine.results["claims"]] == [True, False, True]
    assert (mine.folder / "README.md").read_text().count("exploratory: registered after ") == 2
    assert tree(mine.out / "runs", mine.place / "sessions") == before


def test_without_its_registrations_a_study_is_exploratory(mine: Carried, capsys: pytest.CaptureFixture[str]):
    registrations = (mine.folder / FILE).read_text()
    (mine.folder / FILE).unlink()
    assert labels(mine, capsys, "--judge") == {"M.speed": True, "M.loss": True}
    assert not (mine.folder / FILE).exists()
    assert labels(mine, capsys) == {"M.speed": True, "M.loss": True}  # registered now, after all its runs
    (mine.folder / FILE).write_text(registrations)
    assert labels(mine, capsys, "--judge") == {"M.speed": False, "M.loss": False}


@pytest.mark.slow
def test_other_seeds_run_alone_and_a_claim_of_fresh_seeds_is_confirmatory(mine: Carried):
    runs, sessions = mine.runs, mine.sessions
    before = tree(mine.out / "runs")
    rewrite(mine, seeds=list(range(6)), claims=[claim(SPEED, seeds=list(range(6))), claim(LOSS, seeds=[3, 4, 5])])
    assert main(asked(mine)) == 0
    new = [run for run in mine.runs if run not in runs]
    assert sorted(seed for run in new for seed in (3, 4, 5) if f"-s{seed}-" in run) == [3, 3, 4, 4, 5, 5]
    assert {path: at for path, at in tree(mine.out / "runs").items() if path in before} == before
    speed, loss = mine.results["claims"]
    timed = [path.name[:9] for path in mine.sessions if path not in sessions]
    assert (speed["n"], timed) in ((3, []), (6, ["bench-s3-", "bench-s4-", "bench-s5-"]))  # three pairs, where they decide
    assert loss["n"] == 3
    assert speed["exploratory"] == "registered after 3 runs and 3 sessions (mqa, seed 0 and 5 more)"
    assert speed["older_baseline"] == "mha, seed 0 and 2 more began before the claim was registered"
    assert (loss["word"], loss["exploratory"], loss["older_baseline"]) == ("confirmed", None, None)


@pytest.mark.slow
def test_runs_of_another_study_are_the_baseline(mine: Carried):
    older, at = {run for run in mine.runs if "mqa" not in run}, tree(mine.out / "runs")
    time.sleep(1)  # times are whole seconds
    content = study(arms={"mha": ["attention=flash"], "relu2": ["mlp=relu2"]}, claims=[claim(LOSS, arm="relu2")])
    assert main([str(written(mine.root / "second", content)), f"output_dir={mine.out}"]) == 0
    (found,) = results_of(mine.root / "second")["claims"]
    assert (found["n"], found["exploratory"]) == (3, None)
    assert found["older_baseline"] == "mha, seed 0 and 2 more began before the claim was registered"
    assert sorted(run.rsplit("-")[-1] for run in older) == sorted(results_of(mine.root / "second")["arms"][0]["runs"])
    assert len(mine.runs) == 6 + 3
    assert {path: when for path, when in tree(mine.out / "runs").items() if path in at} == at


@pytest.mark.slow
def test_runs_of_a_grid_and_of_another_study_are_the_baseline(tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch):
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
        (found,) = results_of(tmp_path / name)["claims"]
        assert (found["n"], found["exploratory"]) == (3, None)
        assert found["older_baseline"] == "mha, seed 0 and 2 more began before the claim was registered"
        assert "older baseline: mha, seed 0 and 2 more began" in (tmp_path / name / "README.md").read_text()
        assert sorted(run.rsplit("-")[-1] for run in older) == sorted(results_of(tmp_path / name)["arms"][0]["runs"])
    assert len(list((out / "runs").iterdir())) == 3 + 3 + 3
    assert {path: when for path, when in tree(out / "runs").items() if path in at} == at


# --- what is missing ---------------------------------------------------------------------------------------------------------------


def test_judging_names_the_run_that_is_missing(mine: Carried, capsys: pytest.CaptureFixture[str]):
    (gone,) = (run for run in mine.runs if "mqa" in run and "-s1-" in run)
    shutil.rmtree(mine.out / "runs" / gone)
    before = tree(mine.root)
    assert main(asked(mine, "--judge")) == 1
    out = capsys.readouterr().out
    for text in (told := shown(out)).values():
        assert "inconclusive" in text
        assert "1 missing (val_loss of mqa, seed 1)" in text
    assert "n=1" in told["M.loss"]
    assert tree(mine.root) == before


def test_judging_names_the_session_that_is_missing(mine: Carried, capsys: pytest.CaptureFixture[str]):
    mine.sessions[2].unlink()
    before = tree(mine.root)
    assert main(asked(mine, "--judge")) == 1
    out = capsys.readouterr().out
    assert "1 missing (tokens_per_s, sitting 3)" in shown(out)["M.speed"]
    assert shown(out)["M.loss"].startswith("M.loss confirmed")
    assert tree(mine.root) == before


@pytest.mark.slow
def test_planning_trains_nothing_and_counts_what_is_there(mine: Carried, capsys: pytest.CaptureFixture[str]):
    runs, sessions = mine.runs, mine.sessions
    assert main(asked(mine, "--plan")) == 0
    out = capsys.readouterr().out
    assert ": 6 cells, 6 done, 0 to train" in out
    assert "sigma of one run's final loss: 0.0" in out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("bench sessions"))
    assert (row[2:4], row[-2:]) == (["mha,", "mqa"], ["3", "3"])
    assert (mine.runs, mine.sessions) == (runs, sessions)


def test_a_session_that_fails_is_named_and_the_rest_is_judged(
    mine: Carried, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    mine.sessions[0].unlink()
    monkeypatch.setattr("nocap.study.sessions.WORKER", "nocap.study.nowhere")
    assert main(asked(mine)) == 1
    printed = capsys.readouterr()
    assert "nocap: bench: bench, seed 0: " in printed.err
    assert "No module named nocap.study.nowhere; see " in printed.err
    assert shown(printed.out)["M.loss"].startswith("M.loss confirmed")
    assert "1 missing (tokens_per_s, sitting 3)" in shown(printed.out)["M.speed"]
