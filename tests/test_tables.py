"""What commands print at 60, 80 and 127 columns: tables and prose of a race, a bench, two profiles,
a study, runs, and a grid by factor. `tests/tables` has each text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from nocap import profile
from nocap.judge.differences import Difference, DifferenceWord
from nocap.judge.interval import Estimate
from nocap.measure.bench_result import ArmStatus, Bench, BenchedArm, Facts, FlopPeak, Mfu
from nocap.measure.bench_table import render_bench
from nocap.metrics import METRICS, Scale
from nocap.report import comparison_tables
from nocap.report.figures_in_words import measured
from nocap.runs import __main__ as runs
from nocap.sources.races import result_tables
from nocap.store.record import Record
from nocap.study import study_pages
from tests import test_profile_difference as profiles
from tests.made_grid import made
from tests.studies import SPEED, loaded, study
from tests.test_compare import write_run
from tests.test_race import made_race
from tests.test_study_results import FAST, SAME, resulted, speeds

WIDTHS = (60, 80, 127)
TABLES = Path(__file__).parent / "tables"


def printed(door: Callable[[list[str]], int], *words: str) -> str:
    """What a door prints."""
    with redirect_stdout(StringIO()) as out:
        assert door(list(words)) == 0
    return out.getvalue()


def raced(folder: Path) -> str:
    race = made_race(folder, random.Random(3), gain=3.0, pairs=3)
    return "\n\n".join(map(str, result_tables.tables(race, race.run())))


@pytest.mark.parametrize(
    ("mid", "half_width", "shown"),
    [
        (0.3026, 0.03863, "0.303 ± 0.039"),
        (12345.6, 1234.5, "12,346 ± 1,234"),
        (0.01, 0.5, "0.01 ± 0.50"),
        (1.23456789, 0.00012345, "1.23457 ± 0.00012"),
        (2.5, 0.0, "2.5"),
    ],
)
def test_a_difference_and_its_interval_have_equal_decimals(
    mid: float, half_width: float, shown: str
) -> None:
    metric = replace(METRICS["val_loss"], unit="")  # as that of a raced command
    gain = Estimate(mid=mid, low=mid - half_width, high=mid + half_width, n=3)
    assert str(measured(gain, metric, Scale.difference)) == f"lower loss by {shown}"


def benched_arm(label: str, tokens_per_s: float, speed: Difference | None) -> BenchedArm:
    return BenchedArm(
        label=label,
        status=ArmStatus.measured,
        reason=None,
        facts=Facts(tokens_per_step=4096, flops_per_token=1e9, memory_mib={"peak": 1234.5}),
        speed=speed,
        tokens_per_s=tokens_per_s,
        speed_by_flops=1.076,
        mfu=Mfu(measured=0.41),
        config={},
        seconds_per_token=None,
    )


def benched(_: Path) -> str:
    logarithm = Estimate(mid=0.05, low=0.03, high=0.07, n=6)
    faster = Difference(estimate=logarithm, word=DifferenceWord.better)
    same = Difference(
        estimate=Estimate(mid=0.001, low=-0.01, high=0.012, n=6), word=DifferenceWord.unclear
    )
    bench = Bench(
        date="2026-11-29",
        started="2026-11-29T10:00:00+0000",
        ended="2026-11-29T10:05:00+0000",
        clock="process CPU time",
        peaks={"fp32, 1 thread": FlopPeak(nominal=None, nominal_source="none", measured=8e10)},
        hardware={"device": "cpu", "name": "EPYC", "torch": "2.13", "fingerprint": "abc"},
        limit=0.005,
        rounds=6,
        control=benched_arm("flash", 10_240.0, same),
        arms=[benched_arm("flash", 10_240.0, None), benched_arm("gqa", 10_765.0, faster)],
        warm_up_s=12.0,
        spent_s=300.0,
    )
    return render_bench(bench)


def profiled(folder: Path) -> str:
    (folder / "a.json").write_text(json.dumps(profiles.profile()))
    (folder / "b.json").write_text(json.dumps(profiles.flash()))
    return printed(profile.main, "a.json", "b.json")


def studied(folder: Path) -> str:
    made_study = loaded(folder / "made", study(claims=[SPEED]))
    return study_pages.render(resulted(made_study, speeds(FAST, SAME)))


def listed(folder: Path) -> str:
    for seed in range(2):
        write_run(folder / "outputs", seed=seed, loss=3.3 - 0.1 * seed)
    columns = "run,status,steps,val_loss,tokens_per_s,train_s,attention.n_kv_heads"
    return printed(runs.main, "--columns", columns)


def with_options(record: Record) -> Record:
    attention, _, mlp = record.arm.partition("-")
    options = {"attention": attention, "mlp": mlp}
    return replace(record, manifest={**record.manifest, "options": options})


def by_factor(_: Path) -> str:
    factors = made(4, with_options, broken=False).factors
    assert factors is not None
    return str(comparison_tables.by_factor(factors, "val_loss"))


TEXTS = {
    "race": raced,
    "bench": benched,
    "profile": profiled,
    "study": studied,
    "runs": listed,
    "factors": by_factor,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_what_is_printed_fits_and_is_what_it_was(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    text = TEXTS[name](tmp_path)
    lines = text.splitlines()
    # a command stays on one line, so that it can be copied
    long = [line for line in lines if len(line) > width and "python -m" not in line]
    assert long == []
    expected = (TABLES / f"{name}-{width}.txt").read_text(encoding="utf-8")
    assert lines == expected.splitlines()
