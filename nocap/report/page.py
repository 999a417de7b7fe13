"""A report as one HTML file that opens anywhere, years from now, without a network.

Python decides what is said and a template lays it out; a script draws the plots. The file's content security
policy names its scripts by hash and allows no request at all, so what a run's name smuggles in cannot run,
whatever escaping misses.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nocap.config.outward import redact, visible
from nocap.store.formats import NONE

PAGES = Path(__file__).parent / "pages"


def render(
    name: str, *, kind: str, title: str, data: Mapping[str, object] | None = None, **values: Any
) -> str:
    """The page that NAME.html.j2, NAME.css and NAME.js in `pages` make, on top of what all pages share.

    `data` is what the script draws; without it the page has no script, and none may run. `values` are the
    template's.
    """
    scripts = [] if data is None else [Markup(_both(name, "js"))]
    hashes = (
        " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
            for script in scripts
        )
        or "'none'"
    )
    template = _environment().get_template(f"{name}.html.j2")
    own = {"css": Markup(_both(name, "css")), "scripts": scripts, "hashes": hashes}
    return template.render(kind=kind, title=title, data=redact(data), **own, **values)


def _both(name: str, suffix: str) -> str:
    return "\n".join((PAGES / f"{each}.{suffix}").read_text(encoding="utf-8") for each in ("page", name))


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Nothing as a dash; texts, but the page's own, without secrets and controls."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(redact(value))
    return NONE if value is None else value


def finite(value: Any) -> Any:
    """NaN and infinity, which JSON cannot say, as null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
