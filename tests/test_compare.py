"""`python -m nocap.compare` on made-up records whose truth is known."""

import copy
import csv
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nocap import api
from nocap import compare as door
from nocap.judge.compare import compare
from nocap.report.arms import render
from nocap.runs import __main__ as runs
from nocap.store.record import write_summary
from nocap.store.runs import find, find_one, load
from tests.conftest import REPO

CONFIG = {
    "attention": {"kind": "global", "kernel": "fused", "n_kv_heads": 12},
    "mlp": {"activation": "gelu", "expansion": 4.0},
    "optimizer": {"lr": 0.003},
    "data": {"kind": "shards"},
    "tokenizer": {"vocabulary": "gpt2"},
    "trainer": {"val_tokens": 4096, "val_precision": "fp32"},
}
SD = 0.0013  # of the final loss over seeds, at 124M
STEPS = tuple(range(0, 401, 100))


def digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def write_run(
    root: Path,
    *,
    words: str = "gpt2-flash-gelu4x",
    seed: int = 0,
    loss: float = 3.3,
    config: dict[str, object] | None = None,
    status: str = "finished",
    speed: float = 1000.0,
    kernel: str = "flash",
    fingerprint: str = "aaaa",
    train: str = "t0",
    val: str = "v0",
    source: str = "s0",
    torch: str = "2.13.0",
    curve: tuple[float, ...] | None = None,
    started: str = "2026-01-01T00:00:00",
    version: int = 1,
    bpb: bool = True,
    options: dict[str, str] | None = None,
    swept: tuple[str, ...] = (),
) -> Path:
    """A record as nocap writes it, with `config` as flat keys changed from `CONFIG`."""
    resolved = copy.deepcopy(CONFIG)
    for key, value in (config or {}).items():
        group, _, name = key.partition(".")
        resolved[group][name] = value
    parts = {
        "config": {**resolved, "seed": seed},
        "source": {"nocap.training.loop": source},
        "data": f"{train}{val}",
        "environment": {"torch": torch, "device": fingerprint},
    }
    identity = digest(parts)
    folder = root / "runs" / f"{words}-s{seed}-{identity}"
    folder.mkdir(parents=True)
    data = {
        "manifest": f"{train}{val}",
        "train": [{"sha256": train}],
        "val": [{"sha256": val}],
        "source": {"kind": "shards"},
    }
    manifest = {
        "schema_version": version,
        "identity": identity,
        "name": f"{words}-s{seed}",
        "arm": f"{words}-{digest(resolved)[:6]}",
        "parts": parts,
        "data": data,
        "options": options or {},
        "attempts": [{"started": started, "devices": 1, "swept": swept}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    losses = curve or tuple(loss + 2.0 * (1 - step / STEPS[-1]) for step in STEPS)
    rows = []
    for step, value in zip(STEPS, losses, strict=True):
        row = {
            "step": step,
            "tokens": step * 10,
            "val/loss": value,
            "clock/train_s": step * 10 / speed,
            "clock/data_s": 0.0,
        }
        row["clock/startup_s"] = int(identity, 16) * 1e-15  # no two runs have the same clocks
        rows.append(json.dumps(row | ({"val/bpb": value / 2} if bpb else {})))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    summary = {
        "schema_version": version,
        "status": status,
        "identity": identity,
        "name": f"{words}-s{seed}",
        "seed": seed,
        "val_bpb_reason": None,
        "mfu": None,
        "mfu_basis": "no peak",
        "val_loss": losses[-1],
        "val_bpb": losses[-1] / 2 if bpb else None,
        "steps": STEPS[-1],
        "tokens": STEPS[-1] * 10,
        "tokens_per_s": speed,
        "step_ms": {"median": 1e4 / speed},
        "flops_per_token": 800.0,
        "params": {"total": 1000, "non_embedding": 900},
        "memory_mib": {"peak": 150.0, "model": 100.0},
        "clock_s": {
            "train": STEPS[-1] * 10 / speed,
            "data": 0.0,
            "val": 1.0,
            "wall": STEPS[-1] * 10 / speed + 1.0,
        },
        "kernel": {"train": kernel, "val": kernel},
        "hardware": {"name": f"GPU {fingerprint}", "fingerprint": fingerprint},
        "devices": 1,
    }
    if status != "running":
        write_summary(folder, summary)
    return folder


def two_arms(
    root: Path, *, effect: float, seeds: int = 4, speedup: float = 1.0, rng_seed: int = 0, **other
) -> None:
    """A baseline and an arm with `mlp.expansion=3` whose loss is higher by `effect`, with the noise of real
    seeds."""
    noise = np.random.default_rng(rng_seed).normal(0, SD, (2, seeds))
    wobble = np.random.default_rng(rng_seed + 1).normal(0, 0.001, (2, seeds))
    for seed in range(seeds):
        base = {"loss": 3.3 + noise[0, seed], "speed": 1000 * (1 + wobble[0, seed])}
        arm = {"loss": 3.3 + effect + noise[1, seed], "speed": 1000 * speedup * (1 + wobble[1, seed])}
        write_run(root, seed=seed, started=f"2026-01-01T0{seed}:00", **base)
        write_run(
            root,
            words="gpt2-flash-gelu3x",
            config={"mlp.expansion": 3.0},
            seed=seed,
            started=f"2026-01-01T0{seed}:30",
            **arm,
            **other,
        )


def arms_of(root: Path, **options) -> dict[str, dict]:
    comparison = compare(load([root]), **options)
    content = comparison.json()
    json.dumps(content, allow_nan=False)
    render(comparison)
    return {arm["label"]: arm for arm in content["arms"]}


def test_an_arm_is_called_by_the_option_that_was_swept_not_by_its_keys(tmp_path: Path) -> None:
    """`data=none`, where the keys behind it are its kind and another."""
    for name in ("rope", "none"):
        for rate in (0.1, 0.2):
            config = {"data.kind": name, "data.base": name, "optimizer.lr": rate}
            write_run(tmp_path, config=config, options={"data": name}, swept=("data", "optimizer.lr"))
    assert set(arms_of(tmp_path)) == {
        f"data={name} lr={rate}" for name in ("rope", "none") for rate in (0.1, 0.2)
    }


def refusal(argv: list[object], capsys, *, command=door) -> str:
    with pytest.raises(SystemExit) as caught:
        command.main([str(word) for word in argv])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("nocap: ")
    assert err.count("\n") == 1
    return err


# --- verdicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "verdict"), [(0.01, "worse"), (-0.01, "better")])
def test_a_planted_effect_is_found(tmp_path, effect, verdict):
    two_arms(tmp_path, effect=effect, speedup=1.07)
    arm = arms_of(tmp_path)["gelu3x"]
    difference = arm["difference"]
    assert difference["verdict"] == verdict
    assert difference["low"] < effect < difference["high"]
    assert (difference["method"], difference["n"]) == ("pairs", 4)
    ratio = arm["tokens_per_s"]["ratio"]
    assert 1.05 < ratio["low"] < 1.07 < ratio["high"] < 1.09
    assert arm["changes"] == {"mlp.expansion": 3.0}
    assert arm["params"] == {"total": 1000, "non_embedding": 900}
    shown = render(compare(load([tmp_path])))
    assert re.search(
        rf"gelu3x .* {'higher' if effect > 0 else 'lower'} loss by 0\.\d+ ± 0\.\d+ +{verdict}\n", shown
    )
    assert re.search(r"gelu3x .* 7\.\d% faster \[[56]\.\d% to [78]\.\d% faster\]", shown)


def test_an_a_a_pair_shows_no_difference(tmp_path):
    two_arms(tmp_path, effect=0.0)
    arm = arms_of(tmp_path)["gelu3x"]
    assert arm["difference"]["verdict"] == "no difference shown"
    assert arm["tokens_per_s"]["ratio"]["low"] < 1 < arm["tokens_per_s"]["ratio"]["high"]


def grid_of(root: Path, effects: dict[str, float], *, seeds: int = 3, sd: float = SD) -> dict[str, dict]:
    """A baseline a0 and arms with these effects."""
    rng = np.random.default_rng(5)
    for n, (name, effect) in enumerate({"a0": 0.0, **effects}.items()):
        for seed in range(seeds):
            config = {"optimizer.lr": 0.001 * (n + 1)}
            write_run(
                root,
                words=name,
                config=config,
                seed=seed,
                loss=3.3 + effect + rng.normal(0, sd),
                started=f"2026-01-01T0{n}",
            )
    return {f"a{i}": arm for i, arm in enumerate(compare(load([root])).json()["arms"])}


def test_an_arm_of_a_grid_has_the_noise_of_the_others_and_a_share_of_the_error(tmp_path):
    """At most eight degrees of them, never less than its own spread, and dropped where the arm's seeds
    contradict them."""
    arms = grid_of(tmp_path, {"a1": 0.0, "a2": 0.01, "a3": -0.01, "a4": 0.02})
    runs = {run["identity"]: run for run in compare(load([tmp_path])).json()["runs"]}
    losses = {name: [runs[identity]["val_loss"] for identity in arm["runs"]] for name, arm in arms.items()}
    gains = {name: np.subtract(losses[name], losses["a0"]) for name in arms}
    for name in ("a1", "a2", "a3", "a4"):
        shown, others = (
            arms[name]["difference"],
            [gains[other] for other in ("a1", "a2", "a3", "a4") if other != name],
        )
        noise = math.sqrt(np.mean([other.var(ddof=1) for other in others]))  # six degrees
        own = gains[name].std(ddof=1)
        assert shown["method"] == "pairs, noise declared"
        half = stats.t.isf(0.005 / 4, 6 + 2) * max(noise, own) / math.sqrt(3)
        assert (shown["low"], shown["high"]) == pytest.approx(
            (gains[name].mean() - half, gains[name].mean() + half)
        )
    assert [arms[name]["difference"]["verdict"] for name in ("a2", "a3", "a4")] == [
        "worse",
        "better",
        "worse",
    ]


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_said(tmp_path):
    """Six arms without an effect: an arm errs in at most 0.02%, so that no grid of two hundred has any
    verdict."""
    grid_of(tmp_path, {f"a{n}": 0.0 for n in range(1, 7)})
    rng, loaded = np.random.default_rng(5), load([tmp_path])
    for _ in range(200):
        for record in loaded.records:
            record.summary["val_loss"] = 3.3 + rng.normal(0, SD)
        assert {
            arm["difference"]["verdict"] for arm in compare(loaded).json()["arms"] if arm["difference"]
        } == {"no difference shown"}


def test_other_seeds_are_not_paired(tmp_path):
    two_arms(tmp_path, effect=0.05)
    for seed in range(4):
        write_run(
            tmp_path,
            words="gpt2-other",
            config={"mlp.expansion": 2.0},
            seed=10 + seed,
            loss=3.2 + 0.001 * seed,
        )
    arms = arms_of(tmp_path)
    assert {label: (arm["difference"] or {}).get("method") for label, arm in arms.items()} == {
        "flash gelu4x": None,
        "flash gelu3x": "pairs",
        "other": "unpaired (Welch)",
    }
    assert arms["other"]["difference"]["verdict"] == "better"


def test_a_row_is_over_the_seeds_that_both_sides_have(tmp_path):
    two_arms(tmp_path, effect=0.05)
    write_run(tmp_path, words="gpt2-flash-gelu3x", config={"mlp.expansion": 3.0}, seed=7, loss=9.0)
    comparison = compare(load([tmp_path])).json()
    arm = comparison["arms"][1]
    assert (arm["seeds"], arm["n"], arm["difference"]["n"]) == ([0, 1, 2, 3], 4, 4)
    assert arm["val_loss"] == pytest.approx(3.35, abs=0.01)
    assert any(
        "over the seeds that it shares with the baseline, without 7" in line
        for line in comparison["problems"]
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_get_no_verdict(tmp_path, seeds):
    two_arms(tmp_path, effect=0.1, seeds=seeds)
    arms = arms_of(tmp_path)
    difference = arms["gelu3x"]["difference"]
    assert difference["verdict"] == f"no verdict (n={seeds})"
    assert (difference["low"], difference["high"], difference["n"]) == (None, None, seeds)
    assert difference["mean"] == pytest.approx(0.1, abs=0.01)
    ratio = arms["gelu3x"]["tokens_per_s"]["ratio"]
    assert (ratio["low"], ratio["high"], ratio["n"]) == (0.0, None, seeds)


@pytest.mark.parametrize(
    ("difference", "stamp"),
    [
        ({"kernel": "math"}, "kernel"),
        ({"train": "t1"}, "data"),
        ({"source": "s1"}, "source"),
        ({"torch": "2.12.0"}, "torch"),
    ],
)
def test_an_undeclared_difference_confounds(tmp_path, difference, stamp):
    two_arms(tmp_path, effect=0.05, **difference)
    arm = arms_of(tmp_path)["gelu3x"]
    assert arm["difference"]["verdict"] == f"confounded ({stamp})"
    assert any(f"--allow {stamp}" in line for line in compare(load([tmp_path])).json()["problems"])
    assert arms_of(tmp_path, allow=[stamp])["gelu3x"]["difference"]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("words", "config", "verdict"),
    [
        ("gpt2-mha-gelu4x", {"attention.kernel": "materialized"}, "worse"),  # the kernel is the question
        # a kind brings its own kernel
        ("gpt2-sliding-gelu4x", {"attention.kind": "sliding", "attention.window": 256}, "worse"),
        (
            "gpt2-mha4-gelu4x",
            {"attention.kernel": "materialized", "attention.n_kv_heads": 4},
            "confounded (kernel)",
        ),
    ],
)
def test_a_kernel_may_be_the_question(tmp_path, words, config, verdict):
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-4)
        write_run(
            tmp_path,
            words=words,
            seed=seed,
            loss=3.4 + seed * 2e-4,
            config=config,
            kernel="other",
            started="2026-01-02",
        )
    (arm,) = (arm for arm in arms_of(tmp_path).values() if arm["difference"])
    assert arm["difference"]["verdict"] == verdict


def test_one_config_with_two_versions_of_the_code_is_two_arms(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-4)
        write_run(tmp_path, seed=seed, loss=3.2 + seed * 2e-4, source="edited", started="2026-01-02")
    first, second = compare(load([tmp_path])).json()["arms"]
    assert first["arm"] != second["arm"]
    assert "source" in second["label"]
    assert second["difference"]["verdict"] == "confounded (source)"


def test_a_diverged_seed_is_a_result(tmp_path):
    two_arms(tmp_path, effect=-0.05, seeds=3)
    write_run(
        tmp_path,
        words="gpt2-flash-gelu3x",
        config={"mlp.expansion": 3.0},
        seed=3,
        status="diverged",
        curve=(5, 6, 7, 8, 9),
    )
    write_run(tmp_path, seed=3)
    comparison = compare(load([tmp_path]), target_loss=3.4).json()
    arm = comparison["arms"][1]
    assert arm["difference"]["verdict"] == "no verdict (1 of 4 seeds diverged)"
    assert arm["diverged"] == [3]
    assert (arm["to_target"]["steps"]["reached"], arm["to_target"]["steps"]["n"]) == (3, 4)
    assert any("diverged" in line and "flatters" in line for line in comparison["problems"])


# --- times --------------------------------------------------------------------------------------------------


def test_times_from_other_hardware_are_refused(tmp_path):
    two_arms(tmp_path, effect=0.01, speedup=1.3, fingerprint="bbbb")
    arm = arms_of(tmp_path, target_loss=3.5)["gelu3x"]
    for key in ("tokens_per_s", "step_ms", "model_mib", "train_s"):
        assert arm[key]["ratio"] is None
        assert "other hardware: 1 × GPU bbbb" in arm[key]["refused"]
    assert arm["to_target"]["train_s"]["refused"]
    assert arm["to_target"]["steps"]["ratio"]
    assert arm["difference"]["verdict"] == "worse"  # a loss travels


def test_a_time_has_the_bias_of_an_instance_and_a_count_has_none(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed)
        write_run(
            tmp_path,
            words="gpt2-flash-gelu3x",
            config={"mlp.expansion": 3.0},
            seed=seed,
            speed=1004.0,
            started="2026-01-02",
        )
    arm = arms_of(tmp_path)["gelu3x"]
    speed, memory = arm["tokens_per_s"]["ratio"], arm["model_mib"]["ratio"]
    assert (speed["mean"], speed["low"], speed["high"]) == pytest.approx(
        (1.004, 1.004 * math.exp(-0.005), 1.004 * math.exp(0.005))
    )
    assert (memory["low"], memory["high"]) == (1.0, 1.0)


def test_an_arm_from_two_machines_has_no_speed(tmp_path):
    two_arms(tmp_path, effect=0.01)
    write_run(tmp_path, words="gpt2-flash-gelu3x", config={"mlp.expansion": 3.0}, seed=9, fingerprint="bbbb")
    arm = arms_of(tmp_path)["gelu3x"]
    assert arm["tokens_per_s"]["mean"] is None
    assert "2 machines" in arm["tokens_per_s"]["refused"]


def test_runs_one_after_the_other_are_doubted(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed, started=f"2026-01-01T0{seed}:00")
        write_run(
            tmp_path,
            words="gpt2-flash-gelu3x",
            config={"mlp.expansion": 3.0},
            seed=seed,
            started=f"2026-01-02T0{seed}:00",
        )
    assert any("not interleaved" in line for line in compare(load([tmp_path])).json()["problems"])


def test_the_target_is_interpolated_and_censored(tmp_path):
    curves = {
        "gelu4x": (5.0, 4.0, 3.0, 2.0, 1.0),
        "gelu3x": (5.0, 4.5, 4.0, 3.5, 3.0),
        "gelu2x": (5.0, 4.9, 4.8, 4.7, 4.6),
    }
    for arm, curve in curves.items():
        for seed in range(3):
            config = {"mlp.expansion": float(arm[4])}
            write_run(
                tmp_path,
                words=f"gpt2-{arm}",
                config=config,
                seed=seed,
                curve=curve,
                loss=curve[-1],
                started=f"2026-01-0{9 - int(arm[4])}",
            )
    arms = arms_of(tmp_path, target_loss=3.25)
    assert arms["gelu4x"]["to_target"]["steps"]["median"] == pytest.approx(175)
    assert arms["gelu3x"]["to_target"]["steps"]["median"] == pytest.approx(350)
    assert arms["gelu3x"]["to_target"]["train_s"]["median"] == pytest.approx(3.5)
    assert arms["gelu3x"]["to_target"]["steps"]["ratio"]["mean"] == pytest.approx(2.0)
    never = arms["gelu2x"]["to_target"]["steps"]
    assert (never["median"], never["reached"], never["n"], never["ratio"], never["budget"]) == (
        None,
        0,
        3,
        None,
        400,
    )


def test_a_validation_is_timed_before_the_step_that_follows_it(tmp_path):
    folder = write_run(tmp_path)
    rows = [
        {
            "step": 0,
            "val/loss": 5.0,
            "perf/step_ms": 500.0,
            "clock/train_s": 0.4,
            "clock/data_s": 0.1,
            "clock/val_s": 9.0,
        },
        {"step": 1, "val/loss": 4.0, "clock/train_s": 0.4, "clock/data_s": 0.1, "clock/val_s": 18.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((folder / "summary.json").read_text())
    made = {"steps": 1, "val_loss": 4.0, "val_bpb": None, "tokens": 10, "tokens_per_s": 20.0, "step_ms": None}
    write_summary(folder, {**summary, **made, "clock_s": {"train": 0.4, "data": 0.1}})
    assert load([folder]).records[0].curve.train_s == [0.0, 0.5]


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "key"),
    [
        ({"val": "v1"}, "data.val"),
        ({"config": {"trainer.val_tokens": 8192}}, "trainer.val_tokens"),
        ({"config": {"trainer.val_precision": "bf16"}}, "trainer.val_precision"),
        ({"config": {"tokenizer.vocabulary": "bytes"}}, "tokenizer.vocabulary"),
    ],
)
def test_losses_that_measure_different_things_are_never_compared(tmp_path, capsys, difference, key):
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3)
        write_run(tmp_path, words="gpt2-other", seed=seed, loss=3.2 + seed * 1.1e-3, **difference)
    assert len(compare(load([tmp_path])).runs) == 3
    write_run(tmp_path, seed=3)  # now one of the two groups is the larger
    assert door.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 arm from 4 runs")
    assert re.search(rf"note: 3 runs left out \(gpt2-other-s0-.*: {key} is .* --allow {key}", out)
    group = re.search(r"--group ([0-9a-f]{6}) ", out)[1]
    assert door.main([str(tmp_path), "--group", group]) == 0
    of_group = api.compare(tmp_path, group=group)
    assert len(of_group["runs"]) == len(api.compare(tmp_path)["runs"]) - 1
    assert "with --group" in " ".join(of_group["problems"])
    out = capsys.readouterr().out
    assert out.startswith("1 arm from 3 runs")
    assert "note: 4 runs left out" in out
    assert re.search(
        f"--group must be one of [0-9a-f]{{6}}, {group}, got 'luck'",
        refusal([tmp_path, "--group", "luck"], capsys),
    )
    assert door.main([str(tmp_path), "--allow", key]) == 0
    out = capsys.readouterr().out
    assert "declared: " in out
    assert ("verdicts are on bits per byte" in out) == (key == "tokenizer.vocabulary")
    comparison = compare(load([tmp_path]), allow=[key]).json()
    assert comparison["metric"] == ("val_bpb" if key == "tokenizer.vocabulary" else "val_loss")


def test_the_group_that_has_the_baseline_is_compared(tmp_path, capsys):
    for seed in range(4):
        write_run(tmp_path, seed=seed)
    write_run(tmp_path, words="gpt2-gqa", val="v1")
    assert (
        door.main(
            [
                str(tmp_path),
                "--baseline",
                "gqa",
                "--json",
                str(tmp_path / "one.json"),
                "--csv",
                str(tmp_path / "one.csv"),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("1 arm from 1 run")
    content = json.loads((tmp_path / "one.json").read_text())
    assert len(content["runs"]) == 1
    assert any("4 runs left out" in line for line in content["problems"])
    assert len(list(csv.DictReader((tmp_path / "one.csv").read_text().splitlines()))) == 1
    assert "--baseline must name one arm" in refusal([tmp_path, "--baseline", "mqa"], capsys)


def test_what_a_shell_makes_of_a_glob(tmp_path, capsys):
    """Files and empty folders beside runs are named; alone, or not there at all, they are refused."""
    two_arms(tmp_path, effect=0.0, seeds=1)
    (tmp_path / "multirun.yaml").write_text("hydra: null")
    (tmp_path / "grids").mkdir()
    others = [str(tmp_path / "grids"), str(tmp_path / "multirun.yaml")]
    assert door.main([*others, str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert all(f"{path}: left out, it holds no run" in out for path in others)
    assert "must hold runs" in refusal(others, capsys)
    assert "no run was found" in refusal([tmp_path / "runs", tmp_path / "typo"], capsys)


def test_nothing_to_compare(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "outputs must be a run" in refusal([], capsys)
    (tmp_path / "empty").mkdir()
    assert "empty must hold runs" in refusal(["empty"], capsys)
    assert "no run was found" in refusal(["nano-*"], capsys)
    write_run(tmp_path / "half", status="running")
    assert "needs a finished run" in refusal(["half"], capsys)


def test_bad_options(tmp_path, capsys):
    two_arms(tmp_path, effect=0.0, seeds=1)
    assert "--baseline must name one arm ('gelu4x', 'gelu3x'), got 'mqa'" in refusal(
        [tmp_path, "--baseline", "mqa"], capsys
    )
    assert "--baseline must name one arm" in refusal([tmp_path, "--baseline", "flash"], capsys)  # both
    assert "--allow must be one of" in refusal([tmp_path, "--allow", "luck"], capsys)
    assert "--target must be a loss above 0, got nan" in refusal([tmp_path, "--target", "nan"], capsys)
    (tmp_path / "file").write_text("")
    assert "--json must be a file that can be written" in refusal(
        [tmp_path, "--json", tmp_path / "file" / "x.json"], capsys
    )


@pytest.mark.parametrize(
    "wanted", ["gelu3x", "mlp.expansion=3", "expansion=3", "mlp=gelu3x", "gpt2-flash-gelu3x-s0"]
)
def test_a_baseline_by_any_of_its_names(tmp_path, wanted):
    two_arms(tmp_path, effect=0.0, seeds=1)
    assert arms_of(tmp_path, baseline=wanted)["gelu3x"]["difference"] is None


def test_corrupt_lines_are_named_and_their_run_is_left_out(tmp_path):
    damaged, whole = (write_run(tmp_path, seed=seed) for seed in (0, 1))
    path = damaged / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b'{"step": 50, "val/lo', *lines[1:]]) + b"\n")
    loaded = load([tmp_path])
    assert [record.folder for record in loaded.records] == [whole]
    assert "metrics.jsonl" in loaded.unreadable[damaged.name]


def test_what_is_not_compared_is_listed(tmp_path):
    two_arms(tmp_path, effect=0.01)
    write_run(tmp_path, words="gpt2-half", seed=4, status="preempted")
    write_run(tmp_path, words="gpt2-going", seed=5, status="running")
    write_run(tmp_path, words="gpt2-new", seed=6, version=99)
    (write_run(tmp_path, words="gpt2-torn", seed=7) / "summary.json").write_text("{")
    told = {
        run["name"].rpartition("-s")[0]: run["status"]
        for run in compare(load([tmp_path])).json()["not_compared"]
    }
    assert told["gpt2-half"] == "preempted"
    assert told["gpt2-going"] == "not finished"
    assert "schema_version must be at most 1" in told["gpt2-new"]
    assert "summary.json must hold a JSON object" in told["gpt2-torn"]


# --- finding and writing ------------------------------------------------------------------------------------


def test_runs_are_found_by_folder_grid_glob_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_arms(tmp_path / "outputs", effect=0.0, seeds=2)
    folders = sorted((tmp_path / "outputs" / "runs").iterdir())
    assert len(load(["outputs"]).records) == 4
    assert len(load(["outputs/runs"]).records) == 4
    assert len(load([folders[0], folders[0], str(folders[0])]).records) == 1
    assert len(load(["outputs/runs/*gelu3x*"]).records) == 2
    assert len(load(["outputs/*"]).records) == 4
    assert len(load(["gpt2-flash-gelu3x"]).records) == 2  # an arm's readable name
    assert [r.folder.name for r in load([folders[0].name.rpartition("-")[2]]).records] == [folders[0].name]
    for word, several in (
        (folders[0].name[:-4], 1),
        ("gpt2-flash-gelu3", 2),
        ("gpt2-flash-gelu3x-s1", 1),
        ("last", 1),
    ):
        if several == 1:
            assert len(find(word)) == 1
        else:
            with pytest.raises(
                ValueError,
                match=rf"^{word} must be one run, got 2: gpt2-flash-gelu3x-s0-\w+, gpt2-flash-gelu3x-s1-\w+$",
            ):
                find(word)
    short = next(n for n in range(1, 13) if len({folder.name[-12:][:n] for folder in folders}) == 4)
    assert [find_one(folder.name[-12:][:short]) for folder in folders] == [
        folder.relative_to(tmp_path) for folder in folders
    ]
    with pytest.raises(ValueError, match=r"no run was found; there: gpt2-flash-gelu[34]x-s[01]-"):
        find("gpt2-flash-gelu3y")
    newest = write_run(tmp_path / "outputs", words="gpt2-mqa", started="2026-01-02T00:00:00")
    assert find_one("last") == newest.relative_to(tmp_path)
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    manifest["attempts"].append({"started": "2026-01-03T00:00:00"})  # it was gone on with
    (folders[0] / "manifest.json").write_text(json.dumps(manifest))
    assert find_one("last") == folders[0].relative_to(tmp_path)
    shutil.rmtree(newest)
    grid = tmp_path / "outputs" / "grids" / "now"
    grid.mkdir(parents=True)
    wanted = [folder.name.rpartition("-")[2] for folder in folders[2:0:-1]]
    (grid / "grid.json").write_text(
        json.dumps({"cells": [{"identity": identity} for identity in [*wanted, "0" * 12]]})
    )
    assert [record.identity for record in load([grid]).records] == wanted


def test_json_csv_and_html_say_the_same(tmp_path, capsys, monkeypatch):
    two_arms(tmp_path / "o", effect=0.01)
    files = {kind: tmp_path / "new" / f"x.{kind}" for kind in ("json", "csv")}
    assert (
        door.main(
            [
                str(tmp_path / "o"),
                "--target",
                "3.4",
                *(word for kind, file in files.items() for word in (f"--{kind}", str(file))),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "worse" in out
    assert "To val loss 3.4" in out
    comparison = json.loads(files["json"].read_text())
    assert comparison == json.loads(json.dumps(compare(load([tmp_path / "o"]), target_loss=3.4).json()))
    with files["csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert {row["identity"]: float(row["val_loss"]) for row in rows} == {
        run["identity"]: run["val_loss"] for run in comparison["runs"]
    }
    assert {row["mlp.expansion"] for row in rows} == {"3.0", "4.0"}


def test_measurements_have_unit_and_direction(tmp_path):
    write_run(tmp_path, loss=3.25, speed=500.0)
    write_run(tmp_path, seed=1, status="diverged")
    measurements = compare(load([tmp_path])).json()["measurements"]
    assert {
        (row["repeat"], row["metric"]): (row["value"], row["unit"], row["better"]) for row in measurements
    } == {
        (0, "val_loss"): (3.25, "nats/token", "lower"),
        (0, "val_bpb"): (1.625, "bits/byte", "lower"),
        (1, "val_loss"): (None, "nats/token", "lower"),
        (1, "val_bpb"): (None, "bits/byte", "lower"),
        **{
            (seed, metric): (value, unit, better)
            for seed, speed in ((0, 500.0), (1, 1000.0))
            for metric, value, unit, better in (
                ("train_s", 4000 / speed, "s", "lower"),
                ("tokens_per_s", speed, "tokens/s", "higher"),
                ("step_ms", 1e4 / speed, "ms", "lower"),
                ("model_mib", 100.0, "MiB", "lower"),
                ("params", 1000.0, "parameters", "lower"),
            )
        },
    }
    assert {row["ending"] for row in measurements if row["value"] is None} == {"diverged"}
    assert {(row["where"], row["when"]) for row in measurements} == {("aaaa", "2026-01-01T00:00:00")}


def test_a_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    two_arms(tmp_path, effect=0.01)
    table = api.frame(tmp_path)
    assert isinstance(table, pandas.DataFrame)
    assert table.groupby("mlp.expansion")["val_loss"].mean().diff().iloc[-1] == pytest.approx(
        -0.01, abs=0.005
    )


def test_why(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = write_run(tmp_path / "outputs", seed=0)
    b = write_run(
        tmp_path / "outputs",
        words="gpt2-x",
        seed=1,
        config={"mlp.expansion": 3.0},
        source="s1",
        train="t1",
        torch="2.12.0",
    )
    assert runs.main(["why", a.name, str(b), "--json", "why.json"]) == 0
    out = capsys.readouterr().out
    for line in (
        "mlp.expansion 4 → 3",
        "seed 0 → 1",
        "nocap.training.loop s0 → s1",
        "train t0 → t1",
        "torch 2.13.0 → 2.12.0",
    ):
        assert line in " ".join(out.split())
    why = json.loads(Path("why.json").read_text())
    assert {d["part"] for d in why["differences"]} == {"config", "source", "data", "environment"}
    assert runs.main(["why", a.name, a.name]) == 0
    assert "are the same run" in capsys.readouterr().out
    assert "must be one run, got 2" in refusal(["why", "outputs", a.name], capsys, command=runs)
    assert "no run was found" in refusal(["why", "nobody", a.name], capsys, command=runs)


def test_the_door_imports_neither_torch_nor_scipy():
    code = (
        "import sys, nocap.report.arms, nocap.judge.compare; print({'torch', 'scipy', "
        "'hydra'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_a_real_run(undisturbed, capsys):
    """The record that `nocap.train` writes is the record that is read here."""
    assert door.main([str(undisturbed.output_dir), "--target", "5"]) == 0
    out = capsys.readouterr().out
    assert "1 arm from 1 run; baseline: nano-flash-gelu4x-wsd-adamw" in out
    (run,) = compare(load([undisturbed.run_dir])).json()["runs"]
    assert run["curve"]["step"] == [0, 12, 24, 30]
    assert run["curve"]["val_loss"][-1] == run["val_loss"]
    assert run["curve"]["train_s"][0] == pytest.approx(0, abs=0.02)
    assert run["curve"]["train_s"][-1] == pytest.approx(run["train_s"])
