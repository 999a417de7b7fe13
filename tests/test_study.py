"""Claims, their verdicts and their seeds: against scipy's tests, the planning table, and by cases that can be worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from scipy import stats as scipy_stats

from nocap.config.compose import explain
from nocap.judge import stats
from nocap.judge.power import plan
from nocap.study import __main__ as study_door
from nocap.study import trust, verdict
from nocap.study.claim import Claim, Guard, Mechanism, Metric, Scale
from nocap.study.verdict import Ending, Outcome, Outcomes, Reason, Word, judge, more_seeds
from tests.conftest import Door

SPEED = {
    "id": "gqa",
    "statement": "4 key/value heads train 20 to 30% faster at a validation loss within 0.01",
    "source": "note 000",
    "arm": "gqa",
    "metric": Metric.tokens_per_s,
    "scale": Scale.ratio,
    "expected": [1.2, 1.3],
    "mechanism": Mechanism(bound=1.08, formula="7.1% fewer FLOPs: 1 / (1 - 0.071)"),
    "seeds": [1, 2, 3],
}
LOSS_GUARD = Guard(metric=Metric.val_loss, scale=Scale.difference, margins={"cpu": 0.01, "gpu": 0.005})


def claim(**changed: Any) -> Claim:
    return Claim(**{**SPEED, **changed})


def runs(values: list[float | None], metric: Metric = Metric.tokens_per_s, first: int = 1) -> dict[Metric, dict[int, Outcome]]:
    """One arm's: null diverged."""
    outcomes = [Outcome(value=v, ending=Ending.diverged if v is None else Ending.measured) for v in values]
    return {metric: dict(enumerate(outcomes, start=first))}


def ratio_claim(gains: list[float], **changed: Any) -> tuple[Claim, Outcomes, Outcomes]:
    return claim(seeds=list(range(1, len(gains) + 1)), **changed), runs([100 * g for g in gains]), runs([100.0] * len(gains))


# --- claims ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"expected": [1.3, 1.2]}, "claim gqa: expected must hold something: low below high, got [1.3, 1.2]"),
        ({"expected": [1.2, 1.2]}, "hold something"),
        ({"expected": [None, None]}, "one of them may be null, got [None, None]"),
        ({"expected": [1.2]}, "be [low, high]"),
        ({"expected": [0.0, 1.2]}, "be above 0 for a ratio"),
        ({"expected": [1.2, math.inf]}, "be finite numbers or null"),
        ({"expected": [1.2, None], "two_sided": True}, "two_sided must have both ends stated"),
        ({"seeds": [1, 2]}, "seeds must be at least 3: fewer pairs have no verdict, got 2"),
        ({"seeds": [1, 2, 2]}, "seeds must differ"),
        ({"alpha": 0.0}, "alpha must be above 0 and below 0.5, got 0.0"),
        ({"alpha": math.nan}, "alpha must be"),
        ({"looks": 3}, "looks must be 1 or 2, got 3"),
        ({"looks": 2}, "looks must leave 3 pairs for the first look, got 2 looks at 3 seeds"),
        ({"metric": Metric.share}, "scale must be value for share, got ratio"),
        ({"metric": Metric.time_to_target_s}, "target must be a loss above 0, or baseline, for a claim about time or steps to target"),
        ({"target": 3.4}, "and null for others, got 3.4"),
        ({"statement": " "}, "statement must be given"),
        ({"guards": [LOSS_GUARD, LOSS_GUARD]}, "guards must each have a metric of their own"),
        ({"mechanism": Mechanism(bound=0.0, formula="x")}, "mechanism.bound must be above 0 for a ratio"),
    ],
)
def test_what_a_claim_may_not_say(changed: dict[str, Any], said: str):
    with pytest.raises(ValueError) as refused:
        claim(**changed)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"margins": {}}, "guard val_loss.margins must name a scale of the study"),
        ({"margins": {"cpu": -0.1}}, "margins.cpu must be a finite number of at least 0 for a difference, got -0.1"),
        ({"margins": {"cpu": 0.9}, "scale": Scale.ratio}, "at least 1 for a ratio"),
        ({"scale": Scale.value}, "scale must be ratio or difference"),
        ({"metric": Metric.exponent}, "can be better or worse"),
    ],
)
def test_what_a_guard_may_not_say(guard: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        Guard(**{"metric": Metric.val_loss, "scale": Scale.difference, "margins": {"cpu": 0.01}, **guard})


YAML = """
id: gqa
statement: 4 key/value heads train 20 to 30% faster at a validation loss within 0.01
source: note 000
arm: gqa
metric: tokens_per_s
scale: ratio
expected: [1.2, null]
guards: [{metric: val_loss, scale: difference, margins: {cpu: 0.01}}]
mechanism: {bound: 1.08, formula: fewer FLOPs}
seeds: [1, 2, 3]
"""


def read(text: str) -> Claim:
    found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Claim), OmegaConf.create(text)))
    assert isinstance(found, Claim)
    return found


def test_a_claim_is_read_from_yaml_and_checked():
    found = read(YAML)
    assert (found.metric, found.expected, found.guards[0].margin("cpu")) == (Metric.tokens_per_s, [1.2, None], 0.01)
    for wrong, said in (("metric: speed", "speed"), ("alpha: often", "often"), ("surprise: 1", "surprise"), ("seeds: [1]", "at least 3")):
        with pytest.raises((OmegaConfBaseException, ValueError)) as refused:
            read(YAML.replace("seeds: [1, 2, 3]", "") + wrong if "seeds" in wrong else _without(wrong.split(":")[0]) + wrong)
        assert said in explain(refused.value)
        assert "\n" not in explain(refused.value)


def _without(key: str) -> str:
    return "\n".join(line for line in YAML.splitlines() if not line.startswith(f"{key}:")) + "\n"


def test_a_claim_that_says_something_else_has_another_hash():
    memory = Guard(metric=Metric.memory_mib, scale=Scale.ratio, margins={"cpu": 1, "gpu": 1.0})
    one = claim(guards=[LOSS_GUARD, memory]).hash()
    assert one == claim(guards=[memory, LOSS_GUARD]).hash()
    assert claim(expected=[1, None]).hash() == claim(expected=[1.0, None]).hash()
    both = {"guards": [LOSS_GUARD, memory]}
    changes = [
        {"expected": [1.2, None]},
        {"alpha": 0.04},
        {"seeds": [1, 2, 4]},
        {"statement": "other"},
        {"two_sided": True},
        {"guards": []},
    ]
    assert len({claim(**{**both, **change}).hash() for change in changes} | {one}) == 7
    wider = Guard(metric=Metric.val_loss, scale=Scale.difference, margins={"cpu": 0.02, "gpu": 0.005})
    assert claim(guards=[wider]).hash() != claim(guards=[LOSS_GUARD]).hash()


# --- verdicts ----------------------------------------------------------------------------------------------------------------------


def reference(claim: Claim, gain: Any, worse: Any, margin: float) -> Word:
    """The rule of the verdict in scipy's one-sided tests: `gain` on the judged scale, `worse` the guard's."""
    low, high = claim.expected
    to = math.log if claim.scale is Scale.ratio else float
    test, each = scipy_stats.ttest_1samp, claim.alpha / 2
    if test(gain, to(low), alternative="less").pvalue < each / 2 or test(worse, margin, alternative="greater").pvalue < each:
        return Word.refuted
    if claim.two_sided and test(gain, to(high), alternative="greater").pvalue < each / 2:
        return Word.refuted
    ok = test(gain, to(low), alternative="greater").pvalue < claim.alpha and test(worse, margin, alternative="less").pvalue < claim.alpha
    ok = ok and (not claim.two_sided or test(gain, to(high), alternative="less").pvalue < claim.alpha)
    return Word.confirmed if ok else Word.inconclusive


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("metric", [Metric.tokens_per_s, Metric.step_ms])
def test_verdicts_are_scipys_tests(metric: Metric, two_sided: bool):
    rng, seen = np.random.default_rng(5), set()
    made = claim(metric=metric, two_sided=two_sided, guards=[LOSS_GUARD], seeds=[1, 2, 3, 4])
    for _ in range(150):
        gain, worse = rng.normal(rng.uniform(0.1, 0.4), 0.04, 4), rng.normal(rng.choice([0.0, 0.01, 0.02]), 0.003, 4)
        base, loss = rng.uniform(90, 110, 4), rng.normal(3.4, 0.05, 4)
        arm = base * np.exp(gain if metric is Metric.tokens_per_s else -gain)
        found = judge(
            made,
            arm=runs(list(arm), metric) | runs(list(loss + worse), Metric.val_loss),
            baseline=runs(list(base), metric) | runs(list(loss), Metric.val_loss),
            at="cpu",
        )
        assert found.word is reference(made, gain, worse, 0.01)
        assert found.interval is not None
        assert (found.interval.mid, found.interval.high) == (
            pytest.approx(math.exp(gain.mean())),
            pytest.approx(stats.ratio(list(np.exp(gain))).high),
        )
        seen.add((found.word, found.reason))
    assert {word for word, _ in seen} == set(Word)
    assert {Reason.below, Reason.guard} <= {reason for _, reason in seen}
    assert ((Word.refuted, Reason.exceeded) in seen) == two_sided


def test_above_the_stated_top_is_reported_and_above_the_bound_too():
    made, arm, baseline = ratio_claim([1.50, 1.51, 1.52])
    found = judge(made, arm=arm, baseline=baseline, at="cpu")
    assert (found.word, found.reason, found.exceeded, found.beyond_bound) == (Word.confirmed, None, True, True)
    made, arm, baseline = ratio_claim([1.050, 1.051, 1.052])
    found = judge(made, arm=arm, baseline=baseline, at="cpu")
    assert (found.word, found.reason, found.exceeded, found.beyond_bound) == (Word.refuted, Reason.below, False, False)


def test_each_scale_of_a_study_has_its_margin():
    made, arm, baseline = ratio_claim([1.25, 1.26, 1.27], guards=[LOSS_GUARD])
    arm, baseline = ({**of, **runs([x + y for x in (3.400, 3.401, 3.402)], Metric.val_loss)} for of, y in ((arm, 0.0075), (baseline, 0.0)))
    assert judge(made, arm=arm, baseline=baseline, at="cpu").word is Word.confirmed
    found = judge(made, arm=arm, baseline=baseline, at="gpu")
    assert (found.word, found.reason, found.failed) == (Word.refuted, Reason.guard, ["val_loss"])
    with pytest.raises(ValueError, match=r"guard val_loss\.margins must name the scale slurm, got cpu, gpu"):
        judge(made, arm=arm, baseline=baseline, at="slurm")


def test_a_missing_run_is_named_and_decides_nothing():
    made, arm, baseline = ratio_claim([1.25, 1.26, 1.27, 1.28])
    assert judge(made, arm=arm, baseline=baseline, at="cpu").word is Word.confirmed
    found = judge(made, arm=without(arm, 4), baseline=baseline, at="cpu")
    assert (found.word, found.reason, found.n) == (Word.inconclusive, Reason.missing, 3)
    assert found.missing == ["tokens_per_s of gqa, seed 4"]
    assert found.interval is not None
    fewer = judge(made, arm=without(arm, 4), baseline=without(baseline, 1), at="cpu")
    assert (fewer.word, fewer.n, fewer.interval) == (Word.inconclusive, 2, None)
    assert fewer.missing == ["tokens_per_s of baseline, seed 1", "tokens_per_s of gqa, seed 4"]
    assert more_seeds(made, arm=without(arm, 4), baseline=baseline, at="cpu") is None
    none = judge(claim(guards=[LOSS_GUARD]), arm={}, baseline={}, at="cpu")
    assert (none.word, none.n, len(none.missing)) == (Word.inconclusive, 0, 12)


def without(of: Mapping[Metric, Mapping[int, Outcome]], seed: int) -> Outcomes:
    return {metric: {s: o for s, o in outcomes.items() if s != seed} for metric, outcomes in of.items()}


def test_a_diverged_run_counts_as_worst():
    made = claim(seeds=[1, 2, 3, 4])
    arm, baseline = runs([125.0, 126.0, 127.0, None]), runs([100.0] * 4)
    found = judge(made, arm=arm, baseline=baseline, at="cpu")
    assert (found.word, found.reason, found.n, found.diverged) == (Word.refuted, Reason.below, 4, ["gqa, seed 4"])
    assert found.interval is None
    for broken_arm in (runs([125.0, 126.0, 127.0, 128.0]), arm):  # a baseline that breaks is no gain of the arm's
        found = judge(made, arm=broken_arm, baseline=runs([None, 100.0, 100.0, 100.0]), at="cpu")
        assert (found.word, found.reason) == (Word.inconclusive, Reason.undecided)
    guarded = claim(guards=[LOSS_GUARD])
    losses = runs([3.4, None, 3.4], Metric.val_loss), runs([3.4, 3.4, 3.4], Metric.val_loss)
    found = judge(guarded, arm=runs([125.0, 126.0, 127.0]) | losses[0], baseline=runs([100.0] * 3) | losses[1], at="cpu")
    assert (found.word, found.reason, found.diverged) == (Word.refuted, Reason.guard, ["gqa, seed 2"])


def test_a_target_never_reached_counts_as_its_budget_or_more():
    made = claim(metric=Metric.time_to_target_s, target=3.4, expected=[1.2, None])
    late = Outcome(value=1000.0, ending=Ending.censored)

    def times(*values: float) -> dict[int, Outcome]:
        return {seed: late if v == 1000 else Outcome(value=v) for seed, v in enumerate(values, start=1)}

    def word(arm: dict[int, Outcome], base: dict[int, Outcome]) -> Word:
        return judge(made, arm={made.metric: arm}, baseline={made.metric: base}, at="cpu").word

    quick, slow = times(500, 505, 510), times(960, 965, 970)
    never = times(1000, 1000, 990)
    assert word(quick, slow) is Word.confirmed
    assert word(quick, never) is Word.confirmed  # at least 1000/500
    assert word(never, slow) is Word.refuted  # at most 960/1000
    assert word(never, never) is Word.inconclusive  # nobody knows
    assert word(times(700, 1000, 705), times(1000, 970, 980)) is Word.inconclusive
    with pytest.raises(ValueError, match="tokens_per_s must be about a target to be censored"):
        judge(claim(), arm={Metric.tokens_per_s: times(1000, 1000, 1000)}, baseline=runs([1.0] * 3), at="cpu")


def test_runs_that_agree_to_the_last_bit():
    made, arm, baseline = ratio_claim([3.0, 3.0, 3.0], expected=[3.0, None])
    assert judge(made, arm=arm, baseline=baseline, at="cpu").word is Word.confirmed
    assert judge(claim(expected=[3.001, None]), arm=arm, baseline=baseline, at="cpu").word is Word.refuted


def test_a_value_needs_no_baseline_and_an_upper_end_alone_is_judged():
    made = claim(
        metric=Metric.share,
        parts=["scores"],
        scale=Scale.value,
        expected=[0.4, 0.5],
        two_sided=True,
        mechanism=Mechanism(bound=None, formula="counted"),
    )
    for values, expected in (
        ([0.44, 0.45, 0.46], Word.confirmed),
        ([0.14, 0.15, 0.16], Word.refuted),
        ([0.3, 0.45, 0.6], Word.inconclusive),
    ):
        assert judge(made, arm=runs(values, Metric.share), baseline={}, at="cpu").word is expected
    made = claim(metric=Metric.val_loss, scale=Scale.difference, expected=[None, 0.01], mechanism=Mechanism(bound=None, formula="none"))
    small, large = (
        judge(
            made, arm=runs([3.40, 3.41, 3.42], Metric.val_loss), baseline=runs([3.40 + g, 3.411 + g, 3.42 + g], Metric.val_loss), at="cpu"
        )
        for g in (0.001, 0.05)
    )
    assert (small.word, large.word, large.reason) == (Word.confirmed, Word.refuted, Reason.exceeded)


def test_two_looks_share_alpha():
    made, arm, baseline = ratio_claim([1.25, 1.26, 1.27, 1.25, 1.26, 1.27], looks=2)
    assert [made.at_look(look) for look in (1, 2)] == [([1, 2, 3], pytest.approx(0.01)), ([1, 2, 3, 4, 5, 6], pytest.approx(0.04))]
    first = judge(made, arm=without(arm, 6), baseline=baseline, at="cpu", look=1)
    assert (first.word, first.n, first.missing) == (Word.confirmed, 3, [])
    assert judge(made, arm=without(arm, 6), baseline=baseline, at="cpu").word is Word.inconclusive
    with pytest.raises(ValueError, match="look must be one of the 2 declared, got 3"):
        judge(made, arm=arm, baseline=baseline, at="cpu", look=3)


def test_an_outcome_is_a_number():
    for value, ending in ((math.nan, Ending.measured), (None, Ending.measured), (1.0, Ending.diverged)):
        with pytest.raises(ValueError, match="an outcome must be a finite number, or null where the run diverged"):
            Outcome(value=value, ending=ending)
    with pytest.raises(ValueError, match="tokens_per_s must be above 0 for a ratio"):
        judge(claim(), arm=runs([0.0] * 3), baseline=runs([1.0] * 3), at="cpu")


def losses(gains: list[float], **changed: Any) -> tuple[Claim, dict[str, Any]]:
    seeds = list(range(1, len(gains) + 1))
    made = claim(metric=Metric.val_loss, scale=Scale.difference, mechanism=Mechanism(bound=None, formula="none"), seeds=seeds, **changed)
    return made, {"arm": runs([4 - g for g in gains], Metric.val_loss), "baseline": runs([4.0] * len(gains), Metric.val_loss), "at": "cpu"}


def test_how_many_more_seeds_would_decide():
    """Means and spreads by hand: gains of 1 ± 1 (sd 1) against an end at 0.5, half a standard deviation away."""
    gains = [0.0, 1.0, 2.0]
    made, study = losses(gains, expected=[0.5, None])
    assert judge(made, **study).word is Word.inconclusive
    assert more_seeds(made, **study) == stats.n_required(0.5, power=0.9, alpha=0.1, pairs=True) - 3
    assert (
        more_seeds(made, **study) == 36 - 3
    )  # by statsmodels: TTestPower().solve_power(0.5, alpha=0.05, power=0.9, alternative="larger") = 35.7
    made, study = losses(gains, expected=[1.5, None])  # as far on the other side: a refutation
    assert more_seeds(made, **study) == stats.n_required(0.5, power=0.9, alpha=0.05, pairs=True) - 3
    made, study = losses(gains, expected=[0.5, 1.25], two_sided=True)  # both ends must hold: the nearer one decides
    assert more_seeds(made, **study) == stats.n_required(0.25, power=0.9, alpha=0.1, pairs=True) - 3
    made, study = losses(gains, expected=[1.0, None])  # on the end itself no number would
    assert more_seeds(made, **study) is None


# --- planning ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "pairs"), [(0.010, (3, 3, 4)), (0.005, (4, 4, 6)), (0.002, (9, 11, 21)), (0.001, (28, 38, 78))])
def test_seeds_for_ninety_percent(effect: float, pairs: tuple[int, ...]):
    found = [plan(effect=effect, sigma=sigma, scale=Scale.difference, power=0.9) for sigma in (0.0011, 0.0013, 0.0019)]
    assert tuple(p.pairs for p in found) == pairs
    assert all(p.power >= 0.9 for p in found)


def test_a_plan_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert study_door.main(["--power", "0.9", "--effect", "0.005", "--sigma", "0.0013"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 pairs of seeds (8 runs) see a difference of 0.005 through sigma 0.0013 with a power of 0.9")
    assert out.count("\n") == 1
    assert study_door.main(["--power", "0.9", "--effect", "1%", "--sigma", "0.3%"]) == 0  # steps to 3.285 vary by 0.2 to 0.5%: 5 to 8 pairs
    assert capsys.readouterr().out.startswith("5 pairs of seeds (10 runs) see a ratio of 1%")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--power", "1", "--effect", "1", "--sigma", "1"), "--power must be at least 0.5 and below 1, got 1.0"),
        (("--power", "0.9", "--effect", "0", "--sigma", "1"), "--effect must be above 0, got 0.0"),
        (("--power", "0.9", "--effect", "1", "--sigma", "nan"), "--sigma must be above 0, got nan"),
        (("--power", "0.9", "--effect", "much", "--sigma", "1"), "--effect must be a number or a percentage, got much"),
        (("--power", "0.9", "--effect", "2%", "--sigma", "0.1"), "--sigma must be a percentage as --effect is, got 0.1"),
        (("--power", "0.9", "--effect", "0.1", "--sigma", "2%"), "--sigma must be in --effect's unit, without %, got 2%"),
        (("--power", "0.9", "--effect", "0.1"), "--sigma must be given with --power, and only there, got None"),
        (("--power", "0.9", "--effect", "1e-9", "--sigma", "1"), "needs more than 100000 runs"),
        (
            ("--power", "0.9", "--effect", "1", "--sigma", "1", "--studies", "9"),
            "--studies must be given with --calibrate-verdicts, and only there, got 9",
        ),
        (("--calibrate-verdicts", "--effect", "1"), "--effect must be given with --power, and only there, got 1"),
        (("--calibrate-verdicts", "--json", "/dev/null/x"), "--json must be a file that can be written, got /dev/null/x"),
        (("--calibrate-verdicts", "--studies", "5"), "--studies must be at least 100, got 5"),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        study_door.main([*words])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_the_console_script_has_the_door(door: Door):
    done = door("study", "--power", "0.9", "--effect", "0.005", "--sigma", "0.0013", module="nocap")
    assert (done.code, done.out.split(" ", 1)[0]) == (0, "4"), done.err


def test_nothing_asked_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        study_door.main([])
    assert left.value.code == 2
    assert "--power --calibrate-verdicts is required" in capsys.readouterr().err


# --- trust -------------------------------------------------------------------------------------------------------------------------


def test_calibration_holds_and_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trust, "NOISES", {"normal": trust.normal})
    assert study_door.main(["--calibrate-verdicts", "--studies", "200", "--json", str(tmp_path / "trust.json")]) == 0
    result = json.loads((tmp_path / "trust.json").read_text())
    assert {bar["verdict"] for bar in result["bars"]} <= {"shown", "not contradicted"}
    out = capsys.readouterr().out
    assert "A/A called different (at most 5%): " in out
    assert sum(line.startswith("| ") for line in out.splitlines()) == len(result["rows"]) + 1


def test_intervals_that_are_too_narrow_break_the_bars(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict, "interval", lambda values, *, confidence: stats.interval(values, confidence=0.8))
    monkeypatch.setattr(trust, "NOISES", {"normal": trust.normal})
    result = trust.calibrate(studies=200)
    broken = {bar["what"] for bar in result["bars"] if bar["verdict"] == "broken"}
    assert broken == {"A/A called different", "interval holds the truth"}
    assert not result["ok"]


def test_shares_have_exact_intervals():
    found = trust.share(5, 100)
    assert (found["low"], found["high"]) == (pytest.approx(0.01643, abs=1e-5), pytest.approx(0.11283, abs=1e-5))  # Clopper and Pearson
