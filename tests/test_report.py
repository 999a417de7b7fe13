"""The report: what it shows, and that nothing in a run's name or config breaks out of it."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from nocap.display import DURATIONS, ONE, duration, three_digits
from nocap.report import comparison_page as report
from nocap.report import comparison_tables, flat_rows
from nocap.report.axis import decades, round_numbers
from nocap.report.short_names import distinct
from nocap.report.table import Column, Table
from nocap.store.record import Curve, Record
from tests.made_grid import ATTENTION, EVIL, MLP, made, poisoned, with_summary


def text_of(text: str) -> str:
    """What a reader without JavaScript sees."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)
    words = html.unescape(re.sub(r"<[^>]+>", " ", body)).split()
    return " ".join(words)


def payload_of(text: str) -> dict[str, Any]:
    (script,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.S
    )
    payload: dict[str, Any] = json.loads(script)
    return payload


# --- what it shows --------------------------------------------------------------------------------


def test_shows_what_was_compared_and_each_verdict() -> None:
    shown = text_of(report.render(made(seeds=4)))
    assert "11 arms against flash gelu4x: 2 better, 5 worse, 1 no verdict, 3 confounded" in shown
    assert "gqa swiglu better than flash gelu4x by 0.0107 ± 0.0022 nats/token, 0.7% faster" in shown
    assert "12 arms from 45 runs" in shown
    assert "AMD EPYC 9B14" in shown
    assert re.search(
        r"lower loss by 0\.02\d\d ± 0\.00\d\d ✓ better .{0,20}3\.\d% slower \[3\.\d% to 4\.\d% "
        r"slower\]",
        shown,
    )
    assert "confounded (kernel)" in shown
    assert "no verdict (n=1)" in shown
    assert "; params (−12.3%); FLOPs/token (−12.3%)" in shown
    assert "sliding-swiglu-s1 failed" in shown
    assert "1 corrupt line skipped (line 17)" in shown


def headline_of(text: str) -> str:
    (heading,) = re.findall(r"<h1>(.*?)</h1>", text)
    return html.unescape(heading).replace("\xa0", " ")


def test_the_heading_says_what_is_better_than_what_in_which_unit_and_how_fast() -> None:
    assert re.fullmatch(
        r"flash swiglu better than flash gelu4x: lower loss by 0\.02\d\d ± 0\.00\d\d nats/token "
        r"\(95% interval\), 3\.\d% slower \[3\.\d% to 4\.\d% slower\], 0\.1% more parameters\.",
        headline_of(report.render(made(seeds=4))),
    )
    factors = headline_of(report.render(made(seeds=4, broken=False)))
    levels = "activation=swiglu expansion=4 better than activation=gelu expansion=4"
    assert factors.startswith(f"{levels} over 4 levels of kind")


def test_a_level_of_several_keys_has_beside_it_what_sets_them() -> None:
    shown = text_of(report.render(made(seeds=4, broken=False)))
    assert "activation=swiglu expansion=4 (mlp.activation=swiglu mlp.expansion=4)" in shown
    assert "activation+expansion=" not in shown


def test_a_column_has_equal_decimals() -> None:
    of_arms = Column(title="ms", show=three_digits, units=ONE)
    table = Table(title="", columns=[of_arms], rows=[[98.21], [101.4], [1050.0], [None]])
    assert [cell.text for (cell,) in table.cells] == ["98.2", "101.4", "1,050.0", "–"]
    times = Column(title="training", show=duration, units=DURATIONS)
    short = Table(title="", columns=[times], rows=[[60.2], [101.0], [None]])
    assert [cell.text for (cell,) in short.cells] == ["60.2 s", "101.0 s", "–"]
    long = Table(title="", columns=[times], rows=[[98.2], [130.0]])
    assert [cell.text for (cell,) in long.cells] == ["1.6 min", "2.2 min"]
    far = Table(title="", columns=[of_arms], rows=[[0.123], [1234.0]])
    assert [cell.text for (cell,) in far.cells] == ["0.123", "1,234"]


def test_ticks_are_round_and_reach_both_ends() -> None:
    assert round_numbers(0.0, 0.3, 3) == [0.0, 0.1, 0.2, 0.3]
    assert round_numbers(-1.9, 7.0, 4) == [0.0, 5.0]
    assert round_numbers(3.3, 3.34, 5) == [3.3, 3.31, 3.32, 3.33, 3.34]
    assert decades(0.1, 30.0, (1, 2, 5)) == [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    assert decades(0.1, 30.0, (1,)) == [0.1, 1.0, 10.0]


def test_values_that_modules_log_are_a_table_of_means() -> None:
    def logs(record: Record) -> Record:
        if record.arm != "gqa-swiglu":
            return record
        return with_summary(record, logged={"gate": 0.25 + 0.5 * record.seed, "lost": None})

    shown = text_of(report.render(made(2, logs)))
    assert "Logged by modules" in shown
    assert re.search(r"arm gate flash gelu4x – ", shown)
    assert re.search(r"gqa swiglu 0\.5 ", shown.partition("Logged by modules")[2])
    assert "Logged by modules" not in text_of(report.render(made(2)))


def test_tokens_per_second_are_the_runs_own_whatever_a_teacher_took() -> None:
    def distilled(record: Record) -> Record:
        if record.arm != "gqa-swiglu":
            return record
        clock_s = {**record.summary["clock_s"], "teacher": 60.0}
        return with_summary(record, clock_s=clock_s, tokens_per_s=131_072.0)

    comparison = made(2, distilled)
    _, _, costs, _ = comparison_tables.tables(comparison)
    place = costs.head.index("tokens/s")
    (shown,) = [row[place] for row in costs.rows if row[0] == "gqa swiglu"]
    arms = flat_rows.tables_of(comparison)["verdicts"]
    (sent,) = [arm["tokens_per_s"] for arm in arms if arm["arm"] == "gqa swiglu"]
    assert sent == 131_072.0
    assert shown == sent


def on_another_machine(record: Record) -> Record:
    other = {"name": "RTX 4090", "fingerprint": "9f9f9f"}
    if record.arm == "gqa-swiglu":
        return with_summary(record, hardware=other)
    return record


def test_times_of_another_machine_are_refused_with_the_reason() -> None:
    text = report.render(made(2, on_another_machine))
    shown = text_of(text)
    reason = re.search(r"\[(\d)\] other hardware: 1 × RTX 4090 \(9f9f9f\)", shown)
    assert reason
    # beside its verdict, and in the table of speeds; memory is refused for all
    assert shown.count(f"refused [{reason[1]}]") == 2
    assert shown.count("Memory is not compared: a run's record has no figure") == 1
    assert (
        "These arms are not shown, because nocap does not know that they ran on the baseline's "
        "machine: gqa swiglu." in shown
    )
    arms = payload_of(text)["arms"]
    labels = [arm["label"] for arm in arms if not arm["placed"]]
    assert labels == ["gqa swiglu"]


def test_whatever_was_not_measured_is_a_dash() -> None:
    """An older record, a run without validation bytes: nothing of it but its loss is needed."""
    bare = made(
        2,
        lambda record: replace(
            record, summary={"status": record.status, "val_loss": 3.0}, curve=Curve()
        ),
    )
    without = replace(bare, target=None, problems=[])
    shown = text_of(report.render(without))
    assert "gqa gelu4x" in shown
    assert "None" not in shown
    assert "nan" not in shown


def test_non_finite_losses_become_null() -> None:
    def diverges(record: Record) -> Record:
        losses = [*record.curve.val_loss[:-1], math.nan]
        curve = replace(record.curve, val_loss=losses)
        if record.arm == "flash-gelu4x":
            return replace(record, curve=curve)
        return record

    payload = payload_of(report.render(made(1, diverges)))
    first = payload["arms"][0]
    last_losses = [curve["val_loss"][-1] for curve in (*first["seeds"], first["mean"])]
    assert last_losses == [None, None]


def test_mean_curve_keeps_to_the_steps_of_all_finished_seeds() -> None:
    def line(train_s: list[float], val_loss: list[float]) -> Curve:
        n = len(train_s)
        steps = [10 * i for i in range(n)]
        tokens = [*range(n)]
        return Curve(
            step=steps, tokens=tokens, train_s=train_s, val_loss=val_loss, val_bpb=[None] * n
        )

    def mean_of(status: str) -> Any:
        def curved(record: Record) -> Record:
            long = line([0.0, 1.0, 2.0], [9.0, 5.0, 4.0])
            short = line([0.0, 3.0], [9.0, 6.0])
            if record.seed:
                return replace(record, curve=short, status=status)
            return replace(record, curve=long)

        payload = payload_of(report.render(made(2, curved)))
        return payload["arms"][0]["mean"]

    expected = {
        "step": [0, 10],
        "tokens": [0, 1],
        "train_s": [0, 2],
        "val_loss": [9, 5.5],
        "val_bpb": [None, None],
    }
    assert mean_of("finished") == expected
    losses = mean_of("diverged")["val_loss"]
    assert losses == [9, 5, 4]


def test_colour_is_one_factor_and_dash_the_other() -> None:
    page = report.render(made(seeds=1))
    arms = payload_of(page)["arms"]
    looks = {arm["label"]: (arm["hue"], arm["dash"]) for arm in arms}
    assert looks["flash gelu4x"] == (0, 0)
    assert len({*looks.values()}) == 12
    for attention, mlp in itertools.product(ATTENTION, MLP):
        expected = (looks[f"{attention} gelu4x"][0], looks[f"flash {mlp}"][1])
        assert looks[f"{attention} {mlp}"] == expected


# --- what it cannot do ----------------------------------------------------------------------------


def test_names_and_values_stay_text() -> None:
    text = report.render(poisoned())
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "\\u003c/script\\u003e" in text
    arms = payload_of(text)["arms"]
    assert arms[0]["label"] == f"{EVIL} flash gelu4x"


def test_one_file_of_moderate_size_that_names_no_other(tmp_path: Path) -> None:
    report.write(made(seeds=2), tmp_path / "new" / "report.html")
    paths = (tmp_path / "new").iterdir()
    assert [path.name for path in paths] == ["report.html"]
    text = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 0.2e6
    ours = text.replace("http://www.w3.org/2000/svg", "")  # a name, which nothing fetches
    assert not re.search(r"https?:|\bsrc=|\bhref=(?!\"#)|@import|url\(", ours)


def test_the_longest_clock_fills_its_row() -> None:
    def with_wall(record: Record) -> Record:
        clock = record.summary["clock_s"]
        clock_s = {**clock, "wall": sum(clock.values())}
        return with_summary(record, clock_s=clock_s)

    page = report.render(made(2, with_wall))
    rows = re.findall(r'<td class="bar">(.*?)</td>', page)
    shares = [sum(map(float, re.findall(r"width:([\d.]+)%", row))) for row in rows]
    assert round(max(shares)) == 100


def test_short_names_lose_keys_that_their_values_tell() -> None:
    names = ["gelu4x position=none", "gelu3x position=rope", "gelu3x lr=0.01 tied=true"]
    expected = ["gelu4x none", "gelu3x rope", "gelu3x lr=0.01 tied=true"]
    assert distinct(names) == expected
    assert distinct(["a=none", "b=none"]) == ["a=none", "b=none"]
