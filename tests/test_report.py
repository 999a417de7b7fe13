"""The report: what it says, and that nothing in a run's name or config breaks out of it."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from nocap.judge import report
from nocap.judge import report_words as words
from tests.made_grid import ATTENTION, EVIL, MLP, effect, made, poisoned


@pytest.fixture
def grid() -> dict[str, Any]:
    return made(seeds=2)


def words_of(text: str) -> str:
    """What a reader without JavaScript sees."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def payload_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.S)
    payload: dict[str, Any] = json.loads(found)
    return payload


def arm_named(comparison: dict[str, Any], label: str) -> dict[str, Any]:
    arm: dict[str, Any] = next(arm for arm in comparison["arms"] if arm["label"] == label)
    return arm


# --- what it says ------------------------------------------------------------------------------------------------------------------


def test_says_what_was_compared_and_each_verdict() -> None:
    said = words_of(report.render(made(seeds=4)))
    assert "Of 11 changes to flash gelu4x, 2 lower the loss, 5 raise it, 1 has no verdict yet and 3 are confounded." in said
    assert "12 arms, 45 runs" in said
    assert "AMD EPYC 9B14" in said
    assert "2,000 steps, 8.19M tokens" in said
    assert "Lower loss than the baseline. Slower: 0.96× tokens/s." in said
    assert "Confounded: kernel differs as well." in said
    assert "No verdict (n=1): it may be luck." in said
    assert "sliding-swiglu-s1 failed" in said
    assert "1 corrupt line skipped (line 17)" in said


def test_two_seeds_are_no_verdict(grid: dict[str, Any]) -> None:
    assert "Of 11 changes to flash gelu4x, 8 have no verdict yet and 3 are confounded." in words_of(report.render(grid))
    grid["arms"] = [arm for arm in grid["arms"] if not arm["label"].startswith("mha")]
    assert "8 changes to flash gelu4x, and no verdict yet: too few seeds." in words_of(report.render(grid))


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        ("better", "gqa gelu4x lowers the loss, compared with flash gelu4x."),
        ("worse", "gqa gelu4x raises the loss, compared with flash gelu4x."),
        ("no difference shown", "gqa gelu4x shows no difference, compared with flash gelu4x."),
        ("no verdict (1 of 3 seeds diverged)", "gqa gelu4x has no verdict yet, compared with flash gelu4x."),
        ("confounded: data", "gqa gelu4x is confounded, compared with flash gelu4x."),
    ],
)
def test_headline_of_one_change(grid: dict[str, Any], verdict: str, headline: str) -> None:
    arm = arm_named(grid, "gqa gelu4x")
    arm["difference"]["verdict"] = verdict
    grid["arms"] = [arm_named(grid, "flash gelu4x"), arm]
    assert headline in words_of(report.render(grid))


def test_times_of_another_machine_are_refused_with_the_reason(grid: dict[str, Any]) -> None:
    arm = arm_named(grid, "gqa swiglu")
    for key in ("tokens_per_s", "train_s", "step_ms", "memory_mib"):
        arm[key] = {"mean": arm[key]["mean"], "ratio": None, "refused": "other hardware: RTX 4090"}
    arm["hardware"] = ["9f9f9f"]
    text = report.render(grid)
    assert "Speed not compared: other hardware: RTX 4090." in words_of(text)
    assert "2 setups: times are compared within each" in words_of(text)
    assert "Not shown, for they ran on another machine: gqa swiglu." in words_of(text)
    assert [arm["label"] for arm in payload_of(text)["arms"] if not arm["placed"]] == ["gqa swiglu"]


def test_whatever_was_not_measured_is_a_dash(grid: dict[str, Any]) -> None:
    """An older record, a run without validation bytes, a baseline alone: nothing of the comparison but its frame is needed."""
    keep = ("arm", "label", "n", "runs")
    for arm in grid["arms"]:
        arm |= {key: None for key in arm if key not in keep}
    arm_named(grid, "gqa gelu4x")["difference"] = {"mean": None, "low": None, "high": None, "p": None, "p_holm": None, "verdict": None}
    for run in grid["runs"]:
        run |= {key: None for key in run if key not in ("identity", "name", "arm", "label")}
    grid |= {"effects": None, "target": None, "swept": [], "problems": [], "not_compared": [], "effects_refused": "a run diverged"}
    said = words_of(report.render(grid))
    assert "gqa gelu4x" in said
    assert "No table of effects: a run diverged." in said
    assert "None" not in said
    assert "nan" not in said


def test_losses_that_are_no_numbers_become_null(grid: dict[str, Any]) -> None:
    grid["runs"][0]["curve"]["val_loss"][-1] = math.nan
    arm_named(grid, "gqa gelu4x")["val_loss"]["mean"] = math.inf
    plotted = payload_of(report.render(grid))["arms"]
    assert plotted[0]["seeds"][0]["val_loss"][-1] is None
    assert plotted[0]["mean"]["val_loss"][-1] is None
    assert next(arm for arm in plotted if arm["label"] == "gqa gelu4x")["val_loss"]["mean"] is None


def test_mean_curve_keeps_to_the_steps_of_all_finished_seeds(grid: dict[str, Any]) -> None:
    a, b = grid["runs"][:2]
    a["curve"] = {"step": [0, 10, 20], "tokens": [0, 1, 2], "train_s": [0.0, 1.0, 2.0], "val_loss": [9.0, 5.0, 4.0], "val_bpb": None}
    b["curve"] = {"step": [0, 10], "tokens": [0, 1], "train_s": [0.0, 3.0], "val_loss": [9.0, 6.0], "val_bpb": None}
    mean = payload_of(report.render(grid))["arms"][0]["mean"]
    assert mean == {"step": [0, 10], "tokens": [0, 1], "train_s": [0, 2], "val_loss": [9, 5.5], "val_bpb": [None, None]}
    b["status"] = "diverged"
    assert payload_of(report.render(grid))["arms"][0]["mean"]["val_loss"] == [9, 5, 4]


def test_colour_is_one_factor_and_dash_the_other(grid: dict[str, Any]) -> None:
    looks = {arm["label"]: (arm["hue"], arm["dash"]) for arm in payload_of(report.render(grid))["arms"]}
    assert looks["flash gelu4x"] == (0, 0)
    assert len({*looks.values()}) == 12
    for attention, mlp in itertools.product(ATTENTION, MLP):
        assert looks[f"{attention} {mlp}"] == (looks[f"{attention} gelu4x"][0], looks[f"flash {mlp}"][1])


def test_a_rounded_zero_has_no_minus() -> None:
    assert (words.signed(-1e-9), words.signed(-0.00012), words.signed(None)) == ("+0.0000", "−0.0001", "–")


def test_speed_effects_are_per_cent() -> None:
    tables = dict(words.effects({"main_effects_on_log_tokens_per_s": [effect("gqa (for flash)", math.log(1.05), 0.0, "higher")]}))
    assert [row["mean"] for rows in tables.values() for row in rows] == ["+5.0%"]


# --- what it cannot do -------------------------------------------------------------------------------------------------------------


def test_names_and_values_stay_text(grid: dict[str, Any]) -> None:
    text = report.render(poisoned(grid))
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("</script>") == 3
    assert "\\u003c/script\\u003e" in text
    assert payload_of(text)["arms"][0]["label"] == f"{EVIL} flash gelu4x"


def test_one_file_of_moderate_size_that_names_no_other(grid: dict[str, Any], tmp_path: Path) -> None:
    report.write(grid, tmp_path / "new" / "report.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
    text = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 6e6
    ours = re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", text, flags=re.S)
    assert len(ours) < 0.4e6
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(", ours)
