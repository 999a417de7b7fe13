"""What a record is believed: damage is mended from a checkpoint, named and left out, or refused, and only
nocap's own names are touched."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nocap.config.bounded import parse_json
from nocap.judge.compare import compare
from nocap.launch import multirun
from nocap.launch.attempt import clean, hold
from nocap.launch.grid import Cell, Grid, Result
from nocap.launch.head import write_record_head
from nocap.launch.plan import Plan, outcome, sound
from nocap.store.checkpoints import name_of, saved_steps
from nocap.store.files import append_text
from nocap.store.record import Metrics, digest, read_json, read_rows, write_summary
from nocap.store.runs import load, of_identity
from nocap.training import checkpoint
from tests.attempts import stamp, state_of, steady
from tests.in_process import STEPS, planned, start

Json = dict[str, Any]
Damage = Callable[[list[bytes]], list[bytes]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory of a finished run. Copy it before changing it."""
    out = tmp_path_factory.mktemp("whole") / "out"
    start(planned(out, "seed=3"))
    return out


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, stopped after its fifth step."""
    out = tmp_path_factory.mktemp("half") / "out"
    start(planned(out, "seed=3"), stop_after=4)
    return out


def copied(out: Path, tmp_path: Path) -> Plan:
    """The plan of the same run below a copy."""
    return planned(shutil.copytree(out, tmp_path / "out"), "seed=3")


def edit(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def unsealed(run_dir: Path, **changed: Any) -> None:
    """Change the summary, and take its digests away, as if an older nocap had written it."""
    path = run_dir / "summary.json"
    edit(path, **changed)
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"})
    )


def same_end(this: Plan, whole: Path) -> None:
    assert state_of(this.run_dir) == state_of(planned(whole, "seed=3").run_dir)
    assert outcome(this) is not None
    assert load([this.run_dir]).unreadable == {}


# --- rows: mended from the checkpoint -----------------------------------------------------------------------


def forged(lines: list[bytes]) -> list[bytes]:
    return [json.dumps({**json.loads(line), "train/loss": 99.0}).encode() + b"\n" for line in lines]


ROWS: dict[str, Damage] = {
    "missing": lambda lines: [],
    "cut": lambda lines: [b"".join(lines)[:-700]],
    "holes": lambda lines: [lines[0], *lines[2:]],
    "duplicates": lambda lines: [line for line in lines for _ in range(2)],
    "reversed": lambda lines: lines[::-1],
    "forged": forged,
    "foreign": lambda lines: [lines[0], b"[[[[\n", b'{"step": "x"}\n', *lines[1:]],
    "emptied in the middle": lambda lines: [*lines[:2], b"\0" * 300, *lines[2:]],
}


@pytest.mark.parametrize("damage", ROWS)
def test_damaged_rows_are_put_back_at_the_resume(
    damage: str, half: Path, whole: Path, tmp_path: Path
) -> None:
    this, said = copied(half, tmp_path), list[str]()
    path = this.run_dir / "metrics.jsonl"
    changed = ROWS[damage](path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(changed))
    if not changed:
        path.unlink()
    assert start(this, log=said.append).status == "finished"
    (line,) = [line for line in said if "damaged" in line]
    assert line.startswith(f"{path}: damaged; ")
    assert line.endswith(f"its rows are put back from {this.run_dir}/checkpoints/{name_of(5)}")
    same_end(this, whole)


def test_rows_after_the_checkpoint_are_cut_back_without_a_word(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this, said = copied(half, tmp_path), list[str]()
    with (this.run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "tokens": 320, "train/loss": 1.0}\n{"step": 6, "tok')
    start(this, log=said.append)
    assert not [line for line in said if "damaged" in line]
    same_end(this, whole)


def test_rows_that_are_damaged_while_a_run_trains_are_put_back(whole: Path, tmp_path: Path) -> None:
    this, said = planned(tmp_path / "out", "seed=3"), list[str]()
    path = this.run_dir / "metrics.jsonl"
    original = checkpoint.Writer.save

    def damaging(self: checkpoint.Writer, **named: Any) -> list[str]:
        path.write_bytes(path.read_bytes()[3:])
        return original(self, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.Writer, "save", damaging)
        start(this, log=said.append)
    assert [line for line in said if line.endswith("its rows are put back from this process")]
    same_end(this, whole)


def test_a_checkpoint_whose_rows_are_not_those_before_it_is_named(half: Path, tmp_path: Path) -> None:
    this = copied(half, tmp_path)
    newest = this.run_dir / "checkpoints" / name_of(5)
    for text in (b"{", b'{"step": 5}\n', b'{"step": 1}\n{"step": 0}\n'):
        (newest / "metrics.jsonl").write_bytes(text)
        sums = {
            file.name: checkpoint.sha256(file) for file in newest.iterdir() if file.name != "manifest.json"
        }
        (newest / "manifest.json").write_text(json.dumps(sums))
        latest = checkpoint.find(newest.parent)
        assert (latest.step, latest.invalid) == (
            4,
            [f"{newest}: metrics.jsonl must hold the rows before the step in the folder's name"],
        )


# --- the end: what is believed ------------------------------------------------------------------------------


ENDS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "config": ("config.yaml", lambda old: old + b"\n"),
    "manifest": ("manifest.json", lambda old: old.replace(b'"arm": "', b'"arm": "x')),
    "rows": ("metrics.jsonl", lambda old: old[:-9]),
    "summary": ("summary.json", lambda old: old.replace(b'"attempts": 1', b'"attempts": 7')),
    "no digests": ("summary.json", lambda old: json.dumps({**json.loads(old), "sha256": None}).encode()),
    "torn": ("summary.json", lambda old: b"{"),
    "types": ("summary.json", lambda old: b'{"status": "finished", "val_loss": "low"}'),
    "list": ("summary.json", lambda old: b"[]"),
}


@pytest.mark.parametrize("damage", ENDS)
def test_a_damaged_end_is_named_and_made_again_from_the_last_checkpoint_or_refused(
    damage: str, whole: Path, tmp_path: Path
) -> None:
    this, (name, change) = copied(whole, tmp_path), ENDS[damage]
    path, checkpoints = this.run_dir / name, this.run_dir / "checkpoints"
    path.write_bytes(change(path.read_bytes()))
    (told,) = load([this.run_dir]).unreadable.values()
    assert name in told
    assert outcome(this) is None
    (notice,) = copied_again(this).notices
    assert name in notice
    assert "not believed; the run goes on from its last checkpoint" in notice
    checkpoints.rename(tmp_path / "kept")
    with pytest.raises(ValueError, match=rf"{name}.* there is no valid checkpoint to mend it from"):
        sound(copied_again(this))
    (tmp_path / "kept").rename(checkpoints)
    assert start(copied_again(this)).step == STEPS
    same_end(this, whole)


def test_a_digest_is_of_a_summarys_content(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    path = this.run_dir / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert load([this.run_dir]).unreadable == {}


def copied_again(this: Plan) -> Plan:
    """The plan, made anew from what is there now."""
    return planned(this.run_dir.parents[1], "seed=3")


def test_finished_forged_half_way_is_trained_to_its_end(half: Path, whole: Path, tmp_path: Path) -> None:
    this = copied(half, tmp_path)
    edit(this.run_dir / "summary.json", status="finished")
    assert outcome(this) is None
    unsealed(this.run_dir, status="finished")
    assert outcome(this) is None
    start(copied_again(this))
    same_end(this, whole)


def test_another_runs_summary_is_not_believed(whole: Path, half: Path, tmp_path: Path) -> None:
    other = planned(tmp_path / "other", "seed=4")
    start(other)
    this = copied(half, tmp_path)
    for name in ("summary.json", "metrics.jsonl"):
        shutil.copy(other.run_dir / name, this.run_dir / name)
    assert outcome(this) is None
    shutil.copy(other.run_dir / "manifest.json", this.run_dir / "manifest.json")
    with pytest.raises(
        ValueError, match=f"be of the run in the folder's name, {this.identity}, got {other.identity}"
    ):
        sound(copied_again(this))


@pytest.mark.parametrize("how", ["cut", "pipe"])
def test_a_damaged_end_with_a_damaged_checkpoint_is_refused_and_stays_as_it_is(
    whole: Path, tmp_path: Path, how: str
) -> None:
    this = copied(whole, tmp_path)
    (this.run_dir / "metrics.jsonl").write_bytes((this.run_dir / "metrics.jsonl").read_bytes()[:-9])
    weights = this.run_dir / "checkpoints" / name_of(STEPS) / "model.safetensors"
    if how == "pipe":
        weights.unlink()
        os.mkfifo(weights)
    else:
        weights.write_bytes(weights.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in this.run_dir.rglob("*") if path.is_file()}
    with pytest.raises(
        ValueError,
        match=r"metrics\.jsonl is not what its digest .* there is no valid checkpoint to mend it from",
    ):
        sound(copied_again(this))
    assert {path: path.read_bytes() for path in this.run_dir.rglob("*") if path.is_file()} == before


# --- compare ------------------------------------------------------------------------------------------------


def as_another(source: Path, seed: int) -> Path:
    """A copy that calls itself the run of another seed, all identities and digests recomputed."""
    manifest = json.loads((source / "manifest.json").read_text())
    manifest["parts"]["config"]["seed"] = seed
    identity = digest(manifest["parts"])
    copy = shutil.copytree(source, source.with_name(f"nano-s{seed}-{identity}"))
    (copy / "manifest.json").write_text(
        json.dumps({**manifest, "identity": identity, "name": f"nano-s{seed}"})
    )
    summary = json.loads((copy / "summary.json").read_text())
    write_summary(copy, {**summary, "seed": seed, "identity": identity})
    return copy


def test_copies_count_once_and_forged_ones_not_at_all(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    shutil.copytree(this.run_dir, this.run_dir.with_name(f"backup-of-{this.run_dir.name}"))
    for seed in range(100, 110):
        as_another(this.run_dir, seed)
    for seed in range(110, 120):
        edit(as_another(this.run_dir, seed) / "summary.json", val_loss=1.0 + seed / 1e5)
    loaded = load([this.run_dir.parent])
    assert len(loaded.records) == 11  # whoever recomputes every digest is not caught
    assert sum("left out, it is the same run as" in line for line in loaded.problems) == 1
    assert sum("summary.json is not what its digest" in line for line in loaded.unreadable.values()) == 10
    content = compare(loaded).json()
    assert len(content["not_compared"]) == 10


def test_a_grid_finds_its_runs_by_their_folders(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    runs = this.run_dir.parent
    shutil.copytree(this.run_dir, runs / f"a-backup-of-{this.run_dir.name}")
    grid = runs.parent / "grids" / "g"
    grid.mkdir(parents=True)
    (grid / "grid.json").write_text(
        json.dumps({"cells": [{"identity": this.identity}, {"identity": "../.."}, {}]})
    )
    assert [record.folder.name for record in load([grid]).records] == [this.run_dir.name]
    assert of_identity(runs, this.identity) == this.run_dir


# --- what lies there ----------------------------------------------------------------------------------------


def test_only_exact_names_below_checkpoints_are_read_or_touched(
    half: Path, whole: Path, tmp_path: Path
) -> None:
    this = copied(half, tmp_path)
    root = this.run_dir / "checkpoints"
    outside = shutil.copytree(root / name_of(5), tmp_path / "outside")
    (root / "step-00000025.bak").write_text("a file")
    (root / "step-99.bak").symlink_to(outside)
    shutil.copytree(root / name_of(4), root / "step-00000004 copy")
    shutil.copytree(root / name_of(4), root / "step-0000000004")  # no name that nocap gives
    (root / ".step-00000009.tmp").write_text("a file")
    stray = sorted(path.name for path in root.iterdir() if path.name not in (name_of(4), name_of(5)))
    assert saved_steps(this.run_dir) == [5, 4]
    assert start(copied_again(this)).status == "finished"
    assert sorted(path.name for path in root.iterdir()) == sorted([*stray, name_of(STEPS)])
    assert sorted(path.name for path in outside.iterdir()) == sorted(
        path.name for path in (root / name_of(STEPS)).iterdir()
    )
    assert steady(this.run_dir) == steady(planned(whole, "seed=3").run_dir)


def test_a_link_in_a_checkpoints_place_is_named_and_stays(half: Path, tmp_path: Path) -> None:
    this, said = copied(half, tmp_path), list[str]()
    place = this.run_dir / "checkpoints" / name_of(6)
    place.symlink_to(tmp_path / "elsewhere")
    start(this, log=said.append)
    assert f"checkpoint not used: {place}: it must be a folder, and no link to one" in said
    assert place.is_symlink()


def test_a_copied_run_is_not_what_the_run_resumes_from(half: Path, whole: Path, tmp_path: Path) -> None:
    this = copied(half, tmp_path)
    backup = this.run_dir.with_name(f"backup-of-{this.run_dir.name}")
    shutil.copytree(this.run_dir, backup)
    before = {path: path.stat().st_mtime_ns for path in backup.rglob("*")}
    assert copied_again(this).run_dir == this.run_dir
    start(copied_again(this))
    same_end(this, whole)
    assert {path: path.stat().st_mtime_ns for path in backup.rglob("*")} == before
    shutil.rmtree(this.run_dir)
    assert copied_again(this).run_dir == this.run_dir  # begun anew, not in the backup


def test_a_checkpoint_of_another_run_is_not_used(half: Path, whole: Path, tmp_path: Path) -> None:
    this, other, said = copied(half, tmp_path), planned(tmp_path / "other", "seed=4"), list[str]()
    start(other)
    shutil.copytree(other.run_dir / "checkpoints" / name_of(STEPS), this.run_dir / "checkpoints" / name_of(6))
    stamp(this.run_dir / "checkpoints" / name_of(6))
    start(this, log=said.append)
    assert any(line.endswith(f"{name_of(6)}: it is of another run, {other.run_dir.name}") for line in said)
    same_end(this, whole)


def test_what_a_killed_process_left_is_deleted_at_the_next_start(whole: Path, tmp_path: Path) -> None:
    this = copied(whole, tmp_path)
    root = this.run_dir / "checkpoints"
    shutil.copytree(root / name_of(STEPS), root / ".step-00000006.tmp")
    left = [
        f".{name}.0123456789ab.tmp"
        for name in ("summary.json", "metrics.jsonl", "manifest.json", "config.yaml")
    ]
    kept = [".mine.tmp", ".summary.json.mine.tmp", "summary.json.tmp"]
    for name in (*left, *kept):
        (this.run_dir / name).write_text("half")
    (this.run_dir / ".ranks").mkdir()
    with hold(this):
        clean(this)  # another process holds it
        assert (this.run_dir / left[0]).exists()
    clean(this)
    assert [path.name for path in root.iterdir()] == [name_of(STEPS)]
    names = {path.name for path in this.run_dir.iterdir()}
    assert names & {*left, *kept, ".ranks"} == {*kept}


def test_an_attempt_deletes_half_written_files_first(half: Path, tmp_path: Path) -> None:
    this = copied(half, tmp_path)
    (this.run_dir / ".manifest.json.0123456789ab.tmp").write_text("{")
    write_record_head(this)
    assert not list(this.run_dir.glob(".*.tmp"))


def test_what_is_no_folder_in_a_leases_place_is_refused(tmp_path: Path) -> None:
    this, precious = planned(tmp_path / "out"), tmp_path / "precious"
    (precious / "mine").mkdir(parents=True)
    this.run_dir.mkdir(parents=True)
    (this.run_dir / ".lease").symlink_to(precious)
    with pytest.raises(ValueError, match="must be a folder of leases, or not be there"):
        hold(this)
    (this.run_dir / ".lease").unlink()
    (this.run_dir / ".lease").write_text("x")
    with pytest.raises(ValueError, match="must be a folder of leases, or not be there"):
        hold(this)
    (this.run_dir / ".lease").unlink()
    (this.run_dir / ".lease").mkdir()
    (this.run_dir / ".lease" / "link").symlink_to(precious)
    hold(this).close()
    assert (precious / "mine").is_dir()


# --- a half-done run that code or machine make another ------------------------------------------------------


def test_a_half_done_run_under_other_threads_cpu_or_code_is_named(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = copied(half, tmp_path)
    out = this.run_dir.parents[1]
    (notice,) = planned(out, "seed=3", "trainer.threads=2").notices
    assert notice.startswith(
        f"{this.run_dir} is half done, at step 5, and another run: what differs is threads (1, now 2); "
    )
    assert "this command starts from scratch, and to go on with that run put that back" in notice
    monkeypatch.setattr("nocap.config.hardware.device_name", lambda device: "Another CPU")
    (notice,) = planned(out, "seed=3").notices
    assert "what differs is device (" in notice
    assert ", now Another CPU)" in notice
    assert planned(out, "seed=4").notices == ()
    assert planned(out, "seed=3", "optimizer.lr=0.5").notices == ()
    monkeypatch.setattr("nocap.launch.plan.identity_parts", other_code)
    (notice,) = planned(out, "seed=3").notices
    assert "code (nocap.model.gpt)" in notice


def other_code(run: Any, *, data_fingerprint: str) -> Json:
    from nocap.store.identity import identity_parts

    parts = identity_parts(run, data_fingerprint=data_fingerprint)
    return {**parts, "source": {**parts["source"], "nocap.model.gpt": "0" * 12}}


# --- a grid's end -------------------------------------------------------------------------------------------


def test_a_report_that_a_kill_prevented_is_written_by_the_same_command(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this = copied(whole, tmp_path)
    grid = Grid(
        name="g",
        folder=tmp_path / "out" / "grids" / "g",
        swept=(),
        cells=(Cell(overrides=(), label="", plan=this),),
    )
    grid.write()
    report, done = grid.folder / "report.html", {this.identity: Result(summary={"status": "finished"})}

    def again() -> int:
        assert multirun._report(grid, done, stopped=False) == 0
        assert "report: " in capsys.readouterr().out
        return report.stat().st_mtime_ns

    first = again()
    assert again() == first
    os.utime(this.run_dir / "summary.json")  # a cell ended after it
    assert again() > first


def test_a_grids_leftovers_go_when_nobody_can_be_writing_them(tmp_path: Path) -> None:
    grid = Grid(name="g", folder=tmp_path / "g", swept=(), cells=())
    grid.folder.mkdir()
    old, new = grid.folder / ".report.html.0123456789ab.tmp", grid.folder / ".grid.json.0123456789ab.tmp"
    old.write_text("")
    new.write_text("")
    os.utime(old, (time.time() - 100, time.time() - 100))
    grid.write()
    assert (old.exists(), new.exists()) == (False, True)


# --- types --------------------------------------------------------------------------------------------------


WRONG: dict[str, tuple[str, str]] = {
    "summary.json": ('{"clock_s": {"train": "long"}}', "clock_s.train must be a finite number, got 'long'"),
    "manifest.json": ('{"parts": {"config": 7}}', "parts.config must be an object, got '7'"),
    "grid.json": ('{"cells": [{"identity": 7}]}', "cells[0].identity must be text, got '7'"),
    "results.cpu.x.json": ('{"claims": []}', "it must have kind"),
    "any.json": ("[" * 100_000, "must hold a JSON object: "),
    "nan.json": ('{"a": NaN}', "numbers must be finite, got NaN"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_are_refused_by_file_and_key(name: str, tmp_path: Path) -> None:
    text, line = WRONG[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as caught:
        read_json(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_no_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(ValueError, match="must be a regular file"):
        read_json(tmp_path / "summary.json")
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="must be a regular file"):
        Metrics(tmp_path / "metrics.jsonl").rows()


def test_rows_of_other_types_are_no_rows() -> None:
    bad = [
        '{"step": true}',
        '{"step": 1.0}',
        '{"step": -1}',
        '{"step": 3, "x": "x"}',
        '{"step": 3, "a": {}}',
        "7",
        "{",
        '{"a": 1}',
        "",
    ]
    rows = read_rows(
        "\n".join(['{"step": 1}', *bad, '{"step": 1}', '{"step": 9, "val/loss": null}']).encode()
    )
    assert [row["step"] for row in rows] == [1, 9]
    assert parse_json('{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}


@pytest.mark.parametrize("name", ["train.log", "metrics.jsonl"])
def test_a_link_that_leads_elsewhere_is_not_written_through(
    half: Path, whole: Path, tmp_path: Path, name: str
) -> None:
    this = copied(half, tmp_path)
    place, elsewhere = this.run_dir / name, tmp_path / "elsewhere"
    content = place.read_bytes() if place.exists() else b""
    elsewhere.write_bytes(content)
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    append_text(this.run_dir / "train.log", "a line\n")
    start(copied_again(this))
    same_end(this, whole)
    assert elsewhere.read_bytes() == content
    assert not place.is_symlink()
