"""The report in a real browser, opened from a file: it works, complains of nothing and asks nobody for
anything."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocap.config.trainer import Sampler, Search
from nocap.judge.compare import Comparison
from nocap.report import comparison as report
from nocap.sources import answer
from nocap.sources.race import content
from nocap.store.runs import Record
from tests.made_grid import ATTENTION, EVIL, MLP, made, poisoned, with_summary
from tests.test_race import made_race
from tests.test_search import LR, a_search, carried
from tests.test_search import fake as fake

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
    ) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        self.page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:", "blob:")) or self.wrong.append(request.url)
            ),
        )
        self.page.goto(path.as_uri())
        if last is not None:
            self.page.wait_for_selector(f"#{last} > svg")

    def plotted(self, plot: str) -> list[str]:
        """What the lines or marks of a plot are called."""
        return list(
            self.page.evaluate(
                f"[...document.querySelectorAll('#{plot} .mark')].map((mark) => mark.dataset.name)"
            )
        )

    def points(self, plot: str) -> list[int]:
        """How many points each of its marks has."""
        return list(
            self.page.evaluate(
                f"[...document.querySelectorAll('#{plot} .mark')].map((m) => "
                "m.querySelectorAll('.point').length)"
            )
        )

    def boxes(self, plot: str) -> list[list[float]]:
        """Of its labels: left, top, right, bottom."""
        rects = (
            f"[...document.querySelectorAll('#{plot} .label')].map((label) => label.getBoundingClientRect())"
        )
        return list(
            self.page.evaluate(f"{rects}.map((rect) => [rect.left, rect.top, rect.right, rect.bottom])")
        )

    def axes(self, plot: str = "curves") -> str:
        return str(self.page.locator(f"#{plot} > svg").get_attribute("aria-label"))

    def line(self) -> list[list[float]]:
        """The last drawn curve, in px of its plot."""
        path = "[...document.querySelectorAll('#curves .mark path:first-child')].at(-1).getAttribute('d')"
        return [list(map(float, pair.split())) for pair in self.page.evaluate(path).lstrip("M").split("L")]

    def corner(self) -> tuple[float, float]:
        """The plot's own, in px of the window: read at one moment, for a redraw replaces the plot."""
        x, y = self.page.evaluate(
            "(({ x, y }) => [x, y])(document.querySelector('#curves > svg').getBoundingClientRect())"
        )
        return x, y

    def settle(self) -> None:
        """Wait until what was asked for is on the screen: the pointer meets what it meets there."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))"
        )

    def stroke(self) -> str:
        """The baseline's colour."""
        return str(
            self.page.evaluate(
                "getComputedStyle([...document.querySelectorAll('#curves .mark')].at(-1)).stroke"
            )
        )

    def background(self) -> str:
        colour: str = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour


@pytest.fixture
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
def page_of(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def open_(comparison: Comparison, **how: Any) -> Tab:
        report.write(comparison, tmp_path / "report.html")
        tabs.append(Tab(browser, tmp_path / "report.html", **how))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.page.close()
        assert tab.wrong == []


@pytest.mark.slow
def test_clicking_an_arm_hides_it_everywhere(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid)
    assert len(tab.plotted("curves")) == 12 + 22  # a mean for each arm, and the seeds of those that have two
    assert tab.page.locator("#clock .box").count() == 12 * len(report.LINES)
    tab.page.click("nav button[data-arm='3']")
    assert len(tab.plotted("curves")) == 11 + 20
    for plot in ("curves", "times"):
        assert "mha gelu4x" not in tab.plotted(plot)
    assert tab.page.locator("#clock .box").count() == 11 * len(report.LINES)
    assert tab.page.locator("tr.off").count() == 4  # verdicts, speed, costs, target
    tab.page.click("section:first-of-type tr[data-arm='3'] td.besides")  # back, by its row
    assert len(tab.plotted("curves")) == 12 + 22
    tab.page.dblclick("nav button[data-arm='4']")
    assert set(tab.plotted("curves")) == {"mha gelu3x"}
    tab.page.click("#all")
    assert len(tab.plotted("times")) == 12


@pytest.mark.slow
def test_axes_and_units_switch(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid)
    assert tab.axes() == "validation loss (nats per token) over training steps"
    tab.page.click("[data-x='tokens']")
    assert tab.axes() == "validation loss (nats per token) over tokens seen"
    tab.page.click("[data-x='train_s']")
    tab.page.click("[data-y='val_bpb']")
    assert tab.axes() == "validation loss (bits per byte) over training time (s)"
    tab.page.click("[data-rel='base']")
    assert tab.axes() == "loss minus the baseline's (bits/byte) over training time (s)"
    assert tab.plotted("curves")[-1] == "flash gelu4x"
    assert len({y for _, y in tab.line()}) == 1


@pytest.mark.slow
def test_hover_reads_a_value_and_a_drag_zooms(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid)
    tab.page.dblclick("nav button[data-arm='0']")  # the others' lines are closer than a pixel
    tab.page.locator("#curves").scroll_into_view_if_needed()
    tab.settle()
    left, top = tab.corner()
    x, y = tab.line()[20]
    tab.page.mouse.move(left + x, top + y)
    said = tab.page.wait_for_selector("#curves .tip:not([hidden])").text_content()
    values = [run.curve.val_loss[20] for run, _ in grid.runs[:2]]
    assert said.startswith("flash gelu4x")
    assert any(f"{value:.4f} nats/token" in said for value in (*values, sum(values) / 2))
    assert "step 1,000, 4,096,000 tokens" in said
    whole = tab.line()
    tab.page.mouse.move(left + x - 60, top + y - 40)
    tab.page.mouse.down()
    tab.page.mouse.move(left + x + 60, top + y + 40)
    tab.page.mouse.up()
    tab.settle()
    assert tab.line()[21][0] - tab.line()[20][0] > 5 * (whole[21][0] - whole[20][0])
    tab.page.mouse.dblclick(left + x, top + y)
    tab.settle()
    assert tab.line() == whole


def crowded(record: Record) -> Record:
    """Twelve arms on the front, in two heaps."""
    i = [f"{attention}-{mlp}" for attention in ATTENTION for mlp in MLP].index(record.arm)
    clock = {"train": 60 + 0.01 * i + 5 * (i > 8)}
    return with_summary(
        record, val_loss=1.49 - 1e-5 * i - 0.02 * (i > 8), clock_s=clock, memory_mib={"peak": 1000.0}
    )


def apart(boxes: list[list[float]]) -> bool:
    """Whether no label lies on another. Lines of text are a pixel higher than their letters."""
    pairs = itertools.combinations(boxes, 2)
    return all(a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 1 or b[3] <= a[1] + 1 for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_lines_have_their_names_where_they_end(page_of: Callable[..., Tab], width: int) -> None:
    tab = page_of(made(3, crowded, broken=False), width=width)
    boxes = tab.boxes("curves")
    assert len(boxes) == 12
    assert apart(boxes)
    plot = tab.page.locator("#curves").bounding_box()
    inner = tab.page.locator("#curves > svg > svg").bounding_box()
    assert all(inner["x"] + inner["width"] <= a[0] and a[2] <= plot["x"] + plot["width"] for a in boxes)
    tab.page.click("nav button[data-arm='3']")
    names = tab.page.locator("#curves .label").all_text_contents()
    assert len(names) == 11
    assert "mha gelu4x" not in names


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_names_on_the_front_are_all_there_and_apart(page_of: Callable[..., Tab], width: int) -> None:
    tab = page_of(made(3, crowded, broken=False), width=width)
    assert tab.page.locator("#times .label").all_text_contents() == tab.plotted("times")
    boxes = tab.boxes("times")
    assert len(boxes) == 12
    assert apart(boxes)
    plot = tab.page.locator("#times").bounding_box()
    assert all(plot["x"] <= a[0] and a[2] <= plot["x"] + plot["width"] for a in boxes)


@pytest.mark.slow
def test_paper_is_white_whatever_the_screen(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid, scheme="dark")
    tab.page.click("#theme")
    tab.page.click("#theme")  # chosen by hand: dark
    tab.page.emulate_media(media="print")
    assert tab.background() == "rgb(255, 255, 255)"
    assert tab.stroke() == "rgb(29, 33, 38)"


@pytest.mark.slow
def test_light_and_dark(page_of: Callable[..., Tab], grid: Comparison) -> None:
    light, dark = page_of(grid), page_of(grid, scheme="dark")
    colours = light.background(), dark.background()
    assert colours[0] != colours[1]
    dark.page.click("#theme")
    assert dark.background() == colours[0]
    assert dark.stroke() == light.stroke()


@pytest.mark.slow
def test_a_phone_scrolls_only_down(page_of: Callable[..., Tab], grid: Comparison) -> None:
    long_name = "attention_with_a_name_that_no_screen_holds_" * 3
    grid = replace(
        made(
            2,
            lambda record: (
                replace(record, name=f"{long_name}-{record.name}") if record.arm == "flash-gelu3x" else record
            ),
        ),
        problems=[long_name],
    )
    tab = page_of(grid, width=375)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 375
    assert tab.page.locator("#curves > svg").bounding_box()["width"] <= 375


@pytest.mark.slow
def test_markup_in_names_is_inert(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(poisoned())
    assert tab.page.locator("img").count() == 0
    assert tab.page.locator("nav button[data-arm='0'] span").inner_text() == f"{EVIL} flash gelu4x"
    assert EVIL[:12] in tab.page.locator("#clock").inner_text()
    tab.page.evaluate("document.getElementById('times').scrollIntoView({block: 'center'})")
    tab.settle()
    box = tab.page.locator("#times .point").first.bounding_box()
    tab.page.mouse.move(box["x"] + 3, box["y"] + 3)
    assert EVIL in tab.page.wait_for_selector("#times .tip:not([hidden])").text_content()


def test_what_escaping_would_miss_cannot_run(browser: Any, grid: Comparison, tmp_path: Path) -> None:
    """The page's policy alone stops a script and a handler that got into it all the same."""
    text = report.render(grid).replace(
        "<h1>", "<script>window.ran = 1</script><img src=data:, onerror='window.ran = 1'><h1>"
    )
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    tab = Tab(browser, tmp_path / "report.html")
    assert tab.page.evaluate("window.ran") is None
    assert len(tab.wrong) == 2
    assert all("Content Security Policy" in line for line in tab.wrong)
    tab.page.close()


@pytest.mark.slow
def test_the_page_of_a_search(browser: Any, fake: Any, tmp_path: Path) -> None:
    fake(
        lambda run: math.inf if run.optimizer.lr > 1e-2 else run.optimizer.lr * (1 + run.attention.n_kv_heads)
    )
    search = carried(a_search(tmp_path, Search(sampler=Sampler.sobol, trials=16), LR, "attention=mqa,mha"))
    trials = search.trials()
    search.report()
    tab = Tab(browser, search.grid.folder / "report.html", last="key1")
    n = sum(trial.val_loss is not None for trial in trials)
    assert 0 < n < 16
    assert tab.points("history") == [0, n]  # the line of the lowest, and the trials
    assert tab.points("key0") == tab.points("key1") == [n]
    assert tab.page.locator("#weights .box").count() == 2
    assert tab.page.locator("#weights text").first.text_content() == "0%"
    assert set(tab.page.locator("#key1 text").all_text_contents()) >= {"mqa", "mha"}
    assert tab.page.locator("tbody tr").count() == 16
    colours = (
        "[...new Set([...document.querySelectorAll('#key{} .point')].map((point) => "
        "point.getAttribute('stroke')))]"
    )
    # one for each attention
    assert sorted(tab.page.evaluate(colours.format(0))) == ["var(--hue-1)", "var(--hue-2)"]
    assert len(tab.page.evaluate(colours.format(1))) == n  # one for each learning rate
    assert tab.page.locator("#hues0").inner_text().split() == [
        "attention",
        *dict.fromkeys(trial.words[1].partition("=")[2] for trial in trials),
    ]
    tab.page.close()
    assert tab.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_race_fits_a_phone_and_asks_for_nothing(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    raced = made_race(tmp_path, random.Random(3), gain=30.0, pairs=3)
    (tmp_path / "race.html").write_text(answer.render(raced, content(raced, raced.run())))
    tab = Tab(browser, tmp_path / "race.html", width=390, scheme=scheme, last=None)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.page.locator("figure .forest g.better circle").count() == 1
    tab.page.set_viewport_size({"width": 1400, "height": 900})
    assert tab.page.locator("figure .forest").bounding_box()["width"] > 1000
    assert tab.background() == ("rgb(252, 252, 250)" if scheme == "light" else "rgb(21, 23, 27)")
    tab.page.close()
    assert tab.wrong == []


# --- the leaderboard ----------------------------------------------------------------------------------------


def test_the_board_is_filtered_without_a_script_and_fits_a_phone(browser: Any):
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto((Path(__file__).parents[1] / "experiments" / "board.html").as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") <= 7200
    count = "[...document.querySelectorAll('.claim')].filter((one) => one.checkVisibility()).length"
    every = page.evaluate(count)
    page.check('[name="verdict"][value="confirmed"]')
    confirmed = page.evaluate("document.querySelectorAll('.claim[data-verdict=confirmed]').length")
    assert 0 < page.evaluate(count) == confirmed < every
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
