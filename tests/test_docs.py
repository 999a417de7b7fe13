"""README.md and docs/: every command can be typed as it stands, links lead somewhere, the README is short."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from nocap.__main__ import COMMANDS
from nocap.config.compose import compose
from nocap.launch.search import asked, ends, space_of
from tests.tools import run_docs
from tests.tools.run_docs import ROOT, Block, blocks, matches, pages, simple_commands, split_commands

ALL = [block for page in pages() for block in blocks(page)]
# in a line, or defined at a page's end
LINK = re.compile(r"(?:\[[^\]]*\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
COMPOSING = ("nocap.train", "nocap.profile", "nocap.bench")
MINE = ("seed", "output_dir", "cache_dir")


def _name(block: Block) -> str:
    return f"{block.page}:{block.line}"


def _nocap(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Module and arguments of each of the block's commands of nocap, as shown and as run."""
    for command in dict.fromkeys([*block.commands, *block.to_run]):
        for words in simple_commands(command):
            if words[:2] == ["python", "-m"] and words[2].startswith("nocap"):
                yield words[2], words[3:]
            elif words[0] == "nocap":
                yield f"nocap.{words[1]}", words[2:]


@cache
def _help(module: str) -> str:
    if module == "nocap.train":
        return " ".join(["--config-dir", "--plan", *get_args_parser()._option_string_actions])
    package = bool(importlib.util.find_spec(module).submodule_search_locations)  # type: ignore[union-attr]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        importlib.import_module(f"{module}.__main__" if package else module).main(["--help"])
    return out.getvalue()


@pytest.mark.parametrize("block", ALL, ids=_name)
def test_commands_name_existing_modules_flags_and_files(block: Block) -> None:
    for module, arguments in _nocap(block):
        assert importlib.util.find_spec(module), module
        for flag in (word.partition("=")[0] for word in arguments if re.match(r"--[a-z]", word)):
            assert re.search(rf"{flag}\b", _help(module)), f"{module} has no {flag}"
    for command in block.commands:
        for words in simple_commands(command):
            if words[0] == "make":
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words[1]
            if words[0] == "python" and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file(), words[1]


@pytest.mark.parametrize("block", [b for b in ALL if b.settings.get("exit", "0") == "0"], ids=_name)
def test_overrides_compose(block: Block) -> None:
    for module, arguments in _nocap(block):
        if module not in COMPOSING or {"--config-dir", "--help"} & set(arguments):
            continue
        for overrides in _arms(arguments):
            compose([*overrides, "data.path=x"] if "data=text" in overrides else overrides)


def _arms(arguments: list[str]) -> Iterator[list[str]]:
    """The overrides of the first cell of a grid and, for each key that it sweeps, of a cell with the last
    value; of each end of a search; of each arm of a bench."""
    arms = [shlex.split(arguments[i + 1]) for i, word in enumerate(arguments) if word == "--arm"]
    shared = [
        word
        for i, word in enumerate(arguments)
        if re.match(r"(?!hydra)[a-z_.]+=", word) and arguments[i - 1] != "--arm"
    ]
    if arms:
        yield from ([*shared, *arm] for arm in arms)
        return
    searched, shared = asked(shared)
    parsed = OverridesParser.create().parse_overrides(shared)
    if searched is not None:
        fixed = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
        yield from (
            [*fixed, *words]
            for words in ends(space_of([override for override in parsed if override.is_sweep_override()]))
        )
        return
    values = {
        o.key_or_group: list(o.sweep_string_iterator()) if o.is_sweep_override() else None for o in parsed
    }
    first = [
        f"{key}={swept[0]}" if swept else o.input_line or ""
        for o, (key, swept) in zip(parsed, values.items(), strict=True)
    ]
    yield first
    for key, swept in values.items():
        yield from ([*first, f"{key}={value}"] for value in (swept or [])[-1:] if key not in MINE)


@pytest.mark.parametrize(
    "page", [*pages(), ROOT / "CHANGELOG.md", ROOT / "LOG.md"], ids=lambda page: page.name
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        path, _, heading = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not heading or heading in _headings(target), f"{page.name}: {link}"


def _headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_what_is_not_run_is_listed_with_what_tests_do_in_its_place() -> None:
    rows = re.findall(
        r"^\| ((?:is|needs|runs|sets) [^|]*?) \| (.*) \|$",
        (ROOT / "docs" / "commands.md").read_text(),
        re.MULTILINE,
    )
    assert dict(rows).keys() == {block.settings["not run"] for block in ALL if "not run" in block.settings}
    for name in re.findall(r"`(tests/\S+)`", " ".join(instead for _, instead in rows)):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_pages_have_the_flags_of_the_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    package = bool(importlib.util.find_spec(f"nocap.{name}").submodule_search_locations)  # type: ignore[union-attr]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        importlib.import_module(f"nocap.{name}.__main__" if package else f"nocap.{name}").main()
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", out.getvalue()))
    text = "".join(page.read_text() for page in pages())
    assert flags
    assert [flag for flag in sorted(flags) if not re.search(rf"{flag}\b(?!-)", text)] == []


def test_readme_is_short_and_plain() -> None:
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 120
    prose = re.sub(
        r"```.*?```|<picture>.*?</picture>|!?\[([^\]]*)\]\([^)]*\)|^#.*?$",
        r"\1",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    sentences = [
        len(sentence.split())
        for sentence in re.split(r"[.:?!]\*{0,2}(?:\s|$)|\n\n|\n\* ", prose)
        if sentence.split()
    ]
    assert max(sentences) <= 35
    assert sum(sentences) / len(sentences) <= 25


def test_each_block_of_the_readme_is_run_as_its_file_says() -> None:
    assert {block.commands[0].split("\n")[0] for block in ALL if block.page == "README.md"} == {
        *run_docs.README
    }


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = {ROOT / "README.md"}, {ROOT / "README.md"}
    while new:
        linked = {
            (page.parent / link.partition("#")[0]).resolve()
            for page in new
            for link in LINK.findall(page.read_text())
        }
        new = (linked & {*pages()}) - reached
        reached |= new
    assert {*pages()} - reached == set()


@pytest.mark.parametrize("page", pages()[1:], ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 150
    assert [
        line for line in lines if len(line) > 140 and not line.startswith(("|", "<!-- run", "     "))
    ] == []


def test_blocks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- slow -->\n<!-- add: x=1 -->\n```sh\na b \\\n  c   # why\nfor i in 1 2; do\n  d "
        "$i\ndone | e\n```\n\n```text\n3 of … s\n```\n"
        "text\n<!-- run: f; g -->\n```sh\nh\n```\n```text\n```\n"
    )
    first, second = blocks(page, tmp_path)
    assert first.commands == ["a b \\\n  c", "for i in 1 2; do\n  d $i\ndone | e"]
    assert first.to_run[0] == "a b \\\n  c x=1"
    assert (first.line, first.shown) == (3, "3 of … s\n")
    assert first.skipped(slow=False) == "only with --slow"
    assert first.skipped(slow=True) is None
    assert (second.to_run, second.settings) == (["f", "g"], {"run": "f; g"})
    assert simple_commands(first.commands[1]) == [["d", "$i"], ["e"]]
    assert list(split_commands("a '# b'\n")) == ["a '# b'"]
    assert matches("3 of … s\n", "1\n3 of 7 s\n4\n")
    assert matches("a\n…\nd\n", "a\nb\nc\nd\n")
    assert not matches("3 of 8 s\n", "3 of 7 s\n")
    assert matches("a  1,024 s\n  b 2.5% …\n", "a    77 s\n b 0.125%  x\n", numbers=False)
    assert not matches("a  1,024 s\n", "b    77 s\n", numbers=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [page.relative_to(run_docs.ROOT) for page in pages()], ids=lambda page: page.stem
)
def test_every_command_runs_and_prints_what_the_page_shows(
    page: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_docs.main(["--slow", "--only", str(page)]) == 0, capfd.readouterr().out
