"""The report in a real browser, opened from a file: it works, complains of nothing and asks nobody
for anything."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.report import comparison_page as report
from nocap.sources.races import result_page
from nocap.store.record import Record
from nocap.store.runs import Found
from tests.conftest import REPO
from tests.made_grid import ATTENTION, EVIL, MLP, made, poisoned, record_of, with_summary
from tests.test_race import made_race

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Tab:
    """A report in a browser's tab, and whatever it complained about or asked for."""

    def __init__(
        self,
        browser: Any,
        path: Path,
        *,
        width: int = 1280,
        scheme: str = "light",
        last: str | None = "times",
        **how: Any,
    ) -> None:
        size = {"width": width, "height": 800}
        self.page = browser.new_page(viewport=size, color_scheme=scheme, **how)
        self.wrong: list[str] = []
        complains = {
            "console": lambda message: f"console: {message.text}",
            "pageerror": lambda error: f"error: {error}",
            "dialog": lambda dialog: dialog.dismiss() or "a dialog",
            "request": lambda asked: (
                not asked.url.startswith(("file:", "data:", "blob:")) and asked.url
            ),
        }
        for event, complaint in complains.items():
            self.page.on(
                event, lambda it, say=complaint: self.wrong.extend(filter(None, [say(it)]))
            )
        self.page.goto(path.as_uri())
        if last is not None:
            self.page.wait_for_selector(f"#{last} > svg")

    def each(self, selector: str, what: str) -> list[Any]:
        """Of the elements that a selector finds."""
        elements = f"[...document.querySelectorAll({selector!r})]"
        return list(self.page.evaluate(f"{elements}.map((at) => {what})"))

    def plotted(self, plot: str) -> list[str]:
        """What the lines or marks of a plot are called."""
        return self.each(f"#{plot} .mark", "at.dataset.name")

    def boxes(self, selector: str) -> list[list[float]]:
        """Left, top, right, bottom."""
        names = ("left", "top", "right", "bottom")
        sides = ", ".join(f"at.getBoundingClientRect().{name}" for name in names)
        return self.each(selector, f"[{sides}]")

    def axes(self) -> str:
        return str(self.page.locator("#curves > svg").get_attribute("aria-label"))

    def line(self) -> list[list[float]]:
        """The last drawn curve, in px of its plot."""
        path = self.each("#curves .mark .line", "at.getAttribute('d')")[-1]
        words = path.lstrip("M").split("L")
        return [list(map(float, pair.split())) for pair in words]

    def settle(self) -> None:
        """Wait until what was asked for is on the screen: the pointer meets what it meets there."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => "
            "done(null))))"
        )

    def colours(self) -> tuple[str, str]:
        """The page's and the baseline's."""
        (page,) = self.each("body", "getComputedStyle(at).backgroundColor")
        return page, self.each("#curves .mark", "getComputedStyle(at).stroke")[-1]

    def scrolls(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))


@pytest.fixture(scope="module")
def grid() -> Comparison:
    return made(seeds=2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright to drive a browser: pip install playwright"
    )
    if not CHROMIUM.is_file():
        pytest.skip(f"needs a browser at {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        # with a profile of its own, new each time
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Opens a tab that must complain of nothing."""
    tabs: list[Tab] = []
    yield lambda path, **how: tabs.append(Tab(browser, path, **how)) or tabs[-1]
    for tab in tabs:
        tab.page.close()
    assert [tab.wrong for tab in tabs if tab.wrong] == []


@pytest.fixture
def page_of(opened: Callable[..., Tab], tmp_path: Path) -> Callable[..., Tab]:
    def open_(comparison: Comparison, **how: Any) -> Tab:
        report.write(comparison, tmp_path / "report.html")
        return opened(tmp_path / "report.html", **how)

    return open_


@pytest.mark.gate
def test_clicks_hide_an_arm_everywhere_and_switch_axes_and_units(
    page_of: Callable[..., Tab], grid: Comparison
) -> None:
    tab = page_of(grid)
    tab.page.click("[data-rel='own']")  # the ends lie close: less the baseline's is shown first
    # a mean for each arm, and the seeds of those that have two
    assert len(tab.plotted("curves")) == 12 + 22
    bars = tab.page.locator("#clock tr .part").count()
    assert bars == 12 * 6  # no arm has a teacher, none compiles
    place = [row.label for row in grid.rows].index("mha gelu4x")
    tab.page.click(f"nav button[data-arm='{place}']")
    assert len(tab.plotted("curves")) == 11 + 20
    for plot in ("curves", "times"):
        assert "mha gelu4x" not in tab.plotted(plot)
    # verdicts, target, speed, clock and its data, costs
    assert tab.page.locator("tr.off").count() == 6
    assert tab.page.locator("g.off").count() == 1  # of the intervals
    assert tab.page.locator(".plot .faded").count() == 0
    tab.page.click("tr.off td.besides", click_count=2)  # a number is copied, and hides nothing
    assert tab.page.locator("tr.off").count() == 6
    tab.page.click(f"nav button[data-arm='{place}']")  # back, by its name
    assert len(tab.plotted("curves")) == 12 + 22
    place = [row.label for row in grid.rows].index("mha gelu3x")
    tab.page.dblclick(f"nav button[data-arm='{place}']")
    assert set(tab.plotted("curves")) == {"mha gelu3x"}
    tab.page.click("#all")
    assert len(tab.plotted("times")) == 12
    assert tab.axes() == "validation loss (nats per token) over training steps"
    cases = (
        ("x='tokens'", "validation loss (nats per token) over tokens seen"),
        ("x='train_s'", "validation loss (nats per token) over training time (s)"),
        ("y='val_bpb'", "validation loss (bits per byte) over training time (s)"),
        ("rel='base'", "loss minus the baseline's (bits/byte) over training time (s)"),
    )
    for button, axes in cases:
        tab.page.click(f"[data-{button}]")
        assert tab.axes() == axes
    assert tab.plotted("curves")[-1] == "flash gelu4x"
    assert len({y for _, y in tab.line()}) == 1


@pytest.mark.slow
def test_hover_reads_a_value_and_a_drag_zooms(
    page_of: Callable[..., Tab], grid: Comparison
) -> None:
    tab = page_of(grid)
    tab.page.click("[data-rel='own']")
    tab.page.dblclick("nav button[data-arm='0']")  # the others' lines are closer than a pixel
    tab.page.locator("#curves").scroll_into_view_if_needed()
    tab.settle()
    # read at one moment, for a redraw replaces the plot
    ((left, top, *_),) = tab.boxes("#curves > svg")
    whole = tab.line()
    mouse = tab.page.mouse
    x = left + whole[20][0]
    y = top + whole[20][1]
    mouse.move(x, y)
    said = tab.page.wait_for_selector("#curves .tip:not([hidden])").text_content()
    values = [run.curve.val_loss[20] for run, _ in grid.runs[:2]]
    assert said.startswith("flash gelu4x")
    assert any(f"{value:.4f} nats/token" in said for value in (*values, sum(values) / 2))
    assert "step 1,000, 4,096,000 tokens" in said
    mouse.move(x - 60, y - 40)
    mouse.down()
    mouse.move(x + 60, y + 40)
    mouse.up()
    tab.settle()
    nearer = tab.line()[21][0] - tab.line()[20][0]
    step = whole[21][0] - whole[20][0]
    assert nearer > 5 * step
    mouse.dblclick(x, y)
    tab.settle()
    assert tab.line() == whole


@pytest.mark.slow
def test_each_arm_is_read_with_its_own_bits_per_byte(
    page_of: Callable[..., Tab], grid: Comparison
) -> None:
    """The page leaves them out where they follow from the loss, and works them out again."""
    tab = page_of(grid)
    tab.page.focus("#curves")
    losses = set()
    for _ in grid.arms:
        tab.page.keyboard.press("ArrowDown")
        said = tab.page.wait_for_selector("#curves .tip:not([hidden])").text_content()
        nats, bits = re.search(r"([\d.]+) nats/token, ([\d.]+) bits/byte", said).groups()
        assert float(bits) == pytest.approx(float(nats) / math.log(2), abs=2e-4)
        losses.add(nats)
    assert len(losses) > 3
    tab.page.click("[data-y='val_bpb']")
    tab.page.click("[data-rel='base']")
    tab.settle()
    lines = tab.each("#curves .mark .line", "at.getAttribute('d')")
    assert len(set(lines)) == len(lines)


@pytest.mark.slow
def test_zooming_shows_nothing_beyond_the_data(
    page_of: Callable[..., Tab], grid: Comparison
) -> None:
    tab = page_of(grid)
    tab.page.focus("#curves")
    for key in ("Home", "ArrowRight", "+", "+", "-", "-", "-"):
        tab.page.keyboard.press(key)
    tab.settle()
    ticks = tab.each("#curves > svg > text", "at.textContent")
    assert ticks
    assert not [tick for tick in ticks if re.fullmatch(r"[-−]\d[\d,]*", tick)]


def crowded(record: Record) -> Record:
    """Twelve arms on the front, in two heaps."""
    arms = [f"{attention}-{mlp}" for attention, mlp in itertools.product(ATTENTION, MLP)]
    i = arms.index(record.arm)
    clock = {"train": 60 + 0.01 * i + 5 * (i > 8)}
    loss = 1.49 - 1e-5 * i - 0.02 * (i > 8)
    return with_summary(record, val_loss=loss, clock_s=clock, memory_mib={"peak": 1000.0})


def apart(boxes: list[list[float]]) -> bool:
    """Whether no label lies on another. Lines of text are a pixel higher than their letters."""
    pairs = itertools.combinations(boxes, 2)
    for a, b in pairs:
        beside = a[2] <= b[0] or b[2] <= a[0]
        above = a[3] <= b[1] + 1 or b[3] <= a[1] + 1
        if not beside and not above:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_lines_and_on_the_front_are_all_there_and_apart(
    page_of: Callable[..., Tab], width: int
) -> None:
    comparison = made(3, crowded, broken=False)
    tab = page_of(comparison, width=width)
    ((_, _, ends, _),) = tab.boxes("#curves > svg > svg")  # a line has its name where it ends
    for plot, least in (("curves", ends), ("times", 0.0)):
        boxes = tab.boxes(f"#{plot} .label")
        ((left, _, right, _),) = tab.boxes(f"#{plot}")
        assert len(boxes) == 12 if plot == "curves" else len(boxes) > 4
        assert apart(boxes)
        for a in boxes:
            assert max(left, least) <= a[0]
            assert a[2] <= right
    place = [row.label for row in comparison.rows].index("mha gelu4x")
    tab.page.click(f"nav button[data-arm='{place}']")
    names = tab.page.locator("#curves .label").all_text_contents()
    assert len(names) == 11
    assert "mha gelu4x" not in names


@pytest.mark.slow
def test_light_and_dark_and_white_paper(page_of: Callable[..., Tab], grid: Comparison) -> None:
    light = page_of(grid)
    dark = page_of(grid, scheme="dark")
    assert light.colours()[0] != dark.colours()[0]
    dark.page.click("#theme")
    assert dark.colours() == light.colours()
    dark.page.click("#theme")  # chosen by hand: dark
    dark.page.emulate_media(media="print")
    assert dark.colours() == ("rgb(255, 255, 255)", "rgb(29, 33, 38)")


@pytest.mark.slow
def test_a_phone_scrolls_only_down(page_of: Callable[..., Tab]) -> None:
    long_name = "attention_with_a_name_that_no_screen_holds_" * 3

    def renamed(record: Record) -> Record:
        if record.arm == "flash-gelu3x":
            return replace(record, name=f"{long_name}-{record.name}")
        return record

    tab = page_of(replace(made(2, renamed), problems=[long_name]), width=375)
    assert tab.scrolls() == 375
    assert tab.boxes("#curves > svg")[0][2] <= 375


@pytest.mark.slow
def test_markup_in_names_is_inert(page_of: Callable[..., Tab]) -> None:
    tab = page_of(poisoned())
    assert tab.page.locator("img").count() == 0
    assert tab.page.locator("nav button[data-arm='0'] span").inner_text() == f"{EVIL} flash gelu4x"
    assert EVIL in tab.page.locator("#clock").inner_text()
    tab.page.evaluate("document.getElementById('times').scrollIntoView({block: 'center'})")
    tab.settle()
    box = tab.page.locator("#times .point").first.bounding_box()
    tab.page.mouse.move(box["x"] + 3, box["y"] + 3)
    assert EVIL in tab.page.wait_for_selector("#times .tip:not([hidden])").text_content()


def test_what_escaping_would_miss_cannot_run(browser: Any, tmp_path: Path) -> None:
    """The page's policy alone stops a script and a handler that got into it all the same."""
    evil = "<script>window.ran = 1</script><img src=data:, onerror='window.ran = 1'><h1>"
    record = record_of("flash", "gelu4x", 0)
    records = [record, record_of("gqa", "gelu4x", 0)]
    small = compare(Found(records=records))
    text = report.render(small).replace("<h1>", evil)
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    tab = Tab(browser, tmp_path / "report.html")
    assert tab.page.evaluate("window.ran") is None
    assert len(tab.wrong) == 2
    for line in tab.wrong:
        assert "Content Security Policy" in line
    tab.page.close()


@pytest.mark.slow
def test_the_page_of_a_race_fits_a_phone_and_asks_for_nothing(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    chance = random.Random(3)
    raced = made_race(tmp_path, chance, gain=30.0, pairs=3)
    text = result_page.render(raced, raced.run())
    (tmp_path / "race.html").write_text(text)
    for scheme, colour in (("light", "rgb(252, 252, 250)"), ("dark", "rgb(21, 23, 27)")):
        tab = opened(tmp_path / "race.html", width=390, scheme=scheme, last=None)
        assert tab.scrolls() == 390
        assert tab.page.locator("figure .forest g.better circle").count() == 1
        assert tab.each("body", "getComputedStyle(at).backgroundColor") == [colour]
    tab.page.set_viewport_size({"width": 1400, "height": 900})
    assert tab.page.locator("figure .forest").bounding_box()["width"] > 1000


# --- the leaderboard ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_board_is_filtered_without_a_script_and_fits_a_phone(
    opened: Callable[..., Tab],
) -> None:
    tab = opened(REPO / "experiments" / "board.html", width=1400, last=None)
    every = tab.each(".claim", "at.checkVisibility()")
    assert tab.page.evaluate("document.documentElement.scrollHeight") <= 64 * len(every)
    tab.page.check('[name="verdict"][value="confirmed"]')
    confirmed = len(tab.each(".claim[data-verdict=confirmed]", "0"))
    shown = sum(tab.each(".claim", "at.checkVisibility()"))
    assert 0 < shown == confirmed < sum(every)
    tab.page.set_viewport_size({"width": 390, "height": 800})
    assert tab.scrolls() <= 390
