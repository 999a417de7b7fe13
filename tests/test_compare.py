"""`python -m nocap.compare` on made-up records whose truth is known."""

import copy
import csv
import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap import api
from nocap import compare as door
from nocap.judge.compare import compare
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.report.comparison_tables import render
from nocap.runs import __main__ as runs
from nocap.store.record_files import write_summary
from nocap.store.runs import find, find_one, load_runs
from tests.conftest import REPO
from tests.test_interval import of_a_mixed_model

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
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    options: dict[str, str] | None = None,
    swept: tuple[str, ...] = (),
    measured: tuple[str, ...] = (),
    asked: tuple[str, tuple[int, ...]] | None = None,
    place: int = 0,
) -> Path:
    """A record as nocap writes it, with `config` as flat keys changed from `CONFIG`."""
    resolved = copy.deepcopy(CONFIG)
    for key, value in (config or {}).items():
        group, _, name = key.partition(".")
        resolved.setdefault(group, {})[name] = value
    parts = {
        "config": {**resolved, "seed": seed},
        "source": {"nocap.training.loop": source},
        "data": f"{train}{val}",
        "environment": {"torch": torch, "device": fingerprint},
    }
    identity = digest(parts)
    folder = root / "runs" / f"{words}-s{seed}-{identity}"
    folder.mkdir(parents=True)
    known = {"schema_version": version, "identity": identity, "name": f"{words}-s{seed}"}
    manifest = {
        **known,
        "arm": f"{words}-{digest(resolved)[:6]}",
        "parts": parts,
        "data": {
            "manifest": f"{train}{val}",
            "train": [{"sha256": train}],
            "val": [{"sha256": val}],
            "source": {"kind": "shards"},
        },
        "options": options or {},
        "measured": measured,
        "attempts": [
            {"started": started, "devices": 1, "swept": swept}
            | ({"asked": {"at": asked[0], "seeds": asked[1], "place": place}} if asked else {})
        ],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    losses = curve or tuple(loss + 2.0 * (1 - step / STEPS[-1]) for step in STEPS)
    startup_s = int(identity, 16) * 1e-15  # no two runs have the same clocks
    rows = []
    for step, value in zip(STEPS, losses, strict=True):
        row = {"step": step, "tokens": step * 10, "val/loss": value, "val/bpb": value / 2}
        row["clock/train_s"] = step * 10 / speed
        row["clock/data_s"] = 0.0
        row["clock/startup_s"] = startup_s
        rows.append(row)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    train_s = STEPS[-1] * 10 / speed
    summary = {
        **known,
        "status": status,
        "seed": seed,
        "val_bpb_reason": None,
        "mfu": None,
        "mfu_basis": "no peak",
        "val_loss": losses[-1],
        "val_bpb": losses[-1] / 2,
        "steps": STEPS[-1],
        "tokens": STEPS[-1] * 10,
        "tokens_per_s": speed,
        "step_ms": {"median": 1e4 / speed},
        "token_us": 1e6 / speed,
        "flops_per_token": 800.0,
        "params": {"total": 1000, "non_embedding": 900},
        "memory_mib": {"peak": 150.0, "model": 100.0},
        "clock_s": {"train": train_s, "data": 0.0, "val": 1.0, "wall": train_s + 1.0},
        "kernel": {"train": kernel, "val": kernel},
        "hardware": {"name": f"GPU {fingerprint}", "fingerprint": fingerprint},
        "devices": 1,
    }
    if status != "running":
        write_summary(folder, summary)
    return folder


def gelu3x(root: Path, **about) -> Path:
    """A run of the arm beside the baseline that the defaults are."""
    config = {"mlp.expansion": 3.0, **about.pop("config", {})}
    return write_run(root, words="gpt2-flash-gelu3x", config=config, **about)


def two_arms(root: Path, *, effect: float, seeds: int = 4, speedup: float = 1.0, **other) -> None:
    """A baseline and an arm with `mlp.expansion=3` whose loss is higher by `effect`, with the noise
    of real seeds."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, SD, (2, seeds))
    rng = np.random.default_rng(1)
    wobble = rng.normal(1, 0.001, (2, seeds)) * 1000
    for seed in range(seeds):
        at = f"2025-12-31T0{seed}:"  # before those that say no time of theirs
        first_loss = 3.3 + noise[0, seed]
        write_run(root, seed=seed, started=at + "00", loss=first_loss, speed=wobble[0, seed])
        losses_of = 3.3 + effect + noise[1, seed]
        arm = {"loss": losses_of, "speed": speedup * wobble[1, seed], **other}
        gelu3x(root, seed=seed, started=at + "30", **arm)


def told(root: Path, **options) -> dict:
    comparison = compare(load_runs([root]), **options)
    content = to_json(result_of(comparison))
    json.dumps(content, allow_nan=False)
    render(comparison)
    return content


def arms_of(root: Path, **options) -> dict[str, dict]:
    arms = told(root, **options)["arms"]
    return {arm["label"]: arm for arm in arms}


def test_an_arm_is_called_by_the_option_that_was_swept_not_by_its_keys(tmp_path: Path) -> None:
    """`data=none`, where the keys behind it are its kind and another."""
    for name, rate in itertools.product(("rope", "none"), (0.1, 0.2)):
        config = {"data.kind": name, "data.base": name, "optimizer.lr": rate}
        write_run(tmp_path, config=config, options={"data": name}, swept=("data", "optimizer.lr"))
    arms = set(arms_of(tmp_path))
    expected = set()
    for name in ("rope", "none"):
        for rate in (0.1, 0.2):
            expected.add(f"data={name} lr={rate}")
    assert arms == expected


def refusal(argv: list[object], capsys, *, command=door) -> str:
    with pytest.raises(SystemExit, match=r"^2$"):
        command.main([str(word) for word in argv])
    err = capsys.readouterr().err
    assert err[:7] == "nocap: "
    assert err.count("\n") == 1
    return err


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "side", "verdict"),
    [(0.01, "higher", "worse"), (-0.01, "lower", "better"), (0.0, "[a-z]+", "no difference shown")],
)
def test_a_planted_effect_is_found(tmp_path, effect, side, verdict):
    two_arms(tmp_path, effect=effect, speedup=1.07)
    arm = arms_of(tmp_path)["gelu3x"]
    difference = arm["difference"]
    assert difference["verdict"] == verdict
    assert difference["method"] == "pairs (Student)"
    assert difference["n"] == 4
    assert difference["low"] < effect < difference["high"]
    ratio = arm["token_us"]["ratio"]
    assert 0.93 < ratio["low"] < 1 / 1.07 < ratio["high"] < 0.94
    assert arm["changes"] == {"mlp.expansion": 3.0}
    assert arm["params"] == {"total": 1000, "non_embedding": 900}
    shown = render(compare(load_runs([tmp_path])))
    assert re.search(rf"gelu3x .* {side} loss by 0\.\d+ ± 0\.\d+ +{verdict}\n", shown)
    assert re.search(r"gelu3x .* [67]\.\d% faster \[6\.\d% to 7\.\d% faster\]", shown)


def test_speeds_have_the_interval_of_losses_on_logarithms(tmp_path):
    """Of the time a token. The wall clock has no ratio: it holds what else the machine did."""
    two_arms(tmp_path, effect=0.0, speedup=1.07)
    alone = told(tmp_path)
    sides = []
    for arm in alone["arms"]:
        records = load_runs([tmp_path]).records
        costs = []
        for record in records:
            if record.arm == arm["arm"]:
                costs.append(math.log(record.value("token_us")))
        sides.append(costs)
    expected = stats.ttest_rel(sides[1], sides[0]).confidence_interval(0.95)
    ratio = alone["arms"][1]["token_us"]["ratio"]

    assert ratio["low"] == pytest.approx(math.exp(expected.low), abs=1e-9)
    assert ratio["high"] == pytest.approx(math.exp(expected.high), abs=1e-9)
    for clocked in ("tokens_per_s", "step_ms", "train_s"):
        assert alone["arms"][1][clocked]["ratio"] is None


def test_speeds_of_several_arms_have_one_interval_for_all(tmp_path):
    rng = np.random.default_rng(8)
    wobble = rng.normal(0, 0.01, (3, 4))
    for arm, seed in itertools.product(range(3), range(4)):
        about = {"config": {"optimizer.lr": 0.001 * (arm + 1)}, "started": f"2026-01-01T0{arm}"}
        loss = 3.3 + 0.001 * seed * arm
        speed = 1000 * math.exp(-wobble[arm, seed])
        write_run(tmp_path, words=f"a{arm}", seed=seed, loss=loss, speed=speed, **about)
    rows = wobble[1:] - wobble[:1]
    arms = told(tmp_path)["arms"][1:]
    for arm, (low, high) in zip(arms, of_a_mixed_model(rows), strict=True):
        ratio = arm["token_us"]["ratio"]
        assert ratio["low"] == pytest.approx(math.exp(low), abs=1e-9)
        assert ratio["high"] == pytest.approx(math.exp(high), abs=1e-9)


def test_a_record_without_the_time_of_a_token_is_not_compared(tmp_path):
    """As nocap wrote them before."""
    two_arms(tmp_path, effect=0.0)
    folder = next(iter(tmp_path.glob("runs/*gelu3x*")))
    summary = json.loads((folder / "summary.json").read_text())
    del summary["token_us"]
    write_summary(folder, summary)
    comparison = compare(load_runs([tmp_path]))
    pace = to_json(result_of(comparison))["arms"][1]["token_us"]

    assert pace["ratio"] is None
    assert pace["refused"] == "a run's record has no time a token"
    assert "[1] a run's record has no time a token" in render(comparison)


def grid_of(root: Path, effects: dict[str, float]) -> None:
    """A baseline a0 and arms with these effects, three seeds each."""
    rng = np.random.default_rng(5)
    for n, (words, effect) in enumerate({"a0": 0.0, **effects}.items()):
        for seed in range(3):
            about = {"config": {"optimizer.lr": 0.001 * (n + 1)}, "started": f"2026-01-01T0{n}"}
            loss = 3.3 + effect + rng.normal(0, SD)
            write_run(root, words=words, seed=seed, loss=loss, **about)


def test_arms_of_a_table_have_one_interval_for_all_of_them(tmp_path):
    """The baseline's noise is counted once, the arms' noise is pooled, and the error is shared."""
    effects = {"a1": 0.0, "a2": 0.01, "a3": -0.01, "a4": 0.02}
    grid_of(tmp_path, effects)
    content = told(tmp_path)
    losses = {run["identity"]: run["val_loss"] for run in content["runs"]}
    base, *others = [[losses[identity] for identity in arm["runs"]] for arm in content["arms"]]
    expected = of_a_mixed_model(np.subtract(others, base))
    for arm, (low, high) in zip(content["arms"][1:], expected, strict=True):
        difference = arm["difference"]
        assert difference["method"] == "pairs, all arms together"
        assert difference["low"] == pytest.approx(low, abs=1e-9)
        assert difference["high"] == pytest.approx(high, abs=1e-9)
    verdicts = [arm["difference"]["verdict"] for arm in content["arms"][2:]]
    assert verdicts == ["worse", "better", "worse"]


def test_the_cautious_interval_is_there_for_who_asks(tmp_path, capsys):
    """The noise of the other arms narrows it, never below the arm's own spread."""
    effects = {"a1": 0.0, "a2": 0.01, "a3": -0.01, "a4": 0.02}
    grid_of(tmp_path, effects)
    assert door.main([str(tmp_path), "--cautious", "--json", str(tmp_path / "x.json")]) == 0
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["cautious"] is True
    losses = {run["identity"]: run["val_loss"] for run in content["runs"]}
    base, *others = [[losses[identity] for identity in arm["runs"]] for arm in content["arms"]]
    gains = np.subtract(others, base)
    for i, arm in enumerate(content["arms"][1:]):
        variances = np.delete(gains, i, axis=0).var(axis=1, ddof=1)
        noise = math.sqrt(variances.mean())  # six degrees
        quantile = stats.t.isf(0.005 / 4, 6 + 2)
        own_deviation = gains[i].std(ddof=1)
        half = quantile * max(noise, own_deviation) / math.sqrt(3)
        shown = arm["difference"]
        mid = gains[i].mean()
        assert shown["method"] == "pairs, noise declared"
        assert shown["low"] == pytest.approx(mid - half)
        assert shown["high"] == pytest.approx(mid + half)


def test_another_optimizer_has_the_cautious_interval(tmp_path):
    """Its pairs erred more often than a normal sample's: experiments/seed_noise."""
    rng = np.random.default_rng(5)
    for n, (optimizer, mlp) in enumerate(
        itertools.product(["adamw", "muon"], ["gelu4x", "swiglu"])
    ):
        for seed in range(4):
            loss = 3.3 + rng.normal(0, SD)
            config = {"optimizer.kind": optimizer, "mlp.activation": mlp}
            options = {"optimizer": optimizer, "mlp": mlp}
            write_run(
                tmp_path,
                words=f"{optimizer}-{mlp}",
                seed=seed,
                loss=loss,
                config=config,
                options=options,
                started=f"2026-01-01T0{n}",
            )
    content = told(tmp_path)
    _, swiglu, muon, both = [arm["difference"] for arm in content["arms"]]
    assert swiglu["method"] == "pairs, all arms together"
    assert muon["method"] in ("pairs, cautious", "pairs, noise declared")
    assert both["method"] in ("pairs, cautious", "pairs, noise declared")
    levels = {}
    for factor in content["by_factor"]["factors"]:
        levels[factor["key"]] = factor["levels"][0]["difference"]
    assert levels["mlp"]["method"] == "pairs (Student)"
    assert levels["optimizer"]["method"] == "pairs, cautious"
    level = levels["optimizer"]
    quantile = stats.t.isf(0.05, 3)
    caution = 1 + 3.3 / math.sqrt(4)
    half = caution * quantile * level["sd"] / math.sqrt(4)
    assert level["high"] - level["mean"] == pytest.approx(half)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_said(tmp_path):
    """Of two hundred tables of six arms without an effect at most one in twenty has a word, and
    chance."""
    grid_of(tmp_path, {f"a{n}": 0.0 for n in range(1, 7)})
    rng = np.random.default_rng(5)
    loaded = load_runs([tmp_path])
    alarms = 0
    for _ in range(200):
        for record in loaded.records:
            record.summary["val_loss"] = 3.3 + rng.normal(0, SD)
        arms = to_json(result_of(compare(loaded)))["arms"]
        words = {arm["difference"]["verdict"] for arm in arms if arm["difference"]}
        alarms += words != {"no difference shown"}
    assert alarms <= 18


def test_a_row_is_over_the_seeds_that_all_arms_share(tmp_path):
    two_arms(tmp_path, effect=0.05)
    gelu3x(tmp_path, seed=7, loss=9.0)
    for seed in range(1, 4):
        loss = 3.1 + seed / 1e3
        write_run(tmp_path, words="gpt2-other", config={"mlp.expansion": 2.0}, seed=seed, loss=loss)
    content = told(tmp_path)
    base, arm, other = content["arms"]
    for row in (base, arm, other):
        assert row["seeds"] == [1, 2, 3]
        assert row["n"] == 3
    assert arm["difference"]["n"] == 3
    expected = arm["val_loss"] - base["val_loss"]
    assert arm["difference"]["mean"] == pytest.approx(expected)
    said = " ".join(content["problems"])
    assert (
        "gelu3x: its row uses only the seeds that all arms share, and leaves out seed 0, 7" in said
    )
    assert other["difference"]["verdict"] == "better"


def test_arms_that_share_no_seeds_are_samples_and_a_line_says_which(tmp_path):
    two_arms(tmp_path, effect=0.05)
    for seed in range(10, 14):
        loss = 3.1 + seed / 1e3
        write_run(tmp_path, words="gpt2-other", config={"mlp.expansion": 2.0}, seed=seed, loss=loss)
    content = told(tmp_path)
    for arm in content["arms"][1:]:
        assert arm["difference"]["method"] == "unpaired, all arms together"
    said = " ".join(content["problems"])
    assert "nocap pairs no seeds, because the arms do not share 3 seeds; leave out other" in said


def test_too_few_seeds_get_no_verdict(tmp_path):
    two_arms(tmp_path, effect=0.1, seeds=2)
    arm = arms_of(tmp_path)["gelu3x"]
    shown = [arm["difference"][key] for key in ("verdict", "low", "high", "n")]
    assert shown == ["no verdict (n=2)", None, None, 2]
    assert arm["difference"]["mean"] == pytest.approx(0.1, abs=0.01)
    assert arm["token_us"]["ratio"] is None


UNDECLARED = [
    ({"kernel": "math"}, "kernel"),
    ({"train": "t1"}, "data"),
    ({"source": "s1"}, "source"),
    ({"torch": "2.12.0"}, "torch"),
]


@pytest.mark.parametrize(("difference", "stamp"), UNDECLARED)
def test_an_undeclared_difference_confounds(tmp_path, difference, stamp):
    two_arms(tmp_path, effect=0.05, **difference)
    content = told(tmp_path)
    assert content["arms"][1]["difference"]["verdict"] == f"confounded ({stamp})"
    assert f"--allow {stamp}" in " ".join(content["problems"])
    arms = arms_of(tmp_path, allow=[stamp])
    assert arms["gelu3x"]["difference"]["verdict"] == "worse"


QUESTIONS = [
    # the kernel is the question
    ({"attention.kernel": "materialized"}, {"kernel": "other"}, "worse"),
    # a kind brings its own kernel
    ({"attention.kind": "sliding", "attention.window": 256}, {"kernel": "other"}, "worse"),
    (
        {"attention.kernel": "materialized", "attention.n_kv_heads": 4},
        {"kernel": "other"},
        "confounded (kernel)",
    ),
    # one config with two versions of the code is two arms
    ({}, {"source": "edited"}, "confounded (source)"),
]


@pytest.mark.parametrize(("config", "changed", "verdict"), QUESTIONS)
def test_a_kernel_may_be_the_question_and_a_version_of_the_code_is_an_arm(
    tmp_path, config, changed, verdict
):
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-4)
        about = {"loss": 3.4 + seed * 2e-4, "started": "2026-01-02", **changed}
        write_run(
            tmp_path,
            words="gpt2-x" if config else "gpt2-flash-gelu4x",
            seed=seed,
            config=config,
            **about,
        )
    first, second = told(tmp_path)["arms"]
    assert first["arm"] != second["arm"]
    assert second["difference"]["verdict"] == verdict
    assert ("source" in second["label"]) == ("source" in changed)


# --- what was swept -------------------------------------------------------------------------------

OPTIONS = {
    "flash": {"attention.kind": "global", "attention.kernel": "fused", "attention.n_kv_heads": 12},
    "mha": {
        "attention.kind": "global",
        "attention.kernel": "materialized",
        "attention.n_kv_heads": 12,
    },
    "gqa": {"attention.kind": "global", "attention.kernel": "fused", "attention.n_kv_heads": 4},
    "sliding": {
        "attention.kind": "sliding",
        "attention.kernel": "chunked",
        "attention.window": 256,
    },
}


def attentions(
    root: Path, *names: str, mlps: tuple[str, ...] = ("gelu4x",), swept: tuple[str, ...]
) -> None:
    """A grid of these attentions, each with the kernel that it brings; the first is the
    baseline."""
    for (place, name), (wide, mlp), seed in itertools.product(
        enumerate(names), enumerate(mlps), range(3)
    ):
        loss = 3.3 + 0.05 * place + seed * 1e-3 * (1 + place + wide)
        config = {**OPTIONS[name], "mlp.expansion": float(4 - wide)}
        kernel = str(OPTIONS[name]["attention.kernel"])
        started = f"2026-01-01T00:0{seed}:{place}{wide}"
        options = {"attention": name, "mlp": mlp}
        write_run(
            root,
            words=f"gpt2-{name}-{mlp}",
            seed=seed,
            loss=loss,
            config=config,
            kernel=kernel,
            options=options,
            swept=swept,
            started=started,
        )


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("flash", "sliding"), ""),  # which has no other kernel
        (("flash", "mha"), ""),  # the kernel is all that differs
        (
            ("mha", "gqa"),
            "gqa: its kernel differs from the baseline's (fused, not materialized); "
            "a baseline with the same kernel is mha with "
            "attention.kernel=fused: no arm here has this setting",
        ),
    ],
)
def test_a_swept_attention_brings_its_kernel(tmp_path, names, line):
    attentions(tmp_path, *names, swept=("attention", "seed"))
    content = told(tmp_path)
    assert content["arms"][1]["difference"]["verdict"] == "worse"
    said = " ".join(content["problems"])
    assert line in said
    assert ("same kernel" in said) is bool(line)


def test_runs_that_no_command_swept_are_confounded_by_their_kernel(tmp_path):
    attentions(tmp_path, "mha", "gqa", swept=())
    arms = told(tmp_path)["arms"]
    assert arms[1]["difference"]["verdict"] == "confounded (kernel)"


def test_a_kernel_that_comes_with_another_sweep_confounds(tmp_path):
    two_arms(tmp_path, effect=0.05, kernel="math", swept=("mlp.expansion", "seed"))
    arms = told(tmp_path)["arms"]
    assert arms[1]["difference"]["verdict"] == "confounded (kernel)"


def test_the_control_of_a_swept_kernel_is_named_where_it_is_an_arm(tmp_path):
    attentions(
        tmp_path,
        "flash",
        "gqa",
        "mha",
        mlps=("gelu4x", "gelu3x"),
        swept=("attention", "mlp", "seed"),
    )
    content = told(tmp_path)
    assert "confounded" not in {arm["difference"]["outcome"] for arm in content["arms"][1:]}
    control = next(arm for arm in content["arms"] if arm["label"] == "mha gelu4x")
    (line,) = [line for line in content["problems"] if "same kernel" in line]
    assert line == (
        "mha gelu3x: its kernel differs from the baseline's (materialized, not fused); a "
        "baseline with the same kernel is flash gelu4x with "
        f"attention.kernel=materialized: mha gelu4x (--baseline {control['arm']})"
    )


# --- runs of other lengths ------------------------------------------------------------------------


def shorter(folder: Path, *, steps: int, train_s: float | None = None) -> None:
    """End a record after so many steps."""
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"steps": steps, "tokens": steps * 10}
    if train_s is None:
        seconds = steps / 100
    else:
        seconds = train_s
    summary["clock_s"] = {"train": seconds, "data": 0.0, "wall": seconds + 1}
    write_summary(folder, summary)


def lengths(
    root: Path, *, steps: int, config: dict[str, object], train_s: float | None = None, **more: Any
) -> str:
    """The verdict on an arm that trained for so many steps against one of 400."""
    for seed in range(3):
        write_run(root, seed=seed, loss=3.3 + seed * 1e-3)
        folder = write_run(
            root, words="gpt2-x", seed=seed, loss=3.4 + seed * 2e-3, config=config, **more
        )
        shorter(folder, steps=steps, train_s=train_s)
    arms = told(root)["arms"]
    return str(arms[1]["difference"]["verdict"])


def test_runs_of_other_lengths_have_no_word(tmp_path):
    assert lengths(tmp_path, steps=300, config={"mlp.expansion": 3.0}) == "confounded (steps)"
    problems = told(tmp_path)["problems"]
    assert "(--allow steps)" in " ".join(problems)
    arms = told(tmp_path, allow=["steps"])["arms"]
    assert arms[1]["difference"]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("swept", "verdict"),
    [(("trainer.steps", "seed"), "worse"), (("mlp.expansion", "seed"), "confounded (steps)")],
)
def test_steps_that_were_swept_are_the_question(tmp_path, swept, verdict):
    config = {"trainer.steps": 300}
    assert lengths(tmp_path, steps=300, config=config, swept=swept) == verdict


def test_runs_that_one_budget_of_time_ended_are_compared_and_a_line_says_so(tmp_path):
    assert lengths(tmp_path, steps=300, config={"mlp.expansion": 3.0}, train_s=4.02) == "worse"
    line = (
        "gpt2-x: compared after an equal training time (4.02 s), but after another number of steps"
    )
    problems = told(tmp_path)["problems"]
    assert line.removeprefix("gpt2-") in " ".join(problems)


def test_a_log_that_counts_from_0_is_as_long_as_one_that_counts_from_1(tmp_path):
    assert lengths(tmp_path, steps=399, config={"mlp.expansion": 3.0}) == "worse"


def test_a_diverged_seed_is_a_result(tmp_path):
    two_arms(tmp_path, effect=-0.05, seeds=3)
    gelu3x(tmp_path, seed=3, status="diverged", curve=(5, 6, 7, 8, 9))
    write_run(tmp_path, seed=3)
    content = told(tmp_path, target_loss=3.4)
    arm = content["arms"][1]
    assert arm["difference"]["verdict"] == "diverged (1 of 4 seeds)"
    assert arm["diverged"] == [3]
    steps = arm["to_target"]["steps"]
    assert steps["reached"] == 3
    assert steps["n"] == 4
    assert any("diverged" in line and "look too good" in line for line in content["problems"])


# --- looks ----------------------------------------------------------------------------------------

FIRST = "2026-01-01T08:00:00"
SECOND = "2026-01-01T09:00:00"
THIRD = "2026-01-01T10:00:00"
BOTH = ("flash", "gelu3x")
ARM = ("gelu3x",)
# what each command asked for: when, of which arms, all seeds, and those that it trained; then the
# look
COMMANDS = {
    "one grid": ([(FIRST, BOTH, range(6), range(6))], 1),
    "six seeds after three": (
        [(FIRST, BOTH, range(3), range(3)), (SECOND, BOTH, range(6), range(3, 6))],
        2,
    ),
    "killed and typed again": (
        [(FIRST, BOTH, range(6), range(2)), (SECOND, BOTH, range(6), range(2, 6))],
        1,
    ),
    "an arm after its baseline": (
        [(FIRST, ("flash",), range(6), range(6)), (SECOND, ARM, range(6), range(6))],
        1,
    ),
    "three, then each by itself": (
        [
            (FIRST, BOTH, range(3), range(3)),
            (SECOND, BOTH, range(3, 4), range(3, 4)),
            (THIRD, BOTH, range(4, 6), range(4, 6)),
        ],
        3,
    ),
    "two, then six": (
        [(FIRST, BOTH, range(2), range(2)), (SECOND, BOTH, range(6), range(2, 6))],
        1,
    ),
    "nothing known": ([("", BOTH, (), range(6))], 1),
}


@pytest.mark.parametrize(("commands", "look"), COMMANDS.values(), ids=COMMANDS)
def test_looks_are_counted_from_what_commands_asked_for(tmp_path, commands, look):
    rng = np.random.default_rng(0)
    for at, arms, seeds, trained in commands:
        for seed, arm in itertools.product(trained, arms):
            noise = rng.normal(0, SD)
            about = {"seed": seed, "loss": 3.3 + noise, "asked": (at, tuple(seeds))}
            write_run(tmp_path, **about) if arm == "flash" else gelu3x(tmp_path, **about)
    content = told(tmp_path)
    losses = {run["identity"]: run["val_loss"] for run in content["runs"]}
    first, second = content["arms"]
    base = [losses[identity] for identity in first["runs"]]
    arm = [losses[identity] for identity in second["runs"]]
    exact = stats.ttest_rel(arm, base).confidence_interval(1 - 0.05 / look**2)
    assert content["look"] == look
    assert content["confidence"] == 1 - 0.05 / look**2
    shown = {1: "95%", 2: "98.75%", 3: "99.44%"}[look]
    comparison = compare(load_runs([tmp_path]))
    assert f"± is half of the {shown} interval" in render(comparison)
    difference = content["arms"][1]["difference"]
    assert difference["low"] == pytest.approx(exact.low, abs=1e-9)
    assert difference["high"] == pytest.approx(exact.high, abs=1e-9)


def test_what_was_asked_for_and_is_not_there_is_unfinished(tmp_path):
    """It leaves the table: the other arm has its own interval."""
    for seed in range(6):
        asked = (FIRST, tuple(range(6)))
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3, asked=asked)
        gelu3x(tmp_path, seed=seed, loss=3.4 + seed * 1.1e-3, asked=asked)
        if seed < 3:
            config = {"mlp.expansion": 2.0}
            write_run(
                tmp_path,
                words="gpt2-x",
                config=config,
                seed=seed,
                loss=3.5 + seed * 1e-3,
                asked=asked,
            )
    arms = arms_of(tmp_path, baseline="gelu4x")
    whole = arms["flash gelu3x"]
    half = arms["x"]
    assert half["difference"]["verdict"] == "unfinished (3 of 6 pairs)"
    difference = whole["difference"]
    assert difference["verdict"] == "worse"
    assert difference["n"] == 6
    assert difference["method"] == "pairs (Student)"


@pytest.mark.parametrize(("there", "verdict"), [(6, "worse"), (4, "unfinished (4 of 6 runs)")])
def test_samples_that_share_no_seeds_are_unfinished_too(tmp_path, there, verdict):
    for seed in range(6):
        first_look = (FIRST, tuple(range(6)))
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3, asked=first_look)
        if seed < there:
            second_look = (SECOND, tuple(range(10, 16)))
            about = {"seed": seed + 10, "loss": 3.4 + seed * 1e-3, "asked": second_look}
            gelu3x(tmp_path, **about)
    arms = arms_of(tmp_path, baseline="gelu4x")
    assert arms["gelu3x"]["difference"]["verdict"] == verdict
    if there == 6:
        turned = "better"
    else:
        turned = f"{verdict.removesuffix(')')} of gelu3x)"
    assert arms_of(tmp_path, baseline="gelu3x")["gelu4x"]["difference"]["verdict"] == turned


def test_an_arm_of_which_all_seeds_diverged_has_that_word_and_no_other(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3)
        gelu3x(tmp_path, seed=seed, status="diverged", curve=(5, 6, 7, 8, 9))
    arms = arms_of(tmp_path, baseline="gelu4x")
    assert arms["gelu3x"]["difference"]["verdict"] == "diverged (3 of 3 seeds)"
    finished = arms_of(tmp_path, baseline="gelu3x")["gelu4x"]["difference"]
    assert finished["verdict"] == "diverged (3 of 3 seeds of gelu3x)"


# --- times ----------------------------------------------------------------------------------------


def test_times_from_other_hardware_are_refused(tmp_path):
    two_arms(tmp_path, effect=0.01, speedup=1.3, fingerprint="bbbb")
    arm = arms_of(tmp_path, target_loss=3.5)["gelu3x"]
    for key in ("token_us", "tokens_per_s", "step_ms", "model_mib", "train_s"):
        assert arm[key]["ratio"] is None
        assert "other hardware: 1 × GPU bbbb" in arm[key]["refused"]
    assert arm["to_target"]["train_s"]["refused"]
    assert arm["to_target"]["steps"]["ratio"]
    assert arm["difference"]["verdict"] == "worse"  # a loss travels
    gelu3x(tmp_path, seed=9)  # an arm from two machines has no speed
    speed = arms_of(tmp_path)["gelu3x"]["token_us"]
    assert speed["mean"] is None
    assert "2 machines" in speed["refused"]


def test_equal_times_and_counts_have_no_width(tmp_path):
    """And of runs one after the other the times are doubted."""
    for seed in range(3):
        write_run(tmp_path, seed=seed)
        gelu3x(tmp_path, seed=seed, speed=1004.0, started="2026-01-02")
    content = told(tmp_path)
    speed = content["arms"][1]["token_us"]["ratio"]
    memory = content["arms"][1]["model_mib"]["ratio"]

    assert speed["mean"] == pytest.approx(1 / 1.004)
    assert speed["low"] == pytest.approx(1 / 1.004)
    assert speed["high"] == pytest.approx(1 / 1.004)
    assert memory["low"] == 1.0
    assert memory["high"] == 1.0
    assert "did not run in turns" in " ".join(content["problems"])


def test_a_ratio_whose_ends_lie_a_factor_of_ten_apart_is_not_known(tmp_path):
    """The table has no figure, JSON has the ends."""
    for seed, speed in enumerate((500.0, 1000.0, 2600.0)):
        write_run(tmp_path, seed=seed)
        gelu3x(tmp_path, seed=seed, speed=speed)
    comparison = compare(load_runs([tmp_path]), baseline="gelu4x")
    arms = {arm.label: arm for arm in result_of(comparison).arms}
    ratio = arms["gelu3x"].token_us.ratio

    assert ratio is not None
    assert ratio.high > 10 * ratio.low
    assert re.search(r"gelu3x +1,128 +not known ", render(comparison))


def test_the_target_is_interpolated_and_censored(tmp_path):
    curves = {
        4: (5.0, 4.0, 3.0, 2.0, 1.0),
        3: (5.0, 4.5, 4.0, 3.5, 3.0),
        2: (5.0, 4.9, 4.8, 4.7, 4.6),
    }
    for (wide, curve), seed in itertools.product(curves.items(), range(3)):
        about = {"config": {"mlp.expansion": float(wide)}, "started": f"2026-01-0{9 - wide}"}
        write_run(tmp_path, words=f"gpt2-gelu{wide}x", seed=seed, curve=curve, **about)
    arms = told(tmp_path, target_loss=3.25)["arms"]
    base, slow, never = (arm["to_target"] for arm in arms)
    assert base["steps"]["median"] == pytest.approx(175)
    assert slow["steps"]["median"] == pytest.approx(350)
    assert slow["train_s"]["median"] == pytest.approx(3.5)
    assert slow["steps"]["ratio"]["mean"] == pytest.approx(2.0)
    never = [never["steps"][key] for key in ("median", "reached", "n", "ratio", "budget")]
    assert never == [None, 0, 3, None, 400]


def test_a_run_without_a_curve_does_not_vanish_at_a_target(tmp_path):
    """An interval over the runs with a curve would hide that more seeds were run."""
    for seed in range(4):
        write_run(tmp_path, seed=seed)
        folder = gelu3x(tmp_path, seed=seed)
    (folder / "metrics.jsonl").write_text('{"step": 400, "tokens": 4000}\n')
    text = (folder / "summary.json").read_text()
    write_summary(folder, json.loads(text))
    arms = arms_of(tmp_path, target_loss=3.5)
    steps = arms["gelu3x"]["to_target"]["steps"]

    assert steps["ratio"] is None
    assert steps["refused"].startswith("these runs have no curve: ")
    assert "-s3" in steps["refused"]


def test_a_target_above_any_runs_first_validation_is_refused(tmp_path):
    """It would be met before that run's first step."""
    two_arms(tmp_path, effect=0.0)
    gelu3x(tmp_path, seed=9, curve=(3.6, 3.5, 3.4, 3.3, 3.2))
    with pytest.raises(
        ValueError, match=r"--target must be below each run's first validation loss.*3\.6000"
    ):
        told(tmp_path, target_loss=3.7)


def test_a_validation_is_timed_before_the_step_that_follows_it(tmp_path):
    folder = write_run(tmp_path)
    clocks = {"clock/train_s": 0.4, "clock/data_s": 0.1}
    rows = [
        {"step": 0, "val/loss": 5.0, "perf/step_ms": 500.0, **clocks, "clock/val_s": 9.0},
        {"step": 1, "val/loss": 4.0, **clocks, "clock/val_s": 18.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    summary = json.loads((folder / "summary.json").read_text())
    made = {
        "steps": 1,
        "val_loss": 4.0,
        "val_bpb": None,
        "tokens": 10,
        "tokens_per_s": 20.0,
        "step_ms": None,
    }
    short_clock = {"train": 0.4, "data": 0.1}
    write_summary(folder, {**summary, **made, "clock_s": short_clock})
    curve = load_runs([folder]).records[0].curve
    assert curve.train_s == [0.0, 0.5]


# --- bad input ------------------------------------------------------------------------------------


OTHER_LOSSES = [
    ({"val": "v1"}, "data.val"),
    ({"config": {"trainer.val_tokens": 8192}}, "trainer.val_tokens"),
    ({"config": {"trainer.val_precision": "bf16"}}, "trainer.val_precision"),
    ({"config": {"tokenizer.vocabulary": "bytes"}}, "tokenizer.vocabulary"),
    # an option from outside declared it
    ({"config": {"optimizer.smooth": 0.1}, "measured": ("optimizer.smooth",)}, "optimizer.smooth"),
    ({"config": {"mlp.expansion": 3.0}, "measured": ("mlp.expansion",)}, "mlp.expansion"),
]


@pytest.mark.parametrize(("difference", "key"), OTHER_LOSSES)
def test_losses_that_measure_different_things_are_never_compared(tmp_path, capsys, difference, key):
    def out(*words: str) -> str:
        assert door.main([str(tmp_path), *words]) == 0
        return capsys.readouterr().out

    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3)
        write_run(tmp_path, words="gpt2-other", seed=seed, loss=3.2 + seed * 1.1e-3, **difference)
    comparison = compare(load_runs([tmp_path]))
    assert len(comparison.runs) == 3
    write_run(tmp_path, seed=3)  # now one of the two groups is the larger
    said = out()
    assert "1 arm from 4 runs" in said
    assert re.search(rf"note: 3 runs left out \(gpt2-other-s0-.*: {key} is .* --allow {key}", said)
    group = re.search(r"--group ([0-9a-f]{6}) ", said)[1]
    assert re.search("1 arm from 3 runs(.|\n)*note: 4 runs left out", out("--group", group))
    of_group = api.compare(tmp_path, group=group)
    expected = len(api.compare(tmp_path)["runs"]) - 1
    assert len(of_group["runs"]) == expected
    assert "--group" in " ".join(of_group["problems"])
    error = refusal([tmp_path, "--group", "luck"], capsys)
    assert re.search(f"--group must be one of [0-9a-f]{{6}}, {group}, got 'luck'", error)
    assert len(told(tmp_path, baseline="other")["runs"]) == 3  # the group that has the baseline
    declared = out("--allow", key)
    in_bits = key == "tokenizer.vocabulary"
    assert "declared: " in declared
    assert ("verdicts compare bits per byte" in declared) == in_bits
    metric = told(tmp_path, allow=[key])["metric"]
    assert metric == ("val_bpb" if in_bits else "val_loss")


@pytest.mark.parametrize("key", ["objective.smoothing", "model.bias_of_loss", "tokenizer.merged"])
def test_a_record_says_by_which_keys_its_losses_are_comparable(tmp_path, key):
    """Its options may come from a folder that is not at hand."""
    for seed in range(3):
        write_run(tmp_path, seed=seed, loss=3.3 + seed * 1e-3, measured=("trainer.val_tokens",))
        for value, words in ((0.1, "gpt2-a"), (0.2, "gpt2-b")):
            about = {"config": {key: value}, "measured": ("trainer.val_tokens", key)}
            write_run(tmp_path, words=words, seed=seed, loss=3.2 + seed * 1.1e-3, **about)
    answer = told(tmp_path)
    assert len(answer["arms"]) == 1
    said = [line for line in answer["problems"] if "left out" in line]
    assert len(said) == 2
    for line in said:
        assert f"{key} is " in line
    arms = told(tmp_path, allow=[key])["arms"]
    assert len(arms) == 3


def test_what_cannot_be_compared_is_refused(tmp_path, capsys, monkeypatch):
    """Files and empty folders are named beside runs; alone, or not there at all, they are
    refused."""
    monkeypatch.chdir(tmp_path)
    two_arms(tmp_path / "whole", effect=0.0, seeds=1)
    write_run(tmp_path / "half", status="running")
    (tmp_path / "empty").mkdir()
    (tmp_path / "multirun.yaml").write_text("hydra: null")
    cases = (
        ([], "outputs must be a run"),
        (["nano-*"], "no run was found"),
        (["whole", "typo"], "no run was found"),
        (["empty", "multirun.yaml"], "must hold runs"),
        (["half"], "needs a finished run"),
        (
            ["whole", "--baseline", "mqa"],
            "--baseline must name exactly one of the arms ('gelu4x', 'gelu3x'), got 'mqa'",
        ),
        (["whole", "--baseline", "flash"], "--baseline must name exactly one of the arms"),  # both
        (["whole", "--allow", "luck"], "--allow must be one of"),
        (["whole", "--target", "nan"], "--target must be a finite loss above 0, got nan"),
        (["whole", "--json", "multirun.yaml/x.json"], "--json must be a file that can be written"),
        (["whole", "--html", "-"], "--html must be a file, not -"),
        (["whole", "--csv", "-"], "--csv must be a file, not -"),
        ([""], "a path must not be empty"),
    )
    for words, rule in cases:
        assert rule in refusal(words, capsys)
    assert door.main(["empty", "multirun.yaml", "whole"]) == 0
    out = capsys.readouterr().out
    for path in ("empty", "multirun.yaml"):
        assert f"{path}: left out, because it holds no run" in out


def test_a_baseline_by_any_of_its_names(tmp_path):
    two_arms(tmp_path, effect=0.0, seeds=1)
    cases = ("gelu3x", "mlp.expansion=3", "expansion=3", "mlp=gelu3x", "gpt2-flash-gelu3x-s0")
    for wanted in cases:
        arms = arms_of(tmp_path, baseline=wanted)
        assert arms["gelu3x"]["difference"] is None


def test_the_baseline_is_the_arm_asked_for_first_however_its_runs_are_named(tmp_path):
    """By the command's time, in one command by its words, else by the start; never by the name."""
    day = "2026-01-02T00:00:00"
    seeds = (0, 1, 2)
    for seed in seeds:
        later = {"seed": seed, "started": f"2026-01-02T00:0{2 - seed}:00"}
        write_run(tmp_path, **later, asked=(day, seeds), loss=3.3 + 0.001 * seed)
        faster_loss = 3.2 + 0.002 * seed
        gelu3x(tmp_path, **later, asked=(day, seeds), place=1, loss=faster_loss)
    folders = sorted(tmp_path.glob("runs/*"))
    pattern = str(tmp_path / "runs" / "*")
    ways = [[tmp_path], [tmp_path / "runs"], folders, folders[::-1], [pattern]]
    for way in ways:
        comparison = compare(load_runs(way))
        assert comparison.baseline.label == "gelu4x"
        labels = [row.label for row in comparison.arms]
        assert labels == ["gelu4x", "gelu3x"]


def test_what_is_not_compared_is_listed(tmp_path):
    two_arms(tmp_path, effect=0.01, seeds=1)
    write_run(tmp_path, words="half", seed=4, status="preempted")
    write_run(tmp_path, words="going", seed=5, status="running")
    write_run(tmp_path, words="new", seed=6, version=99)
    (write_run(tmp_path, words="torn", seed=7) / "summary.json").write_text("{")
    listed = {}
    for run in told(tmp_path)["not_compared"]:
        listed[run["name"].partition("-s")[0]] = run["status"]

    assert listed["half"] == "preempted"
    assert listed["going"] == "not finished"
    assert "schema_version must be at most 1" in listed["new"]
    assert "summary.json must hold a JSON object" in listed["torn"]


# --- finding and writing --------------------------------------------------------------------------


def test_runs_are_found_by_folder_grid_glob_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = tmp_path / "outputs"
    two_arms(outputs, effect=0.0, seeds=2)
    folders = sorted((outputs / "runs").iterdir())
    identities = [folder.name[-12:] for folder in folders]
    grid = outputs / "grids" / "now" / "grid.json"
    grid.parent.mkdir(parents=True)
    cells = [{"identity": identity} for identity in (*identities[2:0:-1], "0" * 12)]
    grid.write_text(json.dumps({"cells": cells}))
    cases = (
        (["outputs"], 4),
        (["outputs/runs"], 4),
        (["outputs/*"], 4),
        ([folders[0], folders[0], str(folders[0])], 1),
        (["outputs/runs/*gelu3x*"], 2),
        (["gpt2-flash-gelu3x"], 2),  # an arm's readable name
        (["gpt2-flash-gelu3x-s1"], 1),
        ([identities[0]], 1),
        ([grid.parent], 2),
    )
    for words, count in cases:
        assert len(load_runs(words).records) == count
    both = r"gpt2-flash-gelu3x-s0-\w+, gpt2-flash-gelu3x-s1-\w+$"
    with pytest.raises(
        ValueError, match=rf"^gpt2-flash-gelu3 must name only one run, got 2: {both}"
    ):
        find("gpt2-flash-gelu3")
    with pytest.raises(ValueError, match=r"no run was found; there: gpt2-flash-gelu[34]x-s[01]-"):
        find("gpt2-flash-gelu3y")
    short = 1
    while len({identity[:short] for identity in identities}) < 4:
        short += 1
    there = [folder.relative_to(tmp_path) for folder in folders]
    assert [find_one(identity[:short]) for identity in identities] == there
    newest = write_run(outputs, words="gpt2-mqa", started="2026-01-02T00:00:00")
    assert find_one("last") == newest.relative_to(tmp_path)
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    manifest["attempts"].append({"started": "2026-01-03T00:00:00"})  # it was gone on with
    text = json.dumps(manifest)
    (folders[0] / "manifest.json").write_text(text)
    assert find_one("last") == there[0]


def test_json_csv_and_a_data_frame_say_the_same(tmp_path, capsys):
    two_arms(tmp_path / "o", effect=0.01)
    into = [f"--{kind}={tmp_path}/new/x.{kind}" for kind in ("json", "csv")]
    assert door.main([str(tmp_path / "o"), "--target", "3.4", *into]) == 0
    out = capsys.readouterr().out
    assert re.search("worse(.|\n)*To val loss 3.4", out)
    comparison = json.loads((tmp_path / "new" / "x.json").read_text())
    content = told(tmp_path / "o", target_loss=3.4)
    for key, value in json.loads(json.dumps(content)).items():
        assert comparison[key] == value
    text = (tmp_path / "new" / "x.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    expected = {run["identity"]: run["val_loss"] for run in comparison["runs"]}
    assert {row["identity"]: float(row["val_loss"]) for row in rows} == expected
    assert {row["mlp.expansion"] for row in rows} == {"3.0", "4.0"}
    pytest.importorskip("pandas")
    losses = api.frame(tmp_path / "o").groupby("mlp.expansion")["val_loss"]
    means = losses.mean()
    steps = means.diff().iloc
    assert steps[-1] == pytest.approx(-0.01, abs=0.005)


def test_measurements_have_unit_and_direction(tmp_path):
    write_run(tmp_path, loss=3.25, speed=500.0)
    write_run(tmp_path, seed=1, status="diverged")
    measurements = told(tmp_path)["measurements"]
    shown = {(m["repeat"], m["metric"]): (m["value"], m["unit"], m["better"]) for m in measurements}
    expected = {
        (0, "val_loss"): (3.25, "nats/token", "lower"),
        (0, "val_bpb"): (1.625, "bits/byte", "lower"),
        (1, "val_loss"): (None, "nats/token", "lower"),
        (1, "val_bpb"): (None, "bits/byte", "lower"),
        **{
            (seed, metric): (value, unit, better)
            for seed, speed in ((0, 500.0), (1, 1000.0))
            for metric, value, unit, better in (
                ("train_s", 4000 / speed, "s", "lower"),
                ("token_us", 1e6 / speed, "µs", "lower"),
                ("tokens_per_s", speed, "tokens/s", "higher"),
                ("step_ms", 1e4 / speed, "ms", "lower"),
                ("model_mib", 100.0, "MiB", "lower"),
                ("params", 1000.0, "parameters", "lower"),
            )
        },
    }
    assert shown == expected
    endings = {row["ending"] for row in measurements if row["value"] is None}
    assert endings == {"diverged"}
    places = {(row["where"], row["when"]) for row in measurements}
    assert places == {("aaaa", "2026-01-01T00:00:00")}


def test_why_names_every_difference_of_two_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = write_run(tmp_path / "outputs")
    b = gelu3x(tmp_path / "outputs", seed=1, source="s1", train="t1", torch="2.12.0")
    assert runs.main(["why", a.name, str(b), "--json", "why.json"]) == 0
    shown = re.findall(r"(\S+) +(\S+) → (\S+)", capsys.readouterr().out)
    assert {*shown} >= {
        ("mlp.expansion", "4", "3"),
        ("seed", "0", "1"),
        ("nocap.training.loop", "s0", "s1"),
        ("train", "t0", "t1"),
        ("torch", "2.13.0", "2.12.0"),
    }
    why = json.loads(Path("why.json").read_text())
    parts = {d["part"] for d in why["differences"]}
    assert parts == {"config", "source", "data", "environment"}
    assert runs.main(["why", a.name, a.name]) == 0
    assert "are the same run" in capsys.readouterr().out
    assert "must name only one run, got 2" in refusal(
        ["why", "outputs", a.name], capsys, command=runs
    )


def test_the_door_imports_neither_torch_nor_scipy():
    modules = "{'torch', 'scipy', 'hydra'} & set(sys.modules)"
    code = f"import sys, nocap.report.comparison_tables, nocap.judge.compare; print({modules})"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=REPO, text=True)
    assert printed == "set()\n"
