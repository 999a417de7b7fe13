"""The speedrun records: formats read logs of their form and refuse damaged ones, the judging
agrees with scipy, and the page follows from the committed figures."""

from __future__ import annotations

import importlib
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.sources.formats import modded, nanochat, nanogpt
from tests.conftest import REPO

HERE = REPO / "experiments" / "speedrun_records"
# the others are formats from outside
OWN = {
    "modded": modded,
    "nanochat": nanochat,
    "nanogpt": nanogpt,
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "formats"))
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def records() -> ModuleType:
    return importlib.import_module("records")


def log(
    *ends: float, steps: int = 100, ms: int = 5000, seed: int | None = None, gpus: int = 0
) -> str:
    """A log of modded-nanogpt's form, made up: a run for each loss at the end."""
    lines = [
        'print(f"step:{step}/{steps} val_loss:{loss} train_time:{t}ms step_avg:{a}ms")',
        "=" * 100,
    ]
    card = "|   {}  Some GPU 80GB          On  |   00000000:8D:00.0 Off |                    0 |"
    lines += map(card.format, range(gpus))
    for loss in ends:
        lines += [f"Using seed={seed}"] if seed is not None else []
        for step in (0, steps // 2, steps):
            at = loss + 1 - step / steps
            if step:
                avg = f"{ms / steps:.2f}"
            else:
                avg = "nan"
            lines.append(
                f"step:{step}/{steps} val_loss:{at:.5f} train_time:{ms * step / steps:.0f}ms "
                f"step_avg:{avg}ms"
            )
            lines.append(f"step:{step}/{steps} train_time:{ms}ms")
    return "\n".join(lines) + "\n"


NANOCHAT = """GPU: Some GPU 80GB | Peak FLOPS (BF16): 9.89e+14
Tokens / micro-batch / rank: 32 x 2048 = 65,536
Tokens / micro-batch: 524,288
Step 00000 | Validation bpb: 3.200000
step 00001/00200 (0.50%) | loss: 9.1 | lrm: 1.00 | dt: 500.00ms | total time: 0.00m
step 00099/00200 (49.5%) | loss: 4.1 | lrm: 1.00 | dt: 500.00ms | tok/sec: 9 | total time: 0.75m | eta: 0.8m
Step 00100 | Validation bpb: 1.100000
"""  # noqa: E501
LOGS: dict[
    str, tuple[str, list[dict[str, Any]]]
] = {  # a format, a log of its form, and the last of its rows
    "modded": (
        log(3.5, 3.25, seed=7, gpus=2),
        [
            {
                "line": 17,
                "run": 2,
                "step": 100,
                "total_steps": 100,
                "val_loss": 3.25,
                "train_s": 5.0,
                "hardware": "2 × Some GPU 80GB",
                "seed": 7,
            }
        ],
    ),
    "nocap_board": (
        "compiling\nstep:0/9 | val loss 10.9\nstep:0/9 | loss 0.3 | train_time:7.80s | "
        "step_avg:7803.76ms\nstep:1/9 | val loss 9.25\n",
        [
            {"line": 2, "step": 0, "val_loss": 10.9, "train_s": 0.0},
            {"line": 4, "step": 1, "val_loss": 9.25, "train_s": 7.8},
        ],
    ),
    "nanogpt": (
        "step 0: train loss 4.2, val loss 4.3\niter 0: loss 4.2, time 33ms, mfu "
        "-100.00%\nstep 250: train loss 1.9, val loss nan\n",
        [
            {"line": 1, "step": 0, "train_loss": 4.2, "val_loss": 4.3},
            {"line": 3, "step": 250, "train_loss": 1.9, "val_loss": math.nan},
        ],
    ),
    "nanochat": (
        NANOCHAT,
        [
            {
                "line": 7,
                "step": 100,
                "val_bpb": 1.1,
                "train_s": 45.0,
                "hardware": "8 × Some GPU 80GB",
            }
        ],
    ),
    "autoresearch": (
        'commit\tval_bpb\tmemory_gb\tstatus\tdescription\na1b2c3d\t0.9979\t44.0\tkeep\tbase"line\ne4f5a6b\t0.0\t0.0\tcrash\tbig\n',
        [{"line": 2, "arm": "a1b2c3d", "val_bpb": "0.9979", "memory_gb": "44.0"}],
    ),
}
DAMAGED = {  # a format → lines that are cut or damaged, in a log after two good lines
    "modded": [
        "step:10/20 val_loss:3.28",
        "step:10/20 val_loss:3.2x8 train_time:1ms step_avg:1ms",
        "step:10/20 val_loss:3.28 train_time:5",
    ],
    "nocap_board": [
        "step:10/20 | val",
        "step:10/20 | val loss 3.",
        "step:10/20 | loss 0.3 | train_time:",
    ],
    "nanogpt": ["step 10: train loss 3.2", "step 10: train loss 3.2, val loss 3."],
    "nanochat": ["Step 00010 | Validation bpb: 1."],
    "autoresearch": ["a1b2c3d\t0.99"],
}


def read(name: str, path: Path) -> list[dict[str, Any]]:
    """List the rows with a loss."""
    form = OWN.get(name) or importlib.import_module(name)
    return [row for row in form.read(path) if row.keys() & {"val_loss", "val_bpb"}]


@pytest.mark.parametrize("name", LOGS)
def test_a_format_reads_a_log_of_its_form_and_refuses_a_damaged_one_with_its_line(
    name: str, tmp_path: Path
) -> None:
    text, wanted = LOGS[name]
    path = tmp_path / "log"
    path.write_text(text)
    expected = list(map(str, wanted))
    last = list(map(str, read(name, path)[-len(wanted) :]))
    assert last == expected
    path.write_text("" if name != "autoresearch" else text.splitlines()[0])
    assert read(name, path) == []
    for line in DAMAGED[name]:
        lines = text.splitlines()[:2]
        path.write_text("\n".join([*lines, line]))
        with pytest.raises(ValueError, match="line 3 "):
            read(name, path)


def test_a_log_may_have_seconds_and_a_second_loss(tmp_path: Path) -> None:
    losses = "val_loss:3.5 val_avg_loss:3.5 val_ema_loss:3.25"
    (tmp_path / "log").write_text(
        f"step:5/9 {losses} train_time:1.500s step_avg:1.0ms ema_beta:0\n"
    )
    (row,) = read("modded", tmp_path / "log")
    assert row["val_loss"] == 3.5
    assert row["val_ema_loss"] == 3.25
    assert row["train_s"] == 1.5
    assert not row.keys() & {"seed", "hardware"}


# --- judging --------------------------------------------------------------------------------------


def record(
    records: ModuleType,
    number: int,
    steps: int,
    losses: Sequence[float],
    *,
    seeds: str = "",
    n: int = 0,
) -> Any:
    whole = {"record": str(number), "steps": str(steps), "arm": "record", "path": "a"}
    whole |= {"stated": f"{statistics.fmean(losses):.4f}", "stated_n": str(n or len(losses))}
    runs = [{"loss": str(x), "seed": seeds[i : i + 1]} for i, x in enumerate(losses)]
    rows = [{**whole, **run} for run in runs]
    return records.Record(str(number), rows)


def test_a_step_is_judged_as_scipy_does(records: ModuleType) -> None:
    chance = random.Random(1)
    old = [chance.gauss(3.279, 0.001) for _ in range(9)]
    new = [chance.gauss(3.278, 0.001) for _ in range(14)]
    newer = record(records, 2, 3000, new)
    step = records.Step(newer, record(records, 1, 3050, old))
    ends = stats.ttest_ind(old, new, equal_var=False).confidence_interval()
    e = step.steps()
    assert e.low == pytest.approx(50 + ends.low / 0.000045)
    assert e.high == pytest.approx(50 + ends.high / 0.000045)
    expected = 50 + (statistics.fmean(old) - statistics.fmean(new)) / 0.000045
    assert e.mid == pytest.approx(expected)


def test_steps_that_are_judged_at_once_share_the_error(records: ModuleType) -> None:
    """The last one is shown by itself, and beside nineteen others it is not."""
    chance = random.Random(2)
    noise = [chance.gauss(0, 0.001) for _ in range(6)]
    chain = []
    for i in range(20):
        chain.append(record(records, i, 3000, [3.28 + x for x in noise]))
    lower = 2.7 * statistics.stdev(noise) * math.sqrt(2 / 6)  # 2.2 alone, 3.1 beside the others
    losses = [3.28 + x - lower for x in noise]
    better = record(records, 20, 3000, losses)
    steps = [records.Step(new, old) for old, new in itertools.pairwise([*chain, better])]
    assert records.word(steps[-1].steps()) == "shown"
    words = records.at_once(steps)
    assert len(words) == 20
    assert set(words.values()) == {"not shown"}


def test_seeds_that_both_name_are_pairs(records: ModuleType) -> None:
    # each 0.0009 to 0.0011 lower
    old = [3.279, 3.280, 3.2785, 3.281]
    new = [3.2781, 3.2789, 3.2776, 3.2801]
    twice = [*new, new[0] + 0.0002]  # a seed that ran twice counts once, with its mean
    cases = (
        (new, "0123", old, "pairs (Student)", 4, "shown"),
        (twice, "01230", old, "pairs (Student)", 4, "shown"),
        (new, "", old, "unpaired (Welch)", 4, "not shown"),
        (new, "4567", old, "unpaired (Welch)", 4, "not shown"),
        (new[:2], "", old, "too few runs", 2, "no verdict (n=2)"),
        (old, "0123", new, "pairs (Student)", 4, "worse"),
    )
    for losses, seeds, beside, method, n, word in cases:
        newer = record(records, 2, 100, losses, seeds=seeds)
        older = record(records, 1, 100, beside, seeds="0123")
        step = records.Step(newer, older)
        e = step.steps()
        assert e.method == method
        assert e.n == n
        assert records.word(e) == word
        assert step.has_verdict == (n > 2)
    again = record(records, 2, 100, twice, seeds="01230")
    expected = {0: new[0] + 0.0001, 1: new[1], 2: new[2], 3: new[3]}
    assert again.values("loss") == pytest.approx(expected)


BOARD_RULE = [
    ((3.2785, 16), (3.2785, 10), 15, 0.00167, "no"),
    ((3.2778, 16), (3.2785, 10), 40, 0.00273, "p < .05"),
    ((3.2788, 20), (3.2790, 20), 50, 0.00648, "p < .001"),
]


@pytest.mark.parametrize(
    ("old", "new", "saved", "value", "passes"),  # track 3's page works these three out
    BOARD_RULE,
)
def test_the_boards_own_rule_gives_what_its_page_works_out(
    records: ModuleType,
    old: tuple[float, int],
    new: tuple[float, int],
    saved: int,
    value: float,
    passes: str,
) -> None:
    sides = []
    for i, (loss, n) in enumerate((old, new)):
        side = record(records, i, 1000 - i * saved, [loss] * 2, n=n)
        sides.append(side)
    step = records.Step(sides[1], sides[0])
    assert records.own_rule(step) == passes
    assert step.precision() == pytest.approx(value, abs=5e-6)
    assert step.precision(rounded=False) == step.precision()  # not all logs are there


def test_record_89_is_what_an_audit_said(records: ModuleType) -> None:
    (judged,) = [each for each in records.beside() if each.record.number == "89"]

    def figures(arm: str, key: str) -> list[float]:
        return [float(row[key]) for row in judged.record.runs(arm)]

    base = {"train_s": figures("baseline", "train_s"), "loss": figures("baseline", "loss")}
    own = {"train_s": figures("record", "train_s"), "loss": figures("record", "loss")}
    times = stats.ttest_ind(*(np.log(side["train_s"]) for side in (base, own)), equal_var=False)
    ends = times.confidence_interval(0.95)
    percents = [round(100 * (math.exp(end) - 1), 2) for end in ends]
    assert percents == [1.16, 1.46]
    test = stats.ttest_ind(own["loss"], base["loss"], equal_var=False)
    interval = test.confidence_interval(0.95)
    assert [round(end, 4) for end in interval] == [-0.0013, 0.0015]
    strict = times.confidence_interval(0.995)
    expected = math.exp(strict.low - 0.005)
    assert judged.time.low == pytest.approx(expected)
    ratio = math.exp(strict.high + 0.005)
    assert judged.time.high == pytest.approx(ratio)
    p = stats.ttest_1samp(own["loss"], 3.28, alternative="less").pvalue
    assert records.p_below(own["loss"]) == pytest.approx(p)


@pytest.mark.parametrize(("other", "word"), [(False, "shown"), (True, "other hardware")])
def test_other_hardware_is_not_compared(records: ModuleType, other: bool, word: str) -> None:
    plain = {"record": "1", "path": "a", "seed": "", "loss": "3.2", "hardware": "same"}
    own = {**plain, "arm": "record"}
    base = {**plain, "arm": "baseline"}
    own |= {"hardware": "another"} if other else {}
    rows = []
    for run, t in ((own, 90), (base, 120)):
        for i in range(3):
            rows.append({**run, "train_s": str(t + i)})
    assert records.Faster(records.Record("1", rows)).word == word


# --- the page -------------------------------------------------------------------------------------


def test_the_page_and_its_pictures_follow_from_the_committed_figures(records: ModuleType) -> None:
    """And the means of the logs are those that the board states."""
    steps = records.chain()
    faster = records.beside()
    page = (HERE / "README.md").read_text()
    for mark, rows in records.parts(steps, faster).items():
        assert page.split(f"<!-- {mark} -->")[1].strip().splitlines() == rows
    for name, svg in records.pictures(steps, faster).items():
        assert (HERE / name).read_text() == svg
    words = [records.own_rule(step) for step in records.of_the_rule(steps)]
    # as an audit counted
    assert len(words) == 17
    assert words.count("p < .001") == 7
    assert words.count("p < .05") == 2
    numbers = {each.number for each in records.known("3") if not records.has_all_logs(each)}
    assert numbers == {"41"}
    for each in records.known("3"):
        if records.has_all_logs(each):
            expected = float(each.stated["stated"])
            assert statistics.fmean(each.losses()) == pytest.approx(expected, abs=1.01e-4)
