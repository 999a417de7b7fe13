"""What a study's runs and sessions measured, and its bounds: made evidence against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocap.config.compose import compose
from nocap.judge.claim import Claim
from nocap.model.flops import component_flops
from nocap.store.metrics import HELD, METRICS, Ending, Per
from nocap.study.evidence import Evidence, bound, measurements
from nocap.study.plan import prepare, shorter
from nocap.study.preview import sigma
from nocap.study.spec import Study
from tests.studies import (
    LOSS,
    NOW,
    RACE,
    SPEED,
    STEPS,
    B,
    Json,
    at,
    both,
    by_law,
    claim,
    loaded,
    pace,
    record,
    session,
    study,
    timed,
)

DIVERGED = (None, Ending.diverged)


def made(tmp_path: Path, *claims: Json, **changed: Any) -> Study:
    return loaded(tmp_path / "made", study(claims=list(claims), scales=at(lengths=[0.25, 0.5]), **changed))


def measured(
    claim: Claim, study: Study, evidence: Evidence, arm: str
) -> dict[int, tuple[float | None, Ending]]:
    """One arm's primary metric: seed → value and ending."""
    primary = [
        m for m in measurements(claim, study, evidence) if (m.arm, m.metric.name) == (arm, claim.metric)
    ]
    return {m.repeat: (m.value, m.ending) for m in primary}


# --- steps to a loss ----------------------------------------------------------------------------------------


def raced(claim: Claim, study: Study, evidence: Evidence) -> dict[str, list[float]]:
    return {
        arm: [value for value, _ in measured(claim, study, evidence, arm).values() if value]
        for arm in ("mqa", "mha")
    }


def test_a_race_to_the_loss_that_both_arms_reach(tmp_path: Path):
    made_study = made(tmp_path, RACE, STEPS)
    race, steps = made_study.claims
    evidence = both(by_law("mqa", worse=-0.1), by_law("mha"), pace=pace(1.1))
    needed = 400 * math.exp(-0.1 / B)  # where the arm's law meets the baseline's end
    assert measured(steps, made_study, evidence, "mqa") == dict.fromkeys(
        range(3), (pytest.approx(needed), Ending.measured)
    )
    assert measured(steps, made_study, evidence, "mha") == dict.fromkeys(range(3), (400.0, Ending.measured))
    assert raced(race, made_study, evidence) == {
        "mqa": pytest.approx([needed * 10 / 1.1 / 1e3] * 3),
        "mha": pytest.approx([4.0] * 3),
    }
    # then it is the baseline that gets there sooner
    never = both(by_law("mqa", worse=0.1), by_law("mha"), pace=pace(1.1))
    assert raced(steps, made_study, never) == {"mqa": [400.0] * 3, "mha": pytest.approx([needed] * 3)}
    assert measured(race, made_study, both(by_law("mqa"), by_law("mha")), "mqa") == {}  # not timed
    plan = prepare(made_study, "cpu", output_dir="outputs")
    arms = {"train": {"mqa": [plan.train["mqa"], *shorter(plan, plan.train["mqa"])]}}
    # the missing lengths might have been the ones
    assert measured(steps, made_study, replace(evidence, arms=arms), "mqa") == {}
    short = both(by_law("mqa", worse=-0.7), by_law("mha"))  # 400·e^-1.75 = 70 steps would have done
    assert measured(steps, made_study, short, "mqa") == dict.fromkeys(
        range(3), (pytest.approx(100.0), Ending.at_most)
    )


def test_steps_are_seeds_and_their_time_is_the_sessions(tmp_path: Path):
    """Six seeds and three sessions are three pairs, each with two seeds and a session of its own."""
    noise = {seed: 0.01 * seed for seed in range(6)}
    made_study = made(tmp_path, RACE, seeds=list(noise))
    speeds = [1.0, 1.1, 1.3]
    paces = [session(pace(speed)[0]["measured"]["arms"], number=i) for i, speed in enumerate(speeds, start=1)]
    evidence = both(by_law("mqa", worse=-0.1, noise=noise), by_law("mha", noise=noise), pace=paces)
    assert measured(made_study.claims[0], made_study, evidence, "mqa") == {
        i: (pytest.approx(4.0 * math.exp(-0.1 / B) / speed), Ending.measured)
        for i, speed in enumerate(speeds, start=1)
    }


def test_a_race_with_what_diverged(tmp_path: Path):
    made_study = made(tmp_path, STEPS)
    (steps,) = made_study.claims
    evidence = both(by_law("mqa", diverged=1), by_law("mha", diverged=2))
    assert measured(steps, made_study, evidence, "mqa") == {
        0: (pytest.approx(400), Ending.measured),
        1: DIVERGED,
        2: DIVERGED,
    }
    assert measured(steps, made_study, evidence, "mha") == {
        0: (400.0, Ending.measured),
        1: (400.0, Ending.measured),
        2: DIVERGED,
    }
    assert measured(steps, made_study, Evidence(**by_law("mqa")), "mqa") == {}
    lost = both(by_law("mqa", worse=-0.1), by_law("mha"))
    lost.shorter["mqa", 1][200] = record("mqa", 1, 200, None)  # type: ignore[index]
    between = dict.fromkeys(range(3), (pytest.approx(400 * math.exp(-0.1 / B)), Ending.measured))
    assert measured(steps, made_study, lost, "mqa") == between  # from 100 and 400 steps


# --- profiles -----------------------------------------------------------------------------------------------

PARTS: Json = {
    "ms": {"scores": 20.0, "qkv": 10.0, "loss": 10.0},
    "step_ms": 100.0,
    "mib": {"scores": 6.0, "qkv": 2.0},
    "memory_mib": {"parameters": 1.0, "gradients": 1.0, "optimizer": 2.0, "activations": 8.0},
    "params": {"qkv": 300, "mlp_up": 700},
    "component_flops": {"qkv": 60.0, "scores": 30.0, "attention_out": 10.0, "mlp": 80.0, "head": 20.0},
}


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"metric": "share", "scale": "value", "parts": ["scores", "qkv"]}, 0.3),
        ({"metric": "share", "scale": "value", "parts": ["scores"], "of": ["scores", "qkv", "loss"]}, 0.5),
        ({"metric": "part_ms", "parts": ["scores", "rotary"]}, 20.0),
        ({"metric": "part_mib", "parts": ["scores", "qkv"]}, 8.0),
        ({"metric": "part_params", "parts": ["qkv"]}, 300.0),
        ({"metric": "held_mib", "parts": ["optimizer", "activations"]}, 10.0),
    ],
)
def test_measurements_of_a_profile(tmp_path: Path, changed: Json, value: float):
    base = claim(SPEED, guards=[], expected=[0.1, None], mechanism={"formula": "f"})
    made_study = loaded(tmp_path / "made", study(claims=[claim(base, **changed), LOSS]))
    (measurement,) = measurements(
        made_study.claims[0], made_study, Evidence(sessions={"parts": [session({"mqa": PARTS})]})
    )
    assert (measurement.arm, measurement.repeat, measurement.metric, measurement.when) == (
        "mqa",
        1,
        METRICS[changed["metric"]],
        NOW,
    )
    assert measurement.value == pytest.approx(value)
    assert measurement.per is (Per.session if changed["metric"] in ("share", "part_ms") else Per.exact)


# --- bounds -------------------------------------------------------------------------------------------------


def parts(profiles: dict[tuple[str, int], Json]) -> Evidence:
    return Evidence(
        sessions={
            "parts": [session({arm: profile}, number=number) for (arm, number), profile in profiles.items()]
        }
    )


def bounded(tmp_path: Path, rule: str, evidence: Evidence, **changed: Any) -> float | None:
    mechanism = {"rule": rule, "formula": "f", **({"parts": ["scores"]} if rule == "amdahl" else {})}
    changed = {"mechanism": mechanism, "guards": [], **changed}
    made_study = loaded(tmp_path / "made", study(claims=[claim(SPEED, **changed), LOSS]))
    return bound(made_study.claims[0], made_study, evidence)


def test_a_third_of_key_value_heads_saves_seven_percent_of_a_token(tmp_path: Path):
    """12 layers, 768 wide, T=1024, by hand: a layer's products are 2·(12·d² + T·d), the head's 2·d·V; K and V
    lose 2/3 of 2·d² each."""
    d, T, V = 768, 1024, 50257
    whole = 12 * (12 * d**2 + T * d) + d * V
    by_hand = whole / (whole - 12 * 2 * d**2 * 2 / 3)
    assert by_hand == pytest.approx(1.0764, abs=1e-4)
    d12 = ("model=d12", "tokenizer=gpt2", "mlp=gelu4x", "trainer.device=cpu", "trainer.precision=fp32")
    arms = {"mha": "attention=flash", "mqa": "attention=gqa attention.n_kv_heads=4"}
    flops = {name: component_flops(compose([*d12, *own.split()]), vocab_size=V) for name, own in arms.items()}
    counted = {name: {"component_flops": components} for name, components in flops.items()}
    for place in ("bench", "pace"):
        whole_step = Evidence(sessions={place: timed([1], counted)})
        assert bounded(tmp_path, "flops", whole_step) == pytest.approx(by_hand, rel=1e-9)
    apart = parts({(name, 1): {**PARTS, "component_flops": components} for name, components in flops.items()})
    attention = 4 * d**2 + T * d
    saved = attention / (attention - 4 / 3 * d**2)
    for of, expected in (
        (["qkv", "rotary", "scores", "attention_out"], saved),
        (["mlp_up", "mlp_down"], 1.0),
    ):
        bound_of = bounded(tmp_path, "flops", apart, metric="part_ms", parts=of)
        assert bound_of == pytest.approx(expected, rel=1e-9)


def test_other_rules_are_ratios_of_what_was_counted(tmp_path: Path):
    mha: Json = {"params": 300, "memory_mib": {"peak": 99.0, **dict.fromkeys(HELD, 10.0)}, "kv_bytes": 96.0}
    mqa: Json = {"params": 200, "memory_mib": {"peak": 50.0, **dict.fromkeys(HELD, 8.0)}, "kv_bytes": 8.0}
    lost = {"status": "does not fit", "params": None, "memory_mib": None, "kv_bytes": None}
    both_arms, *less = (
        Evidence(sessions={"bench": timed([1], arms)})
        for arms in ({"mha": mha, "mqa": mqa}, {"mha": mha}, {"mha": mha, "mqa": lost})
    )
    of_a_part = {"metric": "part_mib", "parts": ["scores"]}
    for rule, expected in {"params": 1.5, "memory": 1.25, "kv": 12.0}.items():
        for metric in ({}, of_a_part):  # of the whole arm
            assert bounded(tmp_path, rule, both_arms, **metric) == pytest.approx(expected)
        assert [bounded(tmp_path, rule, evidence) for evidence in less] == [None, None]


def test_a_step_cannot_lose_more_than_its_part(tmp_path: Path):
    slower, other = ({**PARTS, "ms": {"scores": ms}} for ms in (25.0, 90.0))
    evidence = parts({("mha", 1): PARTS, ("mha", 2): slower, ("mqa", 1): other})
    # the baseline's, and the largest seen
    assert bounded(tmp_path, "amdahl", evidence) == pytest.approx(1 / (1 - 0.25))
    assert bounded(tmp_path, "amdahl", parts({("mqa", 1): PARTS})) is None
    # saved in part: a quarter of an MLP of 40 ms, and scores of 10 ms whole, of a step of 100 ms
    step = parts({("mha", 1): {**PARTS, "step_ms": 100.0, "ms": {"scores": 10.0, "mlp_up": 40.0}}})
    mechanism = {"rule": "amdahl", "parts": ["scores", "mlp_up"], "saved": {"mlp_up": 0.25}, "formula": "f"}
    assert bounded(tmp_path, "", step, mechanism=mechanism) == pytest.approx(1 / (1 - 0.2))
    given = {"bound": 1.08, "formula": "f"}
    assert bounded(tmp_path, "", Evidence(), mechanism=given) == 1.08


# --- what a claim rests on ----------------------------------------------------------------------------------


def test_a_claim_rests_on_its_own_runs_and_sessions(tmp_path: Path):
    made_study = made(tmp_path, RACE)
    # 7 is no seed of the claim
    runs = {(arm, seed): record(arm, seed, 400, 3.0) for arm in ("mha", "mqa") for seed in (0, 1, 7)}
    short = {("mqa", 0): {200: record("mqa", 0, 200, 3.1, started="")}}
    sessions = {"pace": pace(1.0, numbers=[1]), "bench": timed([1], {"mqa": {}})}  # a race needs no bench
    assert sorted(
        Evidence(runs=runs, shorter=short, sessions=sessions).used(made_study.claims[0], made_study)
    ) == [
        *(("mha, seed 0", "mha", NOW), ("mha, seed 1", "mha", NOW)),
        *(("mqa, seed 0", "mqa", NOW), ("mqa, seed 0, 200 steps", "mqa", ""), ("mqa, seed 1", "mqa", NOW)),
        *(("pace session 1", "mha", NOW), ("pace session 1", "mqa", NOW)),
    ]


# --- noise --------------------------------------------------------------------------------------------------


def test_sigma_is_pooled_within_arms() -> None:
    groups = {"mha": [3.0, 3.1, 3.2], "mqa": [2.0, 2.0, 2.3]}
    runs = [
        (arm, record(arm, seed, 400, x)) for arm, values in groups.items() for seed, x in enumerate(values)
    ]
    assert sigma(runs) == pytest.approx(math.sqrt((0.1**2 + np.var(groups["mqa"], ddof=1)) / 2))
    assert sigma([]) is None
