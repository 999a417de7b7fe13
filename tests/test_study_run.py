"""A study from its file to its verdicts, of a model that trains in a second: what it leaves, does not do again, and stamps."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nocap.store.record import read_json
from nocap.study.__main__ import main
from nocap.study.spec import load
from tests.conftest import REPO, Finished
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
    def results(self) -> Json:
        return results_of(self.folder)


def results_of(folder: Path) -> Json:
    (path,) = folder.glob("results.cpu.*.json")
    found = read_json(path)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Carried:
    """`MADE`, carried out once, also where several workers ask for it."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "carried"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done.json").exists():
            done = subprocess.run(
                [sys.executable, "-m", "nocap.study", str(written(root / "made", MADE)), "scale=cpu", f"output_dir={root / 'out'}"],
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(REPO), "NOCAP_CACHE": str(cache_dir)},
                capture_output=True,
                text=True,
                timeout=280,
                stdin=subprocess.DEVNULL,
            )
            (root / "done.json").write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    return Carried(root, Finished(*json.loads((root / "done.json").read_text())))


@pytest.fixture
def mine(carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carried:
    """A copy that may be changed."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    for name in ("made", "out"):
        shutil.copytree(carried.root / name, tmp_path / name)
    return Carried(tmp_path, carried.process)


def words(of: Carried, *more: str) -> list[str]:
    return [str(of.folder), "scale=cpu", f"output_dir={of.out}", *more]


def runs_of(of: Carried) -> list[str]:
    return sorted(path.name for path in (of.out / "studies" / "made" / "cpu" / "runs").iterdir())


def sessions_of(of: Carried) -> list[Path]:
    return sorted((of.out / "studies" / "made" / "cpu" / "sessions").iterdir())


def rewrite(of: Carried, **changed: object) -> None:
    written(of.folder, {**copy.deepcopy(MADE), **changed})


# --- once --------------------------------------------------------------------------------------------------------------------------


def test_a_study_from_its_file_to_its_verdicts(carried: Carried):
    assert (carried.process.code, carried.process.err) == (0, "")
    found = carried.results
    assert [one["id"] for one in found["claims"]] == ["M.speed", "M.loss"]
    assert all(one["exploratory"] is None and one["missing"] == [] and one["n"] == 3 for one in found["claims"])
    speed, loss = found["claims"]
    assert loss["word"] == "confirmed"
    assert speed["bound"] == pytest.approx(found["arms"][0]["flops_per_token"] / found["arms"][1]["flops_per_token"])
    for name in ("mha", "mqa"):
        bench = [read_json(path) for path in sessions_of(carried)]
        assert speed["seeds"][name] == {str(one["seed"]): one["measured"]["arms"][name]["tokens_per_s"] for one in bench if one}
    summaries = [read_json(carried.out / "studies/made/cpu/runs" / run / "summary.json") for run in runs_of(carried)]
    losses = sorted(one["val_loss"] for one in summaries if one)
    assert losses == sorted(x for name in ("mha", "mqa") for x in loss["seeds"][name].values())
    gains = [loss["seeds"]["mha"][seed] - loss["seeds"]["mqa"][seed] for seed in "012"]
    assert loss["measured"]["mid"] == pytest.approx(sum(gains) / 3)

    readme = (carried.folder / "README.md").read_text()
    assert readme.startswith(f"# made: M.speed {speed['word']}, M.loss confirmed (cpu, ")
    for one in found["claims"]:
        assert f"{one['id']} {one['word']}" in carried.process.out
    assert len(runs_of(carried)) == 6
    assert [path.name[:9] for path in sessions_of(carried)] == ["bench-s0-", "bench-s1-", "bench-s2-"]


def test_claims_are_on_record_before_results(carried: Carried):
    hashes = {claim.id: claim.hash() for claim in load(carried.folder).claims}
    assert set(hashes) == {"M.speed", "M.loss"}
    for run in runs_of(carried):
        manifest = read_json(carried.out / "studies/made/cpu/runs" / run / "manifest.json")
        assert manifest is not None
        assert [attempt["claims"] for attempt in manifest["attempts"]] == [hashes]
    for path in sessions_of(carried):
        session = read_json(path)
        assert session is not None
        assert session["claims"] == hashes
        assert list(session).index("claims") < list(session).index("measured")
    assert {one["id"]: one["hash"] for one in carried.results["claims"]} == hashes


def test_the_second_time_nothing_is_trained_or_timed(mine: Carried, capsys: pytest.CaptureFixture[str]):
    before, results = tree(mine.out), mine.results
    assert main(words(mine)) == 0
    said = capsys.readouterr()
    assert "start" not in said.out
    assert said.err == ""
    assert tree(mine.out) == before
    assert mine.results["claims"] == results["claims"]
    assert mine.results["arms"] == results["arms"]


def test_another_seed_runs_that_seed_alone(mine: Carried, capsys: pytest.CaptureFixture[str]):
    before, runs, sessions = tree(mine.out / "studies/made/cpu/runs"), runs_of(mine), sessions_of(mine)
    rewrite(mine, seeds=[0, 1, 2, 3])
    assert main(words(mine)) == 0
    new = [run for run in runs_of(mine) if run not in runs]
    assert sorted("-s3-" in run for run in new) == [True, True]
    assert [path.name[:9] for path in sessions_of(mine) if path not in sessions] == ["bench-s3-"]
    assert {path: at for path, at in tree(mine.out / "studies/made/cpu/runs").items() if path in before} == before
    for one in mine.results["claims"]:  # its seeds are a part of a claim
        assert one["n"] == 4
        assert one["exploratory"].startswith("exploratory: mha, seed 0 and ")
    assert capsys.readouterr().out.count("[exploratory: ") == 2


# --- registration ------------------------------------------------------------------------------------------------------------------


def stamped(of: Carried, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, bool]:
    """Claim → whether its sentence is stamped."""
    capsys.readouterr()
    assert main(words(of, *more)) == 0
    return {line.split()[0]: "[exploratory: " in line for line in capsys.readouterr().out.splitlines() if line.startswith("M.")}


def test_a_claim_that_was_changed_after_its_runs_is_exploratory(mine: Carried, capsys: pytest.CaptureFixture[str]):
    before = tree(mine.out)
    (mine.folder / "README.md").write_text((mine.folder / "README.md").read_text() + "\nA word more.\n")
    rewrite(mine, method="Told in other words.", question="Does it?")
    assert stamped(mine, capsys) == {"M.speed": False, "M.loss": False}
    assert (mine.folder / "README.md").read_text().endswith("\nA word more.\n")
    rewrite(mine, claims=[SPEED, claim(LOSS, expected=[-1.5, None])])
    assert stamped(mine, capsys, "--judge") == {"M.speed": False, "M.loss": True}
    rewrite(mine, claims=[claim(SPEED, expected=[1.05, 1.3]), LOSS, claim(LOSS, id="M.late")])  # the last one after the results
    assert stamped(mine, capsys) == {"M.speed": True, "M.loss": False, "M.late": True}
    assert [one["exploratory"] is not None for one in mine.results["claims"]] == [True, False, True]
    assert (mine.folder / "README.md").read_text().count("(exploratory: ") == 2
    assert tree(mine.out) == before


def test_judging_names_the_run_that_is_missing(mine: Carried, capsys: pytest.CaptureFixture[str]):
    (gone,) = (run for run in runs_of(mine) if "mqa" in run and "-s1-" in run)
    shutil.rmtree(mine.out / "studies/made/cpu/runs" / gone)
    before = tree(mine.root)
    assert main(words(mine, "--judge")) == 1
    out = capsys.readouterr().out
    assert "M.loss inconclusive: 1 missing (val_loss of mqa, seed 1): " in out
    assert "M.speed inconclusive: 1 missing (val_loss of mqa, seed 1): " in out
    assert "; n=2; " in out
    assert tree(mine.root) == before


def test_judging_names_the_session_that_is_missing(mine: Carried, capsys: pytest.CaptureFixture[str]):
    sessions_of(mine)[2].unlink()
    before = tree(mine.root)
    assert main(words(mine, "--judge")) == 1
    out = capsys.readouterr().out
    assert "M.speed inconclusive: 2 missing (tokens_per_s of mqa, seed 2, tokens_per_s of baseline, seed 2): " in out
    assert "M.loss confirmed: " in out
    assert tree(mine.root) == before


@pytest.mark.slow
def test_planning_trains_nothing_and_counts_what_is_there(mine: Carried, capsys: pytest.CaptureFixture[str]):
    runs, sessions = runs_of(mine), sessions_of(mine)
    assert main(words(mine, "--plan")) == 0
    rows = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["training"][:8] == ["training", "2", "arms", "×", "3", "seeds", "6", "6"]
    assert rows["bench sessions"][:6] == ["bench", "sessions", "mha,", "mqa", "3", "3"]
    assert any(line.startswith("sigma of one run's final loss: 0.0") for line in rows)
    assert runs_of(mine) == runs
    assert [path for path in sessions_of(mine) if path not in sessions] == [path for path in sessions_of(mine) if "rough" in path.name]


def test_a_session_that_fails_is_told_and_the_rest_is_judged(
    mine: Carried, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sessions_of(mine)[0].unlink()
    monkeypatch.setattr("nocap.study.sessions.WORKER", "nocap.study.nowhere")
    assert main(words(mine)) == 1
    said = capsys.readouterr()
    assert "nocap: bench: bench, seed 0: " in said.err
    assert "No module named nocap.study.nowhere; see " in said.err
    assert "M.loss confirmed: " in said.out
    assert "M.speed inconclusive: 2 missing (tokens_per_s of mqa, seed 0, tokens_per_s of baseline, seed 0): " in said.out
