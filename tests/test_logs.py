"""`python -m nocap.compare` on logs that other programs wrote."""

import csv
import json
import math
import re
import shutil
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest
from scipy import stats

from nocap import compare as door
from nocap.judge.cautious_interval import CLOCK_BIAS
from nocap.judge.compare import compare
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.judge.differences import DifferenceWord
from nocap.report import comparison_page as page
from nocap.report.comparison_tables import render
from nocap.sources.log_reading import LONGEST
from nocap.sources.logs.arms_and_seeds import find_arms
from nocap.sources.logs.columns import columns_of
from nocap.sources.logs.load import load_logs
from nocap.sources.logs.run_names import RunNames
from tests.test_compare import refusal, write_run
from tests.test_interval import of_a_mixed_model
from tests.test_tracking import environment

NOISE = np.random.default_rng(3).normal(0, 0.003, (2, 6))


def jsonl(path, *, loss=3.0, steps=100, seconds=1.0, **facts):
    """A log whose validations fall linearly from `loss` + 1 to `loss`; so many seconds of training
    a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(0, steps + 1, 20):
        rows.append(
            {
                "iter": step,
                "val": {"loss": loss + 1 - step / steps},
                "train_time_s": seconds * step,
                **facts,
            }
        )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    return path


def two_arms(root, name="seed{}.jsonl", *, gain=0.05, runs=4, **facts):
    for number, (arm, effect) in enumerate((("base", 0.0), ("idea", -gain))):
        for seed in range(runs):
            loss = 3.0 + effect + NOISE[number][seed]
            jsonl(root / arm / name.format(seed), loss=loss, **facts)
    return root


def compared(*paths, target=None, **options):
    content = load_logs([str(path) for path in paths], **options)
    comparison = compare(content, target_loss=target)
    json.dumps(to_json(result_of(comparison)), allow_nan=False)
    render(comparison)
    page.render(comparison)
    return comparison


def arms(comparison):
    content = to_json(result_of(comparison))
    return {arm["label"]: arm for arm in content["arms"]}


# --- intervals ------------------------------------------------------------------------------------


def test_seeds_of_the_names_make_pairs(tmp_path):
    comparison = compared(two_arms(tmp_path))
    gap = arms(comparison)["idea"]["difference"]
    pairs = -0.05 + NOISE[1][:4] - NOISE[0][:4]
    deviation = pairs.std(ddof=1)
    half = stats.t.ppf(0.975, 3) * deviation / 2
    assert gap["mean"] == pytest.approx(pairs.mean())
    expected = pairs.mean() - half
    assert gap["low"] == pytest.approx(expected)
    assert gap["high"] == pytest.approx(pairs.mean() + half)
    assert gap["n"] == 4
    assert gap["method"] == "pairs (Student)"
    assert gap["outcome"] == "better"
    runs = to_json(result_of(comparison))["runs"]
    seeds = {run["imported"]["seed"] for run in runs}
    assert seeds == {"file names"}


def test_runs_without_seeds_are_two_samples(tmp_path):
    comparison = compared(two_arms(tmp_path, "run_{}.jsonl", runs=6))
    gap = arms(comparison)["idea"]["difference"]
    test = stats.ttest_ind(2.95 + NOISE[1], 3.0 + NOISE[0], equal_var=False)
    welch = test.confidence_interval()

    assert gap["low"] == pytest.approx(welch.low)
    assert gap["high"] == pytest.approx(welch.high)
    assert gap["n"] == 6
    assert gap["method"] == "unpaired (Welch)"


def test_no_difference_is_shown_where_there_is_none(tmp_path):
    comparison = compared(two_arms(tmp_path, gain=0.0))
    idea = arms(comparison)["idea"]
    assert idea["difference"]["verdict"] == "no difference shown"


@pytest.mark.slow
def test_false_alarms_without_seeds_are_as_rare_as_said(tmp_path):
    """400 tables of two equal arms."""
    rng = np.random.default_rng(0)
    alarms = 0
    table = tmp_path / "table.csv"
    for _ in range(400):
        rows = []
        for arm in "ab":
            for i in range(4):
                rows.append(f"{arm},{i},{rng.normal(3, 0.01)}\n")
        table.write_text("arm,run,val_loss\n" + "".join(rows))
        comparison = compare(load_logs([str(table)]))
        (gap,) = [row.difference for row in comparison.arms if row.difference]
        alarms += gap.word in (DifferenceWord.better, DifferenceWord.worse)
    assert alarms <= 30  # 7.5%: one in twenty, and chance


# --- a board of records ---------------------------------------------------------------------------


def board(folder, *, shared=False):
    """Nine records, each some lower than the one before, of three seeds each, or five."""
    rng = np.random.default_rng(6)
    arms = {}
    rows = ["record,seed,val_bpb"]
    for i in range(9):
        if i == 4 and not shared:
            n = 5
        else:
            n = 3
        arms[f"r{i}"] = losses = rng.normal(1.1 - 0.0015 * i, 0.0006, n)
        if shared:
            seeds = range(n)
        else:
            seeds = range(10 * i, 10 * i + n)
        rows += [f"r{i},{seed},{loss!r}" for seed, loss in zip(seeds, losses.tolist(), strict=True)]
    text = "\n".join(rows) + "\n"
    (folder / "board.csv").write_text(text)
    return arms


def told(folder, *words):
    into = str(folder / "x.json")
    words = [str(folder / "board.csv"), "--columns", "arm=record", "--json", into, *words]
    assert door.main(words) == 0
    content = json.loads((folder / "x.json").read_text())
    return content, {arm["label"]: arm for arm in content["arms"] if arm["difference"]}


def test_each_record_is_compared_with_the_one_before_it(tmp_path, capsys):
    """With one variance for all, and one error."""
    records = board(tmp_path)
    content, gaps = told(tmp_path, "--against", "previous")
    freedom = sum(len(losses) - 1 for losses in records.values())
    squares = sum(losses.var(ddof=1) * (len(losses) - 1) for losses in records.values())
    pooled = squares / freedom
    assert content["against"] == "previous"
    assert len(gaps) == 8
    for i, arm in enumerate(gaps.values()):
        before = records[f"r{i}"]
        own = records[f"r{i + 1}"]
        quantile = stats.t.isf(0.025 / 8, freedom)
        half = quantile * (pooled / len(own) + pooled / len(before)) ** 0.5
        welch = stats.ttest_ind(own, before, equal_var=False).confidence_interval()
        reach = max(half, (welch.high - welch.low) / 2)
        mid = own.mean() - before.mean()
        difference = arm["difference"]
        assert difference["low"] == pytest.approx(mid - reach, abs=1e-9)
        assert difference["high"] == pytest.approx(mid + reach, abs=1e-9)
        assert (difference["verdict"] == "better") == (mid + reach < 0)
        assert arm["against"] == content["arms"][i]["arm"]
    assert content["by_factor"] is None
    assert "each arm against the arm before it, beginning with r0" in capsys.readouterr().out


def test_records_that_share_no_seeds_with_the_first_have_one_variance(tmp_path):
    records = board(tmp_path)
    _, gaps = told(tmp_path)
    base = records["r0"]
    arms = [records[name] for name in gaps]
    freedom = sum(len(losses) - 1 for losses in arms)
    squares = sum(losses.var(ddof=1) * (len(losses) - 1) for losses in arms)
    pooled = squares / freedom
    own = base.var(ddof=1) / len(base)
    for arm, losses in zip(gaps.values(), arms, strict=True):
        part = pooled / len(losses)
        own_part = own**2 / (len(base) - 1)
        df = (own + part) ** 2 / (own_part + part**2 / freedom)
        quantile = stats.t.isf(0.025 / 8, df)
        half = quantile * (own + part) ** 0.5
        welch = stats.ttest_ind(losses, base, equal_var=False).confidence_interval()
        reach = max(half, (welch.high - welch.low) / 2)
        mid = losses.mean() - base.mean()
        assert arm["difference"]["low"] == pytest.approx(mid - reach, abs=1e-9)
        assert arm["difference"]["high"] == pytest.approx(mid + reach, abs=1e-9)


def test_records_that_share_seeds_are_pairs_with_the_one_before(tmp_path):
    records = board(tmp_path, shared=True)
    _, gaps = told(tmp_path, "--against", "previous")
    steps = [records[f"r{i + 1}"] - records[f"r{i}"] for i in range(8)]
    for arm, (low, high) in zip(gaps.values(), of_a_mixed_model(np.array(steps)), strict=True):
        difference = arm["difference"]
        assert difference["low"] == pytest.approx(low, abs=1e-9)
        assert difference["high"] == pytest.approx(high, abs=1e-9)
        assert difference["method"] == "pairs, all arms together"


def test_the_one_before_is_no_baseline(tmp_path, capsys):
    board(tmp_path)
    words = [
        tmp_path / "board.csv",
        "--columns",
        "arm=record",
        "--against",
        "previous",
        "--baseline",
        "r3",
    ]
    assert "--baseline does not work with --against previous" in refusal(words, capsys)


# --- arms, runs and seeds -------------------------------------------------------------------------

LAYOUTS = {
    "a folder a path": ("{arm}/{seed}.jsonl", ["base", "idea"], True),
    "a folder of folders": ("{arm}/seed={seed}.jsonl", ["."], True),
    "a folder a repeat": ("{arm}/s{seed}/log.jsonl", ["."], True),
    "a folder a repeat, by arm": ("{arm}/seed_{seed}/log.jsonl", ["base", "idea"], True),
    "a folder a time": ("{arm}/2026-11-24/12-00-0{seed}/log.jsonl", ["."], False),
    "a folder a number": ("{arm}/24/{seed}.jsonl", ["."], True),
    "a dated folder an arm": ("2026-04-29_{arm}/{seed}.jsonl", ["."], True),
    "a step that looks like a seed": ("record/{arm}-s1440/s1440_{seed}.jsonl", ["."], True),
    "the same names in two places": (
        "{arm}/runs/x-s{seed}.jsonl",
        ["base/runs", "idea/runs"],
        True,
    ),
}


@pytest.mark.parametrize(("place", "paths", "paired"), LAYOUTS.values(), ids=LAYOUTS)
def test_folders_and_names_say_arm_and_seed(tmp_path, place, paths, paired):
    jsonl(tmp_path / ".hidden" / "old.jsonl")  # no arm
    for number, arm in enumerate(("base", "idea")):
        for seed in range(3):
            loss_at = 3 + NOISE[number][seed]
            jsonl(tmp_path / place.format(arm=arm, seed=seed), loss=loss_at)
    by_label = arms(compared(*(tmp_path / path for path in paths)))
    named = [name in label for label, name in zip(by_label, ("base", "idea"), strict=True)]
    assert named == [True] * 2
    seeds = [arm["seeds"] for arm in by_label.values()]
    expected = [(3, paired)] * 2
    counts = [(len(each), min(each) >= 0) for each in seeds]
    assert counts == expected
    both = {*seeds[0], *seeds[1]}
    assert len(both) == (3 if paired else 6)


EXAMPLES = {  # of `RunNames`: files, and the arm and the seed of each
    "seeds of folders": {
        "base/seed0/log": ("base", "0"),
        "base/seed1/log": ("base", "1"),
        "wide/seed0/log": ("wide", "0"),
    },
    "arms that count alike": {
        "base-0": ("base", "0"),
        "base-1": ("base", "1"),
        "wide-0": ("wide", "0"),
        "wide-1": ("wide", "1"),
    },
    "times": {
        "base/2026-01-01_10-00-00/train": ("base", ""),
        "base/2026-01-02_10-00-00/train": ("base", ""),
        "wide/2026-01-03_10-00-00/train": ("wide", ""),
    },
}


def named(path: str, **settings: str) -> RunNames:
    *folders, file = path.split("/")
    return RunNames(
        title=path,
        folders=folders,
        file=file,
        own="",
        home="",
        config=settings,
        config_name="hparams.yaml",
    )


@pytest.mark.parametrize("expected", EXAMPLES.values(), ids=EXAMPLES)
def test_the_examples_of_arms_and_seeds(expected: dict[str, tuple[str, str]]) -> None:
    runs = [named(path) for path in expected]
    find_arms(runs)
    assert {run.title: (run.arm, run.seed) for run in runs} == expected


def test_settings_name_arms_where_numbers_do_not() -> None:
    runs = [named("1/log", lr="0.1"), named("2/log", lr="0.2")]
    find_arms(runs)
    assert [run.arm for run in runs] == ["lr=0.1", "lr=0.2"]


def test_three_versions_are_three_arms_or_three_runs() -> None:
    with pytest.raises(ValueError, match="They may be 3 arms, or runs of one arm"):
        find_arms([named("v1/log"), named("v2/log"), named("v3/log")])


TABLES = {  # a table, its options, of each arm its seeds and mean loss, and what is said of it
    "arm, seed": (
        "arm,seed,val_loss\na,0,3\na,1,4\nb,0,2\nb,1,3\n",
        "",
        {"a": ([0, 1], 3.5), "b": ([0, 1], 2.5)},
        "",
    ),
    "interleaved runs": (
        "run;arm;step;val_loss\nx;a;0;5\ny;b;0;6\nx;a;9;4\ny;b;9;3\n",
        "",
        {"a": ([-1], 4), "b": ([-2], 3)},
        "",
    ),
    "the same run names": (
        "arm\trun\tval_loss\na\t1\t4\nb\t1\t3\n",
        "",
        {"a": ([-1], 4), "b": ([-2], 3)},
        "",
    ),
    "named columns": (
        "lr,which,it,L\n1,0,0,9\n1,0,5,4\n2,0,0,9\n2,0,5,3\n",
        "arm=lr,seed=which,step=it,val_loss=L",
        {"1": ([0], 4), "2": ([0], 3)},
        "",
    ),
    "no arms": ("seed,val_loss\n0,4\n1,3\n", "", {"table": ([0, 1], 3.5)}, ""),
    "bits per byte": (
        "arm,seed,val_bpb\na,0,1.5\nb,0,1.25\n",
        "",
        {"a": ([0], 1.5), "b": ([0], 1.25)},
        "",
    ),
    "a loss and its bits apart": (
        "step,val_loss,val_bpb\n0,5,\n0,,2\n9,4,\n9,,1.5\n",
        "",
        {"arms": ([-1], 4)},
        "",
    ),
    "one run": ("step,val_loss,train_loss\n0,4,\n1,3.5,2\n2,,2\n", "", {"arms": ([-1], 3.5)}, ""),
    "rows without a step": (
        "arm,val_loss\na,3.1\na,3.2\nb,3.0\nb,3.3\n",
        "",
        {"a": ([-1], 3.2), "b": ([-2], 3.3)},
        "If each row is a run, name a column of seeds or runs",
    ),
    "a clock that begins again": (
        "step,val_loss,train_s\n0,5,0\n10,4,100\n20,3.5,5\n",
        "",
        {"arms": ([-1], 3.5)},
        "its seconds go back",
    ),
    "equal repeats": (
        "arm,run,val_loss\na,0,3\na,1,3\na,2,3\nb,0,2\n",
        "",
        {"a": ([-1], 3), "b": ([-4], 2)},
        "left out, because its losses are equal to those of ",
    ),
}


@pytest.mark.parametrize(("table", "columns", "expected", "said"), TABLES.values(), ids=TABLES)
def test_a_table_s_columns_say_arm_seed_and_loss(tmp_path, table, columns, expected, said):
    path = tmp_path / "arms" / "table.csv"
    path.parent.mkdir()
    path.write_text(table)
    comparison = compared(path, columns=columns_of(columns))
    rows = {}
    for label, arm in arms(comparison).items():
        rows[label] = (arm["seeds"], arm["val_loss"] or arm["val_bpb"])
    assert rows == expected
    assert said in "\n".join(comparison.problems)
    runs = to_json(result_of(comparison))["runs"]
    assert not [run for run in runs if "go back" in said and run["train_s"]]


def test_a_row_goes_on_with_what_was_said_before(tmp_path):
    """The config in the first line, seconds (of another unit) and tokens in lines of training."""
    rows = [
        {"config": {"seed": 7}, "gpu": "H100"},
        {"step": 1, "time_ms": 2500, "tokens": 64},
        {"step": 1, "val_loss": 3.5},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n"
    (tmp_path / "log.jsonl").write_text(text)
    columns = columns_of("train_s=time_ms/1000")
    comparison = compared(tmp_path / "log.jsonl", columns=columns)
    (run,) = to_json(result_of(comparison))["runs"]

    assert run["seed"] == 7
    assert run["train_s"] == 2.5
    assert run["tokens"] == 64
    assert run["steps"] == 1
    assert run["hardware"]["name"] == "H100"


def test_a_resumed_run_is_one(tmp_path):
    path = tmp_path / "log.csv"
    back = "its steps go back to 10, so nocap leaves out 1 earlier rows beyond this point"
    path.write_text("step,val_loss\n0,5\n10,4\n20,3.5\n10,4.1\n20,3.6\n")
    comparison = compared(path)
    (run,) = to_json(result_of(comparison))["runs"]

    assert run["curve"]["step"] == [0, 10, 20]
    assert run["curve"]["val_loss"] == [5, 4.1, 3.6]
    assert comparison.problems == [f"{path}: line 5: {back}"]


# --- times ----------------------------------------------------------------------------------------


HARDWARE_OF_TWO = [
    ({}, {}, None, "no record of the hardware"),
    ({"gpu": "H100"}, {"gpu": "H100"}, None, None),
    ({}, {}, "2 × H100", None),
    ({"gpu": "H100"}, {"gpu": "A100"}, "2 × H100", "other hardware: A100; the baseline: H100"),
    ({"gpu": "H100"}, {}, "H100", None),
]


@pytest.mark.parametrize(("base", "idea", "said", "refused"), HARDWARE_OF_TWO)
def test_times_are_compared_on_the_same_hardware(tmp_path, base, idea, said, refused):
    for number, (arm, facts, pace) in enumerate((("base", base, 1.0), ("idea", idea, 5 / 6))):
        for seed in range(3):
            loss = 3 + NOISE[number][seed]
            jsonl(tmp_path / arm / f"s{seed}.jsonl", loss=loss, seconds=pace, **facts)
    comparison = compared(tmp_path, hardware=said, target=3.5)
    arm = arms(comparison)["idea"]
    assert arm["train_s"]["refused"] == refused
    assert arm["to_target"]["train_s"]["refused"] == refused
    ratio = arm["to_target"]["steps"]["ratio"]
    assert ratio["mean"] == pytest.approx(1, rel=0.02)
    assert refused or arm["train_s"]["ratio"]["mean"] == pytest.approx(5 / 6)
    shown = []
    for show in (render, page.render):
        shown.append(f"--hardware says that the runs used {said}" in show(comparison))
    expected = [bool(said and not (base and idea))] * 2
    assert shown == expected


def curve_of(root, arm, *, every, steps=2000, seconds=0.05, loss=3.0):
    """Three seeds of a log whose loss falls as a power of the step."""
    for seed in range(3):
        path = root / arm / f"seed{seed}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = float(loss + NOISE[0][seed])
        points = [(step, start + 2 * (1 + step) ** -0.3) for step in range(0, steps + 1, every)]
        rows = [f"{step},{value!r},{step * seconds},H100\n" for step, value in points]
        path.write_text("step,val_loss,train_s,gpu\n" + "".join(rows))


def test_a_time_to_target_is_no_surer_than_what_lies_between_two_validations(tmp_path):
    """The arms are nearly equal, but for how often they were validated."""
    lengths = (("base", 50), ("same", 50), ("rare", 500), ("ends", 2000))
    for number, (arm, every) in enumerate(lengths):
        curve_of(tmp_path, arm, every=every, loss=3.0 - 1e-6 * number)  # equal logs would be copies
    comparison = compared(tmp_path, target=3.25)
    reached = {label: arm["to_target"]["steps"] for label, arm in arms(comparison).items()}
    ratio = reached["same"]["ratio"]
    assert ratio["mean"] == pytest.approx(1, abs=1e-4)
    at = reached["same"]["median"]
    assert ratio["high"] >= (at // 50 * 50 + 50) / at
    assert reached["rare"]["ratio"] is None
    ends = reached["ends"]
    assert ends["ratio"] is None
    assert reached["rare"]["refused"].startswith(
        "one arm was validated every 500 steps there, and the other every 50"
    )
    assert ends["refused"] == "a run reached the target before its first validation"
    assert ends["median"]  # its own is shown
    assert "refused: one arm was validated every 500 steps there" in render(comparison)


def test_seconds_to_a_target_are_as_wide_as_a_clock_and_all_arms_need(tmp_path):
    for number, arm in enumerate(("base", "one", "two", "three")):
        curve_of(tmp_path, arm, every=1, steps=200, loss=3.0 - 0.001 * number)
    comparison = compared(tmp_path / "base", tmp_path / "one", target=3.5)
    alone = arms(comparison)["one"]["to_target"]
    among = arms(compared(tmp_path, target=3.5))["one"]["to_target"]
    for axis in ("steps", "train_s"):
        assert among[axis]["ratio"]["high"] > alone[axis]["ratio"]["high"]
    steps = math.log(alone["steps"]["ratio"]["high"])
    seconds = math.log(alone["train_s"]["ratio"]["high"])
    assert seconds - steps == pytest.approx(CLOCK_BIAS)


def test_a_log_that_stopped_early_is_not_faster(tmp_path):
    curve_of(tmp_path, "base", every=50)
    curve_of(tmp_path, "early", every=50, steps=600)
    comparison = compared(tmp_path)
    early = arms(comparison)["early"]["train_s"]

    assert early["mean"] == 30.0
    assert early["ratio"] is None
    assert early["refused"] == "the numbers of steps differ: 600 and 2,000"
    assert "as fast" not in render(comparison)


def test_a_loss_below_zero_is_refused_with_how_to_turn_its_sign(tmp_path):
    for number, arm in enumerate(("base", "idea")):
        path = tmp_path / f"{arm}.csv"
        rows = []
        for seed in range(3):
            rows.append(f"{seed},{-3.0 + 0.1 * number + 0.001 * seed * (1 + number)}\n")
        path.write_text("seed,nll_per_token\n" + "".join(rows))
    paths = tmp_path / "base.csv", tmp_path / "idea.csv"
    with pytest.raises(
        ValueError,
        match=r"val_loss must be 0 or above, got -3 \(for a log-likelihood, change the sign with "
        r"--columns val_loss=NAME/-1",
    ):
        compared(*paths, columns=columns_of("val_loss=nll_per_token"))
    turned = arms(compared(*paths, columns=columns_of("val_loss=nll_per_token/-1")))
    losses = [arm["val_loss"] for arm in turned.values()]
    assert losses == pytest.approx([2.999, 2.898])
    assert turned["idea"]["difference"]["outcome"] == "better"


# --- what every page says -------------------------------------------------------------------------


def test_every_page_says_that_it_is_imported(tmp_path, capsys):
    """And that a run ends elsewhere than the others."""
    jsonl(two_arms(tmp_path / "logs") / "idea" / "seed3.jsonl", steps=60)
    outs = {kind: tmp_path / f"out.{kind}" for kind in ("html", "json", "csv")}
    arguments = []
    for kind, path in outs.items():
        arguments.extend((f"--{kind}", str(path)))
    assert door.main([str(tmp_path / "logs"), *arguments, "--target", "3.5"]) == 0
    said = capsys.readouterr().out
    html = outs["html"].read_text()
    cases = (
        "imported: logs of another trainer (jsonl)",
        "unfinished: 60 of the 100 steps that other runs of its arm have",
    )
    for line in cases:
        assert line in said
        assert line in html
    visible = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    assert "confirmed" not in visible
    content = json.loads(outs["json"].read_text())
    assert content["imported"] is True
    assert content["exploratory"] is True
    lines = outs["csv"].read_text().splitlines()
    rows = [(row["arm"], row["seed"]) for row in csv.DictReader(lines)]
    expected = []
    for arm in ("base", "idea"):
        for seed in range(4):
            expected.append((arm, str(seed)))
    assert rows == expected


# --- bad input ------------------------------------------------------------------------------------

BAD = {  # the content of one log beside six good ones, and why it is left out
    "no object": (b"[1, 2]\n", r"line 1 must be a JSON object, got '\[1, 2\]'"),
    "another encoding": (
        '{"é": 0}\n'.encode("latin-1"),
        r"line 1 must be UTF-8 text, got byte 0xe9",
    ),
    "binary": (b'{"iter": 0}\n\x00\x93NUMPY\n', r"line 2 must be UTF-8 text, got byte 0x93"),
    "empty": (b"", r"it must hold at least one row, got none"),
    "no loss": (
        b'{"iter": 1, "train": {"loss": 3}}\n',
        r"it must have a row with val_loss or val_bpb, got the columns iter, train/loss "
        r"\(choose one with --columns KEY=NAME\)",
    ),
    "no number": (
        b'{"iter": 1, "val": {"loss": "three"}}\n',
        r"line 1: val_loss must be a number, got 'three'",
    ),
    "yes": (
        b'{"iter": 1, "val": {"loss": true}}\n',
        r"line 1: val_loss must be a number, got 'True'",
    ),
    "a list": (
        b'{"iter": 1, "val": {"loss": [3]}}\n',
        r"line 1: val_loss must be a number, got '\[3\]'",
    ),
    "a step that is none": (
        b'{"iter": NaN, "val": {"loss": 3}}\n',
        r"line 1: step must be a number, got 'nan'",
    ),
    "beyond a float": (
        b'{"iter": 1' + b"0" * 400 + b', "val": {"loss": 3}}\n',
        r"line 1: step must be a number, got '1000",
    ),
    "a line without end": (
        b" " * (LONGEST + 1),
        r"line 1 must have at most 4,194,304 bytes, got more",
    ),
    "too deep": (b'{"a":' * 100_000 + b"\n", r"line 1 must be a JSON object, got "),
    "no seed": (
        b'{"seed": "x", "iter": 1, "val_loss": 3}\n',
        r"seed must be an integer of at least 0, got x",
    ),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_named_with_its_line_and_left_out(tmp_path, content, why):
    bad = two_arms(tmp_path, runs=2) / "idea" / "seed9.jsonl"
    bad.write_bytes(content)
    comparison = compared(tmp_path)
    ((name, status),) = comparison.not_compared
    assert name == str(bad), status
    assert re.match(f"unreadable: {why}", status), status
    idea = arms(comparison)["idea"]
    assert idea["seeds"] == [0, 1]


CELLS = {
    "a torn line": (
        "step,val_loss\n1,3\n2\n3,3\n",
        "line 3 must have 2 cells, as the first line has, got 1",
    ),
    "two columns of one name": (
        "step,val_loss,val_loss\n1,3.3,3.2\n",
        "line 1 must name each column once, got val_loss",
    ),
    "a text": ("step,val_loss\n1,3\n2,x\n", "line 3: val_loss must be a number, got 'x'"),
    "an open quote": ('step,val_loss\n1,"3\n', "line 2 must be a row of a CSV table"),
    "nothing": ("", "it must hold at least one row, got none"),
}


@pytest.mark.parametrize(("text", "why"), CELLS.values(), ids=CELLS)
def test_tables_that_cannot_be_read(tmp_path, capsys, text, why):
    (tmp_path / "t.csv").write_text(text)
    assert f"({tmp_path / 't.csv'}: {why}" in refusal([tmp_path / "t.csv"], capsys)


@pytest.mark.parametrize("loss", ["NaN", "Infinity", '"nan"'])
def test_a_loss_that_is_no_number_at_the_end_diverged(tmp_path, loss):
    with (two_arms(tmp_path) / "idea" / "seed2.jsonl").open("a") as file:
        file.write(f'{{"iter": 120, "val": {{"loss": {loss}}}}}\n')
    arm = arms(compared(tmp_path))["idea"]
    assert arm["diverged"] == [2]
    assert arm["difference"]["verdict"] == "diverged (1 of 4 seeds)"


@pytest.mark.parametrize("empty", ["null", "cell"])
def test_losses_that_are_empty_from_a_row_on_diverged(tmp_path, empty):
    """Strict JSON and tables have no other way to write that a loss is no number."""
    two_arms(tmp_path)
    for seed in range(3):
        path = tmp_path / "idea" / f"seed{seed}.jsonl"
        lines = path.read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows[3:]:
            row["val"]["loss"] = None
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text)
    if empty == "cell":
        for path in tmp_path.glob("*/*.jsonl"):
            lines = path.read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            cells = [[row["iter"], "" if (x := row["val"]["loss"]) is None else x] for row in rows]
            table = "".join(f"{step},{loss}\n" for step, loss in cells)
            path.with_suffix(".csv").write_text("step,val_loss\n" + table)
            path.unlink()
    arm = arms(compared(tmp_path))["idea"]
    assert arm["diverged"] == [0, 1, 2]
    assert arm["difference"]["verdict"] == "diverged (3 of 4 seeds)"


@pytest.mark.parametrize(
    "losses",
    [
        ["4", "", "3", "", "3", ""],  # a validation in some rows only
        ["4", "", "", "", "", ""],
    ],
)
def test_losses_in_some_rows_only_are_no_divergence(tmp_path, losses):
    table = "".join(f"{100 * row},{loss}\n" for row, loss in enumerate(losses))
    (tmp_path / "t.csv").write_text("step,val_loss\n" + table)
    (arm,) = arms(compared(tmp_path / "t.csv")).values()
    assert arm["diverged"] == []


def test_logs_that_were_cut_have_no_word(tmp_path):
    two_arms(tmp_path)
    for path in (tmp_path / "idea").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:4]))
    comparison = compared(tmp_path)
    idea = arms(comparison)["idea"]
    assert idea["difference"]["verdict"] == "confounded (steps)"
    assert "(--allow steps)" in " ".join(comparison.problems)


def test_the_same_run_counts_once(tmp_path):
    """A copy; and repeats of a trainer that takes no seed, whose times differ."""
    two_arms(tmp_path, "run_{}.jsonl", runs=3)
    copy = shutil.copy(tmp_path / "idea" / "run_0.jsonl", tmp_path / "idea" / "zcopy.jsonl")
    loss_of_one = 3.0 + NOISE[0][0]
    jsonl(tmp_path / "base" / "run_9.jsonl", loss=loss_of_one, host="other")
    comparison = compared(tmp_path)
    assert [arm["n"] for arm in arms(comparison).values()] == [3, 3]
    lines = "\n".join(comparison.problems)
    assert f"{copy}: left out, because it is the same as idea/run_0.jsonl" in lines
    assert (
        "base/run_9.jsonl: left out, because its losses are equal to those of base/run_0.jsonl"
        in lines
    )


def test_short_logs_of_equal_text_are_runs_of_their_own(tmp_path):
    """Two digits and two validations are equal by chance."""
    for arm, losses in (("base", (3.01, 3.02, 3.01, 3.02)), ("idea", (2.91, 2.91, 2.93, 2.92))):
        for seed, loss in enumerate(losses):
            path = tmp_path / arm / f"seed{seed}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"step,val_loss\n50,4.5\n100,{loss}\n")
    comparison = compared(tmp_path)
    assert [arm["n"] for arm in arms(comparison).values()] == [4, 4]
    difference = arms(comparison)["idea"]["difference"]
    assert difference["mean"] == pytest.approx(-0.0975)
    assert not [line for line in comparison.problems if "left out" in line]


REFUSALS = {
    "no log": (
        lambda root: [root / "empty"],
        r"empty must hold runs of nocap, or logs that nocap can read, got no file",
    ),
    "no log of a format": (
        lambda root: [root / "empty", "--format", "csv"],
        r"empty must hold logs of csv, got no file",
    ),
    "nothing of that name": (
        lambda root: [root / "x", "--format", "csv"],
        r"x must be a file or a folder of logs, got nothing of that name",
    ),
    "an unknown format": (
        lambda root: [root, "--format", "xml"],
        r"--format must be one of csv, .*wandb, .*or the path of a Python file, got xml",
    ),
    "two formats": (
        lambda root: [root / "two"],
        r"two must hold logs of one format, or be read with --format NAME, got csv and jsonl",
    ),
    "no such column": (
        lambda root: [root / "logs", "--columns", "val_loss=L"],
        r"--columns val_loss must be one of the columns iter, val/loss, train_time_s "
        r"\(choose one with --columns KEY=NAME\), got L",
    ),
    "no such key": (
        lambda root: [root / "logs", "--columns", "loss=L"],
        r"--columns must be KEY=NAME,… where KEY is one of step, val_loss, .*, got loss=L",
    ),
    "division by 0": (
        lambda root: [root / "logs", "--columns", "train_s=ms/0"],
        r"--columns must divide by a number above 0 \(only a loss may also be divided by -1\), got "
        r"train_s=ms/0",
    ),
    "flags without logs": (
        lambda root: [root / "own", "--hardware", "H100"],
        r"own must hold only logs of other trainers, because --col",
    ),
    "a target in bits": (
        lambda root: [root / "bits.csv", "--target", "1"],
        r"--target needs runs with a loss in nats per token",
    ),
    "a bad format file": (
        lambda root: [root, "--format", root / "bad.py"],
        r"--format .*bad.py failed: SyntaxError",
    ),
    "a format that reads nothing": (
        lambda root: [root, "--format", root / "none.py"],
        r"--format .*none.py must define the function read\(path\) and the text PATTERN",
    ),
    "a place on no server": (
        lambda root: ["a/b/c/d", "--format", "wandb"],
        r"it must be ENTITY/PROJECT or ENTITY/PROJECT/GROUP, got a/b/c/d",
    ),
}


@pytest.mark.parametrize(("words", "line"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path, capsys, words, line):
    (tmp_path / "empty").mkdir()
    two_arms(tmp_path / "logs")
    write_run(tmp_path / "own")
    jsonl(tmp_path / "two" / "a.jsonl")
    (tmp_path / "two" / "a.csv").write_text("val_loss\n3\n")
    (tmp_path / "bits.csv").write_text("arm,seed,val_bpb\na,0,1.5\nb,0,1.25\n")
    (tmp_path / "bad.py").write_text("def read(path)\n")
    (tmp_path / "none.py").write_text("PATTERN = '*.txt'\n")
    assert re.search(line, refusal(words(tmp_path), capsys))


def test_nocap_s_own_runs_are_not_compared_with_logs(tmp_path):
    write_run(tmp_path / "own")
    mixed = two_arms(tmp_path / "logs", runs=1)
    # of two formats, which would be refused by themselves
    (mixed / "table.csv").write_text("val_loss\n3\n")
    comparison = compared(tmp_path / "own", mixed)

    assert len(comparison.arms) == 1
    assert comparison.imported == []
    assert f"{mixed}: left out, because it holds no run of nocap's own" in comparison.problems


def test_a_large_log_is_not_held_in_memory(tmp_path):
    path = tmp_path / "log.jsonl"
    row = {"train_loss": 3.0, "text": "x" * 4000}
    with path.open("w") as file:
        for step in range(2000):
            if step % 100 == 0:
                loss = {"val_loss": 9 - step / 1e3}
            else:
                loss = {}
            content = {"step": step, **row, **loss}
            file.write(json.dumps(content) + "\n")
    tracemalloc.start()
    loaded = load_logs([str(path)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded.records[0].curve.step) == 20
    assert path.stat().st_size > 8e6 > 5 * peak


# --- formats --------------------------------------------------------------------------------------


def test_a_format_of_one_s_own(tmp_path):
    """What prints `step 50 val loss 3.2`, as docs/own_train.py does."""
    form = tmp_path / "printed.py"
    root = tmp_path / "logs"
    form.write_text(
        "import re\nfrom nocap.sources.formats import lines\nPATTERN = '*.log'\n"
        "def read(path):\n"
        "    for number, line in lines(path):\n"
        "        if match := re.match(r'step (\\d+) val loss (\\S+)', line):\n"
        "            yield {'line': number, 'step': int(match[1]), 'val_loss': match[2]}\n"
    )
    for arm, loss in (("a", 3.0), ("b", 2.0)):
        (root / arm).mkdir(parents=True)
        for seed in range(3):
            text = f"hello\nstep 0 val loss 5\nstep 9 val loss {loss + NOISE[0][seed]}\n"
            (root / arm / f"seed{seed}.log").write_text(text)
    (root / "a" / "seed3.log").write_text("step 0 val loss five\n")
    comparison = compared(root, format=str(form))
    difference = arms(comparison)["b"]["difference"]
    assert difference["mean"] == pytest.approx(-1)
    assert (
        comparison.not_compared[0][1] == "unreadable: line 1: val_loss must be a number, got 'five'"
    )
    assert "(printed.py)" in render(comparison)
    form.write_text("PATTERN = '*.log'\ndef read(path):\n    yield {}['x']\n")
    with pytest.raises(ValueError, match=r"seed0.log: KeyError: 'x'"):
        compared(root, format=str(form))


def _child(code, tmp_path, **extra):
    env = environment(tmp_path, **extra)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_tensorboard_s_csv_is_read(tmp_path):
    """As its page downloads it: Wall time, Step, Value."""
    _child(
        """
import time
from werkzeug.test import Client
from tensorboard.backend.application import TensorBoardWSGIApp
from tensorboard.program import TensorBoard
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("events")
for step in range(5):
    writer.add_scalar("val/loss", 4 - step / 8, step * 10)
writer.close()
board = TensorBoard()
board.configure(argv=["", "--logdir", "events", "--load_fast", "false"])
(ingester := board._make_data_ingester()).start()
parts = [board.plugin_loaders, ingester.data_provider, board.assets_zip_provider]
parts += [ingester.deprecated_multiplexer]
client = Client(TensorBoardWSGIApp(board.flags, *parts))
for _ in range(100):  # until it has read the events
    answer = client.get("/data/plugin/scalars/scalars?tag=val/loss&run=.&format=csv")
    if answer.status_code == 200 and answer.data.count(b"\\n") > 5:
        break
    time.sleep(0.2)
open("base.csv", "wb").write(answer.data)
""",
        tmp_path,
    )
    text = (tmp_path / "base.csv").read_text()
    assert text.startswith("Wall time,Step,Value")
    comparison = compared(tmp_path / "base.csv", columns=columns_of("val_loss=Value"))
    (run,) = to_json(result_of(comparison))["runs"]
    assert run["curve"]["step"] == [0, 10, 20, 30, 40]
    assert run["curve"]["val_loss"] == [4, 3.875, 3.75, 3.625, 3.5]


@pytest.mark.slow
def test_wandb_s_offline_runs(tmp_path):
    """Written by wandb: two groups, one run that failed; a file that is cut, and one that is
    damaged."""
    _child(
        """
import wandb
for group in ("base", "idea"):
    for seed in range(3):
        run = wandb.init(project="p", group=group, mode="offline", config={"seed": seed,
            "optimizer": {"lr": 0.1}})
        for step in range(0, 60, 10):
            loss = 4 - step / 50 + seed / 100 - (group == "idea") / 10
            run.log({"val/loss": loss, "train_s": step / 2}, step=step)
        run.finish(exit_code=int(group == "idea" and seed == 2))
""",
        tmp_path,
        WANDB_SILENT="true",
    )
    comparison = compared(tmp_path / "wandb")
    expected = {"base": ([0, 1, 2], pytest.approx(3.01)), "idea": ([0, 1], pytest.approx(2.905))}
    shown = {label: (arm["seeds"], arm["val_loss"]) for label, arm in arms(comparison).items()}
    assert shown == expected
    statuses = [status for _, status in comparison.not_compared]
    assert statuses == ["failed"]
    runs = to_json(result_of(comparison))["runs"]
    assert runs[0]["train_s"] == 25
    with pytest.raises(ValueError, match=r"arm 0.1, seed \d has two runs with different losses"):
        compared(tmp_path / "wandb", columns=columns_of("arm=config/optimizer/lr"))
    first = sorted(tmp_path.rglob("run-*.wandb"))[0]
    whole = first.read_bytes()
    cases = (
        (whole[:-20], "not finished"),
        (whole[:200] + b"!" + whole[201:], "unreadable: byte "),
        (b"x", "unreadable: it must begin"),
    )
    for content, status in cases:
        first.write_bytes(content)
        assert [s for _, s in compared(tmp_path / "wandb").not_compared if s.startswith(status)], (
            status
        )


@pytest.mark.slow
def test_runs_are_read_from_wandb_s_server(monkeypatch):
    """A project, and a group of it: what wandb's client, by its own signatures, is asked, and what
    is made of its answer. Of two groups of two runs the last crashed."""
    wandb = pytest.importorskip("wandb")

    def run(i):
        rows = []
        for n in range(3):
            value = 4 - n / 2 - (i % 2) / 10 + (i // 2) / 100
            rows.append({"_step": 10 * n, "val/loss": value})
        where = {
            "group": ("base", "idea")[i % 2],
            "job_type": f"job {i % 2}",
            "name": f"run {i}",
            "id": f"id{i}",
        }
        facts = {
            "state": "crashed" if i == 3 else "finished",
            "metadata": None,
            "config": {"seed": i // 2},
        }
        return SimpleNamespace(**where, **facts, scan_history=lambda: iter(rows))

    api = create_autospec(wandb.Api)
    every = [run(i) for i in range(4)]
    api.return_value.runs.side_effect = lambda path, *, filters, **how: [
        each for each in every if filters.get("group") in (None, each.group)
    ]
    for name, fake in (("Api", api), ("login", lambda **how: True), ("setup", lambda **how: None)):
        monkeypatch.setattr(wandb, name, fake)
    for place, labels in (("me/proj", ["base", "idea"]), ("me/proj/base", ["job 0"])):
        content = to_json(result_of(compared(place, format="wandb")))
        assert api.return_value.runs.call_args.args == ("me/proj",)
        assert [arm["label"] for arm in content["arms"]] == labels
        curve = content["runs"][0]["curve"]
        assert curve["step"] == [0, 10, 20]
        assert curve["val_loss"] == [4, 3.5, 3]
        statuses = [entry["status"] for entry in content["not_compared"]]
        assert statuses == ["crashed"] * (len(labels) - 1)


def test_wandb_without_a_login_is_one_line(tmp_path):
    words = [sys.executable, "-m", "nocap.compare", "me/proj", "--format", "wandb"]
    env = environment(tmp_path)
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "W&B needs a login: type wandb login, or set WANDB_API_KEY" in line
