"""The leaderboard: one row per claim over all studies of a folder, recipes by time to the baseline's loss, and a head for the README."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from nocap.config.keys import require
from nocap.show.table import NONE, markdown
from nocap.store.files import write_file
from nocap.study import text
from nocap.study.report import all_results, write_readme
from nocap.study.spec import load
from nocap.study.text import Json

NOT_BUILT = "not_built.yaml"  # claims that today's options cannot express: id, statement, expected, bound, why
START, END = "<!-- board: written by python -m nocap.study --board -->", "<!-- end of board -->"
HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "verdict", "where", "machine", "date", "command")
FIRST_ROWS, LAST_ROWS = 8, 2  # of the board, in the README


def write(folder: Path, readme: Path | None) -> list[Path]:
    """`README.md` in the folder and in each study's, and the leaderboard's head between the marks of `readme` where it has them.

    Errors:
        ValueError: a folder without any study's results.
    """
    places = sorted(folder.iterdir()) if folder.is_dir() else []
    every = [one for place in places if place.is_dir() for one in all_results(place)]
    require(bool(every), "--board", "be a folder of studies that were carried out, as experiments", folder)
    studies = [place for place in places if (place / "study.yaml").exists() and all_results(place)]
    written = [folder / "README.md", *(write_readme(load(place), place) for place in studies)]
    write_file(written[0], render(every, not_built(folder)).encode())
    if readme is not None and readme.exists() and START in readme.read_text():
        before, _, rest = readme.read_text().partition(START)
        _, _, after = rest.partition(END)
        write_file(readme, f"{before}{START}\n{head(every)}\n{END}{after}".encode())
        written.append(readme)
    return written


def not_built(folder: Path) -> list[dict[str, str]]:
    path = folder / NOT_BUILT
    return list(yaml.safe_load(path.read_text())) if path.exists() else []


def render(every: Sequence[Json], missing: Sequence[Mapping[str, str]]) -> str:
    words = [claim["word"] for one in every for claim in one["claims"]]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("confirmed", "refuted", "inconclusive"))
    lines = [
        f"# Leaderboard of claims: {counts}, {len(missing)} not built",
        "",
        "What was expected, what arithmetic allows, what was measured. Written by `python -m nocap.study --board experiments` from the",
        "`results.*.json` of each study. A figure is a gain over the baseline, above 1× or above 0 is better in every metric, with its 95%",
        "interval over at least three pairs. A confirmation needs one-sided bounds: its interval may reach a little beyond the stated end.",
        "A verdict is about the machine, shape and length beside it. Each study's README has its arms.",
        "",
        *markdown(HEAD, [_row(one, claim) for one, claim in _in_order(every)]),
        "",
        "## Not built, or nothing to measure",
        "",
        *markdown(("claim", "statement", "expected", "arithmetic allows", "why"), [_missing(one) for one in missing]),
        "",
        "## Recipes: time to the baseline's final loss",
        "",
        "Each recipe against the baseline of its own study on its own machine, at its shortest schedule that ends at that loss.",
        "",
        *_leaders(every),
        "",
        "## Exchange rates",
        "",
        *_rates(every),
        "",
    ]
    return "\n".join(lines)


def _row(one: Json, claim: Json) -> list[str]:
    notes = text.stamp(claim)
    link = f"[{claim['id']}]({one['study']}/README.md)"
    return [
        link,
        claim["statement"],
        f"{text.metric(claim)}: {text.expected(claim)}",
        text.number(claim["bound"], claim),
        f"{text.measured(claim)}, n={claim['n']}",
        f"**{text.verdict(claim)}**{f'; {notes}' if notes else ''}",
        claim["where"],
        one["hardware"]["name"],
        one["date"],
        f"`{one['command']}`",
    ]


def _missing(one: Mapping[str, str]) -> list[str]:
    return [str(one.get(key, NONE)) for key in ("id", "statement", "expected", "bound", "why")]


def _in_order(every: Sequence[Json]) -> list[tuple[Json, Json]]:
    """Every claim with its study's results: A2 before A10, and what begins alike as its study has it."""
    claims = [(one, claim) for one in every for claim in one["claims"]]
    return sorted(
        claims, key=lambda pair: [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", pair[1]["id"].partition(".")[0])]
    )


def _race(one: Json, claim: Json) -> bool:
    """Whether a claim is about the time in which an arm reaches the final loss of its study's baseline."""
    against = (claim["metric"], claim["target"], claim["baseline"])
    return bool(against == ("time_to_target_s", "baseline", one["baseline"]))


def _leaders(every: Sequence[Json]) -> list[str]:
    raced = [(one, claim) for one, claim in _in_order(every) if _race(one, claim)]
    raced.sort(key=lambda pair: -(pair[1]["measured"] or {"mid": 0.0})["mid"])
    head = ("recipe", "speedup", "verdict", "seeds", "where", "machine", "commit")
    return markdown(head, [_leader(one, claim) for one, claim in raced]) if raced else ["No recipe has raced yet."]


def _leader(one: Json, claim: Json) -> list[str]:
    return [
        f"{claim['arm']} ([{one['study']}]({one['study']}/README.md))",
        text.measured(claim),
        text.verdict(claim),
        str(len(claim["seeds"].get(claim["arm"], {}))),
        claim["where"],
        one["hardware"]["name"],
        str(one["commit"])[:12],
    ]


def _rates(every: Sequence[Json]) -> Iterator[str]:
    for one in every:
        lines = [line.strip() for line in text.exchange(one)]
        if lines:
            yield f"* {one['study']} ({one['scale']}): {lines[0].removeprefix('exchange rate: ')}"
            yield from (f"  * {line}" for line in lines[1:])


def head(every: Sequence[Json]) -> str:
    """For somebody who has five minutes: the first claim of each study, the first of these and the last."""
    firsts = {one["study"]: (one, claim) for one, claim in reversed(_in_order(every))}
    shown = [pair for pair in _in_order(every) if pair in firsts.values()]
    shown = shown[:-LAST_ROWS][:FIRST_ROWS] + shown[-LAST_ROWS:]
    lines = []
    for one, claim in shown:
        link = f"[{claim['id']}](experiments/{one['study']}/README.md)"
        lines += _wrapped(f"* {link} **{text.verdict(claim)}**: {claim['statement']}. Measured: {text.measured(claim)}.")
    return "\n".join(lines)


def _wrapped(item: str) -> list[str]:
    """A list's item in lines of at most 140 characters."""
    return textwrap.wrap(item, width=140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
