"""A report as one HTML file that opens anywhere, years from now, without a network.

Python decides what is said and a template lays it out; a script draws the plots. The file's content
security policy names its scripts by hash and allows no request at all, so what a run's name
smuggles in cannot run, whatever escaping misses.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nocap.config.outward import redact, visible
from nocap.display import NONE
from nocap.report.table import Table

PAGES = Path(__file__).parent / "pages"


def render(
    name: str, *, kind: str, title: str, data: Mapping[str, object] | None = None, **values: Any
) -> str:
    """Return the page that NAME.html.j2, NAME.css and NAME.js in `pages` make, on top of what all
    pages share.

    `data` is what the page's own script draws; without it the page has the script that all pages
    share. `values` are the template's.
    """
    script = _files("page.js") if data is None else _files("page.js", "chart.js", f"{name}.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _environment().get_template(f"{name}.html.j2")
    own = {
        "css": Markup(_files("page.css", f"{name}.css")),
        "script": Markup(script),
        "hash": digest,
    }
    return template.render(kind=kind, title=title, data=plain(data), **own, **values)


def _files(*names: str) -> str:
    """Return scripts or styles as one text, without indents and lines that are comments."""
    lines = "\n".join((PAGES / name).read_text(encoding="utf-8") for name in names).splitlines()
    stripped = [line.strip() for line in lines]
    return "\n".join(line for line in stripped if line and not line.startswith("//"))


def known(table: Table) -> Table:
    """Return the table without columns that have nothing but dashes."""
    drawn = table.cells
    kept = [i for i, _ in enumerate(table.columns) if any(row[i].text != NONE for row in drawn)]
    columns = [table.columns[i] for i in kept]
    rows = [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=columns, rows=rows)


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
    return environment


def _shown(value: Any) -> Any:
    """Nothing as a dash; texts, but the page's own, without secrets and controls."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(redact(value))
    return NONE if value is None else value


def plain(value: Any) -> Any:
    """Return data for a script: its texts as the page shows them, its numbers as JSON can say
    them."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return finite(value)


def finite(value: Any) -> Any:
    """NaN and infinity, which JSON cannot say, as null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
