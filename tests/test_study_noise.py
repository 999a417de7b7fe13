"""Noise that is pooled over studies and declared in the next, and margins in steps: from a study's file to its verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats as scipy_stats

from nocap.judge.noise import fit
from nocap.study import __main__ as study_command
from nocap.study import text
from nocap.study.exchange import rate, translated
from nocap.study.pooled import pooled
from tests.conftest import REPO
from tests.studies import LOSS, SPEED, B, Json, at, both, by_law, claim, loaded, study
from tests.test_study_results import SAME, resulted, speeds

NOISE = {"val_loss": {"sd": 0.02, "df": 4.4, "source": "24 pairs of arms"}}


def test_a_declared_noise_reaches_the_verdict_and_its_sentence(tmp_path: Path):
    made = loaded(tmp_path / "made", study(scales=at(noise=NOISE), claims=[claim(LOSS, expected=[-0.1, None]), SPEED]))
    loss, speed = resulted(made, speeds([1.25, 1.251, 1.252], SAME))["claims"]
    assert loss["noise"] == {"sd": 0.02, "df": 4.4, "source": "24 pairs of arms"}
    assert speed["noise"] is None
    assert speed["guards"][0]["noise"] == loss["noise"]
    assert loss["measured"]["high"] - loss["measured"]["mid"] == pytest.approx(0.02 / math.sqrt(3) * scipy_stats.t.isf(0.025, 2 + 4.4))
    assert "; n=3, noise of a pair declared as 0.02 with 4.4 degrees of freedom (24 pairs of arms); " in text.sentence(loss)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"noise": {"speed": NOISE["val_loss"]}}, "noise must be of val_loss, "),
        ({"noise": {"val_loss": {"sd": 0.0, "df": 8, "source": "x"}}}, "noise.sd must be above 0 and finite, got 0.0"),
        ({"noise": {"val_loss": {"sd": 0.1, "df": 8}}}, "source"),
        ({"exchange": 0.0}, "exchange must be above 0"),
    ],
)
def test_refused_scales(tmp_path: Path, changed: Json, reason: str):
    with pytest.raises(ValueError) as refused:
        loaded(tmp_path / "made", study(scales=at(**changed)))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


# --- margins in steps ----------------------------------------------------------------------------------------------------------------

RATED = both(by_law("mqa", worse=0.03), by_law("mha"))
GUARD = {"metric": "val_loss", "scale": "difference", "margins": {"cpu": "5% of steps"}}
PARITY = claim(LOSS, expected=[0.0, None], slack={"cpu": "20% of steps"})


def test_a_margin_in_steps_is_the_loss_that_they_buy(tmp_path: Path):
    claims = [PARITY, claim(SPEED, guards=[GUARD])]
    made = loaded(tmp_path / "made", study(scales=at(lengths=[0.25, 0.5]), claims=claims))
    evidence = RATED
    found = rate(made, evidence)
    assert found is not None
    assert found.mean == pytest.approx(B)
    parity, lacking = translated(made.claims[0], made, "cpu", evidence)
    assert lacking == []
    assert parity.slack == {"cpu": pytest.approx(B * math.log(1.2))}
    guarded, _ = translated(made.claims[1], made, "cpu", evidence)
    assert guarded.guards[0].margins == {"cpu": pytest.approx(B * math.log(1.05))}
    declared = loaded(tmp_path / "declared", study(scales=at(exchange=0.5), claims=claims))
    assert translated(declared.claims[0], declared, "cpu", evidence)[0].slack == {"cpu": pytest.approx(0.5 * math.log(1.2))}
    plain = replace(made.claims[0], slack={"cpu": 0.1})
    assert translated(plain, made, "cpu", evidence) == (plain, [])


def test_the_margin_is_printed_both_ways_and_decides(tmp_path: Path):
    """The arm ends 0.03 higher for every seed alike: 20% more steps are worth 0.4·ln 1.2 = 0.073 nats, 5% 0.0195."""
    lengths = at(lengths=[0.25, 0.5])
    row = resulted(loaded(tmp_path / "wide", study(scales=lengths, claims=[PARITY])), RATED)["claims"][0]
    assert (row["word"], row["reason"], row["slack_as"]) == ("equivalent", None, "20% of steps")
    sentence = text.sentence(row)
    assert "M.loss equivalent: not shown as stated, but within 0.0729 of it: " in sentence
    assert "expected no higher loss, equivalent within 0.0729 (20% of steps); " in sentence
    tight = claim(PARITY, slack={"cpu": "5% of steps"})
    row = resulted(loaded(tmp_path / "tight", study(scales=lengths, claims=[tight])), RATED)["claims"][0]
    assert (row["word"], row["reason"]) == ("refuted", "below")
    guarded = claim(SPEED, guards=[GUARD], expected=[0.5, None])
    made = loaded(tmp_path / "guarded", study(scales=lengths, claims=[guarded]))
    row = resulted(made, RATED)["claims"][0]
    assert row["guards"][0]["margin_as"] == "5% of steps"
    assert row["guards"][0]["margin"] == pytest.approx(B * math.log(1.05))
    assert "allowed: higher loss by at most 0.0195 (5% of steps)" in text.sentence(row)


def test_without_a_rate_a_margin_in_steps_is_waited_for(tmp_path: Path):
    made = loaded(tmp_path / "made", study(scales=at(lengths=[0.25, 0.5]), claims=[PARITY]))
    row = resulted(made, speeds([1.0] * 3, SAME))["claims"][0]
    assert (row["word"], row["reason"]) == ("inconclusive", "missing")
    assert row["missing"] == ["the exchange rate of mha, at three seeds and above 0, for a margin in steps"]
    with pytest.raises(ValueError, match=r"scales\.cpu\.lengths must be given, or exchange, for claim M\.loss: its margin"):
        loaded(tmp_path / "none", study(claims=[PARITY]))


# --- pooled --------------------------------------------------------------------------------------------------------------------------


def results(folder: Path, name: str, losses: dict[str, list[float]], **changed: Any) -> None:
    arms = [
        {
            "arm": arm,
            "runs": [f"{name}-{arm}-{i}" for i in range(len(values))],
            "diverged": [],
            "val_loss": {"all": values},
            "val_bpb": None,
        }
        for arm, values in losses.items()
    ]
    place = folder / name
    place.mkdir(parents=True)
    base = json.loads((REPO / "experiments" / "gqa" / "results.cpu.89696c6b7cea.json").read_text())
    template = {key: value for key, value in base["arms"][0].items() if key not in ("arm", "runs", "diverged", "val_loss", "val_bpb")}
    made = [{**template, **arm, "val_loss": {"mean": 3.0, "low": 2.9, "high": 3.1, **arm["val_loss"]}, **changed} for arm in arms]
    (place / "results.cpu.abc.json").write_text(json.dumps({**base, "study": name, "baseline": "a", "claims": [], "arms": made}))


def test_the_noise_that_studies_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rng = np.random.default_rng(0)
    for i in range(4):
        base = rng.normal(3, 0.02, 4)
        arms = {arm: base - rng.normal(0.1, 0.03, 4) for arm in ("b", "c")}
        results(tmp_path, f"s{i}", {"a": base.tolist(), **{k: v.tolist() for k, v in arms.items()}, "same": (base + 1e-7).tolist()})
    found = pooled(tmp_path)["cpu"]["val_loss"]
    files = [json.loads(path.read_text())["arms"] for path in sorted(tmp_path.glob("*/results.*"))]
    gains = [np.subtract(a["val_loss"]["all"], other["val_loss"]["all"]) for a, *others in files for other in others[:2]]
    assert (found.prior.sd, found.prior.df) == pytest.approx(fit([float(g.var(ddof=1)) for g in gains], [3] * 8))
    assert found.same == 4
    assert study_command.main(["--noise", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "  # without 4 that compute the same\n" in out
    declared = yaml.safe_load(out)["noise"]
    assert declared["val_loss"]["source"] == "8 pairs of arms, 24 degrees of freedom"
    assert loaded(tmp_path / "next", study(scales=at(noise=declared))).scales["cpu"].noise["val_loss"].sd == declared["val_loss"]["sd"]


def test_a_pair_of_runs_counts_once_and_diverged_arms_not_at_all(tmp_path: Path):
    rng = np.random.default_rng(1)
    losses = {name: rng.normal(3, 0.02, 3).tolist() for name in "abcd"}
    results(tmp_path, "one", losses)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "results.cpu.abc.json").write_bytes((tmp_path / "one" / "results.cpu.abc.json").read_bytes())
    assert pooled(tmp_path)["cpu"]["val_loss"].prior.source.startswith("3 pairs of arms")
    results(tmp_path / "broken", "one", losses, diverged=[1])
    with pytest.raises(ValueError, match="--noise must be a folder of studies with 3 pairs of arms or more at one scale"):
        pooled(tmp_path / "broken")
    with pytest.raises(ValueError, match="--noise must be a folder"):
        pooled(tmp_path / "nothing")


def test_the_committed_studies_share_a_noise():
    found = pooled(REPO / "experiments")["cpu"]["val_loss"]
    assert 0.01 < found.prior.sd < 0.1
    assert found.same >= 3  # fused and materialised attention, checkpointing, the chunked head
