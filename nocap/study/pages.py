"""A study's results for the terminal and as its README. From the results' JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.report.table import Column, Table, one_line, tame
from nocap.store.files import write_file
from nocap.store.formats import count, loss, whole
from nocap.store.record import read_json, write_json
from nocap.study import log
from nocap.study.results import judged
from nocap.study.spec import Study
from nocap.study.words import Json, Row, counted, rows

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet.\n"
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "verdict", "notes")
FACTS = ("expected", "arithmetic allows", "measured", "guards", "where", "notes")  # of a claim, for a terminal


def claims(some: Sequence[Row], names: Sequence[str], *, link: Callable[[Row], str] | None = None) -> Table:
    """A row a claim, with these of the columns. `link`: what stands for its statement."""
    cells = [{**row.cells, **({"statement": link(row)} if link else {})} for row in some]
    return Table(title="", columns=[Column(title=name) for name in names], rows=[[one[name] or None for name in names] for one in cells])


def render(results: Json, study: Study) -> str:
    """All of it, for a terminal."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    for row in rows([results], {study.name: study}):
        facts = [f"  {name:<18} {text}" for name in FACTS if (text := row.cells[name])]
        lines += [f"{row.claim['id']} {row.verdict}: {row.claim['statement']}", *facts, ""]
    return "\n".join([*lines, *map(str, tables(results)), "", *_limitations(results)])


def tables(results: Json) -> Iterator[Table]:
    """The arms with what was done for each, and the trials of the search before the study."""
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
    columns = [Column(title=title, show=show) for title, show in shown.items()]
    yield Table(title="arms", columns=columns, rows=list(map(_arm, results["arms"])))
    if trials := results["trials"]:
        columns = [Column(title="tuned arm"), Column(title="trial"), Column(title="val loss", show=loss), Column(title="picked")]
        cells = [[t["arm"], " ".join(t["words"]), t["val_loss"], "yes" if t["picked"] else ""] for t in trials]
        title = f"trials: {len(trials)}, on seeds {trials[0]['seeds']}, which the study does not use"
        yield Table(title=title, columns=columns, rows=cells)


def _arm(arm: Json) -> list[Any]:
    ended = loss(arm["val_loss"] and arm["val_loss"]["mean"]) + (f", {n} diverged" if (n := len(arm["diverged"])) else "")
    pace, bench = arm["pace"] or {}, arm["bench"] or {}
    speeds = [[speed for speed in timed.get("tokens_per_s", ()) if speed is not None] for timed in (pace, bench)]
    known = [arm[key] for key in ("arm", "params", "flops_per_token", "kernel", "tokens")]
    medians = [median_high(some) if some else None for some in speeds]
    overrides = " ".join([*arm["words"], *arm["tuned"]])
    return [*known, arm["n_trials"] or None, ended, *medians, bench.get("memory_mib"), overrides or None]


def _limitations(results: Json) -> list[str]:
    return [f"what this scale cannot show: {results['limitations']}"] if results["limitations"] else []


# --- what a study leaves in its folder -------------------------------------------------------------------------------------------------


def write(study: Study, folder: Path, results: Json) -> list[Path]:
    """The results and the README; which files those are."""
    path = folder / f"results.{results['scale']}.{results['hardware']['fingerprint']}.json"
    write_json(path, results)
    write_file(folder / "README.md", readme(study, folder, all_results(folder)).encode())
    return [path, folder / "README.md"]


def all_results(folder: Path) -> list[dict[str, Any]]:
    """Of every scale and machine that has some, with the verdicts that follow from their measurements.

    Errors:
        ValueError: one that nocap did not write, or that was changed; its file is named.
    """
    known, some = log.read(folder / log.FILE), []
    for path in sorted(folder.glob("results.*.json")):
        one = redact(read_json(path) or {})
        if one.get("kind") == "study":
            try:
                some.append(judged(one, known))
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
    for one in every:
        some = [row for row in shown if row.one is one]
        words = counted(some) if len(some) > HEADLINE else ", ".join(f"{row.claim['id']} {row.word}" for row in some)
        heads.append(f"{words} ({one['scale']}, {one['hardware']['name']})")
        sections += _section(one, some)
    lines = [f"# {study.name}: {'; '.join(heads) or 'not run yet'}", "", f"**Question.** {study.question}", ""]
    lines += [f"**Method.** {study.method.strip()}", ""] if study.method else []
    lessons = (read_text(path) if path.exists() else "").partition(f"{LEARNT}\n")[2].lstrip("\n") or NOTHING_YET
    return "\n".join([tame("\n".join([*lines, *sections])), LEARNT, "", lessons.rstrip("\n"), ""])


def _section(results: Json, some: Sequence[Row]) -> list[str]:
    """A scale on a machine."""
    hardware = results["hardware"]
    arms, *trials = tables(results)
    lines = [
        f"## {results['scale']}: {hardware['name']}, {hardware['cores']} cores, torch {hardware['torch']}, {results['date']}",
        "",
        f"```sh\n{one_line(results['command'])}\n```",
        "",
        f"seeds {results['seeds']}; judged at commit {str(results['commit'])[:12]}",
        "",
        *claims(some, CLAIM_HEAD).markdown(),
        "",
        *arms.markdown(),
        "",
    ]
    for table in trials:
        lines += [table.title, "", *table.markdown(), ""]
    return [*lines, *(line + "  " for line in _limitations(results)), ""]
