"""What a study's runs and sessions measured and its bounds, against closed forms; and results as
people read them: the sentence of each verdict, a study's README, the board. From made evidence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.config.compose import compose
from nocap.judge.cautious_interval import of_pairs
from nocap.judge.claim import Claim
from nocap.metrics import METRICS
from nocap.model.flops import component_flops
from nocap.sessions.session_file import SessionFile
from nocap.step_parts import HELD
from nocap.store.measurement import Ending, Per
from nocap.study import claim_row, claim_words, result_schema, study_pages
from nocap.study.board import read_board
from nocap.study.bounds import bound
from nocap.study.carry_out import StudyOutcome
from nocap.study.claim_measurements import measurements
from nocap.study.evidence import Evidence
from nocap.study.log import StudyLog
from nocap.study.plan_preview import sigma
from nocap.study.result_maker import result_of
from nocap.study.result_reader import read_result
from nocap.study.result_writer import to_json, write_result
from nocap.study.spec import Study
from nocap.study.standing import Standing
from nocap.study.study_folder import STUDIES
from nocap.study.study_plan import prepare, shorter
from nocap.study.study_result import StudyResult
from tests.studies import (
    LOSS,
    NOISE,
    NOW,
    RACE,
    SEEN,
    SPEED,
    STEPS,
    B,
    Json,
    at,
    both,
    by_law,
    claim,
    law,
    loaded,
    pace,
    record,
    session,
    study,
    timed,
)

MACHINE = {"name": "a CPU", "cores": 2, "torch": "2.13", "fingerprint": "abc", "host": "secret"}
STANDS = Standing(hash="made", at="2026-11-21T12:00:00+00:00", exploratory=None, notes=[])
LATE = replace(STANDS, exploratory="registered after 3 runs", notes=["2 analyses"])


def resulted(made_study: Study, evidence: Evidence, *, stands: Standing = STANDS) -> StudyResult:
    plan = prepare(made_study, "cpu", output_dir="outputs")
    standings = {claim.id: stands for claim in made_study.claims}
    done = StudyOutcome(plan=plan, evidence=evidence, standings=standings)
    result = result_of(done, hardware=MACHINE, command="made")
    assert "host" not in result.hardware
    return result


def claims_of(result: StudyResult) -> list[Json]:
    """Its claims as JSON has them."""
    text = json.dumps(to_json(result))
    claims: list[Json] = json.loads(text)["claims"]
    return claims


def again(result: StudyResult, folder: Path) -> StudyResult:
    """Write it and read it, where its study's log is empty."""
    stored = read_result(write_result(result, folder), result.study, StudyLog())
    assert stored is not None
    return stored


def speeds(ratios: list[float], losses: list[float | None]) -> Evidence:
    arms = [{"mha": 1000.0, "mqa": 1000.0 * ratio} for ratio in ratios]
    bench = []
    for number, of_session in enumerate(arms, start=1):
        rows = {}
        for name, x in of_session.items():
            rows[name] = {**SEEN, "step_ms": 1.0, "tokens_per_s": x}
        bench.append(session(rows, number=number))
    runs = {("mha", seed): record("mha", seed, 12, 3.0) for seed in range(3)}
    runs |= {("mqa", seed): record("mqa", seed, 12, loss) for seed, loss in enumerate(losses)}
    return Evidence(sessions={"bench": bench}, runs=runs)


FAST = [1.25, 1.251, 1.252]
SLOW = [1.05, 1.051, 1.052]
SAME: list[float | None] = [3.0, 3.001, 3.002]


VERDICTS = [
    (FAST, SAME, "M.speed confirmed at "),
    ([1.35, 1.351, 1.352], SAME, "M.speed exceeded at "),
    (SLOW, SAME, ": worse than stated: "),
    (FAST, [4.0, 4.001, 4.002], ": the arm's validation loss is worse: "),
    ([1.1, 1.25, 1.4], SAME, ": no affordable number of pairs would decide: "),
    ([1.22, 1.25, 1.28], SAME, " more sessions would decide: "),
    ([1.25, 1.251], SAME, ": 1 missing (tokens_per_s, session 3): "),
    (FAST, [3.0, 3.0, None], ": the arm's validation loss is worse: "),
]


@pytest.mark.parametrize(("ratios", "losses", "start"), VERDICTS)
def test_what_is_said_of_each_verdict(
    tmp_path: Path, ratios: list[float], losses: list[float | None], start: str
):
    made_study = loaded(tmp_path / "made", study(claims=[SPEED]))
    stands_late = resulted(made_study, speeds(ratios, losses), stands=LATE)
    said = study_pages.render(stands_late)
    head, facts = said.split("\n\n")[1].split("\n", 1)
    assert head.startswith("M.speed ")
    assert start in head
    cases = (
        "arithmetic allows  no gain (FLOPs of a token)",
        f"n={len(ratios)} sessions\n",
        "where              2 layers, 64 wide, T=32, ",
        "exploratory: registered after 3 runs; 2 analyses",
    )
    for fact in cases:
        assert fact in facts
    assert ("diverged, counted as worst: mqa, seed 2" in said) == (None in losses)
    expected = ratios != [1.1, 1.25, 1.4] and len(ratios) == 3
    assert (claim_row.BEYOND in said) == expected


def test_an_arms_loss_is_of_the_runs_that_finished(tmp_path: Path):
    scales = at(lengths=[0.25, 0.5])
    content = study(claims=[RACE], scales=scales)
    made_study = loaded(tmp_path / "made", content)
    evidence = both(by_law("mqa", diverged=1), by_law("mha"), pace=pace(1.1))
    result = resulted(made_study, evidence)
    mha, mqa = result.arms
    assert mha.val_loss is not None
    expected = [law(400) + x for x in NOISE.values()]
    assert mha.val_loss.all == expected
    assert mha.diverged == []
    assert mqa.val_loss is not None
    finished = [law(400) + NOISE[0], law(400) + NOISE[2]]
    assert mqa.val_loss.all == finished
    assert mqa.diverged == [1]
    page = study_pages.render(result)
    assert re.search("^mqa .*, 1 diverged", page, re.M)


def test_a_gain_that_is_only_bounded_shows_its_lower_end(tmp_path: Path):
    """Its shortest schedule, a quarter of 400 steps, already ends at the baseline's loss; twice the
    pace is eight times as fast, or more."""
    scales = at(lengths=[0.25, 0.5])
    content = study(claims=[RACE], scales=scales)
    made_study = loaded(tmp_path / "made", content)
    paces = []
    for i, speed in enumerate([1.9, 2.0, 2.1], 1):
        arms = pace(speed)[0].measured.arms
        paces.append(session(arms, number=i))
    evidence = both(by_law("mqa", worse=-0.7), by_law("mha"), pace=paces)
    result = resulted(made_study, evidence)
    (row,) = claims_of(result)
    gains = [math.log(4 * speed) for speed in (1.9, 2.0, 2.1)]
    assert row["measured"] is None
    expected = math.exp(of_pairs(gains, bias=0.005).low)
    assert row["least"] == pytest.approx(expected)
    gain = result.claims[0].verdict.primary
    assert (
        claim_words.measured(gain)
        == f"at least {row['least']:.2f}× as fast to the target, n=3 sessions"
    )
    endless = replace(gain, least=[-math.inf] * 3)
    assert claim_words.measured(endless) == "–, n=3 sessions"


NOISE_OF_A_PAIR = {"sd": 0.02, "df": 4.4, "source": "24 pairs of arms"}


def test_results_fit_their_schema(tmp_path: Path) -> None:
    text = Path(result_schema.__file__).with_name("result.schema.json").read_text()
    known = json.loads(text)
    assert known == result_schema.schema(), (
        "write it anew: python -c 'import json; from nocap.study.result_schema import schema; "
        "print(json.dumps(schema(), indent=1))' > nocap/study/result.schema.json"
    )
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(known)
    scales = at(lengths=[0.25, 0.5])
    content = study(claims=[RACE], scales=scales)
    made_study = loaded(tmp_path / "made", content)
    evidence = both(by_law("mqa", diverged=1), by_law("mha"), pace=pace(1.1))
    result = resulted(made_study, evidence)
    committed = sorted((Path(__file__).parents[1] / STUDIES).glob("*/results.*.json"))
    assert committed
    for path in [write_result(result, tmp_path), *committed]:
        validator.validate(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"claims": []}, "Object missing required field `schema_version`"),
        ({"schema_version": 1, "kind": "search"}, "Invalid enum value 'search' - at `$.kind`"),
    ],
    ids=["half of a file", "a file of something else"],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: Json, why: str) -> None:
    made_study = loaded(tmp_path / "made", study())
    path = tmp_path / "results.cpu.x.json"
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=re.escape(f"{path} must be results that nocap.study wrote")
    ) as said:
        read_result(path, made_study, StudyLog())
    assert why in str(said.value)


def test_a_declared_noise_reaches_the_verdict_and_its_sentence(tmp_path: Path):
    scales = at(noise={"val_loss": NOISE_OF_A_PAIR})
    claims = [claim(LOSS, expected=[-0.1, None]), SPEED]
    made_study = loaded(tmp_path / "made", study(scales=scales, claims=claims))
    result = resulted(made_study, speeds(FAST, SAME))
    loss, speed = claims_of(result)
    (guard,) = speed["guards"]
    noises = [row["noise"] for row in (loss, speed, guard)]
    assert noises == [NOISE_OF_A_PAIR, None, NOISE_OF_A_PAIR]
    quantile = stats.t.isf(0.005, 2 + 4.4)
    half = 0.02 / math.sqrt(3) * quantile
    width = loss["measured"]["high"] - loss["measured"]["mid"]
    assert width == pytest.approx(half)
    # a ratio of losses of 3
    ratio = guard["measured"]["high"] / guard["measured"]["mid"]
    assert math.log(ratio) == pytest.approx(half / 3, rel=1e-3)
    stored = claims_of(again(result, tmp_path))
    for before, after in zip((loss, speed), stored, strict=True):
        expected = {**before, "exploratory": "not in the study's log"}
        assert {**after, "hash": "made"} == expected
    declared = ", noise of a pair declared as 0.02 with 4.4 degrees of freedom (24 pairs of arms)"
    of_loss = result.claims[0]
    assert claim_words.noise(of_loss.declared(of_loss.verdict.primary)) == declared
    # five times as wide: the declared one is dropped, and nothing says that it was used
    content = study(scales=scales, claims=[LOSS])
    loud = loaded(tmp_path / "loud", content)
    (dropped,) = resulted(loud, speeds(FAST, [3.0, 3.1, 2.9])).claims
    assert dropped.declared(dropped.verdict.primary) is None
    assert claim_words.noise(None) == ""


@pytest.mark.parametrize("seeds", [[5, 3, 1, 0, 2], [9, 8, 7, 1], [2, 5, 0, 1, 3]])
def test_a_page_is_judged_in_the_order_that_was_registered(tmp_path: Path, seeds: list[int]):
    """The page analyses the first three of four or five seeds, as the study does."""
    content = study(claims=[LOSS], seeds=[*seeds, 20, 21][:6])
    made_study = loaded(tmp_path / "made", content)
    runs = {("mha", seed): record("mha", seed, 12, 3.0) for seed in seeds}
    runs |= {("mqa", seed): record("mqa", seed, 12, 3.0 - 0.1 * i) for i, seed in enumerate(seeds)}
    result = resulted(made_study, Evidence(runs=runs))
    (row,) = claims_of(result)
    assert row["n"] == 3
    assert row["measured"]["mid"] == pytest.approx(0.1)
    (stored,) = claims_of(again(result, tmp_path))
    expected = {**row, "exploratory": "not in the study's log"}
    assert {**stored, "hash": "made"} == expected


def test_a_report_keeps_its_authors_text(tmp_path: Path):
    folder = tmp_path / "made"
    made_study = loaded(folder, study(claims=[SPEED]))
    readme = folder / "README.md"
    confirmed = resulted(made_study, speeds(FAST, SAME), stands=LATE)
    refuted = resulted(made_study, speeds(SLOW, SAME), stands=LATE)
    expected = [folder / "results.cpu.abc.json", readme]
    assert study_pages.write(made_study, folder, confirmed) == expected
    first = readme.read_text()
    assert first.startswith(
        "# made: tokens/s, claimed 20% to 30% faster, came to 25.1% faster "
        "[24.0% to 26.2% faster], n=3 sessions: confirmed (cpu, a CPU)\n\n"
        "**Verdicts.** M.speed confirmed (cpu, a CPU)\n\n"
        "**Question.** Does one key/value head "
        "do?\n\n**Method.** Made for a test.\n"
    )
    assert first.endswith("## What was learnt\n\nNothing is written here yet.\n")
    (row,) = [line for line in first.splitlines() if line.startswith("| M.speed | ")]
    assert "| confirmed at 16 × 32 tokens, CPU | " in row
    assert "| above what arithmetic allows: " in row
    assert "; exploratory: registered after 3 runs; 2 analyses" in first

    lessons = "It was fun.\n\n### Really\n\n| a | table |\n"
    readme.write_text(first.replace("Nothing is written here yet.\n", lessons))
    study_pages.write(made_study, folder, refuted)
    second = readme.read_text()
    assert second.splitlines()[0].endswith("n=3 sessions: refuted (cpu, a CPU)")
    assert second.endswith(f"## What was learnt\n\n{lessons}")
    study_pages.write(made_study, folder, refuted)
    assert readme.read_text() == second
    hardware = {**MACHINE, "name": "another", "fingerprint": "def"}
    other = replace(confirmed, hardware=hardware)
    study_pages.write(made_study, folder, other)
    both_verdicts = "M.speed refuted (cpu, a CPU); M.speed confirmed (cpu, another)"
    assert readme.read_text().splitlines()[2] == f"**Verdicts.** {both_verdicts}"
    readme.write_text("my own\n")
    with pytest.raises(ValueError, match="must have the line '## What was learnt'"):
        study_pages.check_readme(folder)


def test_the_leaderboard_has_a_row_a_claim(tmp_path: Path):
    for name, worse in {"slow": -0.05, "quick": -0.2}.items():
        scales = at(lengths=[0.25, 0.5])
        content = study(claims=[RACE, STEPS], scales=scales)
        made_study = loaded(tmp_path / name, content)
        evidence = both(by_law("mqa", worse=worse), by_law("mha"), pace=pace(1.1))
        result = resulted(made_study, evidence)
        study_pages.write(made_study, tmp_path / name, result)
    (tmp_path / "empty").mkdir()
    missing = "- {id: Z9, statement: it flies, expected: 2×, why: no wings}\n"
    (tmp_path / "not_built.yaml").write_text(missing)
    (tmp_path / "quick" / "README.md").write_text("old\n\n## What was learnt\n\nMuch.\n")
    files = []
    for name in ("README.md", "board.html", "quick/README.md", "slow/README.md"):
        files.append(tmp_path / name)
    assert study_pages.write_all(read_board(tmp_path).files()) == files
    # anew, from its results
    page, _, quick, _ = (path.read_text() for path in files)
    assert quick.startswith("# quick: time to the target loss, claimed at least 5% faster to the ")
    assert "\n**Verdicts.** M.time confirmed, M.steps confirmed (cpu, a CPU)\n" in quick
    assert quick.endswith("## What was learnt\n\nMuch.\n")
    assert page.startswith("# Claims about GPT training: 4 confirmed; 1 not built\n")
    lines = [line for line in page.splitlines() if line.startswith("| [")]
    expected = ["quick", "quick", "slow", "slow"]
    folders = [row.split("](")[1].split("/")[0] for row in lines]
    assert folders == expected
    assert "| Z9 | it flies | – | 2× | – | no wings |" in page
    assert f"| {1.1 * math.exp(0.2 / B) - 1:.1%} faster to the target [" in lines[0]


# --- evidence -------------------------------------------------------------------------------------

DIVERGED = (None, Ending.diverged)


def made(tmp_path: Path, *claims: Json, **changed: Any) -> Study:
    scales = at(lengths=[0.25, 0.5])
    content = study(claims=list(claims), scales=scales, **changed)
    return loaded(tmp_path / "made", content)


def measured(
    claim: Claim, study: Study, evidence: Evidence, arm: str
) -> dict[int, tuple[float | None, Ending]]:
    """One arm's primary metric: seed → value and ending."""
    primary = []
    for m in measurements(claim, study, evidence):
        if (m.arm, m.metric.name) == (arm, claim.metric):
            primary.append(m)
    return {m.repeat: (m.value, m.ending) for m in primary}


# --- steps to a loss ------------------------------------------------------------------------------


def raced(claim: Claim, study: Study, evidence: Evidence) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for arm in ("mqa", "mha"):
        ends = measured(claim, study, evidence, arm).values()
        values[arm] = [value for value, _ in ends if value]
    return values


def test_a_race_to_the_loss_that_both_arms_reach(tmp_path: Path):
    made_study = made(tmp_path, RACE, STEPS)
    race, steps = made_study.claims
    evidence = both(by_law("mqa", worse=-0.1), by_law("mha"), pace=pace(1.1))
    needed = 400 * math.exp(-0.1 / B)  # where the arm's law meets the baseline's end
    expected = dict.fromkeys(range(3), (pytest.approx(needed), Ending.measured))
    assert measured(steps, made_study, evidence, "mqa") == expected
    base_finishes = measured(steps, made_study, evidence, "mha")
    assert base_finishes == dict.fromkeys(range(3), (400.0, Ending.measured))
    races = raced(race, made_study, evidence)
    assert races == {
        "mqa": pytest.approx([needed * 10 / 1.1 / 1e3] * 3),
        "mha": pytest.approx([4.0] * 3),
    }
    # then it is the baseline that gets there sooner
    never = both(by_law("mqa", worse=0.1), by_law("mha"), pace=pace(1.1))
    never_races = raced(steps, made_study, never)
    assert never_races == {"mqa": [400.0] * 3, "mha": pytest.approx([needed] * 3)}
    both_laws = both(by_law("mqa"), by_law("mha"))
    assert measured(race, made_study, both_laws, "mqa") == {}  # not timed
    plan = prepare(made_study, "cpu", output_dir="outputs")
    arms = {"train": {"mqa": [plan.train["mqa"], *shorter(plan, plan.train["mqa"])]}}
    # the missing lengths might have been the ones
    assert measured(steps, made_study, replace(evidence, arms=arms), "mqa") == {}
    short = both(by_law("mqa", worse=-0.7), by_law("mha"))  # 400·e^-1.75 = 70 steps would have done
    early = measured(steps, made_study, short, "mqa")
    assert early == dict.fromkeys(range(3), (pytest.approx(100.0), Ending.at_most))


def test_steps_are_seeds_and_their_time_is_the_sessions(tmp_path: Path):
    """Six seeds and three sessions are three pairs, each with two seeds and a session of its
    own."""
    noise = {seed: 0.01 * seed for seed in range(6)}
    made_study = made(tmp_path, RACE, seeds=list(noise))
    speeds = [1.0, 1.1, 1.3]
    paces = []
    for i, speed in enumerate(speeds, start=1):
        arms = pace(speed)[0].measured.arms
        paces.append(session(arms, number=i))
    slower_arm = by_law("mqa", worse=-0.1, noise=noise)
    evidence = both(slower_arm, by_law("mha", noise=noise), pace=paces)
    expected = {}
    for i, speed in enumerate(speeds, start=1):
        ratio = math.exp(-0.1 / B)
        expected[i] = (pytest.approx(4.0 * ratio / speed), Ending.measured)
    assert measured(made_study.claims[0], made_study, evidence, "mqa") == expected


def test_a_race_with_what_diverged(tmp_path: Path):
    made_study = made(tmp_path, STEPS)
    (steps,) = made_study.claims
    evidence = both(by_law("mqa", diverged=1), by_law("mha", diverged=2))
    expected = {0: (pytest.approx(400), Ending.measured), 1: DIVERGED, 2: DIVERGED}
    assert measured(steps, made_study, evidence, "mqa") == expected
    base_finishes = measured(steps, made_study, evidence, "mha")
    assert base_finishes == {0: (400.0, Ending.measured), 1: (400.0, Ending.measured), 2: DIVERGED}
    assert measured(steps, made_study, Evidence(**by_law("mqa")), "mqa") == {}
    lost = both(by_law("mqa", worse=-0.1), by_law("mha"))
    lost.shorter["mqa", 1][200] = record("mqa", 1, 200, None)  # type: ignore[index]
    finish = pytest.approx(400 * math.exp(-0.1 / B))
    between = dict.fromkeys(range(3), (finish, Ending.measured))
    assert measured(steps, made_study, lost, "mqa") == between  # from 100 and 400 steps


# --- profiles -------------------------------------------------------------------------------------

PARTS: Json = {
    "ms": {"scores": 20.0, "qkv": 10.0, "loss": 10.0},
    "step_ms": 100.0,
    "mib": {"scores": 6.0, "qkv": 2.0},
    "memory_mib": {"parameters": 1.0, "gradients": 1.0, "optimizer": 2.0, "activations": 8.0},
    "params": {"qkv": 300, "mlp_up": 700},
    "component_flops": {
        "qkv": 60.0,
        "scores": 30.0,
        "attention_out": 10.0,
        "mlp": 80.0,
        "head": 20.0,
    },
}


PROFILE_METRICS = [
    ({"metric": "share", "scale": "value", "parts": ["scores", "qkv"]}, 0.3),
    (
        {
            "metric": "share",
            "scale": "value",
            "parts": ["scores"],
            "of": ["scores", "qkv", "loss"],
        },
        0.5,
    ),
    ({"metric": "part_ms", "parts": ["scores", "rotary"]}, 20.0),
    ({"metric": "part_mib", "parts": ["scores", "qkv"]}, 8.0),
    ({"metric": "part_params", "parts": ["qkv"]}, 300.0),
    ({"metric": "held_mib", "parts": ["optimizer", "activations"]}, 10.0),
]


@pytest.mark.parametrize(("changed", "value"), PROFILE_METRICS)
def test_measurements_of_a_profile(tmp_path: Path, changed: Json, value: float):
    base = claim(SPEED, guards=[], expected=[0.1, None], mechanism={"formula": "f"})
    claims = [claim(base, **changed), LOSS]
    made_study = loaded(tmp_path / "made", study(claims=claims))
    sessions = {"parts": [session({"mqa": PARTS}, kind="parts")]}
    (measurement,) = measurements(made_study.claims[0], made_study, Evidence(sessions=sessions))

    assert measurement.arm == "mqa"
    assert measurement.repeat == 1
    assert measurement.metric == METRICS[changed["metric"]]
    assert measurement.when == NOW
    assert measurement.value == pytest.approx(value)
    assert measurement.per is (
        Per.session if changed["metric"] in ("share", "part_ms") else Per.exact
    )


# --- bounds ---------------------------------------------------------------------------------------


def parts(profiles: dict[tuple[str, int], Json]) -> Evidence:
    files = list[SessionFile]()
    for (arm, number), profile in profiles.items():
        files.append(session({arm: profile}, number=number, kind="parts"))
    return Evidence(sessions={"parts": files})


def bounded(tmp_path: Path, rule: str, evidence: Evidence, **changed: Any) -> float | None:
    mechanism = {
        "rule": rule,
        "formula": "f",
        **({"parts": ["scores"]} if rule == "amdahl" else {}),
    }
    changed = {"mechanism": mechanism, "guards": [], **changed}
    claims = [claim(SPEED, **changed), LOSS]
    made_study = loaded(tmp_path / "made", study(claims=claims))
    return bound(made_study.claims[0], made_study, evidence)


def test_a_third_of_key_value_heads_saves_seven_percent_of_a_token(tmp_path: Path):
    """12 layers, 768 wide, T=1024, by hand: a layer's products are 2·(12·d² + T·d), the head's
    2·d·V; K and V lose 2/3 of 2·d² each."""
    d = 768
    T = 1024
    V = 50257
    whole = 12 * (12 * d**2 + T * d) + d * V
    by_hand = whole / (whole - 12 * 2 * d**2 * 2 / 3)
    assert by_hand == pytest.approx(1.0764, abs=1e-4)
    d12 = (
        "model=d12",
        "tokenizer=gpt2",
        "mlp=gelu4x",
        "trainer.device=cpu",
        "trainer.precision=fp32",
    )
    arms = {"mha": "attention=flash", "mqa": "attention=gqa attention.n_kv_heads=4"}
    flops = {}
    for name, own in arms.items():
        run = compose([*d12, *own.split()])
        flops[name] = component_flops(run, vocab_size=V)
    counted = {name: {"component_flops": components} for name, components in flops.items()}
    for place in ("bench", "pace"):
        whole_step = Evidence(sessions={place: timed([1], counted)})
        assert bounded(tmp_path, "flops", whole_step) == pytest.approx(by_hand, rel=1e-9)
    flops_of_arms = {}
    for name, components in flops.items():
        flops_of_arms[(name, 1)] = {**PARTS, "component_flops": components}
    apart = parts(flops_of_arms)
    attention = 4 * d**2 + T * d
    saved = attention / (attention - 4 / 3 * d**2)
    cases = ((["qkv", "rotary", "scores", "attention_out"], saved), (["mlp_up", "mlp_down"], 1.0))
    for which, expected in cases:
        bound_of = bounded(tmp_path, "flops", apart, metric="part_ms", parts=which)
        assert bound_of == pytest.approx(expected, rel=1e-9)


def test_other_rules_are_ratios_of_what_was_counted(tmp_path: Path):
    mha: Json = {
        "params": 300,
        "memory_mib": {"peak": 99.0, **dict.fromkeys(HELD, 10.0)},
        "kv_bytes": 96.0,
    }
    mqa: Json = {
        "params": 200,
        "memory_mib": {"peak": 50.0, **dict.fromkeys(HELD, 8.0)},
        "kv_bytes": 8.0,
    }
    lost = {"status": "does not fit", "params": None, "memory_mib": None, "kv_bytes": None}

    def evidence_of(**arms: Json) -> Evidence:
        return Evidence(sessions={"bench": timed([1], arms)})

    both_arms = evidence_of(mha=mha, mqa=mqa)
    less = [evidence_of(mha=mha), evidence_of(mha=mha, mqa=lost)]
    of_a_part = {"metric": "part_mib", "parts": ["scores"]}
    for rule, expected in {"params": 1.5, "memory": 1.25, "kv": 12.0}.items():
        for metric in ({}, of_a_part):  # of the whole arm
            assert bounded(tmp_path, rule, both_arms, **metric) == pytest.approx(expected)
        bounds = [bounded(tmp_path, rule, evidence) for evidence in less]
        assert bounds == [None, None]


def test_a_step_cannot_lose_more_than_its_part(tmp_path: Path):
    slower = {**PARTS, "ms": {"scores": 25.0}}
    other = {**PARTS, "ms": {"scores": 90.0}}
    evidence = parts({("mha", 1): PARTS, ("mha", 2): slower, ("mqa", 1): other})
    # the baseline's, and the largest seen
    expected = 1 / (1 - 0.25)
    assert bounded(tmp_path, "amdahl", evidence) == pytest.approx(expected)
    one = parts({("mqa", 1): PARTS})
    assert bounded(tmp_path, "amdahl", one) is None
    # saved in part: a quarter of an MLP of 40 ms, and scores of 10 ms whole, of a step of 100 ms
    half_done = {**PARTS, "step_ms": 100.0, "ms": {"scores": 10.0, "mlp_up": 40.0}}
    step = parts({("mha", 1): half_done})
    mechanism = {
        "rule": "amdahl",
        "parts": ["scores", "mlp_up"],
        "saved": {"mlp_up": 0.25},
        "formula": "f",
    }
    figure = bounded(tmp_path, "", step, mechanism=mechanism)
    assert figure == pytest.approx(1 / (1 - 0.2))
    given = {"bound": 1.08, "formula": "f"}
    assert bounded(tmp_path, "", Evidence(), mechanism=given) == 1.08


# --- what a claim rests on ------------------------------------------------------------------------


def test_a_claim_rests_on_its_own_runs_and_sessions(tmp_path: Path):
    made_study = made(tmp_path, RACE)
    # 7 is no seed of the claim
    runs = {}
    for arm in ("mha", "mqa"):
        for seed in (0, 1, 7):
            runs[(arm, seed)] = record(arm, seed, 400, 3.0)
    short = {("mqa", 0): {200: record("mqa", 0, 200, 3.1, started="")}}
    # a race needs no bench
    sessions = {
        "pace": pace(1.0, numbers=[1]),
        "bench": timed([1], {"mqa": {}}),
    }
    expected = [
        *(("mha, seed 0", "mha", NOW), ("mha, seed 1", "mha", NOW)),
        *(
            ("mqa, seed 0", "mqa", NOW),
            ("mqa, seed 0, 200 steps", "mqa", ""),
            ("mqa, seed 1", "mqa", NOW),
        ),
        *(("pace session 1", "mha", NOW), ("pace session 1", "mqa", NOW)),
    ]
    used = Evidence(runs=runs, shorter=short, sessions=sessions).used(
        made_study.claims[0], made_study
    )
    assert sorted(used) == expected


# --- noise ----------------------------------------------------------------------------------------


def test_sigma_is_pooled_within_arms() -> None:
    groups = {"mha": [3.0, 3.1, 3.2], "mqa": [2.0, 2.0, 2.3]}
    runs = []
    for arm, values in groups.items():
        for seed, x in enumerate(values):
            runs.append((arm, record(arm, seed, 400, x)))
    variance = np.var(groups["mqa"], ddof=1)
    expected = math.sqrt((0.1**2 + variance) / 2)
    assert sigma(runs) == pytest.approx(expected)
    assert sigma([]) is None
