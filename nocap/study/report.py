"""What a study leaves in its folder: `results.SCALE.MACHINE.json`, and a README of their verdicts and the author's lessons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.report.table import one_line, tame
from nocap.store.files import write_file
from nocap.store.record import read_json, write_json
from nocap.study import text, wording
from nocap.study.rows import Row, counted, rows
from nocap.study.spec import Study
from nocap.study.wording import Json

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet.\n"
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "verdict", "notes")


def write(study: Study, folder: Path, results: Json) -> list[Path]:
    """The results and the README; which files those are."""
    path = folder / f"results.{results['scale']}.{results['hardware']['fingerprint']}.json"
    write_json(path, results)
    write_file(folder / "README.md", readme(study, folder).encode())
    return [path, folder / "README.md"]


def readme(study: Study, folder: Path) -> str:
    """The README anew from the results that are there; the author's part stays."""
    return render(study, all_results(folder), lessons=_lessons(folder / "README.md"))


def all_results(folder: Path, *, draw: Callable[[Json], object] = lambda one: _one(one, rows([one], {}))) -> list[dict[str, Any]]:
    """Of every scale and machine that has some, each such that one can `draw` it.

    Errors:
        ValueError: one cannot, because a part of it has another form.
    """
    found = []
    for path in sorted(folder.glob("results.*.json")):
        one = redact(read_json(path) or {})
        if one.get("kind") == "study":
            try:
                draw(one)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} must be results that nocap.study wrote, got {type(error).__name__}: {error}") from error
            found.append(one)
    return found


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part has no mark, and would be overwritten.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    readme = folder / "README.md"
    ok = not readme.exists() or f"{LEARNT}\n" in read_text(readme)
    require(ok, str(readme), f"have the line '{LEARNT}', below which its author's text is kept", "none")


def _lessons(readme: Path) -> str:
    _, _, after = (read_text(readme) if readme.exists() else "").partition(f"{LEARNT}\n")
    return after.lstrip("\n") or NOTHING_YET


def render(study: Study, every: Sequence[Json], *, lessons: str) -> str:
    shown = rows(every, {study.name: study})
    heads = [f"{_words([row for row in shown if row.one is one])} ({one['scale']}, {one['hardware']['name']})" for one in every]
    lines = [f"# {study.name}: {'; '.join(heads) or 'not run yet'}", "", f"**Question.** {study.question}", ""]
    if study.method:
        lines += [f"**Method.** {study.method.strip()}", ""]
    for one in every:
        lines += _one(one, [row for row in shown if row.one is one])
    return "\n".join([tame("\n".join(lines)), LEARNT, "", lessons.rstrip("\n"), ""])


def _words(some: Sequence[Row]) -> str:
    """`A1.speed refuted, A2 confirmed`; of many claims, how many of each."""
    return counted(some) if len(some) > HEADLINE else ", ".join(f"{row.claim['id']} {row.word}" for row in some)


def _one(results: Json, some: Sequence[Row]) -> list[str]:
    """A scale on a machine."""
    hardware = results["hardware"]
    arms, *trials = text.tables(results)
    lines = [
        f"## {results['scale']}: {hardware['name']}, {hardware['cores']} cores, torch {hardware['torch']}, {results['date']}",
        "",
        f"```sh\n{one_line(results['command'])}\n```",
        "",
        *(f"{place}: {wording.shape(shape)}  " for place, shape in results["shapes"].items()),
        f"seeds {results['seeds']}; judged at commit {str(results['commit'])[:12]}",
        "",
        *text.claims(some, CLAIM_HEAD).markdown(),
        "",
        *arms.markdown(),
        "",
    ]
    for table in trials:
        lines += [table.title, "", *table.markdown(), ""]
    return [*lines, *(line.strip() + "  " for line in text.caveats(results)), ""]
