"""What a study leaves for people, from the results' JSON: text for a terminal, its README, and the forest
plots of a leaderboard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_high
from typing import Any

from markupsafe import Markup

from nocap import outside
from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.report import forest
from nocap.report.table import Column, Table, one_line, tame
from nocap.report.words import amount
from nocap.store.files import write_file
from nocap.store.formats import count, loss, whole
from nocap.store.metrics import METRICS, Scale
from nocap.store.record import read_json, write_json
from nocap.study import ladder, log
from nocap.study.results import judged
from nocap.study.spec import LEAVE_ONE_OUT, WORTH, Study
from nocap.study.words import Json, Row, counted, expected, measured, rows

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet."
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "verdict", "notes")
# of a claim, for a terminal
FACTS = ("expected", "arithmetic allows", "measured", "guards", "where", "notes")


def claims(some: Sequence[Row], names: Sequence[str], *, link: Callable[[Row], str] | None = None) -> Table:
    """A row a claim, with these of the columns. `link`: what stands for its statement."""
    cells = [row.cells | ({"statement": link(row)} if link else {}) for row in some]
    return Table(
        title="",
        columns=[Column(title=name) for name in names],
        rows=[[by_column[name] or None for name in names] for by_column in cells],
    )


def render(results: Json, study: Study) -> str:
    """All of it, for a terminal."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    for row in rows([results], {study.name: study}):
        facts = [f"  {name:<18} {text}" for name in FACTS if (text := row.cells[name])]
        lines += [f"{row.claim['id']} {row.verdict}: {row.claim['statement']}", *facts, ""]
    return "\n".join([*lines, *map(str, tables(results)), "", *_limitations(results)])


def tables(results: Json) -> Iterator[Table]:
    """The arms with what was done for each, the trials of the search before, and the parts of a stack."""
    shown: dict[str, Callable[[Any], str]] = {
        "arm": str,
        "params": count,
        "FLOPs/token": count,
        "kernel": str,
        "tokens": count,
        "trials": str,
        "val loss": str,
        "tokens/s (train)": whole,
        "tokens/s (bench)": whole,
        "MiB": whole,
        "overrides": str,
    }
    yield Table(
        title="arms",
        columns=[Column(title=title, show=show) for title, show in shown.items()],
        rows=list(map(_arm, results["arms"])),
        notes=[
            f"{arm['arm']}: FLOPs {arm['flops_basis']}"
            for arm in results["arms"]
            if arm["flops_per_token"] is None and arm.get("flops_basis")
        ],
    )
    if trials := results["trials"]:
        yield Table(
            title=f"trials: {len(trials)}, on seeds {trials[0]['seeds']}, which the study does not use",
            columns=[
                Column(title="tuned arm"),
                Column(title="trial"),
                Column(title="val loss", show=loss),
                Column(title="picked"),
            ],
            rows=[
                [t["arm"], " ".join(t["words"]), t["val_loss"], "yes" if t["picked"] else ""] for t in trials
            ],
        )
    if cells := list(_parts(results)):
        titles = ("part", "lines", "parameters", "a step", "in time", "verdict")
        yield Table(
            title=f"parts: one shown to give less than {WORTH - 1:.0%} in time goes",
            columns=[Column(title=title) for title in titles],
            rows=cells,
        )


def _parts(results: Json) -> Iterator[list[Any]]:
    """What each part of a stack costs, and what it is worth."""
    arms = {arm["arm"]: arm for arm in results["arms"]}
    for claim in (claim for claim in results["claims"] if claim["source"] == LEAVE_ONE_OUT):
        name = claim["id"].removeprefix(f"{claim['arm']}.")
        sides = (arms[claim["arm"]], arms[claim["baseline"]])
        params = [side["params"] for side in sides]
        more = params[0] - params[1] if all(params) else None
        ms = [fmean(side["pace"]["step_ms"]) for side in sides if side["pace"]]
        yield [
            name,
            _lines(name),
            None if more is None else f"{'-' if more < 0 else '+'}{count(abs(more))}",
            f"{ms[0] / ms[1] - 1:+.1%}" if len(ms) == 2 else None,
            measured(claim),
            {"refuted": "goes", "confirmed": "stays"}.get(claim["word"], claim["word"]),
        ]


def _lines(part: str) -> int | None:
    """Of the file that holds it, where it is an option that is here."""
    group, _, name = part.partition(".")
    if group not in outside.groups() or name not in outside.yamls(group):
        return None
    path = sys.modules[outside.read(group, name)[1].__module__].__file__
    return len(read_text(Path(path)).splitlines()) if path else None


def _arm(arm: Json) -> list[Any]:
    ended = loss(arm["val_loss"] and arm["val_loss"]["mean"]) + (
        f", {n} diverged" if (n := len(arm["diverged"])) else ""
    )
    timed = [arm[place] or {} for place in ("pace", "bench")]
    speeds = [[speed for speed in row.get("tokens_per_s", ()) if speed is not None] for row in timed]
    return [
        *(arm[key] for key in ("arm", "params", "flops_per_token", "kernel", "tokens")),
        arm["n_trials"] or None,
        ended,
        *(median_high(some) if some else None for some in speeds),
        timed[1].get("memory_mib"),
        " ".join([*arm["words"], *arm["tuned"]]) or None,
    ]


def _limitations(results: Json) -> list[str]:
    return [f"what this scale cannot show: {results['limitations']}"] if results["limitations"] else []


# --- what a study leaves in its folder ----------------------------------------------------------------------


def write(study: Study, folder: Path, results: Json) -> list[Path]:
    """The results and what is told of all there are; which files those are."""
    path = folder / f"results.{results['scale']}.{results['hardware']['fingerprint']}.json"
    write_json(path, results)
    return [path, *write_all(told(study, folder, all_results(folder)))]


def write_all(files: Mapping[Path, str]) -> list[Path]:
    for path, content in files.items():
        write_file(path, content.encode())
    return list(files)


def told(study: Study, folder: Path, every: Sequence[Json]) -> dict[Path, str]:
    """Of one study's results."""
    drawn = ladder.picture(every) if study.ladder else None
    pictures = {folder / ladder.PICTURE: forest.file(drawn)} if drawn else {}
    return {folder / "README.md": readme(study, folder, every)} | pictures


def all_results(folder: Path) -> list[dict[str, Any]]:
    """Of every scale and machine that has some, with the verdicts that follow from their measurements.

    Errors:
        ValueError: one that nocap did not write, or that was changed; its file is named.
    """
    known, some = log.read(folder / log.FILE), []
    for path in sorted(folder.glob("results.*.json")):
        results = redact(read_json(path) or {})
        if results.get("kind") == "study":
            try:
                some.append(judged(results, known))
                _section(some[-1], rows(some[-1:], {}))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                raise ValueError(f"{path} must be results that nocap.study wrote, got {why}") from error
    return some


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part has no mark, and would be overwritten.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    path = folder / "README.md"
    ok = not path.exists() or f"{LEARNT}\n" in read_text(path)
    require(ok, str(path), f"have the line '{LEARNT}', below which its author's text is kept", "none")


def readme(study: Study, folder: Path, every: Sequence[Json]) -> str:
    """The README anew from these results; the author's part stays."""
    path, heads, sections = folder / "README.md", list[str](), list[str]()
    shown = rows(every, {study.name: study})
    for results in every:
        some = [row for row in shown if row.results is results]
        few = ", ".join(f"{row.claim['id']} {row.word}" for row in some)
        words = few if len(some) <= HEADLINE else counted(some)
        heads.append(f"{words} ({results['scale']}, {results['hardware']['name']})")
        sections += _section(results, some)
    lines = [
        f"# {study.name}: {'; '.join(heads) or 'not run yet'}",
        "",
        f"**Question.** {study.question}",
        "",
        *([f"**Method.** {study.method.strip()}", ""] if study.method else []),
        *sections,
        *(ladder.section(every) if study.ladder else []),
    ]
    lessons = (read_text(path) if path.exists() else "").partition(f"{LEARNT}\n")[2].strip("\n")
    return "\n".join([tame("\n".join(lines)), LEARNT, "", lessons or NOTHING_YET, ""])


def _section(results: Json, some: Sequence[Row]) -> list[str]:
    """A scale on a machine."""
    hardware = results["hardware"]
    arms, *others = tables(results)
    return [
        f"## {results['scale']}: {hardware['name']}, {hardware['cores']} cores, torch "
        f"{hardware['torch']}, {results['date']}",
        "",
        f"```sh\n{one_line(results['command'])}\n```",
        "",
        f"seeds {results['seeds']}; judged at commit {str(results['commit'])[:12]}",
        "",
        *claims(some, CLAIM_HEAD).markdown(),
        "",
        *arms.markdown(),
        "",
        *(line for table in others for line in (table.title, "", *table.markdown(), "")),
        *(line + "  " for line in _limitations(results)),
        "",
    ]


# --- forest plots -------------------------------------------------------------------------------------------


def plots(every: Sequence[Row]) -> list[tuple[str, Markup]]:
    """Title and picture of each unit's rows, in the rows' order."""
    units: dict[str, list[Row]] = {}
    for row in every:
        if row.claim["measured"] is not None:
            units.setdefault(_unit(row), []).append(row)
    return [(title, _plot(title, some)) for title, some in units.items()]


def _unit(row: Row) -> str:
    """What an axis counts, and which way is better. Rows of one unit share a plot."""
    metric, scale = METRICS[row.claim["metric"]], Scale(row.claim["scale"])
    if scale is Scale.value:
        return metric.title if metric.unit in metric.title else f"{metric.title}, {metric.unit}"
    if scale is Scale.difference:
        return f"{metric.title}: {metric.gain}, {metric.unit}; right is better"
    if metric.relative:
        return "time over the baseline's at equal loss; left is less"
    fast = metric.gain.startswith("faster") or metric.gain == "less time"
    return (
        "times as fast as the baseline; right is faster"
        if fast
        else "the baseline's use over the arm's; right is less"
    )


def _plot(title: str, some: Sequence[Row]) -> Markup:
    metric, scale = METRICS[some[0].claim["metric"]], Scale(some[0].claim["scale"])
    if scale is Scale.value:
        return forest.svg(list(map(_line, some)), title=title, tick=lambda x: amount(x, metric))
    return forest.svg(list(map(_line, some)), title=title, ratio=scale is Scale.ratio)


def _line(row: Row) -> forest.Line:
    claim, cells = row.claim, row.cells
    return forest.Line(
        label=f"{claim['arm']}, {METRICS[claim['metric']].title}",
        title=f"{claim['statement']}: {row.verdict}. Measured: {cells['measured']}. Expected: "
        f"{expected(claim)}.",
        look=row.word,
        **claim["measured"],
        stated=claim["expected"],
        bound=claim["bound"],
    )
