"""Results as people read them: the sentence of each verdict, a study's README, the board. From made
evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from nocap.judge.interval import of_pairs
from nocap.study import pages, words
from nocap.study.conduct import Done
from nocap.study.evidence import Evidence
from nocap.study.log import Log
from nocap.study.plan import prepare
from nocap.study.registration import Provenance
from nocap.study.results import judged, results
from nocap.study.spec import Study
from tests.studies import (
    LOSS,
    NOISE,
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
)

MACHINE = {"name": "a CPU", "cores": 2, "torch": "2.13", "fingerprint": "abc", "host": "secret"}
STANDS = Provenance(hash="made", at="2026-11-21T12:00:00+00:00", exploratory=None, notes=[])
LATE = replace(STANDS, exploratory="registered after 3 runs", notes=["2 analyses"])


def resulted(made_study: Study, evidence: Evidence, *, stands: Provenance = STANDS) -> Json:
    plan = prepare(made_study, "cpu", output_dir="outputs")
    done = Done(
        part=plan,
        evidence=evidence,
        stands={claim.id: stands for claim in made_study.claims},
    )
    content = results(done, hardware=MACHINE, command="made")
    assert "host" not in content["hardware"]
    return content


def speeds(ratios: list[float], losses: list[float | None]) -> Evidence:
    arms = [{"mha": 1000.0, "mqa": 1000.0 * ratio} for ratio in ratios]
    bench = [
        session(
            {name: {**SEEN, "step_ms": 1.0, "tokens_per_s": x} for name, x in speeds.items()}, number=number
        )
        for number, speeds in enumerate(arms, start=1)
    ]
    runs = {("mha", seed): record("mha", seed, 12, 3.0) for seed in range(3)}
    runs |= {("mqa", seed): record("mqa", seed, 12, loss) for seed, loss in enumerate(losses)}
    return Evidence(sessions={"bench": bench}, runs=runs)


FAST, SLOW = [1.25, 1.251, 1.252], [1.05, 1.051, 1.052]
SAME: list[float | None] = [3.0, 3.001, 3.002]


@pytest.mark.parametrize(
    ("ratios", "losses", "start"),
    [
        (FAST, SAME, "M.speed confirmed at "),
        ([1.35, 1.351, 1.352], SAME, "M.speed exceeded at "),
        (SLOW, SAME, ": worse than stated: "),
        (FAST, [4.0, 4.001, 4.002], ": its validation loss is worse: "),
        ([1.1, 1.25, 1.4], SAME, ": no affordable number of pairs would decide: "),
        ([1.22, 1.25, 1.28], SAME, " more sessions would decide: "),
        ([1.25, 1.251], SAME, ": 1 missing (tokens_per_s, session 3): "),
        (FAST, [3.0, 3.0, None], ": its validation loss is worse: "),
    ],
)
def test_what_is_said_of_each_verdict(
    tmp_path: Path, ratios: list[float], losses: list[float | None], start: str
):
    made_study = loaded(tmp_path / "made", study(claims=[SPEED]))
    said = pages.render(resulted(made_study, speeds(ratios, losses), stands=LATE), made_study)
    head, facts = said.split("\n\n")[1].split("\n", 1)
    assert head.startswith("M.speed ")
    assert start in head
    for fact in (
        "arithmetic allows  no gain (FLOPs of a token)",
        f"n={len(ratios)} sessions\n",
        "where              2 layers, 64 wide, T=32, ",
        "exploratory: registered after 3 runs; 2 analyses",
    ):
        assert fact in facts
    assert ("diverged, counted as worst: mqa, seed 2" in said) == (None in losses)
    assert (words.BEYOND in said) == (ratios != [1.1, 1.25, 1.4] and len(ratios) == 3)


def test_an_arms_loss_is_of_the_runs_that_finished(tmp_path: Path):
    made_study = loaded(tmp_path / "made", study(claims=[RACE], scales=at(lengths=[0.25, 0.5])))
    content = resulted(made_study, both(by_law("mqa", diverged=1), by_law("mha"), pace=pace(1.1)))
    mha, mqa = content["arms"]
    assert (mha["val_loss"]["all"], mha["diverged"]) == ([law(400) + x for x in NOISE.values()], [])
    assert (mqa["val_loss"]["all"], mqa["diverged"]) == ([law(400) + NOISE[0], law(400) + NOISE[2]], [1])
    assert re.search("^mqa .*, 1 diverged", pages.render(content, made_study), re.M)


def test_a_claim_with_one_end_and_without_a_bound(tmp_path: Path):
    claims = [LOSS, claim(LOSS, id="M.equal", expected=[0, None])]
    low, equal = resulted(loaded(tmp_path / "made", study(claims=claims)), speeds([1.0] * 3, SAME))["claims"]
    assert (words.expected(low), words.allowed(low)) == ("higher loss by at most 1.0000", "–")
    assert words.measured(equal).startswith("higher loss by 0.0010 ± ")
    assert words.expected(equal) == "no higher loss"


def test_a_gain_that_is_only_bounded_shows_its_lower_end(tmp_path: Path):
    """Its shortest schedule, a quarter of 400 steps, already ends at the baseline's loss; twice the pace is
    eight times as fast, or more."""
    made_study = loaded(tmp_path / "made", study(claims=[RACE], scales=at(lengths=[0.25, 0.5])))
    paces = [
        session(pace(speed)[0]["measured"]["arms"], number=i) for i, speed in enumerate([1.9, 2.0, 2.1], 1)
    ]
    evidence = both(by_law("mqa", worse=-0.7), by_law("mha"), pace=paces)
    (row,) = resulted(made_study, evidence)["claims"]
    gains = [math.log(4 * speed) for speed in (1.9, 2.0, 2.1)]
    assert (row["measured"], row["least"]) == (None, pytest.approx(math.exp(of_pairs(gains, bias=0.005).low)))
    assert words.measured(row) == f"at least {row['least']:.2f}× as fast to the target, n=3 sessions"
    assert words.measured({**row, "least": None}) == "–, n=3 sessions"


NOISE_OF_A_PAIR = {"sd": 0.02, "df": 4.4, "source": "24 pairs of arms"}


def test_a_declared_noise_reaches_the_verdict_and_its_sentence(tmp_path: Path):
    scales = at(noise={"val_loss": NOISE_OF_A_PAIR})
    made_study = loaded(
        tmp_path / "made", study(scales=scales, claims=[claim(LOSS, expected=[-0.1, None]), SPEED])
    )
    content = resulted(made_study, speeds(FAST, SAME))
    loss, speed = content["claims"]
    (guard,) = speed["guards"]
    assert [row["noise"] for row in (loss, speed, guard)] == [NOISE_OF_A_PAIR, None, NOISE_OF_A_PAIR]
    half = 0.02 / math.sqrt(3) * stats.t.isf(0.005, 2 + 4.4)
    assert loss["measured"]["high"] - loss["measured"]["mid"] == pytest.approx(half)
    # a ratio of losses of 3
    ratio = guard["measured"]["high"] / guard["measured"]["mid"]
    assert math.log(ratio) == pytest.approx(half / 3, rel=1e-3)
    assert judged(content, Log())["claims"] == [
        {**row, "exploratory": "not in its study's log"} for row in content["claims"]
    ]
    declared = ", noise of a pair declared as 0.02 with 4.4 degrees of freedom (24 pairs of arms)"
    assert words.noise(loss) == declared
    # five times as wide: the declared one is dropped, and nothing says that it was used
    loud = loaded(tmp_path / "loud", study(scales=scales, claims=[LOSS]))
    (dropped,) = resulted(loud, speeds(FAST, [3.0, 3.1, 2.9]))["claims"]
    assert (dropped["noise"], words.noise(dropped)) == (None, "")


def test_a_report_keeps_its_authors_text(tmp_path: Path):
    folder = tmp_path / "made"
    made_study, readme = loaded(folder, study(claims=[SPEED])), folder / "README.md"
    confirmed, refuted = (resulted(made_study, speeds(ratios, SAME), stands=LATE) for ratios in (FAST, SLOW))
    assert pages.write(made_study, folder, confirmed) == [folder / "results.cpu.abc.json", readme]
    first = readme.read_text()
    assert first.startswith(
        "# made: M.speed confirmed (cpu, a CPU)\n\n**Question.** Does one key/value head "
        "do?\n\n**Method.** Made for a test.\n"
    )
    assert first.endswith("## What was learnt\n\nNothing is written here yet.\n")
    assert "| confirmed at 16 × 32 tokens, CPU | above what arithmetic allows: " in first
    assert "; exploratory: registered after 3 runs; 2 analyses" in first

    lessons = "It was fun.\n\n### Really\n\n| a | table |\n"
    readme.write_text(first.replace("Nothing is written here yet.\n", lessons))
    pages.write(made_study, folder, refuted)
    second = readme.read_text()
    assert second.startswith("# made: M.speed refuted (cpu, a CPU)\n")
    assert second.endswith(f"## What was learnt\n\n{lessons}")
    pages.write(made_study, folder, refuted)
    assert readme.read_text() == second
    other = {**confirmed, "hardware": {**MACHINE, "name": "another", "fingerprint": "def"}}
    pages.write(made_study, folder, other)
    head = "# made: M.speed refuted (cpu, a CPU); M.speed confirmed (cpu, another)\n"
    assert readme.read_text().startswith(head)
    readme.write_text("my own\n")
    with pytest.raises(ValueError, match="must have the line '## What was learnt'"):
        pages.check_readme(folder)


def test_the_leaderboard_has_a_row_a_claim(tmp_path: Path):
    for name, worse in {"slow": -0.05, "quick": -0.2}.items():
        made_study = loaded(tmp_path / name, study(claims=[RACE, STEPS], scales=at(lengths=[0.25, 0.5])))
        evidence = both(by_law("mqa", worse=worse), by_law("mha"), pace=pace(1.1))
        pages.write(made_study, tmp_path / name, resulted(made_study, evidence))
    (tmp_path / "empty").mkdir()
    missing = "- {id: Z9, statement: it flies, expected: 2×, why: no wings}\n"
    (tmp_path / "not_built.yaml").write_text(missing)
    (tmp_path / "quick" / "README.md").write_text("old\n\n## What was learnt\n\nMuch.\n")
    files = [tmp_path / name for name in ("README.md", "board.html", "quick/README.md", "slow/README.md")]
    assert pages.write_board(tmp_path) == files
    # anew, from its results
    page, _, quick, _ = (path.read_text() for path in files)
    assert quick.startswith("# quick: M.time confirmed, M.steps confirmed (cpu, a CPU)\n")
    assert quick.endswith("## What was learnt\n\nMuch.\n")
    assert page.startswith("# 4 claims: 4 confirmed; 1 not built\n")
    lines = [line for line in page.splitlines() if line.startswith("| [")]
    assert [row.split("](")[1].split("/")[0] for row in lines] == ["quick", "quick", "slow", "slow"]
    assert "| Z9 | it flies | 2× | – | no wings |" in page
    assert f"| {1.1 * math.exp(0.2 / B) - 1:.1%} faster to the target [" in lines[0]
