"""Pages of made cases in a real browser: names of 300 letters, letters that turn a text around,
losses of 1e30, curves of two points. On any screen, by touch and by keys, in dark, on paper,
without JavaScript, in forced colours."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.report import comparison_page as report
from nocap.sources.races import result_page
from nocap.store.record import Record
from nocap.store.runs import Found
from tests.conftest import REPO
from tests.made_grid import made, record_of, with_summary
from tests.test_race import made_race
from tests.test_report_browser import Tab, browser, opened

__all__ = ["browser", "opened"]  # fixtures

WIDTHS = (320, 390, 768, 1280, 2560)
LONG = "a_name_that_no_screen_holds_" * 11
HUGE = 1e30
LIGHTEST = 117_000  # bytes of a page of six arms

# The rules of axe that a page of ours can break, written small. Each returns what breaks it.
RULES = """
() => {
  const all = (selector) =>
    [...document.querySelectorAll(selector)].filter((at) => at.checkVisibility());
  const name = (at) => at.ariaLabel || at.labels?.[0]?.textContent.trim() || at.textContent.trim();
  const wrong = [];
  const say = (rule, found) =>
    wrong.push(...found.map((at) => `${rule}: ${at.outerHTML.slice(0, 80)}`));
  const named = all("button, input, a, summary, table, nav, [role=img], [role=group]");
  say("a name", named.filter((at) => !name(at)));
  say("a scope", all("th").filter((at) => !at.scope));
  const ids = [...document.querySelectorAll("[id]")];
  say("one id", ids.filter((at) => ids.some((other) => other !== at && other.id === at.id)));
  say("a target", all("a[href^='#']").filter((at) => !document.getElementById(at.hash.slice(1))));
  say("one h1", all("h1").slice(1));
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (colour) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  function behind(at) {
    for (let one = at; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length === 3) return colour;
    }
    return [255, 255, 255];
  }
  const contrast = (a, b) =>
    (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const hasText = (at) =>
    [...at.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const texts = "p, li, td, th span, dt, dd, h1, h2, h3, small, b, code, "
    + "summary, button:enabled, figcaption";
  const own = all(texts).filter(hasText);
  say("4.5:1 for text",
    own.filter((at) => contrast(rgb(getComputedStyle(at).color), behind(at)) < 4.5));
  const drawn = all(".plot .line, .plot .end, .forest .interval, .forest circle, .sample path");
  say("3:1 for marks",
    drawn.filter((at) => contrast(rgb(getComputedStyle(at).stroke), behind(at)) < 3));
  say("12 px",
    all("body *").filter(hasText).filter((at) => parseFloat(getComputedStyle(at).fontSize) < 12));
  const targets = "button, summary, select, input, .links a, dd > a";
  const sizes = (at) => at.getBoundingClientRect();
  say("24 px", all(targets).filter((at) => sizes(at).width < 24 || sizes(at).height < 24));
  say("numbers", all("svg [d*=NaN], svg [x*=NaN], svg [y*=NaN], svg [d*=Infinity]"));
  return wrong;
}
"""


def case(record: Record) -> Record:
    """Make each arm another case."""
    if record.arm == "flash-gelu3x":
        return replace(record, name=f"{LONG}-{record.name}")
    if record.arm == "gqa-gelu4x":
        losses = [HUGE] * len(record.curve.step)
        curve = replace(record.curve, val_loss=losses)
        return replace(with_summary(record, val_loss=HUGE, val_bpb=HUGE), curve=curve)
    if record.arm == "mha-gelu4x":
        ends = {}
        for name in record.curve.__dataclass_fields__:
            ends[name] = getattr(record.curve, name)[::40]
        return replace(record, curve=type(record.curve)(**ends))
    if record.arm == "sliding-gelu3x":
        return replace(record, name=f"good\u202edab-{record.name}")
    return record


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cases") / "report.html"
    long_page = replace(made(3, case), problems=[LONG])
    report.write(long_page, path, command="python -m nocap.compare outputs")
    return path


def crowd() -> Comparison:
    """Sixty arms with three seeds."""
    records = list[Record]()
    for i in range(60):
        for seed in range(3):
            run = record_of("flash", "gelu4x", seed)
            shift = 0.0005 * i
            losses = [loss + shift for loss in run.curve.val_loss]
            curve = replace(run.curve, val_loss=losses)
            config = {**run.config, "optimizer.lr": 0.001 * (i + 1)}
            run = replace(run, identity=f"{i}-{seed}", arm=f"arm-{i}", config=config, curve=curve)
            records.append(with_summary(run, val_loss=curve.val_loss[-1]))
    return compare(Found(records=records))


@pytest.mark.gate
def test_one_page_of_all_cases_fits_each_screen_and_breaks_no_rule(
    opened: Callable[..., Tab], cases: Path
) -> None:
    tab = opened(cases)
    assert "\u202e" not in tab.page.content()
    assert any(r"good\u202edab" in name for name in tab.plotted("curves"))
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.settle()
        assert tab.scrolls() <= width
        assert tab.page.evaluate(RULES) == []
        _, zero = tab.boxes("#arms .forest line.base")
        assert 0 <= zero[0] <= width
    for scheme in ("dark", "light"):
        tab.page.emulate_media(color_scheme=scheme)
        assert tab.page.evaluate(RULES) == []


@pytest.mark.slow
def test_arrow_keys_read_a_chart_and_leave_it(opened: Callable[..., Tab], cases: Path) -> None:
    tab = opened(cases)
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"
    tab.page.focus("#curves")
    tip = tab.page.locator("#curves .tip")
    said = list[str]()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"):
        tab.page.keyboard.press(key)
        said.append(tip.inner_text())
    assert said[0] != said[1]
    words = said[1].split(",")
    assert words[0] != said[2].split(",")[0]
    assert said[3] == said[1]
    assert said[4] == said[0]
    tab.page.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.slow
def test_a_tap_pins_a_reading_and_a_tap_elsewhere_takes_it_away(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(2), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390, has_touch=True)
    chart = tab.page.locator("#times")
    chart.scroll_into_view_if_needed()
    point = tab.page.locator("#times .point").first.bounding_box()
    tab.page.touchscreen.tap(point["x"] + 2, point["y"] + 2)
    assert "s of training" in tab.page.locator("#times .tip").inner_text()
    box = chart.bounding_box()
    right = box["y"] + box["height"] - 3
    tab.page.touchscreen.tap(box["x"] + 3, right)
    assert not tab.page.locator("#times .tip").is_visible()
    tab.page.tap("nav button[data-arm='1']")
    assert tab.page.locator(".plot .faded").count() == 0


@pytest.mark.slow
def test_a_double_click_copies_a_whole_cell(opened: Callable[..., Tab], cases: Path) -> None:
    tab = opened(cases)
    cell = tab.page.locator("#arms tr[data-arm='1'] td").nth(1)
    cell.dblclick()
    expected = cell.inner_text().strip()
    assert tab.page.evaluate("getSelection().toString()").strip() == expected
    assert tab.page.locator("tr.off").count() == 0


@pytest.mark.slow
def test_rows_are_found_and_sorted(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(made(2), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    tab.page.fill("#arms .search input", "swiglu")
    assert len(tab.each("#arms tbody tr:not(.unfound)", "0")) == 4
    tab.page.fill("#arms .search input", "")
    tab.page.click("#arms th >> text=val loss")
    losses = tab.each("#arms tbody tr", "Number(at.cells[2].dataset.v)")
    assert losses == sorted(losses)
    tab.page.click("#arms th >> text=val loss")
    assert tab.each("#arms tbody tr", "Number(at.cells[2].dataset.v)") == losses[::-1]


@pytest.mark.slow
def test_without_javascript_there_are_pictures_tables_and_a_word_in_their_place(
    opened: Callable[..., Tab], cases: Path
) -> None:
    tab = opened(cases, java_script_enabled=False, last=None)
    for plot in ("curves", "times"):
        assert tab.page.locator(f"#{plot} .still").bounding_box()["height"] > 300
    assert tab.page.locator("noscript p").count() == 2
    assert tab.page.locator(".controls >> visible=true").count() == 0
    assert tab.page.locator("nav button:enabled").count() == 0
    assert tab.page.locator("#clock .bar").count() == 12
    assert tab.page.locator(".search >> visible=true").count() == 0
    assert tab.page.locator(".fold:not([open])").count() == 0


@pytest.mark.slow
def test_forced_colours_keep_what_is_pressed_and_drawn(
    opened: Callable[..., Tab], cases: Path
) -> None:
    tab = opened(cases, forced_colors="active")
    colour = "getComputedStyle(at).backgroundColor"
    pressed = tab.each("[data-x][aria-pressed=true]", colour)[0]
    other = tab.each("[data-x][aria-pressed=false]", colour)[0]
    assert pressed != other
    (text,) = tab.each("body", "getComputedStyle(at).color")
    assert tab.each("#curves .mark", "getComputedStyle(at).stroke")[-1] == text


@pytest.mark.slow
def test_paper_has_no_controls_and_cuts_nothing_off(
    opened: Callable[..., Tab], cases: Path
) -> None:
    tab = opened(cases, width=1040)
    tab.page.emulate_media(media="print")
    assert tab.scrolls() <= 1040
    assert tab.page.locator(".controls >> visible=true").count() == 0
    assert tab.each("#arms thead", "getComputedStyle(at).display") == ["table-header-group"]
    assert set(tab.each("#arms tbody tr", "getComputedStyle(at).breakInside")) == {"avoid"}


@pytest.mark.slow
def test_sixty_arms_are_told_apart(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(crowd(), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    looks = tab.each("nav .sample g", "at.innerHTML + at.getAttribute('style')")
    assert len(set(looks)) == 60
    assert tab.page.locator("nav").bounding_box()["height"] <= 90
    assert tab.page.locator("#curves .label").count() == 0  # they would not tell apart
    tab.page.click("[data-rel='own']")
    assert len(tab.plotted("curves")) == 60  # no seeds, for the same reason
    tab.page.click("[data-rel='base']")
    assert tab.page.locator("#curves .band").count() == 0
    for arm in range(52):
        tab.page.evaluate(f"document.querySelector('nav [data-arm=\"{arm}\"]').click()")
    assert tab.page.locator("#curves .band").count() == 8


@pytest.mark.slow
def test_of_sixty_arms_the_ten_largest_differences_come_first(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(crowd(), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390)
    first = tab.page.locator("#arms > figure")
    expected = [f"lr={0.001 * i:g}" for i in range(60, 50, -1)]
    assert first.locator(".name").all_text_contents() == expected
    rest = tab.page.locator("#arms .rest")
    assert rest.locator("summary").inner_text() == "The other 49 arms"
    assert rest.locator("g:has(circle)").count() == 49
    assert not rest.locator("figure").is_visible()
    ((_, _, _, foot),) = tab.boxes("#arms > figure")
    assert foot < 920  # of 844 px: the page begins with what was found, and what to type next
    rest.locator("summary").click()
    assert rest.locator("figure").is_visible()
    ticks = [each.locator(".tick").all_text_contents() for each in (first, rest)]
    assert ticks[0] == ticks[1]


@pytest.mark.slow
def test_a_page_of_six_arms_is_light() -> None:
    runs = []
    for attention in ("flash", "gqa"):
        for mlp in ("gelu4x", "gelu3x", "swiglu"):
            for seed in range(3):
                runs.append(record_of(attention, mlp, seed))
    page = report.render(compare(Found(records=runs)))
    assert len(page.encode()) <= LIGHTEST


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_of_a_race_and_of_studies_fit_and_break_no_rule(
    opened: Callable[..., Tab], tmp_path: Path, width: int
) -> None:
    chance = random.Random(3)
    raced = made_race(tmp_path, chance, gain=30.0, pairs=3)
    text = result_page.render(raced, raced.run())
    (tmp_path / "race.html").write_text(text)
    for path in (tmp_path / "race.html", REPO / "experiments" / "board.html"):
        tab = opened(path, width=width, last=None)
        assert tab.scrolls() <= width
        assert tab.page.evaluate(RULES) == []


@pytest.mark.slow
def test_claims_are_found_by_a_word(opened: Callable[..., Tab]) -> None:
    tab = opened(REPO / "experiments" / "board.html", last=None)
    every = tab.page.locator(".claim >> visible=true").count()
    tab.page.fill("input[type=search]", "gqa")
    found = tab.page.locator(".claim >> visible=true")
    assert 0 < found.count() < every
    count = f"{found.count()} of {every} match"
    assert tab.page.locator("output").inner_text() == count
    assert all("gqa" in text.lower() for text in found.all_inner_texts())
    parts = tab.page.locator(".part >> visible=true")
    assert parts.count() == tab.page.locator(".part:has(.claim summary:not(.unfound))").count()
    tab.page.fill("input[type=search]", "no claim says this")
    assert parts.count() == 0


# --- what is at hand ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_legend_of_twelve_arms_is_seen_at_once(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    for width in (700, 1000, 1280, 2560):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.settle()
        ((_, _, _, bottom),) = tab.boxes("nav")
        names = tab.boxes("nav .arm")
        assert len(names) == 12
        assert max(box[3] for box in names) <= bottom


def unfolded(tab: Tab, section: str) -> None:
    """Open a table that a phone has shut."""
    fold = tab.page.locator(f"{section} .fold")
    if fold.get_attribute("open") is None:
        fold.locator("> summary").click()


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 700])
def test_a_card_begins_with_its_verdict_and_the_picture_comes_before_the_cards(
    opened: Callable[..., Tab], tmp_path: Path, width: int
) -> None:
    report.write(made(3), tmp_path / "report.html", command="python -m nocap.compare outputs")
    tab = opened(tmp_path / "report.html", width=width)
    unfolded(tab, "#arms")
    card = "#arms tr[data-arm='1']"
    ((_, name, *_),) = tab.boxes(f"{card} th")
    ((_, verdict, *_),) = tab.boxes(f"{card} td.verdict")
    others = [box[1] for box in tab.boxes(f"{card} td:not(.verdict)")]
    assert name < verdict < min(others)
    ((_, _, _, picture),) = tab.boxes("#arms figure")
    ((_, table, *_),) = tab.boxes("#arms table")
    assert picture <= table


@pytest.mark.slow
def test_a_table_stays_one_where_it_has_room(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(made(3), tmp_path / "report.html", command="python -m nocap.compare outputs")
    tab = opened(tmp_path / "report.html", width=768)
    assert tab.page.locator("#arms thead").is_visible()
    assert tab.page.locator("#arms tbody tr >> visible=true").count() == 12


@pytest.mark.slow
def test_cards_are_sorted_by_a_list(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390)
    unfolded(tab, "#arms")
    first = tab.each("#arms tbody tr", "at.dataset.arm")
    chosen = tab.page.locator("#arms .sort select")
    chosen.select_option("val loss, falling")
    losses = tab.each("#arms tbody tr", "Number(at.cells[2].dataset.v)")
    assert losses == sorted(losses, reverse=True)
    chosen.select_option("the page's order")
    assert tab.each("#arms tbody tr", "at.dataset.arm") == first
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    assert not chosen.is_visible()  # there the heads of the columns sort


@pytest.mark.slow
def test_provenance_is_one_line_that_opens(opened: Callable[..., Tab], tmp_path: Path) -> None:
    def known(record: Record) -> Record:
        versions = {"nocap": "1.0", "torch": "2.13"}
        git = {"commit": "c0ffee", "diff_sha256": None}
        manifest = {**record.manifest, "versions": versions, "git": git}
        return replace(record, started="2026-11-29T10:00:00", manifest=manifest)

    report.write(made(3, known), tmp_path / "report.html", command="python -m nocap.compare x")
    tab = opened(tmp_path / "report.html", width=390)
    line = tab.page.locator("details.provenance summary")
    assert line.inner_text() == "runs of 2026-11-29 nocap 1.0 on AMD EPYC 9B14"
    command = tab.page.locator("details.provenance code")
    assert not command.is_visible()
    line.click()
    assert command.inner_text() == "python -m nocap.compare x"


@pytest.mark.slow
def test_keys_hide_an_arm_zoom_and_list_themselves(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(2), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    assert "double-click" in tab.page.locator(".hint").inner_text()
    tab.page.focus("#curves")
    tab.page.keyboard.press("ArrowRight")
    name = tab.page.locator("#curves .tip").inner_text().split(",")[0]
    drawn = tab.line()
    tab.page.keyboard.press("+")
    zoomed = tab.line()
    assert zoomed[21][0] - zoomed[20][0] > 1.9 * (drawn[21][0] - drawn[20][0])
    tab.page.keyboard.press("0")
    assert tab.line() == drawn
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("h")
    assert name not in tab.plotted("curves")
    assert len(tab.plotted("times")) == 11
    tab.page.keyboard.press("a")
    assert len(tab.plotted("times")) == 12
    tab.page.keyboard.press("?")
    keys = tab.page.locator("#keys")
    assert "hides the arm that is read" in keys.inner_text()
    tab.page.keyboard.press("Escape")
    assert not keys.is_visible()
    tab.page.click("#help")
    assert keys.is_visible()


@pytest.mark.slow
def test_a_switch_that_is_off_says_why(opened: Callable[..., Tab], tmp_path: Path) -> None:
    def without_bytes(record: Record) -> Record:
        ends = {key: getattr(record.curve, key)[::40] for key in record.curve.__dataclass_fields__}
        ends["val_bpb"] = [None, None]
        return with_summary(replace(record, curve=type(record.curve)(**ends)), val_bpb=None)

    report.write(made(2, without_bytes), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    off = tab.page.locator(".switch button:disabled")
    assert off.all_inner_texts() == ["bits per byte", "after 10%", "last quarter"]
    reasons = tab.each(".switch button:disabled", "at.title")
    assert reasons[0] == "no run recorded it"
    assert set(reasons[1:]) == {"an arm has fewer than two validations in this part"}
    assert set(tab.each(".switch button:disabled", "at.ariaDescribedByElements[0].id")) == {
        "absent"
    }
    said = tab.page.locator("#absent").inner_text()
    assert "bits per byte, because no run recorded it" in said


@pytest.mark.slow
def test_each_verdict_has_a_mark_in_each_table(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(made(4, broken=False), tmp_path / "report.html")
    raced = made_race(tmp_path, random.Random(3), gain=30.0, pairs=3)
    (tmp_path / "race.html").write_text(result_page.render(raced, raced.run()))
    for page, last in (("report.html", "times"), ("race.html", None)):
        tab = opened(tmp_path / page, last=last)
        words = tab.each("td[data-head='verdict']", "at.innerText.trim()")
        marked = tab.each("td[data-head='verdict'] .mark", "at.innerText")
        assert len(marked) == len([word for word in words if word != "baseline"])
        assert "" not in marked


@pytest.mark.slow
def test_a_name_in_a_forest_plot_lies_over_no_line(
    opened: Callable[..., Tab], tmp_path: Path, cases: Path
) -> None:
    """It stands left of its own line; a long one on a phone stands above that, where no other line
    is drawn."""
    report.write(made(3), tmp_path / "report.html")
    for page, width in ((tmp_path / "report.html", 390), (cases, 1280)):
        tab = opened(page, width=width)
        names = tab.boxes("#arms .forest g:has(circle) .name")
        lines = tab.boxes("#arms .forest circle")
        ((axis, _, _, _), _) = tab.boxes("#arms .forest line.base")
        assert len(lines) == len(names) > 6
        for (left, top, right, foot), own in zip(names, lines, strict=True):
            assert 0 < left < right < axis
            assert top < (own[1] + own[3]) / 2 < foot
    tab = opened(cases, width=390)
    names = tab.boxes("#arms .forest g:has(circle) .name")
    lines = tab.boxes("#arms .forest circle")
    for (left, top, right, foot), own in zip(names, lines, strict=True):
        assert 0 < left < right < 390
        assert own[1] - 18 < top < foot < own[1] + 1
    gaps = tab.each("#arms .forest line.grid", "getComputedStyle(at).strokeDasharray")
    assert set(gaps) == {"15px, 15px"}


@pytest.mark.slow
def test_the_rows_of_a_board_open_and_its_groups_are_jumped_to(
    opened: Callable[..., Tab],
) -> None:
    tab = opened(REPO / "experiments" / "board.html", last=None)
    assert tab.page.locator("h1").inner_text().startswith("Of the notes' decided claims, ")
    assert tab.page.locator("h1 + p").inner_text().startswith("Claims about GPT training: of ")
    marks = tab.each(".claim summary", "getComputedStyle(at, '::before').content")
    assert set(marks) == {'"▸"'}
    assert tab.each(".claim summary", "getComputedStyle(at).cursor")[0] == "pointer"
    tab.page.click(".claim summary >> nth=0")
    assert "▾" in tab.each(".claim[open] summary", "getComputedStyle(at, '::before').content")[0]
    groups = tab.each(".claims h2", "at.id")
    assert len(groups) > 1
    targets = tab.each(".links a", "at.hash.slice(1)")
    assert targets == ["first", *groups, "guide", "plots"]
    ((_, _, _, find),) = tab.boxes(".filters")
    assert 0 < tab.boxes(".claims h2")[0][1] - find < 24  # what finds a claim stands above them


# --- one stop of the Tab key for a widget --------------------------------------------------------

STOPS = """
() => [...document.querySelectorAll("a, button, input, select, summary, [tabindex]")]
  .filter((at) => at.tabIndex >= 0 && !at.disabled && at.checkVisibility()).length
"""


@pytest.mark.slow
def test_a_widget_is_one_stop_and_arrow_keys_go_on_inside(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(3), tmp_path / "report.html", command="python -m nocap.compare outputs")
    tab = opened(tmp_path / "report.html")
    assert tab.page.evaluate(STOPS) <= 30
    assert tab.page.locator("[role=application]").count() == 0
    for widget, size in (("nav", 12), (".controls >> nth=0", 13), ("#arms thead", 7)):
        stops = tab.page.locator(f"{widget} >> button[tabindex='0']")
        assert stops.count() == 1
        stops.focus()
        words = list[str]()
        for key in ("ArrowRight", "End", "ArrowRight", "ArrowLeft"):
            tab.page.keyboard.press(key)
            words.append(tab.page.evaluate("document.activeElement.textContent"))
        buttons = tab.page.locator(f"{widget} >> button:enabled").all_inner_texts()
        assert len(buttons) == size
        spoken = [text.replace("\n", "") for text in buttons]
        assert words == [spoken[1], spoken[-1], spoken[0], spoken[-1]]
        assert stops.count() == 1


@pytest.mark.slow
def test_the_keyboard_keeps_its_place_when_a_chart_is_drawn_anew(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(2), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    tip = tab.page.locator("#curves .tip")
    tab.page.focus("#curves")
    for _ in range(5):
        tab.page.keyboard.press("ArrowRight")
    said = tip.inner_text()
    for key in ("+", "-", "0"):
        tab.page.keyboard.press(key)
        assert tip.inner_text() == said
    tab.page.keyboard.press("h")  # of an arm that is gone: what is nearest
    assert tip.is_visible()
    assert tip.inner_text().split(",")[0] != said.split(",")[0]
    assert tab.page.evaluate("document.activeElement.id") == "curves"
    tab.page.focus("#all")
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.dataset.arm") == "0"


# --- a phone --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_finger_zooms_by_buttons(opened: Callable[..., Tab], tmp_path: Path) -> None:
    report.write(made(2), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390, has_touch=True)
    drawn = tab.line()
    assert not tab.page.locator("[data-chart=curves]").first.is_visible()
    tab.page.tap(".more > summary")
    tab.page.tap("[data-chart=curves][data-key='+']")
    zoomed = tab.line()
    assert zoomed[21][0] - zoomed[20][0] > 1.9 * (drawn[21][0] - drawn[20][0])
    tab.page.tap("[data-chart=curves][data-key='-']")
    assert tab.line()[21][0] - tab.line()[20][0] < 0.6 * (zoomed[21][0] - zoomed[20][0])
    tab.page.tap("[data-chart=curves][data-key='0']")
    assert tab.line() == drawn


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_all_names_and_two_rows_of_switches(
    opened: Callable[..., Tab], tmp_path: Path, width: int
) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=width)
    ((left, top, right, foot),) = tab.boxes("nav")
    names = tab.boxes("nav .arm span")
    assert len(names) == 12
    for box in names:
        assert left <= box[0] < box[2] <= right
        assert top <= box[1] < box[3] <= foot
    cut = tab.each("nav .arm span", "at.scrollWidth > at.clientWidth")
    assert not any(cut)
    ((_, first, _, last),) = tab.boxes("#curve > .controls")
    assert last - first < 100
    assert tab.scrolls() <= width


@pytest.mark.slow
@pytest.mark.parametrize("height", [0.05, 0.5, 0.9])
def test_a_reading_covers_neither_its_point_nor_the_finger(
    opened: Callable[..., Tab], tmp_path: Path, height: float
) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390, has_touch=True)
    tab.page.locator("#curves").scroll_into_view_if_needed()
    tab.settle()
    ((left, top, right, foot),) = tab.boxes("#curves > svg > svg")
    marks = tab.each("#curves .mark .line", "at.getAttribute('d').split('L')[20].split(' ')")
    ((_, origin, *_),) = tab.boxes("#curves > svg")
    wanted = top + height * (foot - top)
    finger = min((origin + float(y) for _, y in marks), key=lambda y: abs(y - wanted))
    tab.page.touchscreen.tap((left + right) / 2, finger + 6)
    ((_, over, _, under),) = tab.boxes("#curves .tip:not([hidden])")
    ((_, ring_top, _, ring_foot),) = tab.boxes("#curves .ring")
    assert under <= min(ring_top, finger) or over >= max(ring_foot, finger)


@pytest.mark.slow
def test_names_at_the_ends_of_lines_are_cut_only_where_no_room_is(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    def renamed(record: Record) -> Record:
        own = record.arm.replace("-", "_")
        return replace(record, name=f"{own}_in_many_letters-{record.name}")

    comparison = made(3, renamed, broken=False)
    report.write(comparison, tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=1280)
    labels = {row.label for row in comparison.rows}
    assert max(map(len, labels)) > 24
    assert set(tab.page.locator("#curves .label").all_text_contents()) == labels
    tab.page.set_viewport_size({"width": 390, "height": 800})
    tab.settle()
    names = tab.page.locator("#curves .label").all_text_contents()
    assert len(set(names)) == 12
    assert max(map(len, names)) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390])
def test_a_picture_that_stands_still_has_its_numbers_on_a_phone(
    opened: Callable[..., Tab], tmp_path: Path, width: int
) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=width, java_script_enabled=False, last=None)
    for plot in ("curves", "times"):
        ((_, top, _, foot),) = tab.boxes(f"#{plot} .frame")
        numbers = tab.boxes(f"#{plot} .up")
        assert len(numbers) >= 4
        lines = tab.boxes(f"#{plot} .grid")
        for left, over, right, under in numbers:
            assert 0 <= left < right <= min(line[0] for line in lines)
            assert top - 10 <= over < under <= foot + 10
        texts = tab.boxes(f"#{plot} text")
        assert max(box[2] for box in texts) <= width


@pytest.mark.slow
def test_a_phone_shuts_long_tables_and_paper_and_a_search_open_them(
    opened: Callable[..., Tab], tmp_path: Path
) -> None:
    report.write(made(3), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html", width=390)
    rows = tab.page.locator("#arms tbody tr >> visible=true")
    assert rows.count() == 0
    assert "Verdicts, 12 rows" in tab.page.locator("#arms .fold > summary").inner_text()
    height = "document.documentElement.scrollHeight"
    short = tab.page.evaluate(height)
    tab.page.emulate_media(media="print")
    assert rows.count() == 12
    tab.page.emulate_media(media="screen")
    tab.page.fill("#arms .search input", "gqa")
    assert rows.count() == 3
    assert tab.page.locator("#arms output").inner_text() == "3 of 12 match"
    assert tab.page.evaluate(height) > short
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    assert not tab.page.locator("#arms .fold > summary").is_visible()


# --- runs that ended otherwise --------------------------------------------------------------------


def with_diverged(record: Record) -> Record:
    """Let all seeds of one arm diverge, and one of another's."""
    diverges = record.arm == "gqa-gelu4x" or (record.arm == "flash-gelu3x" and record.seed == 0)
    return replace(record, status="diverged") if diverges else record


def shorter(record: Record) -> Record:
    """Train one arm for half the steps."""
    if record.arm != "gqa-gelu4x":
        return record
    half = {name: getattr(record.curve, name)[:21] for name in record.curve.__dataclass_fields__}
    curve = type(record.curve)(**half)
    loss = curve.val_loss[-1]
    halved = with_summary(record, steps=1000, tokens=1000 * 4096, val_loss=loss)
    return replace(halved, curve=curve)


def one_arm() -> Comparison:
    return compare(Found(records=[record_of("flash", "gelu4x", seed) for seed in range(3)]))


ENDS: dict[str, tuple[Callable[[], Comparison], str]] = {
    "diverged": (lambda: made(3, with_diverged), "diverged (3 of 3 seeds)"),
    "one arm": (one_arm, "there is only one arm, flash-gelu4x; nocap cannot compare it."),
    "unequal lengths": (lambda: made(3, shorter), "confounded (steps)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_runs_that_ended_otherwise_are_said_and_break_no_rule(
    opened: Callable[..., Tab], tmp_path: Path, case: str
) -> None:
    comparison, says = ENDS[case]
    report.write(comparison(), tmp_path / "report.html")
    tab = opened(tmp_path / "report.html")
    assert says in tab.page.inner_text("body")
    for width in (320, 390, 768, 1280):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.settle()
        assert tab.scrolls() <= width
        assert tab.page.evaluate(RULES) == []
