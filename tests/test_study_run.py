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
from nocap.measure import peaks
from nocap.study.__main__ import main
from nocap.study.log import FILE, AnalysisLine, RegistrationLine, RunLine, SessionLine, read_log
from tests import soak
from tests.conftest import Door, called, shared_folder
from tests.studies import LOSS, Json, at, study, tree, written

MADE = study()
COMMAND = ("-m", "nocap.study", "made", "scale=cpu", "output_dir=out")


def left(root: Path) -> SimpleNamespace:
    """What a study left in the folders `made` and `out`."""
    (results,) = root.glob("made/results.cpu.*.json")
    paths = (root / "out" / "runs").iterdir()
    runs = {path.name: json_of(path / "summary.json") for path in paths}
    sessions = {}
    for path in sorted(root.glob("out/studies/made/cpu/sessions/b*.json")):
        sessions[path.name] = json_of(path)
    page = (root / "made" / "README.md").read_text()
    return SimpleNamespace(
        results=json_of(results),
        claims=json_of(results)["claims"],
        log=read_log(root / "made" / FILE),
        page=page,
        runs=runs,
        sessions=sessions,
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
                patch.setitem(peaks.PRODUCT, Device.cpu, 256)
                env = {"NOCAP_CACHE": str(cache_dir)}
                done = called(*COMMAND[2:], cwd=root, module="nocap.study.__main__", env=env)
            text = json.dumps([done.code, done.out, done.err])
            (root / "done.json").write_text(text)
    return root


# --- once -----------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_study_from_its_file_to_its_verdicts(root: Path):
    code, out, err = json_of(root / "done.json")
    it = left(root)
    assert code == 0
    assert err == ""
    keys = ("id", "per", "exploratory", "notes", "missing", "n")
    expected = [["M.speed", "session", None, [], [], 3], ["M.loss", "seed", None, [], [], 3]]
    figures = [[row[key] for key in keys] for row in it.claims]
    assert figures == expected
    speed, loss = it.claims
    mha, mqa = it.results["arms"]
    assert speed["bound"] == pytest.approx(mha["flops_per_token"] / mqa["flops_per_token"])
    rows = {}
    for row in it.results["measurements"]:
        if (row["claim"], row["metric"]) in (("M.speed", "tokens_per_s"), ("M.loss", "val_loss")):
            rows[(row["metric"], row["arm"], row["repeat"])] = row["value"]
    sessions = enumerate(it.sessions.values(), start=1)
    measured = {}
    for number, session in sessions:
        for name, row in session["measured"]["arms"].items():
            measured[("tokens_per_s", name, number)] = row["tokens_per_s"]
    for name, summary in it.runs.items():
        if "mqa" in name:
            arm = "mqa"
        else:
            arm = "mha"
        seed = int(name.rsplit("-", 2)[1][1:])
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
    registered = log.of(RegistrationLine)
    runs = log.of(RunLine)
    sessions = log.of(SessionLine)
    expected = [RegistrationLine] * 2 + [RunLine] * 6 + [SessionLine] * 3 + [AnalysisLine] * 2
    assert [type(line) for line in log.lines] == expected
    ids = [(row["id"], row["hash"]) for row in it.claims]
    assert ids == [(line.claim, line.hash) for line in registered]
    began = [datetime.fromisoformat(line.started) for line in (*runs, *sessions)]
    last = max(datetime.fromisoformat(line.at) for line in registered)
    assert last <= min(began)
    ends = {(line.identity, line.val_loss, line.started) for line in runs}
    expected = set()
    for name, summary in it.runs.items():
        manifest = json_of(root / "out" / "runs" / name / "manifest.json")
        started = manifest["attempts"][0]["started"]
        expected.add((name[-12:], summary["val_loss"], started))
    assert ends == expected
    seen = [(line.started, line.measured) for line in sessions]
    for content, (started, measured) in zip(it.sessions.values(), seen, strict=True):
        arms = content["measured"]["arms"]
        assert started == content["started"]
        assert measured == {arm: row["tokens_per_s"] for arm, row in arms.items()}
    analyses = [(line.claim, line.word) for line in log.of(AnalysisLine)]
    assert analyses == [(row["id"], row["word"]) for row in it.claims]


@pytest.mark.gate
def test_the_second_time_nothing_is_trained_timed_or_written(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """But what is said of it, with the words of a reader that were changed."""
    copy = shutil.copytree(root, tmp_path / "copy")
    words = [str(copy / "made"), "scale=cpu", f"output_dir={copy / 'out'}"]
    first = left(copy)
    before = tree(copy / "out")
    log = (copy / "made" / FILE).read_text()
    assert main([*words, "--plan"]) == 0
    assert ": 6 cells, 6 done, 0 to train" in capsys.readouterr().out
    written(copy / "made", {**MADE, "question": "Does it?", "method": "In other words."})
    (copy / "made" / "README.md").write_text(f"{first.page}\nA word more.\n")
    assert main(words) == 0
    printed = capsys.readouterr()
    again = left(copy)
    assert "start" not in printed.out
    assert printed.err == ""
    assert tree(copy / "out") == before
    assert (copy / "made" / FILE).read_text() == log
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
    # times are whole seconds
    monkeypatch.setattr("nocap.study.log.now", lambda: "2100-01-01T00:00:00+00:00")
    written(tmp_path / "made", {**MADE, "claims": [LOSS]})
    assert here(*COMMAND[2:], module="nocap.study").code == 0
    it = left(tmp_path)
    older = "measured with an older baseline: mha, seed 0 and 2 more"
    assert it.claims[0]["n"] == 3
    assert older in it.claims[0]["notes"]
    assert older in it.page
    assert len(it.runs) == 3 + 3
    assert before.items() <= tree(tmp_path / "out" / "runs").items()


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_studies_side_by_side_train_together_and_time_one_after_the_other(tmp_path: Path):
    """In one output_dir, where the baseline is trained once for both."""
    root = tmp_path / "root"
    arms = {"made": "attention=mqa", "other": "mlp=relu2"}
    for name, arm in arms.items():
        apart = at(apart_min=0.05)  # sessions lie between the runs
        content = study(arms={"mha": ["attention=flash"], "mqa": [arm]}, scales=apart)
        written(root / name, content)
    commands = [soak.start([*COMMAND[:2], name, *COMMAND[3:]], root) for name in arms]
    codes = [command.wait(soak.DEADLINE_S) for command in commands]
    assert codes == [0, 0], (tmp_path / "root.err").read_text()
    logs = [read_log(root / name / FILE) for name in arms]
    began = list[list[str]]()
    for log in logs:
        runs = [line.started for line in log.of(RunLine) if line.arm != "mha"]
        starts = [*runs, *(line.started for line in log.of(SessionLine))]
        began.append(starts)
    # neither waited for the whole of the other
    assert max(map(min, began)) <= min(map(max, began))
    files = map(json_of, root.glob("out/studies/*/cpu/sessions/*.json"))
    spans = []
    for session in files:
        times = [datetime.fromisoformat(session[end]) for end in ("started", "ended")]
        spans.append(times)
    spans.sort()
    assert len(spans) == 6
    for first, then in pairwise(spans):
        assert first[1] <= then[0]
    paths = (root / "out" / "runs").iterdir()
    assert len(list(paths)) == 9
    for log in logs:
        runs = log.of(RunLine)
        assert len(runs) == 6
        cells = {(line.arm, line.seed) for line in runs}
        assert len(cells) == 6
