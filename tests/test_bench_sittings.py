"""What a bench's interval is of: one sitting, or several; and that what is timed first does not shift it. On clocks of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap import bench as command
from nocap.judge.rounds import judge
from nocap.measure import bench as measure
from nocap.measure import sittings
from nocap.measure.arms import BenchArm
from tests.test_speed import NANO, Fake, Machine, fake_bench, noisy

BEGAN = datetime.fromisoformat("2026-11-22T12:00:00+00:00")
WORDS = [*NANO, "--arm", "mlp=gelu4x", "--arm", "mlp=gelu3x"]


def test_a_slow_first_instance_is_no_gain_of_the_arms():
    """Equal arms, of which the first instance is 1% slow: over many benches the ratio is 1, where it was 1.005."""
    rng, ratios, first = np.random.default_rng(7), [], []
    for _ in range(150):
        judged = judge(noisy(rng.normal(0, 0.01, (12, 3)) + np.array([0.01, 0.0, 0.0])), limit=0.03, confidence=0.99)
        assert judged.control.ratio is not None
        assert judged.arms[0].ratio is not None
        ratios.append(math.log(judged.arms[0].ratio.mid))
        first.append(math.log(judged.control.ratio.mid))
    error = 1.96 * np.std(ratios) / math.sqrt(len(ratios))
    assert abs(np.mean(ratios)) < error < 0.002
    assert np.mean(first) == pytest.approx(0.01, abs=0.001)  # the control shows it


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float, float], int]:
    """Run the command at a minute of the day, on which the second arm costs so much."""
    real = measure.bench
    monkeypatch.setattr(measure, "matmul_flops", lambda device, precision: 1e9)

    def run(words: str, minute: float, cost: float) -> int:
        at = BEGAN + timedelta(minutes=minute)

        class Now(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return at

        def made(arms: list[BenchArm], **how: Any) -> dict[str, Any]:
            costs = {"mlp=gelu4x": 1.0, "mlp=gelu3x": cost}
            monkeypatch.setattr(measure, "bench", real)
            found = fake_bench(arms, lambda arm: Fake(Machine(drift=0).arm(costs[arm.label])))
            return {**found, "started": at.isoformat(), "ended": (at + timedelta(minutes=1)).isoformat()}

        monkeypatch.setattr(command, "datetime", Now)
        monkeypatch.setattr(measure, "bench", made)
        return command.main([*WORDS, *words.split()])

    return run


def test_sittings_add_up_to_an_interval_that_holds_their_spread(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, costs = tmp_path / "both.json", [0.90, 0.80, 0.85]
    outs = []
    for i, cost in enumerate(costs):
        assert bench(f"--append {path}", 10 * i, cost) == 0
        outs.append(capsys.readouterr().out)
        result = json.loads(path.read_text())
        assert result["interval_of"] == "one sitting"
        assert [one["speed"]["mlp=gelu3x"] for one in result["sittings"]] == pytest.approx([1 / c for c in costs[: i + 1]])
        assert (result["over_sittings"]["mlp=gelu3x"] is None) == (i < 2)
        assert "the intervals above are of one sitting: how much this machine differs tomorrow is not in them" in outs[-1]
    over = result["over_sittings"]["mlp=gelu3x"]
    expected = scipy_stats.ttest_1samp([-math.log(c) for c in costs], 0).confidence_interval(0.95)
    assert (math.log(over["low"]), math.log(over["high"])) == pytest.approx((expected.low, expected.high))
    assert (over["n"], over["verdict"]) == (3, "faster")
    assert "--append FILE adds sittings" in outs[0]
    assert "mlp=gelu3x: no interval over 2 sittings yet: three of them are needed" in outs[1]
    assert "mlp=gelu3x: over 3 sittings 1.178× [" in outs[2]


def test_one_quiet_sitting_after_another_is_refused(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "both.json"
    bench(f"--append {path}", 0, 0.9)
    for words, minute, reason in (
        (f"--append {path}", 5.5, "--append must begin 5 minutes after the last sitting: sooner is the same sitting, got 0:04:30 after it"),
        (f"--append {path} --arm attention=mha", 60, "--append must name a bench of the same arms, code and machine, or no file yet"),
        (f"--append {path} --json {path}", 60, "--json must be left out with --append, which writes the same"),
    ):
        with pytest.raises(SystemExit) as left:
            bench(words, minute, 0.9)
        assert left.value.code == 2
        err = capsys.readouterr().err
        assert reason in err
        assert err.count("\n") == 1
    (tmp_path / "other.json").write_text('{"kind": "study"}')
    with pytest.raises(SystemExit):
        bench(f"--append {tmp_path / 'other.json'}", 60, 0.9)


def test_an_interval_over_sittings_covers_tomorrow():
    rng, held = np.random.default_rng(3), 0
    for _ in range(1000):
        over = sittings._over(np.exp(rng.normal(0.05, 0.1, 3)).tolist())
        assert over is not None
        held += over["low"] <= math.exp(0.05) <= over["high"]
    assert 0.93 <= held / 1000 <= 0.97
    assert sittings._over([1.1, None, 1.2]) is None  # an arm that failed in a sitting has one less
