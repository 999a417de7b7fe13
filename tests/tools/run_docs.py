"""Run every command of README.md and docs/ in a scratch folder, in page order, and compare the
output with what the page shows.

    python -m tests.tools.run_docs [--slow] [--only PAGE] [--keep]

A command is a line of a fenced `sh` block, or several joined by `\\` or a shell loop, or a whole
`python` block. A `text` block right after it is the output that the page shows, where `…` stands
for anything. HTML comments before a block steer the tool:

    <!-- not run: needs a GPU -->    skipped, with the reason in the table
    <!-- slow -->                    runs with --slow only
    <!-- exit 2 -->                  the exit code that is right (default: 0)
    <!-- add: model=nano -->         overrides put after each command
    <!-- run: COMMAND; COMMAND -->   smaller commands to run in place of the block's
    <!-- numbers vary -->            a number in the output shown stands for any number, spaces for
                                     any number of spaces

Of README.md these stand in `tests/tools/readme.yaml`, by the block's first command.

Exits with 1 if a command fails or prints something else.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900  # a command
README: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parent / "readme.yaml").read_text()
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"(not run|slow|exit|add|run|numbers vary)\b:?\s*(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of commands with what its comments ask for."""

    page: str
    line: int
    commands: list[str]
    settings: dict[str, str]
    shown: str | None  # the output of the last command, as the page has it

    @property
    def to_run(self) -> list[str]:
        if "run" in self.settings:
            words = self.settings["run"].split()
            return list(split_commands(" ".join(words).replace("; ", "\n")))
        return [f"{command} {self.settings.get('add', '')}".strip() for command in self.commands]

    def skipped(self, *, slow: bool) -> str | None:
        """Why the block does not run here."""
        if "not run" in self.settings:
            return self.settings["not run"]
        if "slow" in self.settings and not slow:
            return "only with --slow"
        return None


def pages(root: Path = ROOT) -> list[Path]:
    paths = (root / "docs").glob("*.md")
    return [root / "README.md", *sorted(paths)]


def blocks(page: Path, root: Path = ROOT) -> list[Block]:
    text = page.read_text()
    page_blocks = []
    fences = list(FENCE.finditer(text))
    for i, fence in enumerate(fences):
        if fence[2] not in ("sh", "bash", "python"):
            continue
        before = text[fences[i - 1].end() if i else 0 : fence.start()]
        if i + 1 < len(fences):
            after = fences[i + 1]
        else:
            after = None
        follows = (
            after is not None
            and after[2] == "text"
            and not text[fence.end() : after.start()].strip()
        )
        if fence[2] == "python":
            commands = [f"python - <<'EOF'\n{fence[3]}EOF"]
        else:
            commands = list(split_commands(fence[3]))
        line = text.count("\n", 0, fence.start()) + 1
        path = page.relative_to(root)
        page_blocks.append(
            Block(
                page=str(path),
                line=line,
                commands=commands,
                settings=README[commands[0].split("\n")[0]]
                if page.name == "README.md"
                else _settings(before),
                shown=after[3] if after is not None and follows else None,
            )
        )
    return page_blocks


def _settings(before: str) -> dict[str, str]:
    """Those of the comments that stand between the last text and the block."""
    settings: dict[str, str] = {}
    while (comment := before.rstrip().rfind("<!--")) >= 0 and before.rstrip().endswith("-->"):
        match = SETTING.match(before.rstrip()[comment + 4 : -3].strip())
        if match is None:
            break
        settings[match[1]] = match[2].strip()
        before = before[:comment]
    return settings


def split_commands(script: str) -> Iterator[str]:
    """The whole commands of a block, without comments at the end of a line."""
    waiting = ""
    for line in script.splitlines():
        waiting += re.sub(r"(^|\s+)# .*$", "", line.rstrip()) + "\n"
        complete = (
            not waiting.rstrip().endswith("\\")
            and subprocess.run(["bash", "-nc", waiting], capture_output=True).returncode == 0
        )
        if complete and waiting.strip():
            yield waiting.strip()
        if complete:
            waiting = ""


def simple_commands(command: str) -> list[list[str]]:
    """The parts of each simple command in it: a pipe, `;` or a loop holds several. None for a
    script that is read from standard input."""
    if "<<" in command:
        return []
    text = command.replace("\\\n", " ").replace("\n", " ; ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&") or word in ("do", "then", "done"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words and words[0] != "for"]


def matches(shown: str, output: str, *, numbers: bool = True) -> bool:
    """Whether the lines shown are in the output, one after the other; `…` stands for anything,
    alone on its line for any lines. Without `numbers` any number stands for any other, and columns
    may be of other widths."""
    lines = [re.escape(line.rstrip()).replace("…", ".*") + r" *\n" for line in shown.splitlines()]
    if not numbers:
        lines = [re.sub(r"(\\ )+", " +", line) for line in lines]
        lines = [re.sub(r"\d+(?:(?:\\.|,)\d+)*", r"[\\d.,]+", line) for line in lines]
    anything = []
    for line, pattern in zip(shown.splitlines(), lines, strict=True):
        anything.append(r"(?:.*\n)*?" if line.strip() == "…" else pattern)
    return re.search("".join(anything), output + "\n") is not None


def scratch(folder: Path) -> Path:
    """A copy of the working tree without hidden files and outputs."""
    copy = folder / "nocap"
    ignore = shutil.ignore_patterns(".*", "outputs", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignore)
    return copy


def environment(where: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cache = str(where.parent / "cache")
    return {
        **os.environ,
        "PATH": path,
        "NOCAP_CACHE": cache,
        "WANDB_MODE": "offline",
        "PYTHONPATH": str(where),
        "COLUMNS": "140",  # the longest line of a page
    }


def run(block: Block, command: str, where: Path, *, last: bool) -> tuple[int, float, str]:
    """Exit code, seconds, and what was wrong ('' for nothing)."""
    started = time.monotonic()
    wrong = ""
    bash = ["timeout", str(LIMIT_S), "bash", "-c", command]
    done = subprocess.run(
        bash,
        cwd=where,
        env=environment(where),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != int(block.settings.get("exit", "0")):
        output = done.stdout + done.stderr
        lines = (output).splitlines()
        wrong = "\n".join(lines[-12:]) or "no output"
    elif (
        last
        and block.shown
        and not matches(
            block.shown, done.stdout + done.stderr, numbers="numbers vary" not in block.settings
        )
    ):
        wrong = f"the page shows\n{block.shown}but it printed\n{done.stdout}{done.stderr}"
    return done.returncode, time.monotonic() - started, wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", action="store_true", help="also the commands that take minutes")
    parser.add_argument("--only", metavar="PAGE", help="pages whose name has this in it")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="nocap-docs-"))
    where = scratch(folder)
    failures = 0
    print(f"{'page':<34} {'ran':<8} {'exit':>7} {'seconds':>7}  command", flush=True)
    all_blocks = list[Block]()
    for page in pages(where):
        all_blocks += blocks(page, where)
    for block in all_blocks:
        if options.only and options.only not in block.page:
            continue
        reason = block.skipped(slow=options.slow)
        place = f"{block.page}:{block.line}"
        if reason:
            commands = block.commands
        else:
            commands = block.to_run
        for i, command in enumerate(commands):
            words = command.replace("\\\n", " ").split()
            shown = " ".join(words)
            if reason:
                print(
                    f"{place:<34} {'skipped':<8} {'':>7} {'':>7}  {shown}  ({reason})", flush=True
                )
                continue
            code, seconds, wrong = run(block, command, where, last=i == len(commands) - 1)
            failures += bool(wrong)
            print(
                f"{place:<34} {'FAILED' if wrong else 'ran':<8} {code:>7} {seconds:>7.1f}  {shown}",
                flush=True,
            )
            if wrong:
                print("    " + wrong.replace("\n", "\n    "), flush=True)
    print(f"{failures} failed")
    if not options.keep:
        shutil.rmtree(folder)
    if failures:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
