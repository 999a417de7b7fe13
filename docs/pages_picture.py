"""Shoots the pictures of pages: those of `tests/pages`, each page as it was beside as it is, and
README's.

    git worktree add before 4f167adc
    (cd before && PYTHONPATH=. python docs/pages_picture.py make pages)
    python docs/pages_picture.py make now
    python docs/pages_picture.py pair before/pages now tests/pages
    python docs/pages_picture.py report outputs/grids/NAME/report.html docs

`make` writes pages of made runs with the nocap that is imported. The rest needs Chromium, and
playwright and Pillow.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
GAP = 12  # px between two pages
GREY = (136, 136, 136)
# name → its page, and the width and height that are shown, in px
PICTURES = {
    "grid": ("grid", 1000, 760),
    "phone": ("grid", 390, 1600),
    "arms": ("arms", 1000, 1400),
    "race": ("race", 1000, 760),
    "board": ("board", 1000, 760),
}
REPORT = (1080, 1000)


def make(folder: str) -> None:
    """Write the pages of made runs, and the board that is beside the code."""
    import tests
    from nocap.judge.compare import compare
    from nocap.report import comparison_page
    from nocap.sources.races import result_page
    from nocap.store.runs import Found
    from tests.made_grid import made, record_of
    from tests.test_race import made_race

    pages = Path(folder)
    pages.mkdir(parents=True, exist_ok=True)
    comparison_page.write(made(4), pages / "grid.html")
    records = list[Any]()
    for attention, mlp in (("flash", "gelu4x"), ("gqa", "gelu4x"), ("flash", "swiglu")):
        records += [record_of(attention, mlp, seed) for seed in range(4)]
    comparison_page.write(compare(Found(records=records)), pages / "arms.html")
    with tempfile.TemporaryDirectory() as place:
        race = made_race(Path(place), random.Random(3), gain=30.0, pairs=3)
        (pages / "race.html").write_text(result_page.render(race, race.run()))
    repository = Path(str(tests.__file__)).parents[1]
    shutil.copy(repository / "experiments" / "board.html", pages / "board.html")


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def shot(chromium: Any, page: Path, width: int, height: int, scheme: str = "light") -> Any:
    """Return what a screen of this size shows of a page first."""
    from PIL import Image

    size = {"width": width, "height": height}
    tab = chromium.new_page(viewport=size, color_scheme=scheme)
    tab.goto(page.resolve().as_uri())
    image = Image.open(BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    return image


def save(picture: Any, path: Path) -> None:
    """Write a picture in 256 colours, chosen so that the few coloured marks keep theirs."""
    from PIL import Image

    few = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def pair(before: str, now: str, folder: str) -> None:
    """Write each picture: the page as it was on the left, as it is on the right."""
    from PIL import Image

    with browser() as chromium:
        for name, (page, width, height) in PICTURES.items():
            picture = Image.new("RGB", (2 * width + GAP, height), GREY)
            for place, source in enumerate((before, now)):
                image = shot(chromium, Path(source) / f"{page}.html", width, height)
                picture.paste(image, (place * (width + GAP), 0))
            save(picture, Path(folder) / f"{name}.png")


def report(page: str, folder: str) -> None:
    """Write README's picture of a report, in light and in dark."""
    with browser() as chromium:
        for scheme in ("light", "dark"):
            image = shot(chromium, Path(page), *REPORT, scheme=scheme)
            save(image, Path(folder) / f"report-{scheme}.png")


what, *words = sys.argv[1:]
{"make": make, "pair": pair, "report": report}[what](*words)
