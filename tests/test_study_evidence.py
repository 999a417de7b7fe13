"""What runs and sessions say, and what is told of it: made evidence against closed forms, made results as people read them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.config.compose import compose
from nocap.model.flops import component_flops
from nocap.show.table import markdown
from nocap.store.runs import Record
from nocap.study import board, exchange, report, text
from nocap.study.claim import HELD, Metric
from nocap.study.evidence import Evidence, bound, exploratory, outcome, outcomes, shortest
from nocap.study.prepared import prepare
from nocap.study.results import results, sigma, targets_checked
from nocap.study.spec import Study
from nocap.study.verdict import Ending, Outcome
from tests.studies import LOSS, SPEED, Json, at, claim, loaded, record, study, timed

RACE = claim(LOSS, id="M.time", metric="time_to_target_s", scale="ratio", expected=[1.05, None], target="baseline")
STEPS = claim(LOSS, id="M.steps", metric="steps_to_target", scale="ratio", expected=[1.05, None], target="baseline")
A, B = 8.0, 0.4  # a loss of A - B·ln(steps)


def law(steps: float, *, worse: float = 0.0) -> float:
    return A - B * math.log(steps) + worse


def made(tmp_path: Path, *claims: Json, **changed: Any) -> Study:
    return loaded(tmp_path / "made", study(claims=list(claims), scales=at(lengths=[0.25, 0.5]), **changed))


NOISE = {0: -0.003, 1: 0.001, 2: 0.002}  # a seed moves a whole curve


def by_law(arm: str, *, worse: float = 0.0, noise: dict[int, float] = NOISE, diverged: int | None = None) -> dict[str, Any]:
    """Runs of 100, 200 and 400 steps of one arm, with three seeds, as `Evidence` takes them."""
    runs = {(arm, seed): record(arm, seed, 400, None if seed == diverged else law(400, worse=worse) + x) for seed, x in noise.items()}
    shorter = {(arm, seed): {n: record(arm, seed, n, law(n, worse=worse) + x) for n in (100, 200)} for seed, x in noise.items()}
    return {"runs": runs, "shorter": shorter}


def both(mine: dict[str, Any], theirs: dict[str, Any], **more: Any) -> Evidence:
    return Evidence(**{key: {**theirs[key], **mine[key]} for key in ("runs", "shorter")}, **more)


FACTS: Json = {"params": 10, "flops_per_token": 5.0, "kernel": "flash", "memory_mib": {"peak": 4.0}, "component_flops": {"a": 1.0}}


def pace(faster: float) -> dict[int, Json]:
    arms = {"mha": {"tokens_per_s": 1000.0, "step_ms": 10.0}, "mqa": {"tokens_per_s": 1000.0 * faster, "step_ms": 10.0 / faster}}
    return timed(range(3), {name: {**FACTS, **facts} for name, facts in arms.items()})


# --- the exchange rate -------------------------------------------------------------------------------------------------------------


def test_the_rate_is_the_slope_between_the_two_longest(tmp_path: Path):
    one = made(tmp_path, RACE)
    found = exchange.rate(one, Evidence(**by_law("mha")))
    assert found is not None
    assert (found.mean, found.low, found.high, found.n, found.steps) == (
        pytest.approx(B),
        pytest.approx(B),
        pytest.approx(B),
        3,
        [200, 400],
    )
    assert found.buys(0.07) == pytest.approx(B * math.log(1.07))

    slopes = [0.3, 0.4, 0.6]  # a curve that flattens before: only its end counts
    runs = {("mha", seed): record("mha", seed, 400, 4.0 - b * math.log(2)) for seed, b in enumerate(slopes)}
    shorter = {("mha", seed): {200: record("mha", seed, 200, 4.0), 100: record("mha", seed, 100, 5.0)} for seed in range(3)}
    found = exchange.rate(one, Evidence(runs=runs, shorter=shorter))
    assert found is not None
    expected = scipy_stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == (
        pytest.approx(np.mean(slopes)),
        pytest.approx(expected.low),
        pytest.approx(expected.high),
    )


def test_no_rate_without_three_seeds_of_the_same_lengths(tmp_path: Path):
    one, whole = made(tmp_path, RACE), by_law("mha")
    assert exchange.rate(one, Evidence(runs=whole["runs"])) is None
    assert exchange.rate(one, Evidence(**by_law("mqa"))) is None
    assert exchange.rate(one, Evidence(**by_law("mha", noise={0: 0.0, 1: 0.1}))) is None
    torn = {**whole["shorter"], ("mha", 2): {100: whole["shorter"]["mha", 2][100]}}
    assert exchange.rate(one, Evidence(runs=whole["runs"], shorter=torn)) is None
    assert exchange.facts(one, Evidence(runs=whole["runs"])) is None


@pytest.mark.parametrize(("faster", "worse"), [(1.1, 0.02), (0.9, -0.05), (1.2, 0.0)])
def test_the_equivalent_speedup_is_speed_paid_in_loss(tmp_path: Path, faster: float, worse: float):
    """The baseline, faster by s and worse by w, ends as one whose steps are exp(ln s - w/b) as fast."""
    found = exchange.facts(made(tmp_path, RACE), both(by_law("mqa", worse=worse), by_law("mha"), pace=pace(faster)))
    assert found is not None
    told = found["equivalent"]["mqa"]
    expected = faster * math.exp(-worse / B)
    assert (told["mid"], told["low"], told["high"]) == (pytest.approx(expected), pytest.approx(expected), pytest.approx(expected))
    assert (told["speed"], told["worse"], told["n"]) == (pytest.approx(faster), pytest.approx(worse), 3)
    assert found["break_even"]["may_cost"] == pytest.approx(B * math.log(1.07))


def test_the_equivalent_speedup_has_the_noise_of_both(tmp_path: Path):
    one, worse = made(tmp_path, RACE), [0.01, 0.02, 0.06]
    runs = {("mha", seed): record("mha", seed, 400, 4.0 - b * math.log(2)) for seed, b in enumerate([0.38, 0.40, 0.42])}
    runs |= {("mqa", seed): record("mqa", seed, 400, runs["mha", seed].val_loss + w) for seed, w in enumerate(worse)}  # type: ignore[operator]
    shorter = {("mha", seed): {200: record("mha", seed, 200, 4.0)} for seed in range(3)}
    found = exchange.facts(one, Evidence(runs=runs, shorter=shorter, pace=pace(1.1)))
    assert found is not None
    told, t = found["equivalent"]["mqa"], scipy_stats.t.ppf(0.975, 2)
    of_gain = t * np.std([w / 0.4 for w in worse], ddof=1) / math.sqrt(3)
    of_rate = 0.03 / 0.4**2 * t * 0.02 / math.sqrt(3)  # |d gain / d rate| = w/b²
    assert math.log(told["high"] / told["mid"]) == pytest.approx(math.hypot(of_gain, of_rate))
    assert math.log(told["mid"] / told["low"]) == pytest.approx(math.hypot(of_gain, of_rate))


def test_no_equivalent_of_what_diverged_or_was_not_timed(tmp_path: Path):
    one, four = made(tmp_path, claim(RACE, seeds=[0, 1, 2, 3]), seeds=[0, 1, 2, 3]), {**NOISE, 3: 0.0}
    paces = {seed: pace(1.1)[0] for seed in four}
    theirs = by_law("mha", noise=four)
    told = [
        exchange.facts(one, both(by_law("mqa", noise=four, diverged=seed), theirs, pace=of))["equivalent"]  # type: ignore[index]
        for seed, of in ((None, paces), (3, paces), (None, {}), (None, {0: paces[0]}))
    ]
    assert [list(of) for of in told] == [["mqa"], [], [], []]


# --- steps to a loss ---------------------------------------------------------------------------------------------------------------


def arm_of(*ends: tuple[int, float | None]) -> list[Record]:
    return [record("mqa", 0, steps, loss) for steps, loss in ends]


def test_the_shortest_schedule_is_log_linear_between_lengths():
    runs = arm_of((100, law(100)), (200, law(200)), (400, law(400)))
    for steps in (100, 130, 200, 250, 399, 400):
        assert shortest(runs, target=law(steps) + 1e-12).value == pytest.approx(steps)
    assert shortest(runs, target=law(50)) == Outcome(value=100.0)  # no shorter one was trained
    assert shortest(runs, target=law(401)) == Outcome(value=400.0, ending=Ending.censored)
    halves = arm_of((100, 4.0), (400, 3.0))
    assert shortest(halves, target=3.5).value == pytest.approx(200)
    assert shortest(arm_of((100, 4.0), (200, 4.2), (400, 3.0)), target=3.5).value == pytest.approx(math.sqrt(200 * 400))


def test_a_longer_run_that_ends_higher_is_noise_and_one_that_broke_is_none():
    bumpy = arm_of((100, 4.0), (200, 3.5), (400, 3.6))
    assert shortest(bumpy, target=3.5).value == pytest.approx(200)
    assert shortest(bumpy, target=3.4).ending is Ending.censored
    assert shortest(arm_of((100, None), (200, 4.0), (400, 3.0)), target=3.5).value == pytest.approx(math.sqrt(200 * 400))


def test_a_race_against_the_baselines_own_end(tmp_path: Path):
    one = made(tmp_path, RACE, STEPS)
    race, steps = one.claims
    evidence = both(by_law("mqa", worse=-0.1), by_law("mha"), pace=pace(1.1))
    mine, theirs = outcomes(steps, one, evidence)
    needed = 400 * math.exp(-0.1 / B)  # where the arm's law meets the baseline's end
    assert {seed: one.value for seed, one in mine[Metric.steps_to_target].items()} == dict.fromkeys(range(3), pytest.approx(needed))
    assert theirs[Metric.steps_to_target] == dict.fromkeys(range(3), Outcome(value=400.0))
    mine, theirs = outcomes(race, one, evidence)
    assert mine[Metric.time_to_target_s][1].value == pytest.approx(needed * 10 / 1.1 / 1e3)
    assert theirs[Metric.time_to_target_s][1].value == pytest.approx(4.0)
    never, _ = outcomes(race, one, both(by_law("mqa", worse=0.1), by_law("mha"), pace=pace(1.1)))
    late = never[Metric.time_to_target_s][0]
    assert (late.value, late.ending) == (pytest.approx(4.0 / 1.1), Ending.censored)
    untimed, _ = outcomes(race, one, both(by_law("mqa"), by_law("mha")))
    assert untimed[Metric.time_to_target_s] == {}


def test_a_race_with_what_diverged(tmp_path: Path):
    one = made(tmp_path, STEPS)
    (steps,) = one.claims
    diverged = Outcome(value=None, ending=Ending.diverged)
    mine, theirs = outcomes(steps, one, both(by_law("mqa", diverged=1), by_law("mha", diverged=2)))
    assert [mine[Metric.steps_to_target][seed].ending for seed in range(3)] == [Ending.measured, Ending.diverged, Ending.diverged]
    assert theirs[Metric.steps_to_target] == {0: Outcome(value=400.0), 1: Outcome(value=400.0), 2: diverged}
    alone, _ = outcomes(steps, one, Evidence(**by_law("mqa")))
    assert alone[Metric.steps_to_target] == {}


def test_steps_to_a_number_are_read_from_the_curve(tmp_path: Path):
    one = made(tmp_path, claim(STEPS, target=4.5))
    (steps,) = one.claims
    ends = {0: [(0, 5.5), (10, 5.0), (20, 4.0)], 1: [(0, 5.5), (20, 4.6)], 2: [(0, 5.5), (10, 4.0)]}
    runs = {("mqa", seed): record("mqa", seed, 20, None if seed == 2 else points[-1][1], curve=points) for seed, points in ends.items()}
    found = [outcome(steps, Metric.steps_to_target, "mqa", seed, one, Evidence(runs=runs)) for seed in range(3)]
    assert [one and (one.value, one.ending) for one in found] == [
        (pytest.approx(15), Ending.measured),
        (20.0, Ending.censored),
        (None, Ending.diverged),
    ]
    assert outcome(steps, Metric.steps_to_target, "mha", 0, one, Evidence(runs=runs)) is None


def test_a_target_that_the_first_validation_met_is_refused(tmp_path: Path):
    one = made(tmp_path, claim(STEPS, target=4.5))
    early = {("mha", 0): record("mha", 0, 20, 3.0, curve=[(5, 4.4), (20, 3.0)])}
    with pytest.raises(ValueError, match=r"^claim M.steps: target must be below the first validation loss, 4.4000, got 4.5$"):
        targets_checked(one, Evidence(runs=early))
    targets_checked(one, Evidence(runs={("mha", 0): record("mha", 0, 20, 3.0, curve=[(0, 5.5), (20, 3.0)])}))


# --- profiles ----------------------------------------------------------------------------------------------------------------------

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
def test_a_profiles_numbers(tmp_path: Path, changed: Json, value: float):
    base = {
        "id": "M",
        "statement": "s",
        "source": "made",
        "arm": "mqa",
        "scale": "ratio",
        "expected": [0.1, None],
        "mechanism": {"formula": "f"},
    }
    one = loaded(tmp_path / "made", study(claims=[claim(base, **changed), LOSS]))
    found = outcome(one.claims[0], one.claims[0].metric, "mqa", 1, one, Evidence(parts={("mqa", 1): PARTS}))
    assert found is not None
    assert found.value == pytest.approx(value)
    assert outcome(one.claims[0], one.claims[0].metric, "mqa", 0, one, Evidence(parts={("mqa", 1): PARTS})) is None


# --- bounds ------------------------------------------------------------------------------------------------------------------------


def bounded(tmp_path: Path, rule: str, evidence: Evidence, **changed: Any) -> float | None:
    mechanism = {"rule": rule, "formula": "f", **({"parts": ["scores"]} if rule == "amdahl" else {})}
    one = loaded(tmp_path / "made", study(claims=[claim(SPEED, mechanism=mechanism, guards=[], **changed), LOSS]))
    return bound(one.claims[0], one, evidence)


def test_a_third_of_key_value_heads_saves_seven_percent_of_a_token(tmp_path: Path):
    """12 layers, 768 wide, T=1024, by hand: a layer's products are 2·(12·d² + T·d), the head's 2·d·V; K and V lose 2/3 of 2·d² each."""
    d, T, V = 768, 1024, 50257
    whole = 12 * (12 * d**2 + T * d) + d * V
    assert whole / (whole - 12 * 2 * d**2 * 2 / 3) == pytest.approx(1.0764, abs=1e-4)
    d12 = ("model=d12", "tokenizer=gpt2", "mlp=gelu4x", "trainer.device=cpu", "trainer.precision=fp32")
    arms = {"mha": "attention=flash", "mqa": "attention=gqa attention.n_kv_heads=4"}
    flops = {name: component_flops(compose([*d12, *words.split()]), vocab_size=V) for name, words in arms.items()}
    said = timed([0], {name: {"component_flops": of} for name, of in flops.items()})
    assert bounded(tmp_path, "flops", Evidence(bench=said)) == pytest.approx(whole / (whole - 12 * 2 * d**2 * 2 / 3), rel=1e-9)
    assert bounded(tmp_path, "flops", Evidence(pace=said)) == pytest.approx(1.0764, abs=1e-4)
    apart = Evidence(parts={(name, 0): {**PARTS, "component_flops": of} for name, of in flops.items()})
    by_parts = {"metric": "part_ms", "parts": ["qkv", "rotary", "scores", "attention_out"]}
    attention = 4 * d**2 + T * d
    assert bounded(tmp_path, "flops", apart, **by_parts) == pytest.approx(attention / (attention - 4 / 3 * d**2), rel=1e-9)
    both_of_mlp = {"metric": "part_ms", "parts": ["mlp_up", "mlp_down"]}
    assert bounded(tmp_path, "flops", apart, **both_of_mlp) == pytest.approx(1.0)


def test_other_rules_are_ratios_of_what_was_counted(tmp_path: Path):
    facts = {
        "mha": {"params": 300, "memory_mib": {"peak": 99.0, **dict.fromkeys(HELD, 10.0)}, "kv_bytes": 96.0},
        "mqa": {"params": 200, "memory_mib": {"peak": 50.0, **dict.fromkeys(HELD, 8.0)}, "kv_bytes": 8.0},
    }
    said = Evidence(bench=timed([2], facts), parts={("mha", 0): PARTS, ("mqa", 0): PARTS})
    for rule, expected in {"params": 1.5, "memory": 1.25, "kv": 12.0}.items():
        assert bounded(tmp_path, rule, said) == pytest.approx(expected)
        assert bounded(tmp_path, rule, said, metric="part_mib", parts=["scores"]) == pytest.approx(expected)  # of the whole arm
        assert bounded(tmp_path, rule, Evidence()) is None
        assert bounded(tmp_path, rule, Evidence(bench=timed([2], {"mha": facts["mha"]}))) is None
    broken = timed([0], {"mha": facts["mha"], "mqa": {"status": "does not fit", "params": None, "memory_mib": None, "kv_bytes": 8.0}})
    assert [bounded(tmp_path, rule, Evidence(bench=broken)) for rule in ("params", "memory")] == [None, None]


def test_a_step_cannot_lose_more_than_its_part(tmp_path: Path):
    slower = {**PARTS, "ms": {"scores": 25.0}}
    evidence = Evidence(parts={("mha", 0): PARTS, ("mha", 1): slower, ("mqa", 0): {**PARTS, "ms": {"scores": 90.0}}})
    assert bounded(tmp_path, "amdahl", evidence) == pytest.approx(1 / (1 - 0.25))  # the baseline's, and the largest seen
    assert bounded(tmp_path, "amdahl", Evidence(parts={("mqa", 0): PARTS})) is None


def test_a_given_bound_is_given(tmp_path: Path):
    one = loaded(tmp_path / "made", study(claims=[claim(SPEED, mechanism={"bound": 1.08, "formula": "f"})]))
    assert bound(one.claims[0], one, Evidence()) == 1.08


# --- registration ------------------------------------------------------------------------------------------------------------------


def test_everything_a_claim_rests_on_must_have_begun_under_it(tmp_path: Path):
    one = made(tmp_path, RACE)
    (race,) = one.claims
    under, other = {race.id: race.hash()}, {race.id: "another"}

    def stamped(runs: Json, short: Json, sessions: Json) -> str | None:
        return exploratory(
            race,
            one,
            Evidence(
                runs={(arm, seed): record(arm, seed, 400, 3.0, claims=runs) for arm in ("mha", "mqa") for seed in range(3)},
                shorter={("mqa", 0): {200: record("mqa", 0, 200, 3.1, claims=short)}},
                registered={"pace": [under, sessions], "bench": [{}]},  # a race needs no bench
            ),
        )

    assert stamped(under, under, under) is None
    assert stamped(other, under, under) == "exploratory: mha, seed 0 and 5 more began under another claim, or none"
    assert stamped(under, other, under) == "exploratory: mqa, seed 0, 200 steps began under another claim, or none"
    assert stamped(under, under, {}) == "exploratory: the session pace began under another claim, or none"


# --- noise -------------------------------------------------------------------------------------------------------------------------


def test_sigma_is_pooled_within_arms(tmp_path: Path):
    one = made(tmp_path, RACE)
    groups = {"mha": [3.0, 3.1, 3.2], "mqa": [2.0, 2.0, 2.3]}
    runs = {(arm, seed): record(arm, seed, 400, x) for arm, values in groups.items() for seed, x in enumerate(values)}
    noise, source = sigma(one, one.scales["cpu"], runs)
    assert noise == pytest.approx(math.sqrt((0.1**2 + np.var(groups["mqa"], ddof=1)) / 2))
    assert source == "measured: 6 runs of 2 arms"
    declared = replace(one.scales["cpu"], sigma=0.02)
    assert sigma(one, declared, {}) == (0.02, "declared")
    assert sigma(one, one.scales["cpu"], {})[0] is None


# --- told ------------------------------------------------------------------------------------------------------------------------

MACHINE = {"name": "a CPU", "cores": 2, "torch": "2.13", "fingerprint": "abc", "host": "secret"}


def told(one: Study, evidence: Evidence) -> Json:
    plan = prepare(one, "cpu", output_dir="outputs")
    found = results(one, "cpu", evidence, arms={"train": plan.train, "bench": plan.bench}, tuned={}, hardware=MACHINE, command="made")
    assert "host" not in found["hardware"]
    return found


def speeds(ratios: list[float], losses: list[float | None]) -> Evidence:
    bench = {
        seed: {
            "arms": {
                "mha": {**FACTS, "step_ms": 1.0, "tokens_per_s": 1000.0},
                "mqa": {**FACTS, "step_ms": 1.0, "tokens_per_s": 1000.0 * ratio},
            }
        }
        for seed, ratio in enumerate(ratios)
    }
    runs = {("mha", seed): record("mha", seed, 12, 3.0) for seed in range(3)}
    runs |= {("mqa", seed): record("mqa", seed, 12, loss) for seed, loss in enumerate(losses)}
    return Evidence(bench=bench, runs=runs)


SAME = [3.0, 3.001, 3.002]


@pytest.mark.parametrize(
    ("ratios", "losses", "said"),
    [
        ([1.25, 1.251, 1.252], SAME, "M.speed confirmed: tokens/s of mqa against mha 1.251× [1.249×, 1.253×], expected 1.200× to 1.300×; "),
        ([1.35, 1.351, 1.352], SAME, "M.speed confirmed, above the stated top: "),
        ([1.05, 1.051, 1.052], SAME, "M.speed refuted (below): "),
        ([1.25, 1.251, 1.252], [4.0, 4.001, 4.002], "M.speed refuted (its validation loss is worse): "),
        ([1.1, 1.25, 1.4], SAME, " more seeds would decide: "),
        ([1.25, 1.251], SAME, "M.speed inconclusive: 2 missing (tokens_per_s of mqa, seed 2, tokens_per_s of baseline, seed 2): "),
        ([1.25, 1.251, 1.252], [3.0, 3.0, None], "M.speed refuted (its validation loss is worse): "),
    ],
)
def test_a_sentence_for_each_verdict(tmp_path: Path, ratios: list[float], losses: list[float | None], said: str):
    one = loaded(tmp_path / "made", study(claims=[SPEED]))
    found = told(one, speeds(ratios, losses))
    sentence = text.sentence(found["claims"][0])
    assert said in sentence
    assert "\n" not in sentence
    assert "arithmetic allows 1.000× (FLOPs of a token)" in sentence
    assert f"n={len(ratios)}; at 2 layers, 64 wide, T=32, " in sentence
    assert "[exploratory: mha, seed 0 and 5 more began under another claim, or none]" in sentence
    rendered = text.render(found)
    assert sentence in rendered
    assert ("M.speed: diverged, counted as worst: mqa, seed 2" in rendered) == (None in losses)
    assert ("above what arithmetic allows: look for a mistake" in rendered) == (said != " more seeds would decide: " and len(ratios) == 3)


def test_an_arms_loss_is_of_the_runs_that_finished(tmp_path: Path):
    one = made(tmp_path, RACE)
    evidence = both(by_law("mqa", diverged=1), by_law("mha"), pace=pace(1.1))
    evidence.shorter["mqa", 0][200] = record("mqa", 0, 200, None)  # type: ignore[index]
    mha, mqa = told(one, evidence)["arms"]
    assert (mha["val_loss"]["all"], mha["diverged"]) == ([law(400) + x for x in NOISE.values()], [])
    assert (mqa["val_loss"]["all"], mqa["diverged"]) == ([law(400) + NOISE[0], law(400) + NOISE[2]], [1])
    assert mqa["shorter"]["200"] == [None, law(200) + NOISE[1], law(200) + NOISE[2]]
    (line,) = (line for line in text.render(told(one, evidence)).splitlines() if line.startswith("mqa "))
    assert "], 1 diverged" in line


def test_a_claim_with_one_end_and_slack_and_without_a_bound(tmp_path: Path):
    one = loaded(tmp_path / "made", study(claims=[claim(LOSS, slack={"cpu": 0.01}), claim(LOSS, id="M.most", expected=[None, 0.25])]))
    low, most = told(one, speeds([1.0] * 3, SAME))["claims"]
    assert "expected at least -1.0000, give or take 0.01 at this scale; arithmetic sets no bound (loss has no arithmetic)" in text.sentence(
        low
    )
    assert "expected at most +0.2500; " in text.sentence(most)


def test_a_report_keeps_its_authors_words(tmp_path: Path):
    folder = tmp_path / "made"
    one = loaded(folder, study(claims=[SPEED]))
    confirmed, refuted = told(one, speeds([1.25, 1.251, 1.252], SAME)), told(one, speeds([1.05, 1.051, 1.052], SAME))
    assert [path.name for path in report.write(one, folder, confirmed)] == ["results.cpu.abc.json", "README.md"]
    first = (folder / "README.md").read_text()
    assert first.startswith(
        "# made: M.speed confirmed (cpu, a CPU)\n\n**Question.** Does one key/value head do?\n\n**Method.** Made for a test.\n"
    )
    assert first.endswith("## What was learnt\n\nNothing is written here yet.\n")
    assert "**confirmed** (exploratory: mha, seed 0 and 5 more began" in first

    words = "It was fun.\n\n### Really\n\n| a | table |\n"
    (folder / "README.md").write_text(first.replace("Nothing is written here yet.\n", words))
    report.write(one, folder, refuted)
    second = (folder / "README.md").read_text()
    assert second.startswith("# made: M.speed refuted (cpu, a CPU)\n")
    assert second.endswith(f"## What was learnt\n\n{words}")
    report.write(one, folder, refuted)
    assert (folder / "README.md").read_text() == second

    report.write(one, folder, {**confirmed, "hardware": {**MACHINE, "name": "another", "fingerprint": "def"}})
    assert (folder / "README.md").read_text().startswith("# made: M.speed refuted (cpu, a CPU); M.speed confirmed (cpu, another)\n")
    assert len(report.all_results(folder)) == 2

    (folder / "README.md").write_text("my own\n")
    with pytest.raises(ValueError, match="must have the line '## What was learnt'"):
        report.check_readme(folder)


def test_the_board_has_a_row_a_claim_and_the_fastest_first(tmp_path: Path):
    experiments = tmp_path / "experiments"
    for name, worse in {"slow": -0.05, "quick": -0.2}.items():
        one = loaded(experiments / name, study(claims=[RACE, STEPS], scales=at(lengths=[0.25, 0.5])))
        report.write(one, experiments / name, told(one, both(by_law("mqa", worse=worse), by_law("mha"), pace=pace(1.1))))
    (experiments / "empty").mkdir()
    (experiments / "not_built.yaml").write_text("- {id: Z9, statement: it flies, expected: 2×, why: no wings}\n")
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mine\n\n{board.START}\nold\n{board.END}\n\nAfter.\n")
    assert board.write(experiments, readme) == [experiments / "README.md", readme]

    page = (experiments / "README.md").read_text()
    assert page.startswith("# The board: 4 confirmed, 0 refuted, 0 inconclusive, 1 not built\n")
    rows = [line for line in page.splitlines() if line.startswith("| [M.")]
    assert [row.split("](")[1].split("/")[0] for row in rows] == ["quick", "quick", "slow", "slow"]
    assert "| Z9 | it flies | 2× | – | no wings |" in page
    leaders = [line for line in page.splitlines() if line.startswith("| mqa (")]
    assert [line.split("[")[1].split("]")[0] for line in leaders] == ["quick", "slow"]  # only races of time
    assert f"| {1.1 * math.exp(0.2 / B):.3f}× [" in leaders[0]
    assert "* quick (cpu): 0.4000 [0.4000, 0.4000] nats for e times the steps, between 200 and 400 steps of mha (n=3)" in page
    assert f"  * mqa: equivalent speedup {1.1 * math.exp(0.2 / B):.3f}× [" in page

    mine = readme.read_text()
    assert mine.startswith(f"# Mine\n\n{board.START}\n| claim |")
    assert mine.endswith(f"{board.END}\n\nAfter.\n")
    assert "old" not in mine
    assert mine.count("| [M.time](experiments/") == 2
    board.write(experiments, readme)
    assert readme.read_text() == mine


def test_a_board_of_unraced_studies(tmp_path: Path):
    one = loaded(tmp_path / "experiments" / "made", study(claims=[SPEED]))
    report.write(one, tmp_path / "experiments" / "made", told(one, speeds([1.25, 1.251, 1.252], SAME)))
    board.write(tmp_path / "experiments", tmp_path / "no-readme.md")
    page = (tmp_path / "experiments" / "README.md").read_text()
    assert "No recipe has raced yet." in page
    assert not (tmp_path / "no-readme.md").exists()


def test_a_bar_does_not_end_a_cell():
    assert markdown(("a", "b"), [["x|y", "two\nlines"]]) == ["| a | b |", "| --- | --- |", "| x\\|y | two lines |"]
