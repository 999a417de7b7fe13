"""The page of a grid's comparison, `report.html` in its folder. To draw it takes longer than to
compare the runs. So the page ends with a digest, of itself and of what it is drawn from, and is
drawn again only where that is another one."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import msgspec

from nocap import __version__
from nocap.config.outgoing_text import redact
from nocap.config.paths import shown
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.launch.grid import REPORT
from nocap.report import provenance
from nocap.store.file_writing import write_file

MARK = b"\n<!-- drawn from "  # of the digest, behind the page
CODE = Path(provenance.__file__).parent  # that draws pages


def write_page(folder: Path, comparison: Comparison) -> bool:
    """Write the page of a grid's folder, unless it is there and is what would be drawn. Return
    whether it was written.

    Errors:
        OSError: it cannot be written.
    """
    path = folder / REPORT
    command = f"python -m nocap.compare {shown(folder)} --html report.html"
    source = _source(comparison, command)
    if path.is_file() and _is_of(path.read_bytes(), source):
        return False
    from nocap.report.comparison_page import render  # with its templates, which take longest

    page = render(comparison, command=command).encode()
    write_file(path, _marked(page, source))
    return True


def drop_page(folder: Path) -> None:
    """Remove a grid's page, which is not of its runs as they are, or as they will be."""
    path = folder / REPORT
    if path.is_file():
        path.unlink()


def _source(comparison: Comparison, command: str) -> bytes:
    """Return what a page is drawn from: the comparison, where it comes from, and the code."""
    result = msgspec.json.encode(result_of(comparison)).decode()
    facts = [asdict(fact) for fact in provenance.facts(comparison, command)]
    code = hashlib.sha256(__version__.encode())
    for path in sorted(CODE.rglob("*.*")):
        if path.suffix != ".pyc":
            code.update(path.read_bytes())
    content = {"result": redact(result), "facts": redact(facts), "code": code.hexdigest()}
    return msgspec.json.encode(content)


def _marked(page: bytes, source: bytes) -> bytes:
    """Return a page with the digest of itself and its source behind it."""
    digest = hashlib.sha256(source + page).hexdigest()
    return page + MARK + digest.encode() + b" -->\n"


def _is_of(content: bytes, source: bytes) -> bool:
    """Say whether the content of a file is a page that was drawn from this source."""
    page = content.rpartition(MARK)[0]
    return content == _marked(page, source)
