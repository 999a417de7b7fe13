"""README.md and docs/: every command can be typed as it stands, links lead somewhere, pages are
short, sentences are plain, and figures that stand twice agree."""

import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from nocap.__main__ import COMMANDS
from nocap.config.compose import compose
from nocap.config.help_page import help_text
from nocap.launch.search import options_in
from nocap.launch.search_space import ends, space_of
from tests.tools import run_docs, settings, slurm
from tests.tools.run_docs import (
    ROOT,
    Block,
    blocks,
    environment,
    matches,
    pages,
    scratch,
    simple_commands,
    split_commands,
)

ALL = list(itertools.chain.from_iterable(map(blocks, pages())))
DEVELOPERS = ROOT / "docs" / "architecture.md"
READERS = [page for page in pages() if page != DEVELOPERS]
# whose `__init__.py` says what each file does
ROOMS = (
    "checks",
    "config",
    "data",
    "generation",
    "judge",
    "launch",
    "measure",
    "model",
    "options",
    "options/tracker/wandb",
    "report",
    "runs",
    "sessions",
    "sources",
    "sources/logs",
    "sources/races",
    "store",
    "study",
    "study/proposals",
    "training",
)
EVIDENCE = [
    *sorted((ROOT / "experiments").glob("*/README.md")),
    *sorted((ROOT / "tests").glob("**/README.md")),
    ROOT / "nocap" / "README.md",
]
# in a line, or defined at a page's end
LINK = re.compile(r"(?:\[[^\]]*\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
COMPOSING = ("nocap.train", "nocap.profile", "nocap.bench")
OWN = ("seed", "output_dir", "cache_dir")


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
        parsed = get_args_parser()
        return " ".join([help_text([], everything=True), *parsed._option_string_actions])
    package = bool(importlib.util.find_spec(module).submodule_search_locations)  # type: ignore[union-attr]
    out = io.StringIO()
    door = importlib.import_module(f"{module}{'.__main__' * package}")
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        door.main(["--help"])
    return out.getvalue()


@pytest.mark.parametrize("block", ALL, ids=_name)
def test_commands_name_existing_modules_flags_and_files(block: Block) -> None:
    for module, arguments in _nocap(block):
        assert importlib.util.find_spec(module), module
        for flag in (word.partition("=")[0] for word in arguments if re.match(r"--[a-z]", word)):
            assert re.search(rf"{flag}\b", _help(module)), f"{module} has no {flag}"
    for words in itertools.chain.from_iterable(map(simple_commands, block.commands)):
        if words[1:]:
            named = words[1]
        else:
            named = ""
        assert words[0] != "make" or re.search(
            rf"^{named}:", (ROOT / "Makefile").read_text(), re.M
        ), named
        assert words[0] != "python" or not named.endswith(".py") or (ROOT / named).is_file(), named


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=() if block.page == "README.md" else pytest.mark.slow)
        for block in ALL
        if block.settings.get("exit", "0") == "0"
    ],
    ids=lambda block: _name(block),
)
def test_the_overrides_of_every_page_compose(block: Block) -> None:
    for module, arguments in _nocap(block):
        if module in COMPOSING and not {"--config-dir", "--help"} & set(arguments):
            for overrides in _arms(arguments):
                compose([*overrides, "data.path=x"] if "data=text" in overrides else overrides)


def _arms(arguments: list[str]) -> Iterator[list[str]]:
    """The overrides of each arm of a bench; of each end of a search; or of the first cell of a grid
    and, for each key that it sweeps, of a cell with the last value."""
    arms = [shlex.split(arguments[i + 1]) for i, word in enumerate(arguments) if word == "--arm"]
    pairs = pairwise(["", *arguments])
    shared = []
    for last, word in pairs:
        if re.match(r"(?!hydra)[a-z_.]+=", word) and last != "--arm":
            shared.append(word)
    searched, shared = (None, shared) if arms else options_in(shared)
    parsed = OverridesParser.create().parse_overrides(shared)
    swept = [o for o in parsed if o.is_sweep_override()]
    fixed = [o.input_line or "" for o in parsed if not o.is_sweep_override()]
    if arms or searched is not None:
        yield from ([*fixed, *words] for words in arms or ends(space_of(swept)))
        return
    values = {str(o.key_or_group): list(o.sweep_string_iterator()) for o in swept}
    first = [*fixed, *(f"{key}={each[0]}" for key, each in values.items())]
    yield first
    yield from ([*first, f"{key}={each[-1]}"] for key, each in values.items() if key not in OWN)


@pytest.mark.parametrize(
    "page",
    [*pages(), *(ROOT / f"{name}.md" for name in ("CHANGELOG", "LOG", "SECURITY")), *EVIDENCE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for path, _, heading in (link.partition("#") for link in LINK.findall(page.read_text())):
        if path:
            target = page.parent / path
        else:
            target = page
        elsewhere = "://" in path or "security/advisories" in path
        assert elsewhere or target.exists(), path
        assert elsewhere or not heading or heading in _headings(target), f"{path}#{heading}"


def _headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = text.splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_what_is_not_run_is_listed_with_what_tests_do_in_its_place() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    rows = re.findall(r"^\| ((?:is|needs|runs|sets) [^|]*?) \| (.*) \|$", text, re.MULTILINE)
    expected = {block.settings["not run"] for block in ALL if "not run" in block.settings}
    assert dict(rows).keys() == expected
    for name in re.findall(r"`(tests/\S+)`", " ".join(instead for _, instead in rows)):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_pages_have_the_flags_of_the_help(name: str) -> None:
    if name == "train":
        manual_text = help_text([])
    else:
        manual_text = _help(f"nocap.{name}")
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", manual_text))
    text = "".join(page.read_text() for page in pages())
    assert flags
    unnamed = [flag for flag in sorted(flags) if not re.search(rf"{flag}\b(?!-)", text)]
    assert unnamed == []


def test_the_tests_that_a_promise_names_are_there() -> None:
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    code = "".join(path.read_text() for path in paths)
    page = (ROOT / "tests" / "faults" / "README.md").read_text()
    names = set(re.findall(r"`(test_\w+)(?!\.py)\b", page))
    assert len(names) > 40
    assert [name for name in sorted(names) if f"def {name}" not in code] == []


def test_readme_is_short_and_plain() -> None:
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 110
    prose = re.sub(
        r"```.*?```|<picture>.*?</picture>|!?\[([^\]]*)\]\([^)]*\)|^#.*?$",
        r"\1",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    words = re.split(r"[.:?!]\*{0,2}(?:\s|$)|\n\n|\n\* ", prose)
    sentences = [len(sentence.split()) for sentence in words if sentence.split()]
    assert max(sentences) <= 35
    assert sum(sentences) / len(sentences) <= 25


def test_the_readme_rounds_a_result_once() -> None:
    words = (ROOT / "README.md").read_text().split()
    text = " ".join(words)
    (path,) = (ROOT / "experiments" / "recipe_tuned").glob("results.docs.*.json")
    content = json.loads(path.read_text())
    measured = content["claims"][0]["measured"]
    assert f"{measured['mid']:.2f} times as fast. The interval's lower end is" in text
    assert (
        f"The interval's lower end is {measured['low']:.2f}. The claim was registered after" in text
    )


def test_each_block_of_the_readme_is_run_as_its_file_says() -> None:
    readme = {*run_docs.README}
    first_lines = {block.commands[0].split("\n")[0] for block in ALL if block.page == "README.md"}
    assert first_lines == readme


def test_every_page_is_reached_from_the_readme() -> None:
    reached = new = {ROOT / "README.md"}
    while new:
        links = []
        for page in new:
            found = LINK.findall(page.read_text())
            links += [(page, link.partition("#")[0]) for link in found]
        targets = {(page.parent / path).resolve() for page, path in links}
        new = (targets & {*pages()}) - reached
        reached = reached | new
    assert {*pages()} == reached


@pytest.mark.parametrize("page", pages()[1:], ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    lines = GENERATED.sub("", page.read_text()).splitlines()
    assert len(lines) <= 150
    long_lines = []
    for line in lines:
        if len(line) > 140 and not line.startswith(("|", "<!-- run", "     ")):
            long_lines.append(line)
    assert long_lines == []


def words(page: Path) -> int:
    """Count what a reader reads: no comments, and no tables from the code."""
    visible = COMMENT.sub("", GENERATED.sub("", page.read_text()))
    return sum(bool(re.search(r"\w", word)) for word in visible.split())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_at_most_1200_words(page: Path) -> None:
    assert words(page) <= 1200


def test_all_pages_are_few_and_short() -> None:
    assert len(pages()) <= 16
    assert sum(map(words, READERS)) <= 13_900


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_each_of_its_files_does(room: str) -> None:
    folder = ROOT / "nocap" / room
    text = (folder / "__init__.py").read_text()
    listed = re.findall(r"^ {4}(\w+) {2,}\S", text, re.MULTILINE)
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in folder.glob("*/*.py")}
    assert sorted(listed) == sorted(files | folders)


# --- plain sentences ------------------------------------------------------------------------------

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->\n", re.DOTALL)
NO_PROSE = re.compile(r"```.*?```|<picture>.*?</picture>|^[#|!].*?$", re.DOTALL | re.MULTILINE)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's paragraphs and list items. Code is one word."""
    prose = NO_PROSE.sub("", COMMENT.sub("", text))
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", prose))
    parts = re.split(r"\n\s*\n|\n *(?:\*|\d+\.) ", f"\n{prose}")
    plain = (" ".join(part.replace("*", "").split()) for part in parts)
    return [
        sentence
        for part in plain
        for sentence in re.split(r"(?<=[.?!]) (?=[A-Z(]|nocap\b)", part)
        if sentence
    ]


def test_sentences_are_found_in_paragraphs_and_items_and_not_in_code() -> None:
    prose = "# Title\n\nOne `a. B` two. [Three](x.md) four?\n\n* Seven\n  eight.\n"
    page = f"{prose}\n```sh\nFive. Six.\n```\n| Nine. |\n"
    assert sentences(page) == ["One Code two.", "Three four?", "Seven eight."]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_sentences_are_short_and_name_their_subject(page: Path) -> None:
    found = sentences(page.read_text())
    assert [sentence for sentence in found if len(sentence.split()) > 35] == []
    assert [s for s in found if re.match(r"Wh(at|o)\b", s) and not s.endswith("?")] == []


# --- figures --------------------------------------------------------------------------------------


def test_the_settings_are_those_of_the_code() -> None:
    """`python -m tests.tools.settings` writes them."""
    page = settings.PAGE.read_text()
    assert page.count("<!-- generated: ") == 4
    assert settings.generated(page) == page


@pytest.mark.parametrize(
    ("figure", "places"),
    [
        ("458,977", ["docs/speed.md", "experiments/gpu_day/README.md"]),
        ("420,642", ["docs/speed.md", "experiments/gpu_day/README.md"]),
        ("1.09 times", ["docs/speed.md", "docs/challenge.md", "experiments/gpu_day/README.md"]),
        ("3.697 nats, the baseline 4.992", ["docs/challenge.md", "experiments/gpu_day/README.md"]),
        ("[5.5%, 11.4%]", ["docs/challenge.md", "experiments/gpu_day/README.md"]),
        ("3.05 times as fast", ["README.md", "docs/challenge.md", "LOG.md"]),
        ("1,003", ["README.md", "experiments/soak/README.md", "tests/faults/README.md"]),
        ("about five minutes", ["README.md", "tests/README.md"]),
        ("2 to 3 minutes", ["README.md", "Makefile"]),
    ],
)
def test_a_figure_that_stands_twice_is_one(figure: str, places: list[str]) -> None:
    for place in places:
        assert figure in " ".join((ROOT / place).read_text().split()), place


PAGE_AND_OUTPUT = [
    ("3 of … s\n", "1\n3 of 7 s\n4\n", True, True),
    ("a\n…\nd\n", "a\nb\nc\nd\n", True, True),
    ("3 of 8 s\n", "3 of 7 s\n", True, False),
    ("a  1,024 s\n  b 2.5% …\n", "a    77 s\n b 0.125%  x\n", False, True),
    ("a  1,024 s\n", "b    77 s\n", False, False),
]


@pytest.mark.parametrize(("shown", "printed", "numbers", "same"), PAGE_AND_OUTPUT)
def test_what_a_page_shows_is_what_was_printed(
    shown: str, printed: str, numbers: bool, same: bool
) -> None:
    assert matches(shown, printed, numbers=numbers) == same


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.gate if page.name == "README.md" else pytest.mark.slow)
        for page in pages()
    ],
    ids=lambda page: page.stem,
)
def test_every_command_runs_and_prints_what_the_page_shows(
    page: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(page.relative_to(ROOT))
    assert run_docs.main(["--slow", "--only", path]) == 0, capfd.readouterr().out


# --- users: scripts of tests/users, written from the pages alone ----------------------------------

# Of a lab and a program every command ends well, and the answer is there; the others' are run where
# their pages are. `# docs/PAGE` in a script names the page that the commands below it are from.
# $NANO and its like make them short.
USERS = ROOT / "tests" / "users"


def typed(user: str, where: Path, env: dict[str, str]) -> None:
    env = environment(where) | {"NANO": "model=nano data=synthetic trainer.steps=20"} | env
    words = ["bash", "-ex", str(USERS / f"{user}.sh")]
    subprocess.run(words, cwd=where, env=env, stdin=subprocess.DEVNULL, check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lab_gets_its_answers(tmp_path: Path) -> None:
    """On a pretended Slurm."""
    for library in ("submitit", "wandb_workspaces", "matplotlib", "optuna"):
        pytest.importorskip(library)
    where = scratch(tmp_path)
    cluster = slurm.install(tmp_path / "slurm")
    path = f"{cluster['PATH'].partition(':')[0]}:{environment(where)['PATH']}"
    typed("lab", where, {**cluster, "PATH": path, "PARTITION": "two"})
    comparison = json.loads((where / "comparison.json").read_text())
    verdicts = {arm["label"]: arm["difference"]["verdict"] for arm in comparison["arms"][1:]}
    assert verdicts.keys() == {"gqa", "mqa"}
    assert {*verdicts.values()} <= {"better", "worse", "no difference shown"}
    # nine cells, and [x0]: two machines trained each cell once, and [] is flash at seed 0
    text = (where / "runs.json").read_text()
    runs = json.loads(text)["runs"]
    assert len(runs) == 10
    content = (where / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert json.loads((where / "dashboard.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_program_gets_its_answers(tmp_path: Path) -> None:
    where = scratch(tmp_path)
    typed("program", where, {})
    names = ("accepted", "again", "not-shown", "race", "comparison", "api")
    texts = [(where / f"{name}.json").read_text() for name in names]
    accepted, again, no, race, comparison, api = map(json.loads, texts)
    assert accepted["word"] == "accepted"
    assert again == accepted
    assert no["word"] == "not shown"
    assert (where / "failed.json").read_text() == ""
    verdicts = [(arm["arm"], arm["word"]) for arm in race["verdicts"]]
    assert verdicts == [("slow", "worse")]
    arms = [arm["arm"] for arm in comparison["arms"]]
    assert arms[:1] == [comparison["baseline"]]
    assert comparison["arms"][1]["difference"]["verdict"] == "no difference shown"
    assert api == ["flash", "gqa"]


@pytest.mark.parametrize("user", sorted(path.stem for path in USERS.glob("*.sh")))
def test_the_pages_show_what_a_user_types(user: str) -> None:
    """Each command, flag, key and option of a script is on the page that it names."""
    parts = re.split(
        r"^# ((?:docs/)?\w[\w-]*\.md)$", (USERS / f"{user}.sh").read_text(), flags=re.MULTILINE
    )
    assert len(parts) > 2
    for page, script in zip(parts[1::2], parts[2::2], strict=True):
        # what all commands have
        text = (ROOT / page).read_text() + (ROOT / "docs" / "settings.md").read_text()
        for words in itertools.chain.from_iterable(map(simple_commands, split_commands(script))):
            if words[:2] == ["python", "-m"]:
                name = words[2]
            else:
                name = " ".join(words[:2])
            typed = [word for word in words if re.match(r"--[a-z]|[a-z][\w./]*=", word)]
            missing = [word for word in (name, *typed) if word.partition("=")[0] not in text]
            assert not missing or not name.startswith("nocap"), f"{page} does not show {missing}"
