"""A run that begins from another's checkpoint is the run it would have been from its start; checkpoints that
are to stay do."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nocap.config.compose import compose
from nocap.launch.plan import plan
from nocap.store.record import read_json, write_json
from nocap.training import checkpoint
from tests.attempts import attempt, state_of, steady
from tests.conftest import SMALL, Door, called, rows_of, the_run

WARM = ("schedule.warmup_steps=2",)
# keep_checkpoints is 2; no interval hits 3
TRUNK = ("schedule=constant", "trainer.steps=16", "trainer.keep_steps=[16,8,3]", *WARM)
BRANCH = ("schedule=wsd", "schedule.decay_steps=4", *WARM)  # 12 steps, from 8 on falling
MUON = ("optimizer=muon",)


@dataclass(frozen=True)
class Trunk:
    run_dir: Path

    @property
    def at(self) -> Path:
        return self.run_dir / "checkpoints" / "step-00000008"

    @property
    def word(self) -> str:
        return f"trainer.init_from={self.at}"


@pytest.fixture(scope="module")
def trunk(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Trunk:
    """16 steps at a constant rate, once. Copy it before changing it."""
    out = tmp_path_factory.mktemp("trunk")
    done = called(*SMALL, *TRUNK, f"output_dir={out}", cwd=out, env={"NOCAP_CACHE": str(cache_dir)})
    assert done.code == 0, done.err
    return Trunk(the_run(out))


def copied(trunk: Trunk, to: Path) -> Trunk:
    return Trunk(shutil.copytree(trunk.run_dir, to / "runs" / trunk.run_dir.name))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def same_as_whole(branch: Path, whole: Path, *, steps: int = 12) -> None:
    """Weights, optimizer state and every row from step 8 on, bit for bit; the validation of the summary with
    them."""
    (hashes, rows), (expected, all_rows) = state_of(branch), state_of(whole)
    assert hashes == expected
    assert rows == [row for row in all_rows if row["step"] >= 8]
    assert [row["step"] for row in rows] == list(range(8, steps + 1))
    branch_summary, whole_summary = (read_json(folder / "summary.json") or {} for folder in (branch, whole))
    for key in ("status", "val_loss", "val_step", "steps", "tokens", "arm"):
        assert branch_summary[key] == whole_summary[key], key


# --- the same run -------------------------------------------------------------------------------------------


def whole_and_branch(door: Door, out: Path, trunk: Trunk, *words: str) -> tuple[Path, Path]:
    for name, more in {"whole": (), "branch": (trunk.word, *words)}.items():
        done = door(*SMALL, *BRANCH, *more, f"output_dir={out / name}")
        assert done.code == 0, done.err
        assert (f"beginning from step 8 of {trunk.at}" in done.out) == (name == "branch")
    whole, branch = the_run(out / "whole"), the_run(out / "branch")
    same_as_whole(branch, whole)
    assert branch.name != whole.name  # where a run begins is part of the identity
    return whole, branch


@pytest.mark.slow
def test_branch_on_two_ranks_is_the_whole_run(tmp_path: Path, door: Door, trunk: Trunk) -> None:
    _, branch = whole_and_branch(door, tmp_path, trunk, "trainer.devices=2")
    one_device = plan(compose([*SMALL, *BRANCH, trunk.word, f"output_dir={tmp_path / 'branch'}"]), choices={})
    assert one_device.run_dir == branch  # devices are no part of it


@pytest.mark.slow
def test_branch_is_the_whole_run(tmp_path: Path, here: Door, trunk: Trunk) -> None:
    whole, branch = whole_and_branch(here, tmp_path, trunk)
    manifest, trunk_manifest = read_json(branch / "manifest.json"), read_json(trunk.run_dir / "manifest.json")
    assert manifest is not None
    assert trunk_manifest is not None
    assert manifest["init"] == {"path": str(trunk.at), "step": 8, "identity": trunk_manifest["identity"]}
    assert set(manifest["parts"]) - set(trunk_manifest["parts"]) == {"init"}
    before = json.loads((trunk.at / "state.json").read_text())["clock_s"]
    first = rows_of(branch)[0]
    assert all(first[f"clock/{line}_s"] >= seconds for line, seconds in before.items())
    clock = (read_json(branch / "summary.json") or {})["clock_s"]
    assert clock["train"] > before["train"]

    why = here("why", str(whole), str(branch), "--json", str(tmp_path / "why.json"), module="nocap.runs")
    assert "init  step" in why.out
    differences = [
        difference
        for difference in json.loads((tmp_path / "why.json").read_text())["differences"]
        if difference["part"] != "recorded"
    ]
    assert {"part": "init", "key": "step", "a": "—", "b": "8"} in differences
    assert {difference["part"] for difference in differences} == {"init"}

    again = here(*SMALL, *BRANCH, trunk.word, "trainer.keep_steps=[10]", f"output_dir={tmp_path / 'branch'}")
    assert again.code == 0
    assert "already finished: nothing to train; trainer.keep_steps: it has no checkpoint of [10]" in again.out


@pytest.mark.slow
def test_branch_with_muon_killed_and_resumed_is_the_whole_run(tmp_path: Path, door: Door) -> None:
    words = (*SMALL, *MUON, "trainer.checkpoint_every=10")
    # to be disturbed in
    longer = (*words, "schedule=wsd", *WARM, "trainer.steps=60", "schedule.decay_steps=52")
    # falling from 8 on, too
    made = door(*words, *TRUNK, "schedule=wsd", "schedule.decay_steps=8", f"output_dir={tmp_path / 'trunk'}")
    assert made.code == 0, made.err
    trunk = Trunk(the_run(tmp_path / "trunk"))
    whole = door(*longer, f"output_dir={tmp_path / 'whole'}")
    assert whole.code == 0, whole.err
    out = tmp_path / "branch"
    with attempt(out, *longer, trunk.word) as running:
        running.wait_for_file("checkpoints/step-00000010")
        running.end(signal.SIGKILL)
    done = door(*longer, trunk.word, f"output_dir={out}")
    assert done.code == 0, done.err
    assert "resuming from step " in done.out
    assert "beginning from" not in done.out
    same_as_whole(the_run(out), the_run(tmp_path / "whole"), steps=60)


@pytest.mark.slow
def test_branch_killed_before_its_first_checkpoint_begins_again_and_counts_the_time(
    tmp_path: Path, here: Door, trunk: Trunk
) -> None:
    words = (*SMALL, *BRANCH, trunk.word, "trainer.checkpoint_every=0", f"output_dir={tmp_path / 'out'}")
    first = here(*words)
    assert first.code == 0, first.err
    run_dir = the_run(tmp_path / "out")
    before = sum(json.loads((trunk.at / "state.json").read_text())["clock_s"].values())
    attempts = (read_json(run_dir / "manifest.json") or {})["attempts"]
    assert attempts[0]["spent_s"] == pytest.approx(before)
    spent = (read_json(run_dir / "summary.json") or {})["clock_s"]["wall"]
    rows = steady(run_dir)

    shutil.rmtree(run_dir / "checkpoints")  # as if it had been killed before it saved
    (run_dir / "summary.json").unlink()
    again = here(*words)
    assert again.code == 0, again.err
    assert "beginning from step 8" in again.out
    assert steady(run_dir) == rows
    clock = (read_json(run_dir / "summary.json") or {})["clock_s"]
    recorded = (read_json(run_dir / "manifest.json") or {})["attempts"][1]["spent_s"]
    assert before < recorded <= spent
    assert clock["wall"] > recorded
    assert clock["other"] >= recorded - before


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_cannot_be_a_trunk_is_refused(tmp_path: Path, trunk: Trunk) -> None:
    other = copied(trunk, tmp_path / "data")
    manifest = read_json(other.run_dir / "manifest.json") or {}
    write_json(
        other.run_dir / "manifest.json",
        {**manifest, "parts": {**manifest["parts"], "data": "0123456789abcdef"}},
    )
    damaged = copied(trunk, tmp_path / "damaged")
    (damaged.at / "manifest.json").write_text("{")
    missing = copied(trunk, tmp_path / "missing")
    (missing.at / "manifest.json").unlink()
    state = copied(trunk, tmp_path / "state")
    flip(state.at / "state.json")
    alone = shutil.copytree(trunk.at, tmp_path / "alone" / "checkpoints" / trunk.at.name)
    last = trunk.run_dir / "checkpoints" / "step-00000016"
    (file := tmp_path / "step-00000008").write_text("")
    cases = {
        f"or RUN@80, got {file}": (f"trainer.init_from={file}",),
        "be the folder of a checkpoint, as …/runs/RUN/checkpoints/step-00000080, or RUN@80, "
        f"got {trunk.run_dir}": (f"trainer.init_from={trunk.run_dir}",),
        f"or RUN@80, got {missing.at}": (missing.word,),
        f"{damaged.at / 'manifest.json'} must hold a JSON object": (damaged.word,),
        f"be a whole checkpoint, got {state.at}": (state.word,),
        "be in the folder of its run, with manifest.json and config.yaml": (f"trainer.init_from={alone}",),
        "be of a step before trainer.steps=12, got step 16": (f"trainer.init_from={last}",),
        "be of a run with this one's optimizer.lr (0.5), got 0.003": (trunk.word, "optimizer.lr=0.5"),
        "be of a run with this one's seed (1), got 0": (trunk.word, "seed=1"),
        "be of a run with this one's attention.n_kv_heads (1), got": (trunk.word, "attention=mqa"),
        "be of a run with this one's schedule.warmup_steps (3), got 2": (
            trunk.word,
            "schedule.warmup_steps=3",
        ),
        "be of a run with this one's data (": (other.word,),
        "learning rate before the branch at step 8 (0.833333 of the peak at step 7), got 1 in": (
            trunk.word,
            "schedule.decay_steps=6",
        ),
    }
    for expected, words in cases.items():
        with pytest.raises(ValueError, match=re.escape(expected)) as caught:
            plan(compose([*SMALL, *BRANCH, *words, f"output_dir={tmp_path / 'out'}"]), choices={})
        assert "\n" not in str(caught.value)


def test_a_trunk_is_named_by_the_beginning_of_its_name(tmp_path: Path, trunk: Trunk) -> None:
    words, out = [*SMALL, *BRANCH, f"output_dir={trunk.run_dir.parents[1]}"], f"output_dir={tmp_path}"
    begun = plan(compose([*words, f"trainer.init_from={trunk.run_dir.name[:-6]}@8"]), choices={})
    assert begun.identity == plan(compose([*words, trunk.word, out]), choices={}).identity
    assert begun.run.trainer.init_from == str(trunk.at)  # the record has the folder
    for name, reason in {
        "last@8": "must name its run: with last",
        "nano@8": "must name a run: nano must be a run",
        "@8": r"got \S+@8",
    }.items():
        with pytest.raises(ValueError, match=rf"^trainer.init_from .*{reason}"):
            plan(compose([*SMALL, *BRANCH, f"trainer.init_from={name}", out]), choices={})


def test_checkpoint_inside_the_trunks_decay_is_refused(tmp_path: Path, here: Door, trunk: Trunk) -> None:
    inside = copied(trunk, tmp_path)
    config = (inside.run_dir / "config.yaml").read_text()
    assert "kind: constant\n" in config
    (inside.run_dir / "config.yaml").write_text(
        config.replace("kind: constant\n", "kind: wsd\n  final: 0.0\n  decay_steps: 10\n")
    )
    done = here(*SMALL, *BRANCH, inside.word, f"output_dir={tmp_path / 'out'}")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "learning rate before the branch at step 8 (1 of the peak at step 7), got 0.9 in" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_tensors_are_refused_and_nothing_is_trained(
    tmp_path: Path, door: Door, here: Door, trunk: Trunk, ranks: int
) -> None:
    damaged, out = copied(trunk, tmp_path), tmp_path / "out"
    flip(damaged.at / "optimizer.safetensors")
    done = (here if ranks == 1 else door)(
        *SMALL, *BRANCH, damaged.word, f"trainer.devices={ranks}", f"output_dir={out}"
    )
    reason = f"{damaged.at}: optimizer.safetensors does not match its checksum"
    assert (done.code, done.err) == (
        2,
        f"nocap: trainer.init_from must be a valid checkpoint, got {reason}\n",
    )
    assert not (the_run(out) / "metrics.jsonl").exists()


# --- what is kept -------------------------------------------------------------------------------------------


def test_kept_steps_outlive_the_run(trunk: Trunk) -> None:
    assert [path.name for path in sorted((trunk.run_dir / "checkpoints").iterdir())] == [
        "step-00000003",
        "step-00000008",
        "step-00000016",
    ]
    assert checkpoint.find(trunk.run_dir / "checkpoints").invalid == []


def test_kept_steps_stay_where_the_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a disk that is full gets room."""
    import torch

    model = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    made = checkpoint.Writer(tmp_path, background=False, always=[2, 5])
    save = partial(made.save, model=model, optimizers=[optimizer], state={}, keep=2, must=False)

    def steps() -> list[int]:
        return [int(path.name[5:]) for path in sorted(tmp_path.iterdir())]

    for step in range(1, 8):
        assert save(step=step) == []
    assert steps() == [2, 5, 6, 7]  # the newest two, and those

    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        assert len(save(step=8)) == 1
    assert steps() == [2, 5, 7]
    made.save(step=9, model=model, optimizers=[optimizer], state={}, keep=1, must=True)
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
