"""`python -m nocap.runs` on made-up records: what it lists, and what it never removes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nocap import api, plot
from nocap.report.terminal_curves import DrawnCurve, drawn
from nocap.runs import __main__ as command
from nocap.runs.__main__ import main
from nocap.runs.verbs import remove_run
from nocap.store import lease
from nocap.store.record import read_record
from tests.sealing import seal
from tests.test_compare import refusal, write_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its runs are below `outputs`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(file: Path, *, sealed: bool = True, **values: Any) -> None:
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps(content))
    if sealed:
        seal(file.parent)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The cells of each row, the head and the count left out."""
    *rows, count = said(capsys, *words, "--columns", "run,val_loss").splitlines()
    assert int(count.split()[0]) == len(rows[1:])
    return [row.split() for row in rows[1:]]


def test_filters_columns_and_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = here / "outputs"
    gqa = {"words": "gpt2-gqa-gelu4x", "config": {"attention.n_kv_heads": 3}}
    first = write_run(runs, words="gpt2-flash-gelu4x", started="2026-01-02T00:00:00+0000")
    write_run(runs, loss=3.1, started="2026-01-01T00:00:00+0000", **gqa)
    failed = write_run(runs, seed=1, loss=9.0, status="failed", **gqa)
    changed(first / "manifest.json", options={"mlp": "mine,other"})
    rows = listed(capsys, "val_loss<5")
    assert [row[1] for row in rows] == ["3.1000", "3.3000"]  # as they were started
    rows = listed(capsys, "--sort", "val_loss")
    assert [row[1] for row in rows] == ["3.1000", "3.3000", "9.0000"]
    cases = (
        ("status=failed", failed),
        ("val_loss>5", failed),
        ("seed=1", failed),
        ("n_kv_heads=3 seed>0", failed),
        ("attention=gqa run=*-s1-*", failed),
        (failed.name[:18], failed),
        ("mlp=mine", first),
        ("mlp=other lr=3e-3 tokens>0.1K tokens<1B", first),
    )
    for words, run in cases:
        rows = listed(capsys, *words.split())
        names = [row[0] for row in rows]
        assert names == [run.name], words
    for words in ("age<1h", "size>1G", "mlp=gelu3x", "lr=3e-4"):
        assert listed(capsys, words) == []
    columns = said(capsys, "last", "--columns", "attention.n_kv_heads,mlp.expansion")
    assert columns.splitlines()[1].split() == ["12", "4"]
    for word, reason in (
        ("nope=1", "nope must be a key"),
        ("val_loss<low", "val_loss<low must end with a number"),
        ("nobody", "no run was found"),
    ):
        assert reason in refusal([word], capsys, command=command)


EMPTY_FILTERS = [
    (["status=failed", "nope=1"], "nope must be a key"),  # though no run is left that could have it
    (["val_loss>100", "optimizer.lrr=0.003"], "optimizer.lrr must be a key"),
    (["status=failed", "--columns", "run,nope"], "nope must be a key"),
    (["status=failed", "--sort", "los"], "los must be a key"),
    (
        ["status==finished"],
        "status==finished must be KEY=VALUE, KEY<NUMBER or KEY>NUMBER, got two signs",
    ),
    (["attention.kernel==fused"], "attention.kernel==fused must be KEY=VALUE"),
    (
        ["status<3"],
        "status<3 must compare a key whose values are numbers (status=VALUE works for all "
        "keys), got finished",
    ),
    (["attention.kernel>1"], "attention.kernel>1 must compare a key whose values are numbers"),
    (["grid>1", "status=failed"], "grid>1 must compare a key whose values are numbers"),
    (["--sort", "kind"], "kind must be a whole key, such as attention.kind, data.kind, got "),
    (["kind<3"], "kind must be a whole key, such as attention.kind, data.kind, got "),
]


@pytest.mark.parametrize(("words", "reason"), EMPTY_FILTERS)
def test_a_filter_or_column_that_can_match_nothing_is_refused(
    words: list[str], reason: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(here / "outputs")
    changed(
        run / "manifest.json",
        attempts=[{"started": "2026-01-01T00:00:00+00:00", "grid": "lr-1234"}],
    )
    assert refusal(words, capsys, command=command).startswith(f"nocap: {reason}")


def test_a_wrong_filter_removes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(here / "outputs")
    refusal(["rm", "status=failed", "trainer.stepps=1", "--yes"], capsys, command=command)
    assert run.exists()
    assert said(capsys, "rm", "status=failed", "lr=0.003", "--yes") == "removed: 0 runs, 0 B\n"


# the earlier of two times is the greater text
ZONES = [
    ("2026-01-01T12:00:00+0900", "2026-01-01T04:00:00+0000"),
    # in the hour that a summer's end repeats
    ("2026-10-25T02:30:00+02:00", "2026-10-25T02:10:00+01:00"),
    ("2026-01-02T08:00:00+10:00", "2026-01-01T23:00:00Z"),
    # without a zone: of this machine, which has UTC−5
    ("2026-01-01T10:00:00+00:00", "2026-01-01T08:00:00"),
]


@pytest.fixture
def five_hours_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("earlier", "later"), ZONES)
def test_runs_of_two_zones_are_in_the_order_in_which_they_were_started(
    earlier: str, later: str, here: Path, five_hours_west: None, capsys: pytest.CaptureFixture[str]
) -> None:
    gqa = {"words": "gpt2-gqa-gelu4x", "config": {"attention.n_kv_heads": 3}}
    second = write_run(here / "outputs", started=later)
    first = write_run(here / "outputs", started=earlier, **gqa)
    expected = [first.name, second.name]
    assert [row[0] for row in listed(capsys)] == expected
    rows = listed(capsys, "--sort", "started")
    names = [row[0] for row in rows]
    assert names == [first.name, second.name]
    rows = listed(capsys, "last")
    names = [row[0] for row in rows]
    assert names == [second.name]
    arms = api.compare(here / "outputs")["arms"]
    assert arms[0]["runs"] == [first.name[-12:]]
    assert arms[0]["difference"] is None, "the first is the baseline"


def test_runs_that_alternated_in_two_zones_are_not_one_after_the_other(here: Path) -> None:
    gqa = {"words": "gpt2-gqa-gelu4x", "config": {"attention.n_kv_heads": 3}}
    for seed, (here_at, there_at) in enumerate([("12", "04"), ("14", "06")]):
        write_run(here / "outputs", seed=seed, started=f"2026-01-01T{here_at}:00:00+0900")
        write_run(here / "outputs", seed=seed, started=f"2026-01-01T{there_at}:00:00+0000", **gqa)
    problems = api.compare(here / "outputs")["problems"]
    assert "interleaved" not in " ".join(problems)
    for seed in (2, 3):  # all of them later than all others, by their text and in truth
        write_run(here / "after", seed=seed, started="2026-01-01T12:00:00+0900")
        write_run(here / "after", seed=seed, started="2026-01-01T04:00:00+0000", **gqa)
    comparison = api.compare(here / "after")
    assert "did not run in turns" in " ".join(comparison["problems"])


def test_a_damaged_run_is_named_and_one_that_trains_is_running(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains = write_run(here / "outputs", seed=0)
    damaged = write_run(here / "outputs", seed=1)
    (trains / "summary.json").unlink()
    changed(trains / "manifest.json", sealed=False, teachers={"ideas.distill": None})
    (damaged / "manifest.json").write_text("{")
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "not finished" in out
    assert err.startswith(f"nocap: {damaged.name}: ")
    words = said(capsys, "show", trains.name).split()
    assert words[:4] == ["run", "gpt2-flash-gelu4x-s0", "not", "finished"]
    with lease.acquire(trains):
        assert "running" in said(capsys)


def test_nothing_goes_without_yes_and_never_what_trains_or_lies_elsewhere(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, trains, other = (write_run(here / "outputs", seed=seed) for seed in range(3))
    elsewhere = write_run(here / "elsewhere", seed=3)
    (other / "checkpoints").symlink_to(elsewhere)
    (gone / "link").symlink_to(elsewhere)
    linked = here / "outputs" / "runs" / elsewhere.name
    linked.symlink_to(elsewhere)
    out = said(capsys, "rm", "seed=0")
    assert gone.name in out
    assert gone.exists()
    assert out.endswith("nocap removed nothing; add --yes to remove\n")
    with lease.acquire(trains):
        said(capsys, "rm", "status=finished", str(elsewhere), "--yes", code=1)
        assert main(["rm", "seed<4", "--yes"]) == 1
        err = capsys.readouterr().err
    assert f"not removed: {trains.name}: " in err
    assert f"not removed: {linked.name}: its folder is not directly in" in err
    exists = [run.exists() for run in (trains, gone, other)]
    assert exists == [True, False, False]
    names = {file.name for file in elsewhere.iterdir()}
    assert names >= {"manifest.json", "summary.json", "metrics.jsonl"}
    refusal(["rm", "--yes"], capsys, command=command)


def test_a_run_that_went_on_since_it_was_listed_stays(here: Path) -> None:
    folder = write_run(here / "outputs", status="failed")
    run = read_record(folder)
    changed(folder / "summary.json", status="finished")
    assert remove_run(run, root=folder.parent) == "the run has continued since it was listed"
    assert folder.exists()


def test_what_a_removal_that_was_killed_left_goes_with_the_next(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, kept = (write_run(here / "outputs", seed=seed) for seed in range(2))
    left = here / "outputs" / "runs" / f".{kept.name}.removed"
    shutil.copytree(kept, left)
    assert "removed: 1 run, " in said(capsys, "rm", "seed=0", "--yes")
    assert not gone.exists()
    assert not left.exists()
    assert (kept / "summary.json").exists()


def test_a_verb_that_there_is_not_is_no_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(here / "outputs")
    assert "gc" in refusal(["gc"], capsys, command=command)


def test_what_refers_to_a_run_is_named_before_it_goes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk, branch, alone = (write_run(here / "outputs", seed=seed) for seed in range(3))
    identity = trunk.name[-12:]
    init = {"identity": identity, "step": 8, "path": "there"}
    changed(branch / "manifest.json", init=init)
    line = {
        "event": "run",
        "at": "2026-11-22T14:25:37+00:00",
        "machine": "m",
        "scale": "cpu",
        "previous": [],
    }
    line |= {
        "arm": "a",
        "seed": 0,
        "short": 0,
        "identity": identity,
        "status": "finished",
        "started": "",
    }
    files = {
        "outputs/grids/lr-1234/grid.json": {"cells": [{"identity": identity}]},
        "experiments/question/log.jsonl": {**line, "content": "c", "val_loss": 3.0},
    }
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True)
        text = json.dumps(content) + "\n"
        (here / name).write_text(text)
    refer = f"experiments/question, outputs/grids/lr-1234, outputs/runs/{branch.name}"
    rows = said(capsys, "rm", "seed<3").splitlines()

    for run, named in ((trunk, refer), (alone, "–")):
        assert next(row for row in rows if run.name in row).endswith(named)
    assert f"used by     {refer}" in said(capsys, "show", identity[:5])
    assert "begins from there" in said(capsys, "show", branch.name)


# --- curves ---------------------------------------------------------------------------------------


def rows_of(
    *curves: DrawnCurve, height: int = 5, width: int = 11, log: str = ""
) -> tuple[list[str], list[str]]:
    """The rows of a drawing, right of its axis, and the lines below them."""
    _, *text = drawn(
        list(curves), x="steps", y="loss", width=width, height=height, log=log
    ).splitlines()
    text_of_rows = [row.partition("┤")[2].ljust(width) for row in text[:height]]
    return text_of_rows, text[height + 1 :]


def line(label: str, x: list[float], y: list[float]) -> DrawnCurve:
    return DrawnCurve(label, x, y, y, y)


def test_a_curve_goes_from_its_first_point_to_its_last() -> None:
    falling = line("falling", [0, 10], [4.0, 2.0])
    level = line("level", [0, 5], [2.0, 2.0])
    rows, below = rows_of(falling, level)
    places = [row.find("•") for row in rows]
    assert places == sorted(places)
    assert rows[0][0] == "•"
    assert rows[-1][-1] == "•"
    assert rows[-1].count("+") == 6  # it ends half-way
    words = below[0].split()
    assert words == ["0", "10"]
    assert below[1:] == ["• falling", "+ level"]
    long = line("long", [0, 9], [4.0, 2.0])
    rows, _ = rows_of(long, line("short", [5], [3.0]))  # one point
    assert "".join(rows).count("+") == 1
    arm = DrawnCurve("arm", [0, 10], [3.0, 3.0], [2.0, 2.5], [4.0, 3.5])
    rows, _ = rows_of(arm)  # a band
    ends = []
    for i in (0, -1):
        ends.append("".join(row[i] for row in rows))
    assert ends == ["··•··", " ·•· "]


def test_on_a_logarithmic_axis_a_power_law_is_straight() -> None:
    law = line("law", [1.0, 10.0, 100.0], [4.0, 0.4, 0.04])
    rows, below = rows_of(law, log="xy", width=9, height=9)
    expected = [" " * i + "•" for i in range(9)]
    assert [row.rstrip() for row in rows] == expected
    words = below[0].split()
    assert words == ["1", "100"]


def test_plot_in_the_terminal_and_as_a_picture(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(here / "outputs", curve=(5.0, 4.0, 3.5, 3.2, 3.1))
    (run / "summary.json").unlink()  # it is training
    (here / "empty").mkdir()
    assert plot.main(["last", "--x", "train_s", "--after", "200"]) == 0
    assert "over seconds of training from step 200 on\n3.5 ┤•" in capsys.readouterr().out
    assert plot.main(["empty", "last"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("val/loss over steps\n5.0 ┤•")
    assert run.name in out
    assert err == "nocap: empty: left out, because it holds no run of nocap's own\n"
    pytest.importorskip("matplotlib")
    assert plot.main(["last", "--png", "new/curve.png"]) == 0
    content = (here / "new" / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(here / "outputs", curve=(5.0, 4.0, 3.5, 3.2, 0.0))
    assert "--y must be the name of a number" in refusal(
        ["last", "--y", "nothing"], capsys, command=plot
    )
    said = refusal(["last", "--log", "y"], capsys, command=plot)
    assert "--log y must be used only with values above 0, got 0.0" in said


LOSSES = {0: (5.5, 3.4, 3.3, 3.2, 3.1), 1: (5.7, 3.6, 3.4, 3.2, 3.0)}


def answered(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert plot.main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_several_runs_are_drawn_by_arm_with_a_band_over_the_seeds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as all seeds have come."""
    for seed, losses in LOSSES.items():
        last = write_run(here / "outputs", seed=seed, curve=losses)
    other = {
        "words": "gpt2-flash-gelu3x",
        "config": {"mlp.expansion": 3.0},
        "started": "2026-01-02T00:00:00",
    }
    write_run(here / "outputs", curve=LOSSES[0], **other)
    both, alone = answered("outputs", "--after", "0", capsys=capsys)["curves"]
    assert both["label"] == "gelu4x (2 seeds)"
    assert alone["label"] == "gelu3x"
    assert both["x"] == alone["x"]
    pairs = list(zip(*LOSSES.values(), strict=True))
    expected = [sum(pair) / 2 for pair in pairs]
    assert both["y"] == pytest.approx(expected)
    assert both["low"] == [min(pair) for pair in pairs]
    assert both["high"] == [max(pair) for pair in pairs]
    assert alone["y"] == [*LOSSES[0]]
    assert alone["low"] == [*LOSSES[0]]
    assert alone["high"] == [*LOSSES[0]]
    assert plot.main(["outputs", "--after", "0", "--log", "y"]) == 0
    assert "·" in capsys.readouterr().out
    (last / "summary.json").unlink()  # it trains
    rows = (last / "metrics.jsonl").read_text().splitlines(keepends=True)
    text = "".join(rows[:3])
    (last / "metrics.jsonl").write_text(text)
    curve = answered("outputs", "--after", "0", capsys=capsys)["curves"][0]
    assert curve["x"] == [0, 100, 200]
    assert curve["label"][-9:] == "(2 seeds)"


FIRST_TENTHS = [
    (["outputs"], 40, 100),  # from 5.7 to 3.0, and without the first from 3.6
    (["outputs", "--after", "0"], 0, 0),
    (["last"], 0, 0),  # one run, whole
    (["outputs", "--y", "tokens"], 0, 0),  # nothing is squeezed
    (["outputs", "--log", "x", "--after", "0"], 0, 100),  # 0 has no place there
    (["outputs", "--x", "tokens", "--after", "150"], 150, 2000),
]


@pytest.mark.parametrize(("words", "after", "first"), FIRST_TENTHS)
def test_of_several_runs_the_first_tenth_is_left_out_where_it_squeezes_the_rest(
    words: list[str], after: int, first: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, losses in LOSSES.items():
        write_run(
            here / "outputs", seed=seed, curve=losses, started=f"2026-01-0{seed + 1}T00:00:00"
        )
    answer = answered(*words, capsys=capsys)
    assert answer["after"] == after
    assert answer["curves"][0]["x"][0] == first
    assert plot.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (f"from step {after} on" in lines[0]) == (after > 0)


def test_sync_leaves_a_run_that_is_being_trained_and_names_a_damaged_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = write_run(here / "outputs", seed=0)
    trains = write_run(here / "outputs", seed=2)
    (trains / "summary.json").unlink()
    (damaged / "summary.json").write_text("{")
    with lease.acquire(trains):
        assert main(["sync"]) == 1
    out, err = capsys.readouterr()
    assert out == "the server has 0 of 1 run; nocap sent 0 rows now\n"
    first, second = err.splitlines()
    assert first.startswith(f"nocap: {damaged.name}: ")
    assert second == f"nocap: not sent: {trains.name} is still training, and sends its rows itself"


def test_sync_leaves_a_run_that_was_stopped_and_is_being_trained_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its summary is of the attempt before, until the next one has begun."""
    stopped = write_run(here / "outputs", status="preempted")
    with lease.acquire(stopped):
        assert main(["sync"]) == 1
    line = f"nocap: not sent: {stopped.name} is still training, and sends its rows itself\n"
    assert capsys.readouterr().err == line
