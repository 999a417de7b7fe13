"""What a record is believed: damage is mended from a checkpoint, named and left out, or refused,
and only nocap's own names are touched."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nocap.config.flags import GridFlags
from nocap.judge.compare import compare
from nocap.launch import grid_end, multirun
from nocap.launch.attempt import clean, hold
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import Plan
from nocap.launch.record_head import write_record_head
from nocap.launch.run_result import RunResult
from nocap.store.checkpoints import name_of
from nocap.store.file_writing import append_text
from nocap.store.grid_file import read_grid
from nocap.store.identity import identity_parts
from nocap.store.record_files import RunStatus, digest, read_json, write_summary
from nocap.store.rows_file import read_rows
from nocap.store.runs import load_runs, of_identity
from nocap.training.loading import newest_valid
from nocap.training.saving import CheckpointWriter
from tests.attempts import digests, restamp, stamp, state_of, steady, summary_of
from tests.in_process import STEPS, planned, start

Json = dict[str, Any]
Damage = Callable[[list[bytes]], list[bytes]]


SEED = "seed=3"


def made(factory: pytest.TempPathFactory, **how: Any) -> Path:
    """The output directory of a run. Copy it before changing it."""
    out = factory.mktemp("made") / "out"
    start(planned(out, SEED), **how)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped after its fifth step, with checkpoints at 4 and 5."""
    return made(tmp_path_factory, stop_after=4)


def copied(out: Path, tmp_path: Path) -> Plan:
    """The plan of the same run below a copy."""
    return planned(shutil.copytree(out, tmp_path / "out"), SEED)


def again(this: Plan) -> Plan:
    """The plan, made anew from what is there now."""
    return planned(this.run_dir.parents[1], SEED)


def edit(path: Path, *without: str, **changed: Any) -> None:
    content = {**json.loads(path.read_text()), **changed}
    content_without = {key: value for key, value in content.items() if key not in without}
    text = json.dumps(content_without)
    path.write_text(text)


def same_end(this: Plan, whole: Path) -> None:
    run_dir = planned(whole, SEED).run_dir
    assert state_of(this.run_dir) == state_of(run_dir)
    assert not this.end().is_open
    assert load_runs([this.run_dir]).unreadable == {}


# --- rows: mended from the checkpoint -------------------------------------------------------------


ROWS: dict[str, Damage] = {
    "missing": lambda lines: [],
    "cut": lambda lines: [b"".join(lines)[:-700]],
    "duplicates": lambda lines: [line for line in lines for _ in range(2)],
    "forged": lambda lines: [line.replace(b'"train/loss": ', b'"train/loss": 9') for line in lines],
    "foreign": lambda lines: [lines[0], b"[[[[\n", b'{"step": "x"}\n', b"\0" * 300, *lines[1:]],
}


@pytest.mark.parametrize("damage", ROWS)
def test_damaged_rows_are_put_back_at_the_resume(
    damage: str, half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    said = list[str]()
    path = this.run_dir / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = ROWS[damage](lines)
    path.write_bytes(b"".join(changed))
    if not changed:
        path.unlink()
    assert start(this, log=said.append).status == "finished"
    (line,) = [line for line in said if line.startswith(f"{path} is damaged; ")]
    assert line.endswith(f"nocap restores its rows from {this.run_dir}/checkpoints/{name_of(5)}")
    same_end(this, whole)


def test_rows_after_the_checkpoint_are_cut_back_without_a_word(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    said = list[str]()
    with (this.run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "tokens": 320, "train/loss": 1.0}\n{"step": 6, "tok')
    start(this, log=said.append)
    assert not [line for line in said if "damaged" in line]
    same_end(this, whole)


def test_rows_that_are_damaged_while_a_run_trains_are_put_back(whole: Path, tmp_path: Path) -> None:
    this = planned(tmp_path / "out", SEED)
    said = list[str]()
    path = this.run_dir / "metrics.jsonl"
    original = CheckpointWriter.save

    def damaging(self: CheckpointWriter, **named: Any) -> list[str]:
        path.write_bytes(path.read_bytes()[3:])
        return original(self, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointWriter, "save", damaging)
        start(this, log=said.append)
    assert [line for line in said if line.endswith("nocap restores its rows from this process")]
    same_end(this, whole)


def test_a_checkpoint_whose_rows_are_not_those_before_it_is_named(
    half: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    newest = this.run_dir / "checkpoints" / name_of(5)
    for text in (b"{", b'{"step": 5}\n', b'{"step": 1}\n{"step": 0}\n'):
        (newest / "metrics.jsonl").write_bytes(text)
        restamp(newest)
        line = f"{newest}: metrics.jsonl must hold the rows before the step in the folder's name"
        invalid = newest_valid(newest.parent).invalid
        assert invalid == [line]


# --- the end: what is believed --------------------------------------------------------------------


ENDS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "config": ("config.yaml", lambda old: old + b"\n"),
    "manifest": ("manifest.json", lambda old: old.replace(b'"arm": "', b'"arm": "x')),
    "rows": ("metrics.jsonl", lambda old: old[:-9]),
    "summary": ("summary.json", lambda old: old.replace(b'"attempts": 1', b'"attempts": 7')),
    "no digests": (
        "summary.json",
        lambda old: json.dumps({**json.loads(old), "sha256": None}).encode(),
    ),
    "torn": ("summary.json", lambda old: b"{"),
}


@pytest.mark.parametrize("damage", ENDS)
def test_a_damaged_end_is_named_and_made_again_from_the_last_checkpoint_or_refused(
    damage: str, whole: Path, tmp_path: Path
) -> None:
    this = copied(whole, tmp_path)
    name, change = ENDS[damage]
    path = this.run_dir / name
    weights = this.run_dir / "checkpoints" / name_of(STEPS) / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    (told,) = load_runs([this.run_dir]).unreadable.values()
    (notice,) = again(this).notices
    assert name in told
    assert name in notice
    assert this.end().is_open
    assert "not believed; the run goes on from its last checkpoint" in notice
    kept = weights.rename(tmp_path / "kept")
    before = digests(this.run_dir)
    with pytest.raises(ValueError, match=rf"{name}.* no valid checkpoint can repair the run"):
        again(this).end().believe()
    assert digests(this.run_dir) == before
    kept.rename(weights)
    assert start(again(this)).step == STEPS
    # a digest is of the content: it may be written in another form
    edit(this.run_dir / "summary.json")
    same_end(this, whole)


@pytest.mark.parametrize("checksums", ["{}", '{"model.safetensors": null}', "[]"])
def test_a_checkpoint_that_no_run_can_go_on_from_mends_no_record(
    checksums: str, whole: Path, tmp_path: Path
) -> None:
    """Who says that a damaged record is made again asks what the training asks."""
    this = copied(whole, tmp_path)
    newest = this.run_dir / "checkpoints" / name_of(STEPS)
    (newest / "manifest.json").write_text(checksums)
    (this.run_dir / "summary.json").write_text("{")
    assert len(newest_valid(newest.parent).invalid) == 1
    with pytest.raises(ValueError, match="no valid checkpoint can repair the run"):
        again(this).end().believe()


def test_finished_forged_half_way_is_trained_to_its_end(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    edit(this.run_dir / "summary.json", status="finished")
    assert this.end().is_open
    edit(this.run_dir / "summary.json", "sha256")  # as if an older nocap had written it
    assert this.end().is_open
    start(again(this))
    same_end(this, whole)


def test_nothing_of_another_run_is_believed(whole: Path, half: Path, tmp_path: Path) -> None:
    this = copied(half, tmp_path)
    other = planned(tmp_path / "other", "seed=4")
    said = list[str]()
    start(other)
    place = this.run_dir / "checkpoints" / name_of(6)
    shutil.copytree(other.run_dir / "checkpoints" / name_of(STEPS), place)
    stamp(place)
    start(this, log=said.append)
    end = f"{place}: the checkpoint is from another run, {other.run_dir.name}"
    assert any(line.endswith(end) for line in said)
    same_end(this, whole)
    for name in ("summary.json", "metrics.jsonl"):
        shutil.copy(other.run_dir / name, this.run_dir / name)
    assert this.end().is_open
    shutil.copy(other.run_dir / "manifest.json", this.run_dir / "manifest.json")
    refusal = f"hold {this.identity}, the identity in the name of its folder, got {other.identity}"
    with pytest.raises(ValueError, match=refusal):
        again(this).end().believe()


# --- compare --------------------------------------------------------------------------------------


def as_another(source: Path, seed: int) -> Path:
    """A copy that calls itself the run of another seed, all identities and digests recomputed."""
    text = (source / "manifest.json").read_text()
    parts = json.loads(text)["parts"]
    parts["config"]["seed"] = seed
    identity = digest(parts)
    copy = shutil.copytree(source, source.with_name(f"nano-s{seed}-{identity}"))
    edit(copy / "manifest.json", parts=parts, identity=identity, name=f"nano-s{seed}")
    changed = {**summary_of(copy), "seed": seed, "identity": identity}
    write_summary(copy, changed)
    return copy


def test_copies_count_once_and_forged_ones_not_at_all(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    path = this.run_dir.with_name(f"backup-of-{this.run_dir.name}")
    shutil.copytree(this.run_dir, path)
    for seed in range(100, 103):
        as_another(this.run_dir, seed)
        edit(as_another(this.run_dir, seed + 10) / "summary.json", val_loss=1.0 + seed / 1e5)
    loaded = load_runs([this.run_dir.parent])

    assert len(loaded.records) == 4  # whoever recomputes every digest is not caught
    assert sum("left out: the same run is in" in line for line in loaded.problems) == 1
    assert (
        sum("summary.json does not match its digest" in line for line in loaded.unreadable.values())
        == 3
    )
    assert len(compare(loaded).not_compared) == 3


def test_a_grid_finds_its_runs_by_their_folders(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    runs = this.run_dir.parent
    shutil.copytree(this.run_dir, runs / f"a-backup-of-{this.run_dir.name}")
    grid = runs.parent / "grids" / "g"
    grid.mkdir(parents=True)
    content = {"cells": [{"identity": this.identity}, {"identity": "../.."}, {}]}
    (grid / "grid.json").write_text(json.dumps(content))
    records = load_runs([grid]).records
    names = [record.folder.name for record in records]
    assert names == [this.run_dir.name]
    assert of_identity(runs, this.identity) == this.run_dir


# --- what lies there ------------------------------------------------------------------------------


def test_only_exact_names_below_checkpoints_are_read_or_touched(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    said = list[str]()
    root = this.run_dir / "checkpoints"
    outside = shutil.copytree(root / name_of(5), tmp_path / "outside")
    before = digests(outside)
    for name in ("step-00000025.bak", ".step-00000009.tmp"):
        (root / name).write_text("a file")
    for name in ("step-99.bak", link := name_of(6)):
        (root / name).symlink_to(outside)
    for name in ("step-00000004 copy", "step-0000000004"):  # no name that nocap gives
        shutil.copytree(root / name_of(4), root / name)
    backup = shutil.copytree(this.run_dir, this.run_dir.with_name(f"backup-of-{this.run_dir.name}"))
    kept = digests(backup)
    names = {path.name for path in root.iterdir()}
    stray = names - {name_of(4), name_of(5)}
    assert start(again(this), log=said.append).status == "finished"
    assert (
        f"checkpoint not used: {root / link}: the checkpoint must be a folder, and not a link"
        in said
    )
    names = {path.name for path in root.iterdir()}
    assert names == {*stray, name_of(STEPS)}
    assert (root / link).is_symlink()
    assert digests(outside) == before
    assert digests(backup) == kept
    run_dir = planned(whole, SEED).run_dir
    assert steady(this.run_dir) == steady(run_dir)


def test_what_a_killed_process_left_is_deleted_at_the_next_start(
    whole: Path, tmp_path: Path
) -> None:
    this = copied(whole, tmp_path)
    root = this.run_dir / "checkpoints"
    shutil.copytree(root / name_of(STEPS), root / ".step-00000006.tmp")
    files = ("summary.json", "metrics.jsonl", "manifest.json", "config.yaml")
    left = [f".{name}.0123456789ab.tmp" for name in files]
    kept = [".mine.tmp", ".summary.json.mine.tmp", "summary.json.tmp"]
    for name in (*left, *kept):
        (this.run_dir / name).write_text("half")
    (this.run_dir / ".ranks").mkdir()
    with hold(this):
        clean(this)  # another process holds it
        assert (this.run_dir / left[0]).exists()
    clean(this)
    names = [path.name for path in root.iterdir()]
    assert names == [name_of(STEPS)]
    paths = this.run_dir.iterdir()
    assert {path.name for path in paths} & {*left, *kept, ".ranks"} == {*kept}
    (this.run_dir / left[2]).write_text("{")
    write_record_head(this)  # as an attempt does first
    assert not (this.run_dir / left[2]).exists()


def test_what_is_no_folder_in_a_leases_place_is_refused(tmp_path: Path) -> None:
    this = planned(tmp_path / "out")
    precious = tmp_path / "precious"
    (precious / "mine").mkdir(parents=True)
    this.run_dir.mkdir(parents=True)
    place = this.run_dir / ".lease"
    for wrong in (lambda: place.symlink_to(precious), lambda: place.write_text("x")):
        wrong()
        with pytest.raises(ValueError, match="must be a folder, or not exist"):
            hold(this)
        place.unlink()
    place.mkdir()
    (place / "link").symlink_to(precious)
    hold(this).close()
    assert (precious / "mine").is_dir()


# --- a half-done run that code or machine make another --------------------------------------------


def test_a_half_done_run_under_other_threads_cpu_or_code_is_named(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = copied(half, tmp_path)

    def notices(*words: str) -> str:
        plan = planned(this.run_dir.parents[1], *words)
        return "".join(plan.notices)

    begins = (
        f"{this.run_dir} is half done, at step 5, and is another run: they differ in threads "
        f"(1, now 2); "
    )
    assert notices(SEED, "trainer.threads=2").startswith(begins)
    monkeypatch.setattr("nocap.config.hardware.device_name", lambda device: "Another CPU")
    assert re.search(r"they differ in device \(.*, now Another CPU\)", notices(SEED))
    assert notices("seed=4") == ""
    assert notices(SEED, "optimizer.lr=0.5") == ""
    monkeypatch.setattr("nocap.launch.plan.identity_parts", other_code)
    assert "code (nocap.model.gpt)" in notices(SEED)


def other_code(run: Any, *, data_fingerprint: str) -> Json:
    parts = identity_parts(run, data_fingerprint=data_fingerprint)
    return {**parts, "source": {**parts["source"], "nocap.model.gpt": "0" * 12}}


# --- a grid's end ---------------------------------------------------------------------------------


def grid_of_one(this: Plan, out: Path) -> Grid:
    """Write a grid of one cell."""
    cell = Cell(overrides=(), label="", plan=this)
    grid = Grid(name="g", folder=out / "grids" / "g", swept=(), cells=(cell,))
    grid.write()
    return grid


def test_a_report_that_a_kill_prevented_is_written_by_the_same_command(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this = copied(whole, tmp_path)
    grid = grid_of_one(this, tmp_path / "out")
    report = grid.folder / "report.html"
    done = {this.identity: RunResult(status=RunStatus.finished)}

    def written() -> int:
        assert grid_end.report(grid, done, stopped=False) == 0
        assert "report: " in capsys.readouterr().out
        return report.stat().st_mtime_ns

    first = written()
    assert written() == first
    page = report.read_bytes()
    # what a kill left is of fewer runs, and may be younger than all of them, as where they are
    # copies
    for left in (b"of before", page[:100], b""):
        report.write_bytes(left)
        written()
        assert report.read_bytes() == page


def with_report_of_before(this: Plan, out: Path) -> Grid:
    """Write a grid of one cell, with a report of before."""
    grid = grid_of_one(this, out)
    (grid.folder / "report.html").write_text("of before")
    return grid


@pytest.mark.parametrize("status", ["failed", "diverged", "damaged"])
def test_a_grid_without_a_finished_run_keeps_no_report_of_before(
    status: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this = copied(whole, tmp_path)
    grid = with_report_of_before(this, tmp_path / "out")
    results = {this.identity: RunResult(status=RunStatus(status))}
    grid_end.report(grid, results, stopped=False)
    assert "report: " not in capsys.readouterr().out
    assert not (grid.folder / "report.html").exists()


def test_a_comparison_that_fails_keeps_no_report_of_before(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this = copied(whole, tmp_path)
    grid = with_report_of_before(this, tmp_path / "out")
    (this.run_dir / "metrics.jsonl").write_text("")  # another process has damaged it in between
    done = {this.identity: RunResult(status=RunStatus.finished)}
    assert grid_end.report(grid, done, stopped=False) == 1
    out, err = capsys.readouterr()
    assert "report: " not in out
    assert err.startswith("nocap: no comparison: ")
    assert not (grid.folder / "report.html").exists()


@pytest.mark.parametrize("half_done", [True, False])
def test_a_report_is_not_there_while_its_grid_trains(
    half_done: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = copied(whole, tmp_path)
    if half_done:
        (this.run_dir / "summary.json").unlink()
    grid = with_report_of_before(this, tmp_path / "out")
    there = list[bool]()

    def look(*words: object, **options: object) -> None:
        there.append((grid.folder / "report.html").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr("nocap.launch.multirun.Runner.run", look)
    monkeypatch.setattr("nocap.launch.multirun.report", look)  # no cell is left to run
    command = multirun.Command(
        overrides=(), launcher=None, search=None, flags=GridFlags(), timer=None
    )
    with pytest.raises(KeyboardInterrupt):
        multirun.train_grid(grid, command)
    assert there == [not half_done]


def test_a_comparison_that_fails_ends_a_grid_with_1(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its page cannot be written where a folder has its name."""
    this = copied(whole, tmp_path)
    grid = grid_of_one(this, tmp_path / "out")
    (grid.folder / "report.html").mkdir()
    done = {this.identity: RunResult(status=RunStatus.finished)}
    assert grid_end.report(grid, done, stopped=False) == 1
    assert "nocap: no comparison: " in capsys.readouterr().err


# --- types ----------------------------------------------------------------------------------------


WRONG: dict[str, tuple[str, str]] = {
    "summary.json": (
        '{"clock_s": {"train": "long"}}',
        "clock_s.train must be a finite number, got 'long'",
    ),
    "manifest.json": ('{"parts": {"config": 7}}', "parts.config must be an object, got '7'"),
    "any.json": ("[" * 100_000, "must hold a JSON object: "),
    "nan.json": ('{"a": NaN}', "numbers must be finite, got NaN"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_are_refused_by_file_and_key(name: str, tmp_path: Path) -> None:
    text, line = WRONG[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))) as caught:
        read_json(tmp_path / name)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_types_in_the_file_of_a_grid_are_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text('{"cells": [{"identity": 7}]}')
    rule = r"grid.json: cells\[0\].identity must be text, got '7'$"
    with pytest.raises(ValueError, match=rule):
        read_grid(tmp_path)


def test_rows_of_other_types_are_no_rows() -> None:
    bad = [
        '{"step": true}',
        '{"step": 1.0}',
        '{"step": -1}',
        '{"step": 3, "x": "x"}',
        '{"step": 3, "a": {}}',
    ]
    bad += ["7", "{", '{"a": 1}', "", '{"step": 1}']
    text = "\n".join(['{"step": 1}', *bad, '{"step": 9, "val/loss": null}'])
    steps = [row["step"] for row in read_rows(text.encode())]
    assert steps == [1, 9]


def test_a_link_that_leads_elsewhere_is_not_written_through(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    places = ("train.log", "metrics.jsonl")
    for name in places:
        (this.run_dir / name).touch()
        (this.run_dir / name).rename(tmp_path / name)
        (this.run_dir / name).symlink_to(tmp_path / name)
    before = [(tmp_path / name).read_bytes() for name in places]
    append_text(this.run_dir / "train.log", "a line\n")
    start(again(this))
    same_end(this, whole)
    assert [(tmp_path / name).read_bytes() for name in places] == before
    assert not any((this.run_dir / name).is_symlink() for name in places)
