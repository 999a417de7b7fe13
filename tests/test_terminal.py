"""Tables, prose and curves in terminals of several widths, and where there is none."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from nocap.judge.comparison import Comparison
from nocap.judge.differences import DifferenceWord
from nocap.judge.proposal import ProposalWord
from nocap.judge.verdict import ClaimWord
from nocap.report import comparison_tables
from nocap.report.table import Column, Table, TableCell
from nocap.report.terminal import PHRASE, SIGNS, Strip, fitted
from nocap.report.terminal_curves import MARKS, DrawnCurve, drawn
from nocap.store.record import Record
from tests.conftest import REPO
from tests.made_grid import made

WIDTHS = (60, 80, 100, 127, 200)
STYLE = re.compile(r"\x1b\[[0-9;]*m")
RENDER = """
from nocap.report import comparison_tables
from tests.test_terminal import compared

print(comparison_tables.render(compared()))
"""


@cache
def compared() -> Comparison:
    return made(3)


def rendered(width: int, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("COLUMNS", str(width))
    return comparison_tables.render(compared())


def long_lines(text: str, width: int) -> list[str]:
    return [line for line in text.splitlines() if len(line) > width]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_fits_and_breaks_neither_words_nor_names(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = rendered(width, monkeypatch)
    table = text[text.index("\nVerdicts\n") :].split("\n\n")[0]
    rows = compared().rows
    assert long_lines(text, width) == []
    assert [row.label for row in rows if f"\n{row.label}  " not in table] == []
    differences = [row.difference for row in rows if row.difference]
    verdicts = {each.word.value for each in differences}
    verdicts |= {f"({each.reason})" for each in differences if each.reason}
    assert [verdict for verdict in verdicts if verdict not in table] == []


SNAPSHOTS = {
    60: """\
                      val
arm             n    loss  difference             verdict
flash gelu4x    3  1.4906  –                      baseline
flash swiglu    3  1.4693  lower loss by 0.0213   better
                           ± 0.0033""",
    80: """\
                      val
arm             n    loss  bits/byte  difference             verdict
flash gelu4x    3  1.4906     2.1504  –                      baseline
flash swiglu    3  1.4693     2.1197  lower loss by 0.0213   better
                                      ± 0.0033""",
    100: """\
arm             n  val loss  bits/byte  difference                      verdict
flash gelu4x    3    1.4906     2.1504  –                               baseline
flash swiglu    3    1.4693     2.1197  lower loss by 0.0213 ± 0.0033   better""",
}


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_at_each_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"\nVerdicts\n{SNAPSHOTS[min(width, 100)]}\n" in rendered(width, monkeypatch)


COSTS = {
    60: "not shown at 60 columns: tokens/s, kernel, differs from the\nbaseline in (all: "
    "COLUMNS=99)",
    80: "not shown at 80 columns: differs from the baseline in (all: COLUMNS=99)",
}


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_left_out_is_named(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = rendered(width, monkeypatch).partition("\nWhat each arm is\n")
    costs = words[2].partition("\ntraining is ")[0]
    expected = COSTS.get(width, "").removeprefix("not shown")
    assert costs.partition("\nnot shown")[2] == expected


def test_at_the_width_that_is_named_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not shown at" in rendered(98, monkeypatch)
    assert "not shown at" not in rendered(99, monkeypatch)


def piped(**environment: str) -> str:
    """What a process prints into a pipe."""
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    variables = {**env, "PYTHONPATH": str(REPO), "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(
        [sys.executable, "-c", RENDER],
        cwd=REPO,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout


def in_a_terminal(width: int, patch: pytest.MonkeyPatch, **environment: str) -> str:
    """Render with a terminal of this width as stdout, styles and all."""
    patch.delenv("COLUMNS")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        patch.delenv(name, raising=False)
    patch.setenv("TERM", environment.get("TERM", "xterm"))
    if "NO_COLOR" in environment:
        patch.setenv("NO_COLOR", environment["NO_COLOR"])
    leader, follower = pty.openpty()
    size = struct.pack("HHHH", 24, width, 0, 0)
    fcntl.ioctl(follower, termios.TIOCSWINSZ, size)
    with os.fdopen(follower, "w", encoding="utf-8") as screen:
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "__stdout__", screen)
        text = comparison_tables.render(compared())
        patch.undo()
    os.close(leader)
    return text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_shows_what_a_pipe_of_its_width_gets_in_colours(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rendered(width, monkeypatch)
    shown = in_a_terminal(width, monkeypatch)
    text = STYLE.sub("", shown)
    lines = [line.rstrip() for line in text.splitlines()]

    assert lines == expected.splitlines()
    assert "\x1b[1;32mbetter" in shown
    assert "\x1b[1;31mworse" in shown


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_where_colours_are_not_wanted_there_are_none(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ";3" not in in_a_terminal(80, monkeypatch, **environment)


@pytest.mark.slow
def test_a_pipe_gets_80_columns_without_a_style() -> None:
    text = piped()
    assert long_lines(text, 80) == []
    assert SNAPSHOTS[80] in text
    assert "\x1b" not in text


# --- what does not fit ----------------------------------------------------------------------------


def table(*rows: Sequence[object], heads: Sequence[str], keep: str = "") -> str:
    columns = [Column(title=head, keep=head == keep) for head in heads]
    return str(Table(title="", columns=columns, rows=rows))


def test_a_word_of_a_verdict_fits_the_narrowest_column() -> None:
    words = []
    for kind in (DifferenceWord, ClaimWord, ProposalWord):
        for word in kind:
            words.append(word.value)
    assert [word for word in words if len(word) > PHRASE] == []


def test_the_column_to_keep_stays_and_the_others_go_from_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    row = ["a" * 10, 1234567, 1234567, "no difference"]
    text = table(row, heads=["arm", "first", "second", "verdict"], keep="verdict")
    lines = text.splitlines()[:2]
    assert lines == ["arm         verdict", "aaaaaaaaaa  no difference"]
    lines = text.splitlines()[2:]
    assert " ".join(lines) == "not shown at 30 columns: first, second (all: COLUMNS=43)"


def test_a_name_of_300_letters_is_broken_and_nothing_of_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ["n" * 300, 3.25, "better"]
    text = table(row, heads=["arm", "val loss", "verdict"], keep="verdict")
    assert long_lines(text, 80) == []
    assert text.count("n") == 300
    assert "better" in text


def test_of_a_cell_the_interval_goes_to_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    columns = [Column(title="arm"), Column(title="speed", show=lambda cell: cell)]
    cell = TableCell(text="7.4% faster", small="[1% to 13%]")
    wide = Table(title="", columns=columns, rows=[["gqa", cell]])
    lines = str(wide).splitlines()
    assert lines == ["arm  speed", "gqa  7.4% faster", "     [1% to 13%]"]


def test_a_verdict_stays_beside_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are broken between words, and what is left out is not the verdict."""
    monkeypatch.setenv("COLUMNS", "60")
    columns = {
        "arm": ("gelu3x position=learned", ""),
        "n": ("3", ""),
        "difference": ("higher loss by 0.0172", "± 0.0230"),
        "verdict": ("no difference shown", ""),
    }
    strips = list[Strip]()
    for head, (text, small) in columns.items():
        keep = head in ("difference", "verdict")
        strips.append(Strip(head=head, texts=[text], smalls=[small], keep=keep))
    assert list(fitted(strips)) == [
        "arm               difference             verdict",
        "gelu3x            higher loss by 0.0172  no difference shown",
        "position=learned  ± 0.0230",
        "not shown at 60 columns: n (all: COLUMNS=70)",
    ]


def test_a_column_of_dashes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = table(["gqa", None, 3.25], ["mha", None, 3.5], heads=["arm", "speed", "loss"])
    assert text.splitlines() == ["arm  loss", "gqa  3.25", "mha   3.5"]


@pytest.mark.parametrize("width", [60, 80])
def test_what_the_arms_are_compared_with_is_said_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = " ".join(comparison_tables.render(made(3, broken=False)).split())
    against = "against kind=global n_kv_heads=6 window=— and activation=gelu expansion=4"
    assert f"By factor, {against} level" in text
    assert f"Speed by factor, {against} level" in text
    assert "than activation=gelu expansion=4 by 0.0212" in text


def test_hostile_names_obey_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(record: Record) -> Record:
        return replace(record, arm=f"\x1b[1;31m{record.arm}\t{'x' * 120}")

    monkeypatch.setenv("COLUMNS", "80")
    text = comparison_tables.render(made(2, named))
    assert "\x1b" not in text


# --- curves ---------------------------------------------------------------------------------------


def level(label: str, y: float) -> DrawnCurve:
    return DrawnCurve(label, [0.0, 1000.0], [y, y], [y, y], [y, y])


@pytest.mark.parametrize("width", WIDTHS)
def test_curves_are_as_wide_as_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    levels = [level("arm", 3.0), level("b" * 30, 4.0)]
    text = drawn(levels, x="steps", y="loss")
    assert max(map(len, text.splitlines())) == width


def test_curves_that_meet_take_turns() -> None:
    curves = [level("a", 3.0), level("b", 3.0), level("c", 4.0)]
    text = drawn(curves, x="steps", y="loss", width=8, height=3)
    lines = text.splitlines()[1:4]
    rows = [line.partition("┤")[2] for line in lines]
    assert rows == ["××××××××", "", "•+•+•+•+"]


def test_ticks_are_round_numbers() -> None:
    fall = DrawnCurve("a", [0.0, 1987.0], [5.023, 3.117], [5.023, 3.117], [5.023, 3.117])
    lines = drawn([fall], x="steps", y="loss", width=60).splitlines()
    labels = [line.split()[0] for line in lines[1:19] if line.split()[0] != "┤"]
    cells = ["5.0", "4.5", "4.0"]
    assert labels[:-1] == cells
    words = lines[20].split()
    assert words == ["0", "500", "1000", "1500"]


def test_where_the_encoding_is_ascii_all_is_drawn_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

        def isatty(self) -> bool:
            return False

    expected = "".join(SIGNS.get(mark, mark) for mark in MARKS)
    assert len({*expected}) == len(MARKS)
    curves = [level(f"arm {index}", 3.0 + index) for index in range(len(MARKS))]
    monkeypatch.setattr(sys, "stdout", Ascii())
    plot = drawn(curves, x="steps", y="loss")
    text = comparison_tables.render(compared())
    monkeypatch.undo()
    assert plot.isascii()
    assert text.isascii()
    lines = plot.splitlines()[-len(MARKS) :]
    assert [line[0] for line in lines] == [*expected]


def test_lines_of_a_picture_differ_without_colours() -> None:
    from nocap.plot import DASHES, MARKERS

    pairs = {(DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]) for i in range(28)}
    assert len(pairs) == 28


def test_a_picture_of_lines_with_dashes_and_markers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from nocap.plot import _png

    both = [level("a", 3.0), level("b", 3.0)]
    two = _png(both, x="steps", y="loss", log="")
    assert two.startswith(b"\x89PNG")
