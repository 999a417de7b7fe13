"""A study's results as tables and texts: for the terminal, its README, the leaderboard and the page. From the results' JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nocap.report.table import Column, Table, one_line
from nocap.store.formats import count, fixed, loss, shorten, whole
from nocap.store.metrics import METRICS
from nocap.study import wording
from nocap.study.rows import Row
from nocap.study.wording import Json

# What a table of claims can say of a row.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "claim": lambda row: str(row.claim["id"]),
    "statement": lambda row: str(row.claim["statement"]),
    "expected": lambda row: f"{wording.metric(row.claim)}: {wording.expected(row.claim)}",
    "arithmetic allows": lambda row: f"{wording.allowed(row.claim)} ({row.claim['bound_formula']})",
    "measured": lambda row: row.measured,
    "guards": lambda row: "; ".join(map(wording.guard, row.claim["guards"])),
    "verdict": lambda row: row.verdict,
    "notes": lambda row: "; ".join(row.notes),
    "where": lambda row: row.where,
    "machine, date": lambda row: f"{row.one['hardware']['name']}, {row.one['date']}",
    "command": lambda row: f"`{one_line(row.one['command'])}`",
}


def claims(some: Sequence[Row], names: Sequence[str], *, link: Callable[[Row], str] | None = None) -> Table:
    """A row a claim, with these of the columns. `link`: what stands for its statement."""
    of = COLUMNS if link is None else {**COLUMNS, "statement": link}
    return Table(title="", columns=[Column(title=name) for name in names], rows=[[of[name](row) or None for name in names] for row in some])


def render(results: Json, some: Sequence[Row]) -> str:
    """All of it, for a terminal. `some`: its rows."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    names = ("expected", "arithmetic allows", "measured", "guards", "where", "notes")
    for row in some:
        facts = [f"  {name:<18} {text}" for name in names if (text := COLUMNS[name](row))]
        lines += [f"{row.claim['id']} {row.verdict}: {row.claim['statement']}", *facts, ""]
    return "\n".join([*lines, *map(str, tables(results)), *caveats(results)])


def tables(results: Json) -> Iterator[Table]:
    """The arms, and the trials of the search before the study."""
    yield _arms(results["arms"])
    if trials := results["trials"]:
        columns = [Column(title="tuned arm"), Column(title="trial"), Column(title="val loss", show=loss), Column(title="picked")]
        rows = [[t["arm"], " ".join(t["words"]), t["val_loss"], "yes" if t["picked"] else ""] for t in trials]
        title = f"trials: {len(trials)}, on seeds {trials[0]['seeds']}, which the study does not use"
        yield Table(title=title, columns=columns, rows=rows)


def _arms(arms: Sequence[Json]) -> Table:
    """The fairness columns: what each arm is and what was done for it, beside what it did."""
    columns = [
        Column(title="arm"),
        Column(title="params", show=count, metric="params"),
        Column(title="FLOPs/token", show=count),
        Column(title="kernel"),
        Column(title="tokens", show=count),
        Column(title="trials"),
        Column(title="val loss", show=lambda found: found if isinstance(found, str) else fixed(found, 4), metric="val_loss"),
        Column(title="tokens/s (train)", show=whole, metric="tokens_per_s"),
        Column(title="tokens/s (bench)", show=whole, metric="tokens_per_s"),
        Column(title="MiB", show=whole, metric="memory_mib"),
        Column(title="overrides"),
    ]
    return Table(title="arms", columns=columns, rows=list(map(_arm, arms)))


def _arm(arm: Json) -> list[Any]:
    mean = arm["val_loss"] and arm["val_loss"]["mean"]
    known = [arm[key] for key in ("arm", "params", "flops_per_token", "kernel", "tokens")]
    ended = f"{loss(mean)}, {len(arm['diverged'])} diverged" if arm["diverged"] else mean
    memory = (arm["bench"] or {}).get("memory_mib")
    overrides = " ".join([*arm["words"], *arm["tuned"]])
    return [*known, arm["n_trials"] or None, ended, _speed(arm["pace"]), _speed(arm["bench"]), memory, overrides or None]


def _speed(seen: Json | None) -> float | None:
    speeds = sorted(speed for speed in (seen or {}).get("tokens_per_s", []) if speed is not None)
    return speeds[len(speeds) // 2] if speeds else None


def caveats(results: Json) -> Iterator[str]:
    if results["speaks_for"]:
        yield f"\nwhat this scale cannot show: {results['speaks_for']}"
    endings = {
        "diverged": "diverged, counted as worst",
        "censored": "never reached the loss",
        "at_most": "reached the loss in the shortest schedule, so steps are at most that",
    }
    for claim in results["claims"]:
        for ending, words in endings.items():
            if claim[ending]:
                yield f"{claim['id']} ({METRICS[claim['metric']].title}): {words}: {shorten(claim[ending])}"
