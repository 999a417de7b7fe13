"""What a study leaves in its folder: `results.SCALE.MACHINE.json`, and a README of their verdicts and the author's lessons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.show.table import NONE, markdown
from nocap.store.files import write_file
from nocap.store.record import read_json, write_json
from nocap.study import text
from nocap.study.spec import Study
from nocap.study.text import Json

LEARNT = "## What was learnt"  # from here on a README is its author's
NOTHING_YET = "Nothing is written here yet.\n"
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "n", "verdict")


def write(study: Study, folder: Path, results: Json) -> list[Path]:
    """The results and the README; which files those are."""
    path = folder / f"results.{results['scale']}.{results['hardware']['fingerprint']}.json"
    write_json(path, results)
    return [path, write_readme(study, folder)]


def write_readme(study: Study, folder: Path) -> Path:
    """Anew from the results that are there; the author's part stays."""
    readme = folder / "README.md"
    write_file(readme, render(study, all_results(folder), lessons=_lessons(readme)).encode())
    return readme


def all_results(folder: Path) -> list[dict[str, Any]]:
    """Of every scale and machine that has some."""
    found = [read_json(path) for path in sorted(folder.glob("results.*.json"))]
    return [one for one in found if one is not None and one.get("kind") == "study"]


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part cannot be told from what would be written anew.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    readme = folder / "README.md"
    ok = not readme.exists() or f"{LEARNT}\n" in readme.read_text()
    require(ok, str(readme), f"have the line '{LEARNT}', below which its author's text is kept", "none")


def _lessons(readme: Path) -> str:
    _, _, after = (readme.read_text() if readme.exists() else "").partition(f"{LEARNT}\n")
    return after.lstrip("\n") or NOTHING_YET


def render(study: Study, every: Sequence[Json], *, lessons: str) -> str:
    lines = [f"# {_heading(study, every)}", "", f"**Question.** {study.question}", ""]
    if study.method:
        lines += [f"**Method.** {study.method.strip()}", ""]
    for results in every:
        lines += _one(results)
    return "\n".join([*lines, LEARNT, "", lessons.rstrip("\n"), ""])


def _heading(study: Study, every: Sequence[Json]) -> str:
    heads = [f"{text.headline(one['claims'])} ({one['scale']}, {one['hardware']['name']})" for one in every]
    return f"{study.name}: {'; '.join(heads) or 'not run yet'}"


def _one(results: Json) -> list[str]:
    """A scale on a machine."""
    hardware = results["hardware"]
    lines = [
        f"## {results['scale']}: {hardware['name']}, {hardware['cores']} cores, torch {hardware['torch']}, {results['date']}",
        "",
        f"```sh\n{results['command']}\n```",
        "",
        *(f"{place}: {shape}  " for place, shape in results["shapes"].items()),
        f"seeds {results['seeds']}; judged at commit {str(results['commit'])[:12]}",
        "",
        *markdown(CLAIM_HEAD, [_claim(claim) for claim in results["claims"]]),
        "",
        *markdown(text.ARM_HEAD, text.arm_rows(results)),
        "",
    ]
    if results["trials"]:
        lines += [text.trials_title(results), "", *markdown(text.TRIAL_HEAD, text.trial_rows(results)), ""]
    lines += [line.strip() + "  " for line in (*text.exchange(results), *text.caveats(results))]
    return [*lines, ""]


def _claim(claim: Json) -> list[str]:
    notes = text.stamp(claim)
    return [
        claim["id"],
        claim["statement"],
        text.expected(claim),
        f"{text.number(claim['bound'], claim)} ({claim['bound_formula']})",
        f"{text.metric(claim)}: {text.measured(claim)}",
        "; ".join(text.guard(one) for one in claim["guards"]) or NONE,
        str(claim["n"]),
        f"**{text.verdict(claim)}**" + (f" ({notes})" if notes else ""),
    ]
