"""The report in a real browser, opened from a file: it works, complains of nothing and asks nobody for anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocap.judge import report
from nocap.judge.result import Comparison
from nocap.launch import search_report
from nocap.launch.search import Sampler, Search
from tests.made_grid import EVIL, made, poisoned
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

    def __init__(self, browser: Any, path: Path, *, width: int = 1280, scheme: str = "light", last: str = "pareto") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or self.wrong.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(f"#{last} .main-svg")

    def plotted(self, plot: str) -> list[dict[str, Any]]:
        """The traces of a plot: what they are called, and how many points they have."""
        found: list[dict[str, Any]] = self.page.evaluate(
            f"document.getElementById('{plot}').data.map(t => ({{name: t.name, n: t.x.length}}))"
        )
        return found

    def axis(self, letter: str) -> str:
        title: str = self.page.evaluate(f"document.getElementById('curves').layout.{letter}axis.title.text")
        return title

    def background(self) -> str:
        colour: str = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour


@pytest.fixture
def grid() -> Comparison:
    return made(seeds=2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser: pip install playwright")
    if not CHROMIUM.is_file():
        pytest.skip(f"needs a browser at {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)  # with a profile of its own, new each time
        yield found
        found.close()


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
    tab.page.click("nav button[data-arm='3']")
    assert len(tab.plotted("curves")) == 11 + 20
    for plot in ("curves", "pareto"):
        assert "mha gelu4x" not in {trace["name"] for trace in tab.plotted(plot)}
    assert {trace["n"] for trace in tab.plotted("clock")} == {11}
    assert tab.page.locator("tr.off").count() == 4  # verdicts, speed, costs, target
    tab.page.click("section:first-of-type tr[data-arm='3'] td.besides")  # back, by its row
    assert len(tab.plotted("curves")) == 12 + 22
    tab.page.dblclick("nav button[data-arm='4']")
    assert {trace["name"] for trace in tab.plotted("curves")} == {"mha gelu3x"}
    tab.page.click("#all")
    assert len(tab.plotted("pareto")) == 12


@pytest.mark.slow
def test_axes_and_units_switch(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid)
    assert (tab.axis("x"), tab.axis("y")) == ("training steps", "validation loss (nats per token)")
    tab.page.click("[data-x='tokens']")
    assert tab.axis("x") == "tokens seen"
    tab.page.click("[data-x='train_s']")
    tab.page.click("[data-y='val_bpb']")
    assert (tab.axis("x"), tab.axis("y")) == ("training time (s)", "validation loss (bits per byte)")
    tab.page.click("[data-rel='base']")
    assert tab.axis("y") == "loss minus the baseline's (bits/byte)"
    means = tab.page.evaluate("document.getElementById('curves').data.at(-1)")
    assert means["name"] == "flash gelu4x"
    assert set(means["y"]) == {0}


@pytest.mark.slow
def test_hover_reads_a_value(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(grid)
    tab.page.dblclick("nav button[data-arm='0']")  # the others' lines are closer than a pixel
    tab.page.locator("#curves").scroll_into_view_if_needed()
    box = tab.page.locator("#curves .nsewdrag").bounding_box()
    where = "(() => { const t = curves.data.at(-1), l = curves._fullLayout; return [l.xaxis.c2p(t.x[20]), l.yaxis.c2p(t.y[20])] })()"
    x, y = tab.page.evaluate(where)
    tab.page.mouse.move(box["x"] + x, box["y"] + y)
    tab.page.wait_for_selector("#curves .hovertext")
    said = tab.page.locator("#curves .hoverlayer").text_content()
    values = [run.curve.val_loss[20] for run, _ in grid.runs[:2]]
    assert said.startswith("flash gelu4x")
    assert any(f"{value:.4f} nats/token" in said for value in (*values, sum(values) / 2))
    assert "step 1,000, 4,096,000 tokens" in said


@pytest.mark.slow
def test_light_and_dark(page_of: Callable[..., Tab], grid: Comparison) -> None:
    light, dark = page_of(grid), page_of(grid, scheme="dark")
    colours = light.background(), dark.background()
    assert colours[0] != colours[1]
    dark.page.click("#theme")
    assert dark.background() == colours[0]
    baseline = [tab.page.evaluate("document.getElementById('curves').data.at(-1).line.color") for tab in (light, dark)]
    assert baseline[0] == baseline[1]


@pytest.mark.slow
def test_a_phone_scrolls_only_down(page_of: Callable[..., Tab], grid: Comparison) -> None:
    long_name = "attention_with_a_name_that_no_screen_holds_" * 3
    grid = replace(
        made(2, lambda record: replace(record, name=f"{long_name}-{record.name}") if record.arm == "flash-gelu3x" else record),
        problems=[long_name],
    )
    tab = page_of(grid, width=375)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 375
    assert tab.page.locator("#curves .main-svg").first.bounding_box()["width"] <= 375


def test_markup_in_names_is_inert(page_of: Callable[..., Tab], grid: Comparison) -> None:
    tab = page_of(poisoned())
    assert tab.page.locator("img").count() == 0
    assert tab.page.locator("nav button[data-arm='0'] span").inner_text() == f"{EVIL} flash gelu4x"
    assert EVIL[:12] in tab.page.locator("#clock").inner_text()
    tab.page.evaluate("Plotly.Fx.hover('curves', [{curveNumber: 0, pointNumber: 40}])")
    assert EVIL in tab.page.locator("#curves .hoverlayer").text_content()


def test_what_escaping_would_miss_cannot_run(browser: Any, grid: Comparison, tmp_path: Path) -> None:
    """The page's policy alone stops a script and a handler that got into it all the same."""
    text = report.render(grid).replace("<h1>", "<script>window.ran = 1</script><img src=data:, onerror='window.ran = 1'><h1>")
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    tab = Tab(browser, tmp_path / "report.html")
    assert tab.page.evaluate("window.ran") is None
    assert len(tab.wrong) == 2
    assert all("Content Security Policy" in line for line in tab.wrong)
    tab.page.close()


@pytest.mark.slow
def test_the_page_of_a_search(browser: Any, fake: Any, tmp_path: Path) -> None:
    fake(lambda run: math.inf if run.optimizer.lr > 1e-2 else run.optimizer.lr * (1 + run.attention.n_kv_heads))
    found = carried(a_search(tmp_path, Search(sampler=Sampler.sobol, trials=8, screen=0.5), LR, "attention=mqa,mha"))
    trials = found.trials()
    search_report.write(found, trials)
    tab = Tab(browser, found.grid.folder / "report.html", last="key1")
    n = [sum(loss is not None for loss in losses) for losses in zip(*((one.screened, one.val_loss) for one in trials), strict=True)]
    assert 0 < n[1] <= 4 < n[0] < 8
    assert [trace["n"] for trace in tab.plotted("history")] == [n[0], *n]
    assert [trace["n"] for trace in tab.plotted("key0")] == [trace["n"] for trace in tab.plotted("key1")] == n
    assert tab.page.evaluate("[key0, key1].map((plot) => plot.layout.xaxis.type)") == ["log", "category"]
    assert tab.page.locator("tbody tr").count() == 8
    tab.page.close()
    assert tab.wrong == []
