"""A run that begins from another's checkpoint is the run it would have been from its start;
checkpoints that are to stay do."""

from __future__ import annotations

import json
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nocap.config.compose import compose
from nocap.launch.plan import Plan, plan
from nocap.training import saving
from nocap.training.loading import newest_valid
from nocap.training.saving import CheckpointWriter
from tests.attempts import attempt, state_of
from tests.conftest import SMALL, Door, called, rows_of, the_run

WARM = ("schedule.warmup_steps=2",)
# keep_checkpoints is 2; no interval hits 3
TRUNK = ("schedule=constant", "trainer.steps=16", "trainer.keep_steps=[16,8,3]", *WARM)
BRANCH = ("schedule=wsd", "schedule.decay_steps=4", *WARM)  # 12 steps, from 8 on falling
CHECKPOINT = "step-00000008"


def train(door: Door, out: Path, *words: str) -> tuple[str, Path]:
    """What it printed, and its run."""
    done = door(*SMALL, *words, f"output_dir={out}")
    assert done.code == 0, done.err
    return done.out, the_run(out)


@pytest.fixture(scope="module")
def trunk(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 steps at a constant rate, once. Copy it before changing it."""
    out = tmp_path_factory.mktemp("trunk")
    here = partial(called, cwd=out, env={"NOCAP_CACHE": str(cache_dir)})
    return train(here, out, *TRUNK)[1]


def at(trunk: Path) -> Path:
    return trunk / "checkpoints" / CHECKPOINT


def begins(trunk: Path) -> str:
    return f"trainer.init_from={at(trunk)}"


def copied(trunk: Path, to: Path) -> Path:
    return shutil.copytree(trunk, to / "runs" / trunk.name)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def planned(*words: str) -> Plan:
    run = compose([*SMALL, *BRANCH, *words])
    return plan(run, choices={})


def same_as_whole(branch: Path, whole: Path, *, steps: int = 12) -> None:
    """Weights, optimizer state and every row from step 8 on, bit for bit; the validation of the
    summary with them."""
    hashes, rows = state_of(branch)
    expected, all_rows = state_of(whole)
    assert hashes == expected
    assert rows == [row for row in all_rows if row["step"] >= 8]
    assert [row["step"] for row in rows] == list(range(8, steps + 1))
    summaries = [read(folder / "summary.json") for folder in (branch, whole)]
    for key in ("status", "val_loss", "val_step", "steps", "tokens", "arm"):
        assert summaries[0][key] == summaries[1][key], key


# --- the same run ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_branch_is_the_whole_run(
    ranks: int, tmp_path: Path, door: Door, here: Door, trunk: Path
) -> None:
    _, whole = train(here, tmp_path / "whole", *BRANCH)
    words = (begins(trunk), f"output_dir={tmp_path / 'branch'}")
    if ranks == 1:
        starts = here
    else:
        starts = door
    printed, branch = train(
        starts, tmp_path / "branch", *BRANCH, begins(trunk), f"trainer.devices={ranks}"
    )
    assert f"beginning from step 8 of {at(trunk)}" in printed
    same_as_whole(branch, whole)
    assert branch.name != whole.name  # where a run begins is part of the identity
    assert planned(*words).run_dir == branch  # devices are no part of it
    manifest = read(branch / "manifest.json")
    trunk_manifest = read(trunk / "manifest.json")
    scale = str(at(trunk))
    expected = {"path": scale, "step": 8, "identity": trunk_manifest["identity"]}
    assert manifest["init"] == expected
    parts = set(manifest["parts"])
    assert parts - set(trunk_manifest["parts"]) == {"init"}
    before = read(at(trunk) / "state.json")["clock_s"]
    first = rows_of(branch)[0]
    for line, seconds in before.items():
        assert first[f"clock/{line}_s"] >= seconds
    assert read(branch / "summary.json")["clock_s"]["train"] > before["train"]

    again, _ = train(here, tmp_path / "branch", *BRANCH, begins(trunk), "trainer.keep_steps=[10]")
    assert (
        "the run has already finished, so there is nothing to train; the run kept no checkpoint of "
        "trainer.keep_steps=[10]" in again
    )

    spent = read(branch / "summary.json")["clock_s"]["wall"]
    shutil.rmtree(branch / "checkpoints")  # as if it had been killed before it saved
    (branch / "summary.json").unlink()
    again, _ = train(
        starts, tmp_path / "branch", *BRANCH, begins(trunk), f"trainer.devices={ranks}"
    )
    assert "beginning from step 8" in again
    same_as_whole(branch, whole)
    attempts = read(branch / "manifest.json")["attempts"]
    clock = read(branch / "summary.json")["clock_s"]
    before = attempts[0]["spent_s"]
    recorded = attempts[-1]["spent_s"]  # the trunk's time, and the lost one's too
    clock_s = read(at(trunk) / "state.json")["clock_s"]
    assert before == pytest.approx(sum(clock_s.values()))
    assert before < recorded <= min(spent, clock["wall"])
    assert clock["other"] >= recorded - before


@pytest.mark.slow
def test_branch_with_muon_killed_and_resumed_is_the_whole_run(tmp_path: Path, here: Door) -> None:
    words = ("optimizer=muon", "trainer.checkpoint_every=10", "schedule=wsd", *WARM)
    # to be disturbed in
    longer = (*words, "trainer.steps=60", "schedule.decay_steps=52")
    # falling from 8 on, too
    _, trunk = train(here, tmp_path / "trunk", *TRUNK, *words, "schedule.decay_steps=8")
    _, whole = train(here, tmp_path / "whole", *longer)
    with attempt(tmp_path / "branch", *SMALL, *longer, begins(trunk)) as running:
        running.wait_for_file("checkpoints/step-00000010")
        running.end(signal.SIGKILL)
    printed, branch = train(here, tmp_path / "branch", *longer, begins(trunk))
    assert "resuming from step " in printed
    assert "beginning from" not in printed
    same_as_whole(branch, whole, steps=60)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_cannot_be_a_trunk_is_refused(tmp_path: Path, trunk: Path) -> None:
    other, damaged, missing, state, inside = (copied(trunk, tmp_path / name) for name in "abcde")
    manifest = read(other / "manifest.json")
    manifest["parts"]["data"] = "0123456789abcdef"
    (other / "manifest.json").write_text(json.dumps(manifest))
    (at(damaged) / "manifest.json").write_text("{")
    (at(missing) / "manifest.json").unlink()
    flip(at(state) / "state.json")
    config = inside / "config.yaml"
    text = config.read_text().replace(
        "kind: constant\n", "kind: wsd\n  final: 0.0\n  decay_steps: 10\n"
    )
    config.write_text(text)
    alone = shutil.copytree(at(trunk), tmp_path / "alone" / "checkpoints" / CHECKPOINT)
    (file := tmp_path / CHECKPOINT).write_text("")
    key = "trainer.init_from="
    cases = {
        f"step-00000080), got {file}": (f"{key}{file}",),
        f"be a checkpoint (as RUN@80, or its folder …/runs/RUN/checkpoints/step-00000080), got "
        f"{trunk}": (f"{key}{trunk}",),
        f"step-00000080), got {at(missing)}": (begins(missing),),
        f"{at(damaged) / 'manifest.json'} must hold a JSON object": (begins(damaged),),
        f"be a complete checkpoint, got {at(state)}": (begins(state),),
        "be inside the folder of a run that has manifest.json and config.yaml": (f"{key}{alone}",),
        "be the checkpoint of a step before trainer.steps=12, got step 16": (
            f"{key}{at(trunk).with_name('step-00000016')}",
        ),
        "be from a run with the same optimizer.lr (0.5), got 0.003": (
            begins(trunk),
            "optimizer.lr=0.5",
        ),
        "be from a run with the same seed (1), got 0": (begins(trunk), "seed=1"),
        "be from a run with the same attention.n_kv_heads (1), got": (
            begins(trunk),
            "attention=mqa",
        ),
        "be from a run with the same schedule.warmup_steps (3), got 2": (
            begins(trunk),
            "schedule.warmup_steps=3",
        ),
        "be from a run with the same data (": (begins(other),),
        "up to step 8, where this run begins (this run: 0.833333 of the peak at step 7), "
        "got 1 in": (
            begins(trunk),
            "schedule.decay_steps=6",
        ),
        "up to step 8, where this run begins (this run: 1 of the peak at step 7), got 0.9 in": (
            begins(inside),
        ),
        "must name one run, and not last": (f"{key}last@8",),
        "must name a run: nano must be a run": (f"{key}nano@8",),
        "/@8": (f"{key}@8",),
    }
    for expected, words in cases.items():
        with pytest.raises(ValueError, match=rf"^.*{re.escape(expected)}.*\Z"):
            planned(*words, f"output_dir={tmp_path / 'out'}")


@pytest.mark.slow
def test_a_trunk_is_named_by_the_beginning_of_its_name(tmp_path: Path, trunk: Path) -> None:
    outputs = f"output_dir={trunk.parents[1]}"
    begun = planned(outputs, f"trainer.init_from={trunk.name[:-6]}@8")
    identity = planned(begins(trunk), f"output_dir={tmp_path}").identity
    assert begun.identity == identity
    scale = str(at(trunk))
    assert begun.run.trainer.init_from == scale  # the record has the folder


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_tensors_are_refused_and_nothing_is_trained(
    tmp_path: Path, door: Door, here: Door, trunk: Path, ranks: int
) -> None:
    damaged = copied(trunk, tmp_path)
    if ranks == 1:
        starts = here
    else:
        starts = door
    flip(at(damaged) / "optimizer.safetensors")
    words = (begins(damaged), f"trainer.devices={ranks}", f"output_dir={tmp_path / 'out'}")
    done = starts(*SMALL, *BRANCH, *words)
    reason = f"{at(damaged)}: optimizer.safetensors does not match its checksum"
    line = f"nocap: trainer.init_from must be a valid checkpoint, got {reason}\n"

    assert done.code == 2
    assert done.err == line
    assert not (the_run(tmp_path / "out") / "metrics.jsonl").exists()


# --- what is kept ---------------------------------------------------------------------------------


def test_kept_steps_outlive_the_run(trunk: Path) -> None:
    paths = sorted((trunk / "checkpoints").iterdir())
    kept = [int(path.name[5:]) for path in paths]
    assert kept == [3, 8, 16]
    assert newest_valid(trunk / "checkpoints").invalid == []


def test_kept_steps_stay_where_the_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a disk that is full gets room."""
    made = CheckpointWriter(tmp_path, background=False, always=[2, 5])
    model = torch.nn.Linear(7, 5)
    save = partial(made.save, model=model, optimizers=[], state={}, keep=2, must=False)

    def steps() -> list[int]:
        paths = sorted(tmp_path.iterdir())
        return [int(path.name[5:]) for path in paths]

    for step in range(1, 8):
        assert save(step=step) == []
    assert steps() == [2, 5, 6, 7]  # the newest two, and those

    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "save_file", full)
        assert len(save(step=8)) == 1
    assert steps() == [2, 5, 7]
    save(step=9, keep=1, must=True)
    assert steps() == [2, 5, 9]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("[0]", "be steps from 1 to trainer.steps=12, got [0]"),
        ("[4,13]", "be steps from 1 to trainer.steps=12, got [4, 13]"),
        ("[4,4]", "name each step once, got [4, 4]"),
    ],
)
def test_wrong_steps_to_keep_are_refused(value: str, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"trainer.keep_steps must {rule}")):
        compose([*SMALL, f"trainer.keep_steps={value}"])
