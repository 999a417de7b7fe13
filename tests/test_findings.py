"""What was found first, and what to run next: in the terminal, on both pages and in JSON."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.judge.interval import of_arms, of_pairs, of_samples, seeds_to_show
from nocap.report import comparison_markdown, result_file
from nocap.report import comparison_page as page
from nocap.report.comparison_tables import render
from nocap.report.headline import findings as headline_findings
from nocap.report.headline import headline, next_step
from nocap.store.record import Record
from nocap.store.runs import Found, load_runs
from tests.made_grid import made, record_of, with_summary
from tests.test_compare import write_run
from tests.test_factors import drawn, judged

Json = dict[str, Any]


def runs(root: Path, losses: dict[str, list[float]], **more: Any) -> Comparison:
    """Records of these arms, seed by seed: the baseline first."""
    for seed, (name, of_seed) in itertools.product(range(9), losses.items()):
        if seed < len(of_seed):
            place = [*losses].index(name)
            about: Json = {
                "config": {"mlp.expansion": float(4 + place)},
                "started": f"2026-01-01T00:0{seed}:0{place}",
            }
            write_run(root, words=f"gpt2-{name}", seed=seed, loss=of_seed[seed], **about, **more)
    return compare(load_runs([root]))


FLAT = [3.30, 3.31, 3.29, 3.30]
NOISY = [3.31, 3.305, 3.31, 3.295]  # above it by 0.005 ± 0.015
DRIFT = (0.02, 0.001, 0.02, 0.004)


# --- how many seeds would show it -----------------------------------------------------------------


def test_so_many_seeds_show_it_nine_times_in_ten() -> None:
    """Student's power at the second look, by the noncentral t, with the spread of the first."""
    estimate = of_pairs([0.9, -0.5, 0.3, 0.7, -0.1, 0.2])
    n = seeds_to_show(estimate, look=1)
    assert n is not None

    def power(size: int) -> float:
        bar = stats.t.isf(0.05 / 2 / 4, size - 1)
        shift = estimate.mid / estimate.sd * size**0.5
        return float(stats.nct.sf(bar, size - 1, shift))

    assert power(n) >= 0.89
    assert power(n - 3) < 0.9


def test_seeds_of_several_arms_share_the_error() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(2, 1, size=(5, 6))
    rows = noise + rng.normal(size=6)
    estimates = of_arms(rows.tolist())
    together = [seeds_to_show(each, look=1) for each in estimates]
    alone = [seeds_to_show(of_pairs(row), look=1) for row in rows]
    for more, one in zip(together, alone, strict=True):
        assert one is not None
        assert (more or 99) >= one


def test_what_no_number_shows_has_none() -> None:
    pairs = of_pairs([1.0, -1.0, 0.001])
    assert seeds_to_show(pairs, look=1) is None
    pairs = of_pairs([0.0, 0.0, 0.0])
    assert seeds_to_show(pairs, look=1) is None
    assert seeds_to_show(of_samples([1.0, 2.0], [1.0, 2.0]), look=1) is None


# --- the headline ---------------------------------------------------------------------------------


def test_the_headline_names_the_level_that_was_shown_and_what_would_show_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    effects = {"swiglu": -0.05, "gqa": 0.01}
    losses = drawn(rng, "flash gqa", "gelu4x swiglu gelu3x", n=4, effects=effects)
    content = judged(tmp_path, "attention+mlp", losses)
    found = content["findings"]["found"]
    names = [each["name"] for each in found]
    assert names == ["mlp=swiglu", "attention=gqa", "mlp=gelu3x"]
    assert found[1]["over"] == {"mlp": 3}
    expected = content["by_factor"]["factors"][0]["levels"][0]["difference"]
    assert found[1]["difference"] == expected
    seeds = found[1]["seeds_to_show"]
    assert seeds > 4
    assert found[0]["seeds_to_show"] is None
    assert content["findings"]["next"] is None  # of a table that another program wrote
    first, second, *_ = capsys.readouterr().out.splitlines()
    better = r"found: mlp=swiglu better than mlp=gelu4x by 0\.0\d{3} ± 0\.0\d{3} nats/token"
    assert re.fullmatch(better, first)
    gap = f"{found[1]['difference']['mean']:.4f}"
    assert second.strip() == (
        "attention=gqa against attention=flash over 3 levels of mlp: no difference shown (about "
        f"{seeds} seeds would show {gap} nats/token)"
    )


def test_the_rest_is_counted(tmp_path: Path) -> None:
    worse = {}
    for i in range(1, 6):
        worse[f"m{i}"] = [loss + 0.1 * i for loss in FLAT]
    comparison = runs(tmp_path, {"base": FLAT, **worse, "noisy": NOISY})
    assert re.fullmatch(
        r"m5 worse than base by 0\.5000 ± 0\.\d{4} nats/token.*; m4 worse than base by .*; "
        "m3 worse than base by .*; 3 other findings: 2 worse, 1 no difference shown",
        headline(comparison),
    )


def test_the_only_other_arm_is_named_and_one_word_of_all_others_is_not_counted(
    tmp_path: Path,
) -> None:
    losses = {"base": FLAT}
    for i in range(1, 6):
        losses[f"m{i}"] = [loss + 0.1 * i for loss in FLAT]
    assert headline(runs(tmp_path / "five", losses)).endswith("; 2 other findings: worse")
    losses.pop("m5")
    assert "; m1 worse than base by 0.1000 " in headline(runs(tmp_path / "four", losses))


def test_what_an_arm_is_compared_with_is_always_named(tmp_path: Path) -> None:
    losses = {"base": FLAT}
    for i in range(1, 4):
        losses[f"m{i}"] = [loss + 0.1 * i for loss in FLAT]
    assert headline(runs(tmp_path, losses)).count(" worse than base by ") == 3


def costly(record: Record) -> Record:
    """Let grouped queries have a lower loss, and take more memory."""
    if not record.arm.startswith("gqa"):
        return with_summary(record, memory_mib={"model": 1000.0})
    loss = record.summary["val_loss"] - 0.05
    return with_summary(record, val_loss=loss, memory_mib={"model": 1120.0})


def test_the_headline_says_what_an_arm_costs() -> None:
    """Its speed, memory and parameters beside the baseline's, of a level those of its arms."""
    costs = r"12\.0% more memory, 3\.\d% fewer parameters"
    arm = headline_findings(made(4, costly))[1]
    assert re.fullmatch(
        rf"gqa gelu4x better than flash gelu4x by .* nats/token, 4\.8% faster, {costs}", arm
    )
    by_factor = made(4, costly, broken=False)
    level = headline_findings(by_factor)[0]
    assert re.fullmatch(rf".* better than .* nats/token, 4\.7% faster, {costs}", level)
    (heading,) = re.findall("<h1>(.*)</h1>", page.render(by_factor))
    assert re.fullmatch(
        rf".* better than .* nats/token \(95% interval\), 4\.7% faster \[.*\], {costs}\.", heading
    )


def test_what_costs_less_says_so_where_no_difference_is_shown() -> None:
    records = [record_of("flash", "gelu4x", seed) for seed in range(3)]
    for seed in range(3):
        loss = record_of("flash", "gelu4x", seed + 7).summary["val_loss"]
        records.append(with_summary(record_of("gqa", "gelu4x", seed), val_loss=loss))
    (gqa,) = headline_findings(compare(Found(records=records)))
    costs = r"4\.\d% faster, 3\.8% fewer parameters"
    assert re.fullmatch(rf"gqa against flash: no difference shown.*, {costs}", gqa)


def test_a_speed_that_is_not_shown_is_said_beside_a_gain(tmp_path: Path) -> None:
    """In the first lines of the terminal, of Markdown and of the page."""
    best = [x - 0.2 + d for x, d in zip(FLAT, DRIFT, strict=True)]
    comparison = runs(tmp_path, {"base": FLAT, "best": best})
    (found,) = headline_findings(comparison)
    gain = r"best better than base by 0\.\d{4} ± 0\.\d{4} nats/token"
    assert re.fullmatch(rf"{gain}, no difference shown in speed", found)
    assert " ".join(render(comparison).split()).startswith(f"found: {found}")
    text = comparison_markdown.page(comparison, judge=result_file.judge(), command="compare")
    assert text.startswith(f"# {found}\n")
    (heading,) = re.findall("<h1>(.*)</h1>", page.render(comparison))
    assert heading.endswith("(95% interval), no difference shown in speed.")


def test_an_arm_alone_is_said_to_be_so(tmp_path: Path) -> None:
    assert (
        headline(runs(tmp_path, {"base": FLAT}))
        == "there is only one arm, gpt2-base; nocap cannot compare it"
    )


def test_arms_are_sorted_by_effect_after_the_baseline(tmp_path: Path) -> None:
    worse = [x + 0.2 for x in FLAT]
    losses = {"base": FLAT, "worst": worse, "one": FLAT[:1], "best": [x - 0.2 for x in FLAT]}
    comparison = runs(tmp_path, losses)
    labels = [row.label for row in comparison.rows]
    assert labels == ["base", "best", "one", "worst"]
    assert [row.label for row in comparison.arms] == [*losses]  # as JSON has them


# --- what to run next -----------------------------------------------------------------------------


def test_a_difference_that_is_not_shown_asks_for_the_seeds_that_would_show_it(
    tmp_path: Path,
) -> None:
    noisy = [x + d for x, d in zip(FLAT, DRIFT, strict=True)]
    comparison = runs(tmp_path, {"base": FLAT, "noisy": noisy})
    (found,) = comparison.findings.found
    assert found.seeds is not None
    assert 4 < found.seeds <= 16
    seeds = [*range(found.seeds)]
    findings = to_json(result_of(comparison))["findings"]
    following = findings["next"]
    assert following["key"] == "seed"
    assert following["values"] == seeds
    walls_s = [run.summary["clock_s"]["wall"] for row in comparison.rows for run in row.arm.all]
    missing = 2 * (found.seeds - 4)  # of two arms
    assert following["minutes"] == pytest.approx(missing * fmean(walls_s) / 60, abs=1e-3)
    assert following["minutes"] > 0
    seeds_text = ",".join(map(str, seeds))
    line = f"next: the same command with seed={seeds_text} (nocap keeps the finished runs)"
    assert render(comparison).endswith(line)
    text = re.sub(r"<[^>]+>", " ", page.render(comparison))
    words = html.unescape(text).split()
    shown = " ".join(words)
    assert line in shown
    assert shown.startswith(headline(comparison))
    assert "No arm is shown to be better than base in validation loss." in shown
    assert shown.count(headline(comparison)) == 2  # the title, and below the answer
    assert headline(comparison).endswith(" nats/token), no difference shown in speed")


def test_a_page_in_markdown_has_both(tmp_path: Path) -> None:
    comparison = runs(tmp_path, {"base": FLAT, "noisy": NOISY})
    text = comparison_markdown.page(
        comparison, judge=result_file.judge(), command="python -m nocap.compare runs"
    )
    assert f"# {headline(comparison)}" in text
    assert f"* {next_step(comparison)}" in text


def test_what_four_times_the_seeds_would_not_show_asks_for_longer_runs(tmp_path: Path) -> None:
    comparison = runs(tmp_path, {"base": FLAT, "same": [3.31, 3.30, 3.2901, 3.30]})
    more = comparison.findings.next
    assert more is not None
    assert more.override == "trainer.steps=1600"
    (found,) = comparison.findings.found
    reason = "more seeds alone would not be enough; longer runs need fewer seeds"
    if found.seeds is not None:
        reason = (
            f"about {found.seeds} seeds would be necessary, more than 4 times as many as now; "
            "longer runs "
            "need fewer seeds"
        )
    assert next_step(comparison) == f"next: the same command with {more.override} ({reason})"


def test_what_is_equal_to_rounding_asks_for_nothing(tmp_path: Path) -> None:
    """As two kernels of one attention are."""
    same = [loss + 1e-7 * sign for loss, sign in zip(FLAT, (1, -1, -1, 1), strict=True)]
    findings = runs(tmp_path, {"base": FLAT, "same": same}).findings
    assert findings.next is None


def test_too_few_seeds_ask_for_four(tmp_path: Path) -> None:
    lengths = {"base": FLAT[:1], "other": FLAT[:1]}
    more = runs(tmp_path, lengths).findings.next
    assert more is not None
    assert more.override == "seed=0,1,2,3"


def test_what_was_asked_for_and_is_not_there_is_asked_for_again(tmp_path: Path) -> None:
    asked = ("2026-01-01T00:00:00", (0, 1, 2, 7))
    longer = {"base": FLAT, "other": FLAT[:3]}
    more = runs(tmp_path, longer, asked=asked).findings.next
    assert more is not None
    assert more.override == "seed=0,1,2,3,7"


def test_where_all_losses_are_shown_the_speed_is_next(tmp_path: Path) -> None:
    worse = [x + 0.2 for x in FLAT]
    comparison = runs(tmp_path, {"base": FLAT, "worse": worse})
    assert comparison.findings.next is None
    line = (
        "next: the loss needs no more runs; for the speed, type the same command with --time 60, "
        "which times the arms in turns"
    )
    assert next_step(comparison) == line
    assert " ".join(render(comparison).split()).endswith(line)


def test_where_all_is_shown_nothing_is_asked() -> None:
    records = [record_of("flash", "gelu4x", seed) for seed in range(3)]
    for seed in range(3):
        loss = record_of("flash", "gelu4x", seed).summary["val_loss"] + 0.2
        records.append(with_summary(record_of("gqa", "gelu4x", seed), val_loss=loss))
    comparison = compare(Found(records=records))
    assert next_step(comparison) == "next: the loss needs no more runs"


def test_one_arm_asks_for_another(tmp_path: Path) -> None:
    alone = runs(tmp_path, {"base": FLAT})
    assert next_step(alone) == "next: train another arm, so that nocap can compare two arms"


def test_a_chain_asks_for_more_without_a_command(tmp_path: Path) -> None:
    """There is no one command that adds to all of its arms."""
    runs(tmp_path, {"base": FLAT, "noisy": NOISY})
    chain = compare(load_runs([tmp_path]), against="previous")
    assert next_step(chain) == (
        "next: repeat the commands that started these runs, with more seeds or more steps"
    )


# --- figures beside a word ------------------------------------------------------------------------


def test_a_difference_that_has_a_word_is_not_the_same(tmp_path: Path) -> None:
    """However small: five in a hundred thousand of a nat are shown."""
    slightly = [x + 3e-5 for x in FLAT]
    comparison = runs(tmp_path, {"base": FLAT, "worse": slightly})
    (found,) = comparison.findings.found
    assert found.difference.word_with_reason == "worse"
    assert "worse than base by 3e-05" in headline(comparison)
    assert "higher loss by 3e-05" in render(comparison)
    equal = [x + 1e-9 for x in FLAT]
    same = runs(tmp_path / "same", {"base": FLAT, "same": equal})
    assert "the same" in render(same)


def test_the_cautious_interval_is_called_so(tmp_path: Path) -> None:
    runs(tmp_path, {"base": FLAT, "noisy": NOISY})
    content = load_runs([tmp_path])
    assert "± is half of the cautious interval, which decides" in render(
        compare(content, cautious=True)
    )
