"""A report as one HTML file that opens anywhere, years from now, without a network.

Python decides what is said and a template lays it out; a script draws the plots. The file's content
security policy names its scripts by hash and allows no request at all, so what a run's name
smuggles in cannot run, whatever escaping misses.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nocap.config.outgoing_text import redact, visible
from nocap.display import NONE
from nocap.report import verdict_marks

PAGES = Path(__file__).parent / "pages"


def render(
    name: str, *, kind: str, title: str, data: Mapping[str, object] | None = None, **values: Any
) -> str:
    """Return the page that NAME.html.j2, NAME.css and NAME.js in `pages` make, on top of what all
    pages share.

    `data` is what the page's own script draws; without it the page has the script that all pages
    share. `values` are the template's.
    """
    script = _script("page.js")
    if data is not None:
        script = _script("page.js", "chart.js", f"{name}.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _environment().get_template(f"{name}.html.j2")
    text = template.render(
        kind=kind,
        title=title,
        data=plain(data),
        css=Markup(_style("page.css", f"{name}.css")),
        script=Markup(script),
        hash=digest,
        **values,
    )
    return _dense(text)


def _read(names: Iterable[str]) -> str:
    return "\n".join((PAGES / name).read_text(encoding="utf-8") for name in names)


def _dense(text: str) -> str:
    """Return a text without indents and empty lines, which nobody sees on a page."""
    stripped = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in stripped if line)


def _script(*names: str) -> str:
    """Return scripts as one text, without comments that end a line or are one."""
    return _dense(re.sub(r"(?m)(^| )\s*// .*$", "", _read(names)))


def _style(*names: str) -> str:
    """Return styles as one text, without comments and spaces that mean nothing."""
    bare = re.sub(r"/\*.*?\*/", "", _read(names), flags=re.DOTALL)
    dense = re.sub(r" ?([{};,]) ?", r"\1", _dense(bare))
    return dense.replace(": ", ":").replace(";}", "}")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["marks"] = verdict_marks.by_name()
    return environment


def _shown(value: Any) -> Any:
    """Nothing as a dash; texts, but the page's own, without secrets and controls, and not broken
    before half an interval."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(redact(value)).replace(" ± ", "\xa0±\xa0")
    if value is None:
        return NONE
    return value


def plain(value: Any) -> Any:
    """Return data for a script: its texts as the page shows them, its numbers as JSON can say them:
    NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return _shown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
